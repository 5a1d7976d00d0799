"""Checkpoints of a learner: what is saved, what counts, and what a resumed run begins with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gem.errors import UnfinishedError
from gem.tasks import TaskSet
from gem_oat import learner, status_files
from gem_oat.data import Batches
from gem_train.checkpoints import Checkpoint, Checkpoints
from gem_train.experiment.tasksets import DatasetRow


class Run:
    """A learner of ten iterations without models: what it asked oat to do, in order."""

    def __init__(self, folder: Path, critic: str | None = None) -> None:
        self.done: list[tuple[str, ...]] = []
        self.args = SimpleNamespace(save_path=str(folder), max_save_num=1, max_save_mem=1000)
        self.model, self.critic = SimpleNamespace(model="policy's"), critic
        self.strategy = SimpleNamespace(
            is_rank_0=lambda: True, print=lambda *_: None, load_ckpt=self.load, save_ckpt=self.save
        )
        self.share = Batches(TaskSet.parse("gem:game:x?n=40"), 4, 1, 0)
        self.prompts_dataloader: Any = self.share
        self.skipped, self.full = 0, False
        learner.Learner._resume(self)  # type: ignore[arg-type]

    def load(self, engine: str, folder: str, tag: str) -> None:
        self.done.append(("load", engine, Path(folder).name, tag))

    def save(self, engine: str, folder: str, tag: str, *, max_num: int, max_mem: int) -> None:
        if self.full:
            raise OSError("no space left on device")
        Path(folder, tag).mkdir(parents=True)
        self.done.append(("save", engine, Path(folder).name, tag, str(max_num)))

    def sync_params_to_actors(self) -> None:
        self.done.append(("sync",))

    def checkpoint(self, steps: int) -> None:
        self.steps = steps
        learner.Learner._checkpoint(self)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One rank."""
    monkeypatch.setattr(learner, "_all_gather", lambda mine: [mine])
    yield


def test_a_run_that_ends_early_ends_with_an_error_and_says_so_to_its_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(status_files.STATUS, str(tmp_path))
    monkeypatch.setattr(learner.PPOMultiTurnLearner, "run", lambda self: None)
    early: Any = object.__new__(learner.Learner)
    early._rank, early.recording = 0, SimpleNamespace(iterations=4)
    early.strategy = SimpleNamespace(is_rank_0=lambda: True)
    early.args = SimpleNamespace(iterations=10, gem=SimpleNamespace(record_dir=str(tmp_path)))
    with pytest.raises(UnfinishedError, match="only 4 of 10 iterations"):
        early.run()
    [(_, said)] = status_files.failures(tmp_path)
    assert "only 4 of 10 iterations" in said


def test_without_a_checkpoint_a_run_begins(tmp_path: Path) -> None:
    run = Run(tmp_path)
    assert (run.done, run.skipped, len(run.prompts_dataloader)) == ([], 0, 10)


def test_a_run_goes_on_where_all_ranks_had_saved_all_engines(tmp_path: Path) -> None:
    Run(tmp_path, "critic's").checkpoint(3)
    tmp_path.joinpath("checkpoints/policy/step_00006").mkdir()  # killed while it was written
    run = Run(tmp_path, "critic's")
    assert run.done == [
        ("load", "policy's", "policy", "step_00003"),
        ("load", "critic's", "critic", "step_00003"),
        ("sync",),
    ]
    _, prompts, references = zip(*run.prompts_dataloader, strict=True)
    assert (run.skipped, len(references), references[0]) == (3, 7, ["3"] * 4)
    assert [DatasetRow.decode(text).task.seed for text in prompts[0]] == [12, 13, 14, 15]


def test_an_older_checkpoint_stays_until_the_next_is_whole(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.checkpoint(3)
    assert run.done == [("save", "policy's", "policy", "step_00003", "2")]
    run.full = True
    with pytest.raises(OSError, match="no space"):
        run.checkpoint(6)
    last = Checkpoints(str(tmp_path / "checkpoints")).last
    assert last == Checkpoint(3, "step_00003")
