"""The worked example: its page is its source, and the commands of the page work."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "packages" / "gem-core" / "examples" / "own-environment"
PAGE = ROOT / "docs" / "your-own-environment.md"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BIN = ".venvs/dev/bin/"

Run = Callable[[list[str]], str]


def blocks(language: str) -> list[str]:
    return [code for kind, code in FENCE.findall(PAGE.read_text()) if kind == language]


def commands() -> list[list[str]]:
    lines = [line for block in blocks("bash") for line in block.splitlines()]
    return [shlex.split(line) for line in lines if line.startswith(BIN)]


def test_the_page_shows_the_whole_source_word_for_word() -> None:
    source = (EXAMPLE / "gem_example.py").read_text()
    shown: set[str] = set()
    for block in blocks("py"):
        assert block in source
        shown |= set(block.splitlines())
    docstring, *rest = source.splitlines()
    assert "your-own-environment.md" in docstring
    assert [line for line in rest if line not in shown] == []
    [entry_points] = blocks("toml")
    assert entry_points in (EXAMPLE / "pyproject.toml").read_text()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs commands of the page with the example installed in a folder of its own."""
    folder = tmp_path_factory.mktemp("example")
    site = folder / "site"
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))

    def start(command: list[str]) -> str:
        words = [word.replace("runs/", f"{folder}/runs/") for word in command]
        words[0] = str(Path(sys.executable).parent / words[0].removeprefix(BIN))
        if words[1:4] == ["-m", "pip", "install"]:
            editable = words.index("-e")
            words[editable:editable] = ["--no-deps", "--target", str(site)]
            words.remove("-e")
        result = subprocess.run(
            words,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
        return result.stdout + result.stderr

    install, *_ = commands()
    start(install)
    return start


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
