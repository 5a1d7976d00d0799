"""Every block of the documentation runs as printed, and what it claims is so."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomllib
from claims import run_snippet, words
from documents import LANGUAGES, PAGES, ROOT, Block, blocks

from gem_bench.runspec import hardware_keys, reference_keys

SEEN = ("recipes", "packages", "benchmarks")
"""Folders of the repository that a page's commands may name."""
KEYS = [key.name for key in reference_keys()]


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


LONG = {
    "docs/judges.md",
    "docs/tools.md",
    "docs/tutorials/compare-two-trainers.md",
    "docs/tutorials/evaluate-a-model.md",
    "docs/tutorials/train-on-pictures.md",
    "docs/watching.md",
}
"""Pages whose blocks take a minute or more each."""
RUNNABLE = [
    pytest.param(page, marks=pytest.mark.nightly) if page_id(page) in LONG else page
    for page in PAGES
    if any(block.info in ("python", "bash") and block.mark != "not run" for block in blocks(page))
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder of a page: a clone, as far as its commands look at it."""
    for name in SEEN:
        (tmp_path / name).symlink_to(ROOT / name)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for name, value in {
        "PATH": path,
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "COLUMNS": "200",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    yield tmp_path


def bash(text: str) -> str:
    """Run lines of bash until one fails; return what they printed."""
    done = subprocess.run(
        ["bash", "-e", "-c", text],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def with_words(block: Block) -> str:
    """Return the lines of a block; those that run an experiment with the words of its mark."""
    if block.mark != "run with":
        return block.source
    lines = block.source.splitlines()
    assert any(line.startswith("gem-bench run ") for line in lines), block.place
    return "\n".join(
        f"{line} {block.words}" if line.startswith("gem-bench run ") else line for line in lines
    )


@pytest.mark.parametrize("page", RUNNABLE, ids=page_id)
def test_the_blocks_of_a_page_run_in_their_order_and_do_what_they_say(
    page: Path, folder: Path
) -> None:
    names: dict[str, Any] = {"__name__": "snippet"}
    for block in blocks(page):
        if block.mark == "not run":
            continue
        if block.info == "python":
            run_snippet(block.source, names)
        elif block.info == "bash":
            bash(with_words(block))
        elif block.mark == "output of":
            assert words(bash(block.words)).startswith(words(block.source)), block.place


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_what_is_not_run_can_be_read(page: Path) -> None:
    for block in blocks(page):
        assert block.info in LANGUAGES, block.place
        if block.info in ("python", "py"):
            ast.parse(block.source)
        elif block.info == "bash":
            done = subprocess.run(
                ["bash", "-n"], input=block.source, capture_output=True, text=True, check=False
            )
            assert not done.stderr, f"{block.place}: {done.stderr}"
        elif block.info == "yaml":
            pytest.importorskip("yaml").safe_load(block.source)
        elif block.info == "toml":
            check_keys(tomllib.loads(block.source), block.place)


def check_keys(table: dict[str, Any], place: str) -> None:
    """Raise an error if a RunSpec, or a part of one, or a hardware file names an unknown key."""
    if "project" in table or "runs" in table:  # a package, a sweep
        return
    known = [key.replace("[]", "") for key in KEYS] + [key.name for key in hardware_keys()]
    for key in flat(table):
        key = re.sub(r"^judge\.[^.]+\.", "judge.<name>.", key)
        taken = any(key == name or key.startswith(f"{name}.") for name in known)
        assert taken, f"{place}: {key} is no setting"


def flat(value: Any, before: str = "") -> Iterator[str]:
    """Yield the dotted keys of a table; lists of tables count as tables."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        for each in value:
            yield from flat(each, before)
    elif isinstance(value, dict) and value:
        for key, each in value.items():
            yield from flat(each, f"{before}.{key}" if before else key)
    else:
        yield before


def test_an_unknown_key_is_noticed() -> None:
    check_keys({"algorithm": {"gamma": 0.9}, "env": [{"id": "a", "params": {"x": 1}}]}, "here")
    with pytest.raises(AssertionError, match=r"algorithm\.gama is no setting"):
        check_keys({"algorithm": {"gama": 0.9}}, "here")


def test_a_command_that_fails_is_noticed(folder: Path) -> None:
    with pytest.raises(AssertionError):
        bash("gem info game:Nothing-v0\necho after")


@pytest.mark.parametrize(
    "wrong",
    [
        "x = 1.0  # 2.0",
        "x = 1.0\nx  # 2.0",
        "x = {'a': 1}\nx['a']  # 2",
        "print('3 4 5')  # 3 5 ...",
        "if True:\n    print(6)  # 7",
    ],
)
def test_a_claim_that_is_wrong_is_noticed(wrong: str) -> None:
    with pytest.raises(AssertionError):
        run_snippet(wrong, {})


def test_claims_that_are_right_are_counted_and_prose_is_not() -> None:
    right = "x = 1.0  # 1.0\nx  # one\nprint('3 4 5')  # 3 4 ...\nx  # 1.0"
    assert run_snippet(right, {}) == 3
