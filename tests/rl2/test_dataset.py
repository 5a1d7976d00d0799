"""Row files: made from task set URIs, and read by RL2 itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gem.errors import ConfigurationError
from gem.tasks import Task
from gem_rl2.dataset import line, read
from gem_rl2.hook import in_order
from gem_rl2.make_dataset import main
from gem_train.experiment.tasksets import DatasetRow, dataset_text

URI = "gem:game:GuessTheNumber-v0-easy?n=12&seed=100&prompt=short"


def rows(texts: list[str], *, evaluation: bool) -> list[DatasetRow]:
    """The rows of a file as RL2's processes read them."""
    text = dataset_text(line, texts, evaluation=evaluation)
    return [read(json.loads(each)) for each in text.splitlines()]


def test_a_row_survives_its_line() -> None:
    [row, *_] = rows([f"{URI}#name=same&temperature=0"], evaluation=True)
    assert row.task == Task("game:GuessTheNumber-v0-easy", 100, {"prompt": "short"})
    assert (row.number, row.evaluation) == (0, "same")
    assert row.sampling is not None and row.sampling.temperature == 0.0


def test_rows_of_several_sources_are_numbered_through() -> None:
    found = rows([f"{URI}#name=a", f"{URI}#name=b"], evaluation=True)
    assert [row.number for row in found] == list(range(24))
    assert [row.evaluation for row in found] == ["a"] * 12 + ["b"] * 12
    assert {row.evaluation for row in rows([URI], evaluation=False)} == {None}


def test_evaluations_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="two evaluations are called"):
        rows([URI, URI], evaluation=True)


@pytest.mark.parametrize("uri", ["game:X", "gem:game:Guess-v0?n=3", "gem:game:Sudoku-v0?oops=1"])
def test_what_cannot_be_played_is_not_written(
    uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "train.jsonl"), uri]) == 2
    assert capsys.readouterr().err
    assert not (tmp_path / "train.jsonl").exists()


@pytest.mark.parametrize("row", [{"prompt": "hi"}, {"extra_info": {}}, {"extra_info": None}])
def test_rows_of_others_are_refused(row: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"gem_rl2\.make_dataset"):
        read(row)


def seeds(loader: Any) -> list[int]:
    """Seeds of the tasks of batches of four, as RL2 takes them out of its loader."""
    return [read(row).task.seed for batch in loader for row in batch]


def loader(world: Any, file: Path, tokenizer: Any) -> Any:
    config = world.config(
        f"{world.TRAIN}.path={file}",
        f"{world.TRAIN}.responses_per_prompt=1",
    )
    from RL2.datasets import RLDataset, get_dataloader

    return get_dataloader(RLDataset(config.train_data, tokenizer), 4)


@pytest.mark.filterwarnings("ignore")
def test_rl2_plays_the_file_in_its_order_if_asked(
    world: Any, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "train.jsonl"
    assert main([str(file), URI]) == 0
    theirs = loader(world, file, tokenizer)
    expected = list(range(100, 112))
    assert seeds(in_order(theirs)) == expected
    shuffled = seeds(theirs)
    assert sorted(shuffled) == expected
    assert shuffled != expected
