"""`gem-bench compile` without a trainer: how all trainers divide the same batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gem.errors import ConfigurationError
from gem_bench import dividing
from gem_bench.__main__ import main
from gem_train.passes import Passes

ROOT = Path(__file__).parents[2]
RECIPE = str(ROOT / "recipes" / "guess-easy.toml")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No environments of trainers: the adapters of this one are asked."""
    monkeypatch.chdir(tmp_path)


def divided(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["compile", RECIPE, "--cpu", "--json", *arguments]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_every_trainer_is_in_the_table_or_says_why_not(capsys: pytest.CaptureFixture[str]) -> None:
    found = divided(capsys)
    assert list(found) == list(dividing.TRAINERS)
    assert {"reference", "verl", "trl"} <= {k for k, each in found.items() if "error" not in each}
    assert found["tinker"]["error"].startswith("policy.lora_rank: a Tinker server trains adapters")


def test_the_table_follows_the_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    once, more = (divided(capsys, "--set", f"algorithm.epochs={epochs}") for epochs in (1, 3))
    for trainer in ("reference", "verl", "trl"):
        assert more[trainer]["steps"] == 3 * once[trainer]["steps"]


def test_the_table_says_what_a_pass_is_and_who_is_not_in_it() -> None:
    lines = list(
        dividing.table(
            {
                "a": Passes("packed", "none", 4, 12_800),
                "b": Passes("fixed", "to the longest row of the batch", 4, 2_560, 2),
                "c": Passes("server", "the server decides", 2),
                "d": ConfigurationError("algorithm.loss: d has no such loss\nmore"),
            }
        )
    )
    heading, a, b, c, _, *missing = [line.split("  ") for line in lines]
    assert heading[0] == "trainer"
    assert [cell.strip() for cell in a if cell][1:] == [
        "packed: as many as fit, one after the other",
        "12,800",
        "none",
        "4",
    ]
    assert "2, side by side" in "".join(b) and "2,560" in "".join(b)
    assert "not known" in "".join(c)
    assert missing == [["not in the table:"], ["", "d: algorithm.loss: d has no such loss"]]


@pytest.mark.parametrize("argument", [["--native", "trainer.x=1"], ["--python", "/bin/python"]])
def test_what_is_of_one_trainer_needs_its_name(
    argument: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compile", RECIPE, "--cpu", *argument]) == 2
    assert "give it with --to" in capsys.readouterr().err


def test_one_trainers_command_comes_with_its_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", RECIPE, "--cpu", "--to", "reference"]) == 0
    assert "reference  dynamic: as many as fit" in capsys.readouterr().out
