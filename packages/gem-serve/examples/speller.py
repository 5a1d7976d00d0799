"""An agent of the package openai-agents, with a tool (docs/bridges.md)."""

import asyncio
import json
import os
import sys
from pathlib import Path

from agents import Agent, Runner, function_tool, set_default_openai_api, set_tracing_disabled
from agents.exceptions import MaxTurnsExceeded

word = ("lamp", "river", "stone")[int(os.environ["GEM_SEED"]) % 3]


@function_tool
def letter(position: int) -> str:
    """Return the letter at a position of the hidden word, from 1."""
    return word[position - 1] if 1 <= position <= len(word) else "none"


async def spelled() -> str:
    """Let the agent play; return its last reply."""
    set_tracing_disabled(True)
    set_default_openai_api("chat_completions")
    agent = Agent(
        name="Speller", instructions="Find the word, say it.", model="policy", tools=[letter]
    )
    task = f"The word has {len(word)} letters."
    if "--stream" not in sys.argv:
        return (await Runner.run(agent, task, max_turns=4)).final_output
    run = Runner.run_streamed(agent, task, max_turns=4)
    async for _ in run.stream_events():
        pass
    return run.final_output


result = {"reward": 0.0, "truncated": False}
try:
    result["reward"] = float(asyncio.run(spelled()).strip() == word)
except MaxTurnsExceeded:
    result["truncated"] = True
Path(os.environ["GEM_REWARD"]).write_text(json.dumps(result))
