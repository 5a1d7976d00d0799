"""An agent program that plays a game of GEM through its chat model, with its seed."""

from __future__ import annotations

import json
import os
import urllib.request
from pathlib import Path

import gem


def main() -> None:
    env = gem.make("game:GuessTheNumber-v0-easy", hint="range", prompt="short")
    observation, _ = env.reset(seed=int(os.environ["GEM_SEED"]))
    messages = []
    total, over, info = 0.0, False, {}
    while not over:
        messages.append({"role": "user", "content": observation})
        request = urllib.request.Request(
            f"{os.environ['OPENAI_BASE_URL']}/chat/completions",
            json.dumps({"model": "policy", "messages": messages}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            messages.append(json.load(answer)["choices"][0]["message"])
        observation, reward, terminated, truncated, info = env.step(messages[-1]["content"])
        total, over = total + reward, terminated or truncated
    result = {"reward": total, "success": info["success"], "truncated": truncated}
    Path(os.environ["GEM_REWARD"]).write_text(json.dumps(result))


main()
