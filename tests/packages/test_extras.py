"""The extras of gem-core: what is said to need one does, and the page says so."""

from __future__ import annotations

import subprocess
import sys

import extras
import pytest

from gem.__main__ import main
from gem.parts import EXTRAS, HUB, MODULES, needed

PROGRAM = """
import sys
for module in {modules!r}:
    sys.modules[module] = None
import gem
from gem.errors import MissingExtraError
from gem.parts import needed
for id in {ids!r}:
    extra = needed(id, gem.spec(id).kwargs.get("source"))
    try:
        gem.make(id).reset(seed=0)
        print(id, extra, "starts")
    except MissingExtraError as error:
        print(id, extra, f"gem-core[{{extra}}]" in str(error))
"""
IDS = ["game:Wordle-v0", "math:GSM8K", "qa:HotpotQA", "eval:MATH500", "openspiel:tic_tac_toe"]


def test_every_extra_is_described_and_named_by_what_needs_it() -> None:
    known = set(extras.extras())
    together = set(extras.extras()["all"][0][9:-1].split(","))
    # verifiers pins an older openai than others bring.
    assert set(extras.ABOUT) == known == together | {"all", "verifiers"}
    named = {extra for kind in EXTRAS.values() for extra in kind.values()}
    assert named | {extra for extra, _ in MODULES.values()} | {HUB[0]} <= known


def test_what_is_marked_does_not_start_without_its_extra_and_all_else_does() -> None:
    modules = [module for _, module in (*MODULES.values(), HUB)]
    ids = [*IDS, next(id for id in extras.ids()["textarena"])]
    program = PROGRAM.format(modules=modules, ids=ids)
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    told = [line.split() for line in ran.stdout.splitlines()]
    assert [line[0] for line in told] == ids, ran.stderr
    assert told[0][1:] == ["starts"]
    assert [line[1:] for line in told[1:]] == [
        ["data", "True"],
        ["data", "True"],
        ["data", "True"],
        ["openspiel", "True"],
        ["textarena", "True"],
    ]


def test_a_list_for_a_person_marks_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gem.parts.find_spec", lambda module: None)
    assert needed("rg:gcd") == "reasoning-gym"
    assert needed("game:Wordle-v0") == needed("math:GSM8K", "sample") == ""
    assert main(["list", "math:GSM8K"]) == 0
    assert capsys.readouterr().out == "math:GSM8K\n"  # another program reads it
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(["list", "math:GSM8K"]) == 0
    expected = "math:GSM8K  (needs 'gem-core[data]' or --param source=sample)\n"
    assert capsys.readouterr().out == expected
