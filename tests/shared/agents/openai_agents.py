"""An agent of the package openai-agents, with a tool: what does a letter grid spell?

Everything besides the tool and the reward is the package's own: its loop, its client, streaming.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from agents import (
    Agent,
    Runner,
    function_tool,
    set_default_openai_api,
    set_tracing_disabled,
)
from agents.exceptions import MaxTurnsExceeded

WORDS = ("lamp", "river", "stone", "cloud", "maple")


async def main() -> None:
    word = WORDS[int(os.environ["GEM_SEED"]) % len(WORDS)]

    @function_tool
    def letter(position: int) -> str:
        """Return the letter at a position of the hidden word, from 1."""
        return word[position - 1] if 1 <= position <= len(word) else "none"

    set_tracing_disabled(True)
    set_default_openai_api("chat_completions")
    agent = Agent(
        name="Speller",
        instructions="Find the hidden word with the tool, then say it alone.",
        model="policy",
        tools=[letter],
    )
    result = {"reward": 0.0, "success": False, "truncated": False}
    try:
        if "--stream" in sys.argv:
            run = Runner.run_streamed(agent, f"The word has {len(word)} letters.", max_turns=4)
            async for _ in run.stream_events():
                pass
        else:
            run = await Runner.run(agent, f"The word has {len(word)} letters.", max_turns=4)
        right = run.final_output.strip() == word
        result |= {"reward": float(right), "success": right}
    except MaxTurnsExceeded:
        result["truncated"] = True
    Path(os.environ["GEM_REWARD"]).write_text(json.dumps(result))


asyncio.run(main())
