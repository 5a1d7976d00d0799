"""Dataset files: rows made from task set URIs, and the command that writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gem.errors import ConfigurationError, UnknownEnvError, UnknownParameterError
from gem.tasks import Task
from gem_train.experiment.tasksets import (
    DatasetRow,
    EvalSampling,
    dataset_command,
    dataset_rows,
    dataset_text,
)

GAME = "gem:game:GuessTheNumber-v0"


GREEDY = EvalSampling(temperature=0.0)


def line(row: DatasetRow) -> dict[str, Any]:
    return {"label": row.encode(), "from": row.name}


def test_rows_are_the_tasks_of_all_sources_in_order() -> None:
    texts = [f"{GAME}?n=2&seed=5#name=a", f"{GAME}?n=1&hint=range#temperature=0.5"]
    rows = list(dataset_rows(texts, evaluation=False))
    assert [(row.number, row.task.seed, row.sampling) for row in rows] == [
        (0, 5, None),
        (1, 6, None),
        (2, 0, EvalSampling(temperature=0.5)),
    ]
    assert [row.name for row in rows] == ["a", "a", "game:GuessTheNumber-v0"]
    assert {row.evaluation for row in rows} == {None}


def test_a_row_survives_its_column() -> None:
    for row in (
        DatasetRow(
            Task("game:GuessTheNumber-v0", 3, {"hint": "range"}), GREEDY, 7, evaluation="same"
        ),
        DatasetRow(Task("game:GuessTheNumber-v0", 3)),
    ):
        assert DatasetRow.decode(row.encode()) == row


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("game:GuessTheNumber-v0", ConfigurationError),
        ("gem:game:Guess-v0?n=1", UnknownEnvError),
        (f"{GAME}?n=1&sides=6", UnknownParameterError),
    ],
)
def test_what_cannot_be_played_is_refused_before_a_row_is_made(
    text: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        dataset_text(line, [f"{GAME}?n=1", text], evaluation=False)


def test_two_evaluations_of_one_name_are_refused() -> None:
    texts = [f"{GAME}?n=1", f"{GAME}?n=1&seed=1"]
    assert dataset_text(line, texts, evaluation=False).count("\n") == 2
    with pytest.raises(ConfigurationError, match="two evaluations are called"):
        dataset_text(line, texts, evaluation=True)


def test_a_training_file_says_no_sampling_of_its_own() -> None:
    texts = [f"{GAME}?n=1", f"{GAME}?n=1#name=greedy&temperature=0"]
    assert dataset_text(line, texts, evaluation=True).count("\n") == 2
    with pytest.raises(ConfigurationError, match=r"temperature=0': .* --eval"):
        dataset_text(line, texts, evaluation=False)


def test_the_command_writes_what_the_function_returns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, uri = tmp_path / "new" / "eval.jsonl", f"{GAME}?n=3#name=same"
    known = {"program": "python -m mine", "trainer": "Mine"}
    assert dataset_command(line, ["--eval", str(file), uri], **known) == 0
    assert file.read_text() == dataset_text(line, [uri], evaluation=True)
    assert "3 tasks" in capsys.readouterr().out
    entry = json.loads(file.read_text().splitlines()[2])
    assert DatasetRow.decode(entry["label"]).evaluation == entry["from"] == "same"
    assert dataset_command(line, [str(file), "gem:none?n=1"], **known) == 2
    assert "none" in capsys.readouterr().err


@pytest.mark.parametrize("how", ["seat=all", "opponent=self"])
def test_a_game_against_itself_can_be_a_dataset(how: str) -> None:
    rows = list(dataset_rows([f"gem:multi:Nim-v0?n=2&{how}"], evaluation=False))
    assert [row.task.seed for row in rows] == [0, 1]
    with pytest.raises(ConfigurationError, match="piles must be"):
        list(dataset_rows([f"gem:multi:Nim-v0?n=2&{how}&piles=[0]"], evaluation=False))
