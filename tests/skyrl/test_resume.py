"""What a killed run leaves: the last whole checkpoint counts, everything later is set aside."""

from __future__ import annotations

import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from gem_skyrl.resume import LATEST, STATE, clear_leftovers, clear_published


def saved(folder: Path, *steps: int, latest: str | None = None) -> None:
    """Checkpoints, and the text of the file that names the last one."""
    for step in steps:
        folder.joinpath(f"global_step_{step}").mkdir(parents=True)
    if latest is not None:
        folder.joinpath(LATEST).write_text(latest)


def steps(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("global_step_*"))


def test_without_checkpoints_nothing_is_done(tmp_path: Path) -> None:
    assert clear_leftovers(tmp_path / "checkpoints") is None
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("latest", "whole", "left"),
    [
        ("6", 6, ["global_step_3", "global_step_6"]),
        # Killed while it saved the third one, or while it wrote this file.
        ("9", 9, ["global_step_3", "global_step_6", "global_step_9"]),
        ("", 9, ["global_step_3", "global_step_6", "global_step_9"]),
        # Killed while it saved the first one.
        (None, None, []),
    ],
)
def test_the_last_whole_checkpoint_is_named(
    latest: str | None, whole: int | None, left: list[str], tmp_path: Path
) -> None:
    saved(tmp_path, 3, 6, 9, latest=latest)
    assert clear_leftovers(tmp_path) == whole
    assert steps(tmp_path) == left
    assert tmp_path.joinpath(LATEST).exists() == (whole is not None)
    assert whole is None or tmp_path.joinpath(LATEST).read_text() == str(whole)


@pytest.mark.parametrize("latest", [None, "20"])
def test_checkpoints_that_may_be_of_another_run_are_kept(
    latest: str | None, tmp_path: Path
) -> None:
    """SkyRL's default folder is one for all runs."""
    kept = "aside_1.global_step_40", "aside_2.global_step_40"
    for _ in kept:
        saved(tmp_path, 40, latest=latest)
        tmp_path.joinpath("global_step_40", "model.pt").write_text("weights")
        tmp_path.joinpath("global_step_20").mkdir(exist_ok=True)
        clear_leftovers(tmp_path)
    assert steps(tmp_path) == ["global_step_20"] * (latest is not None)
    assert [tmp_path.joinpath(name, "model.pt").read_text() for name in kept] == ["weights"] * 2


def test_the_asynchronous_loop_needs_a_state_of_its_own(tmp_path: Path) -> None:
    saved(tmp_path, 3, 6, 9, latest="9")
    with zipfile.ZipFile(tmp_path / "global_step_3" / STATE, "w") as archive:
        archive.writestr("data", "whole")
    tmp_path.joinpath("global_step_6", STATE).write_bytes(b"PK torn")
    assert clear_leftovers(tmp_path, asynchronous=True) == 3
    assert steps(tmp_path) == ["global_step_3"]
    assert tmp_path.joinpath(LATEST).read_text() == "3"


def test_weights_that_were_published_before_are_removed(tmp_path: Path) -> None:
    published, received = tmp_path / "published", tmp_path / "received"
    for path in (published / "delta-00000004", received / ".skyrl_weight_sync"):
        path.mkdir(parents=True)
    (published / "notes.txt").touch()
    (received / "weights").mkdir()
    places = SimpleNamespace(sync_dir=str(published), local_checkpoint_dir=str(received))
    engine = SimpleNamespace(weight_sync_backend="nccl", delta_weight_sync=places)
    clear_published(engine)
    assert (published / "delta-00000004").exists()
    engine.weight_sync_backend = "delta"
    clear_published(engine)
    assert [path.name for path in published.iterdir()] == ["notes.txt"]
    assert not list(received.iterdir())
