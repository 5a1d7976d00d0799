"""What docs/bridges.md shows of verifiers and openai-agents runs with the real packages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from claims import run_snippet
from documents import ROOT, blocks

import gem

PAGE = ROOT / "docs" / "bridges.md"
SPELLER = ROOT / "packages" / "gem-serve" / "examples" / "speller.py"


def test_the_blocks_about_verifiers_run_and_do_what_they_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", [*sys.path])
    found = [b for b in blocks(PAGE) if b.info == "python" and b.words == "package verifiers"]
    assert len(found) == 1
    claims = sum(run_snippet(block.source, {"__name__": "snippet"}) for block in found)
    assert claims == 2
    example = Path("packages/gem-verifiers/examples/sums.py").read_text()
    assert example.partition("\n\n")[2] in PAGE.read_text()


def call(*positions: int) -> str:
    form = '<tool_call>{{"name": "letter", "arguments": {{"position": {}}}}}</tool_call>'
    return "".join(map(form.format, positions))


@pytest.mark.parametrize("how", ["", " --stream"])
def test_an_agent_of_openai_agents_is_an_environment(how: str) -> None:
    """Its loop, its client and its streaming are its own; tools are native calls for it."""
    with gem.make(f"agent:{sys.executable} {SPELLER}{how}") as env:
        observation, _ = env.reset(seed=0)
        assert isinstance(observation, str)
        assert observation.startswith("You may call tools.") and '"letter"' in observation
        assert observation.endswith("Find the word, say it.\n\nThe word has 4 letters.")
        results = [f"<tool_response>\n{letter}\n</tool_response>" for letter in "lamp"]
        step = env.step("I look it up. " + call(1, 2, 3, 4))
        assert step == ("\n\n".join(results), 0.0, False, False, {})
        assert env.step("lamp")[1:4] == (1.0, True, False)
        # Its own limit of turns.
        env.reset(seed=1)
        steps = [env.step(call(turn)) for turn in range(1, 5)]
        assert [step[1:4] for step in steps[:3]] == [(0.0, False, False)] * 3
        assert steps[3][1:4] == (0.0, False, True)
