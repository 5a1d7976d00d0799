"""An agent program: asks its model for a sum, twice at most (docs/bridges.md)."""

import json
import os
import urllib.request
from pathlib import Path

seed = int(os.environ["GEM_SEED"])
messages = [{"role": "user", "content": f"{seed % 7} + {seed % 5} = ?"}]
right = False
while not right and len(messages) < 4:
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": "policy", "messages": messages}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        reply = json.load(answer)["choices"][0]["message"]
    right = reply["content"].strip() == str(seed % 7 + seed % 5)
    messages += [reply, {"role": "user", "content": "No. Try again."}]
result = {"reward": float(right), "success": right}
Path(os.environ["GEM_REWARD"]).write_text(json.dumps(result))
