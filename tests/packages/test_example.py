"""The worked example: its page is its source, and the commands of the page work."""

from __future__ import annotations

import re

import pytest
from examples import BIN, EXAMPLES, Example, Run

EXAMPLE = Example("own-environment", "gem_example")
commands = EXAMPLE.commands


def test_the_page_shows_the_whole_source_word_for_word() -> None:
    shown: set[str] = set()
    for block in EXAMPLE.blocks("py"):
        assert block in EXAMPLE.source
        shown |= set(block.splitlines())
    docstring, *rest = EXAMPLE.source.splitlines()
    assert EXAMPLE.page in docstring
    assert [line for line in rest if line not in shown] == []
    [entry_points] = EXAMPLE.blocks("toml")
    assert entry_points in (EXAMPLES / EXAMPLE.name / "pyproject.toml").read_text()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs commands of the page with the example installed in a folder of its own."""
    return EXAMPLE.installed(tmp_path_factory.mktemp("example"))


def said(run: Run, *words: str) -> str:
    """Return what the one command of the page that has these words prints."""
    [command] = [one for one in commands() if set(words) <= set(one)]
    return run(command)


def test_an_installed_package_adds_ids_and_a_tool(run: Run) -> None:
    listed = said(run, "list")
    assert re.findall(r"^example:\S+", listed, re.M) == [
        "example:Price-v0",
        "example:Price-v0-wide",
    ]
    assert "A price to find; every guess is told" in listed
    told = said(run, "info")
    assert "\n  high: int = 10\n      Highest possible price, above `low`.\n" in told
    assert "oracle: wins every start" in told
    assert "won after" in said(run, "play")


@pytest.mark.parametrize("tool", [[], ["--param", "tools=middle"]])
def test_it_passes_every_check_without_a_warning(run: Run, tool: list[str]) -> None:
    [command] = [one for one in commands() if "check" in one and ("--param" in one) == bool(tool)]
    assert command[3:] == tool
    assert run(command).splitlines()[0] == "example:Price-v0: ok"


def test_its_tool_answers_calls_and_refuses_others(run: Run) -> None:
    code = (
        "import gem\n"
        "env = gem.make('example:Price-v0', tools='middle')\n"
        "env.reset(seed=0)\n"
        "for call in ('<middle>4 10</middle>', '<middle>four</middle>'):\n"
        "    print(env.step(call)[0].splitlines()[0])\n"
    )
    answers = run([f"{BIN}python", "-c", code]).splitlines()
    assert answers == [
        "The middle is 7.",
        "[Tool error: middle takes two numbers, such as 4 10]",
    ]


@pytest.mark.slow
def test_three_iterations_change_the_policy_and_can_be_replayed(run: Run) -> None:
    told = said(run, "--to", "reference")
    assert "finished: 3 of 3 iterations" in told
    assert "warning" not in told
    assert said(run, "replay") == "96 of 96 episodes are the same again\n"
