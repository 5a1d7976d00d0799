"""What a killed run leaves: whole checkpoints are found, everything half done is taken away."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from gem_openrlhf.resume import clear_leftovers
from gem_openrlhf.settings import Settings

MODELS = ("_actor", "_critic")


def saved(folder: Path, model: str, *steps: int, marked: bool = True) -> None:
    """Checkpoints as OpenRLHF saves them one after the other; the last is unmarked if half done."""
    for step in steps:
        place = folder / model / f"global_step{step}"
        place.mkdir(parents=True)
        (place / "mp_rank_00_model_states.pt").touch()
        if marked or step != steps[-1]:
            (place / "metric.json").touch()
            (folder / model / "latest").write_text(place.name)


def begin(folder: Path, *, critic: bool = False, load: bool = True) -> None:
    args = SimpleNamespace(
        ckpt=SimpleNamespace(path=str(folder), load_enable=load),
        critic=SimpleNamespace(model_name_or_path="model" if critic else None),
    )
    clear_leftovers(args, Settings())


def marker(folder: Path, model: str) -> str:
    return (folder / model / "latest").read_text()


def test_without_checkpoints_nothing_is_done(tmp_path: Path) -> None:
    begin(tmp_path / "checkpoints", critic=True)
    assert not list(tmp_path.iterdir())


def test_the_last_whole_checkpoint_is_marked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved(tmp_path, "_actor", 9, 12)
    begin(tmp_path)
    assert marker(tmp_path, "_actor") == "global_step12"
    assert "goes on from the checkpoint" in caplog.text


def test_one_that_another_rank_had_not_saved_is_removed(tmp_path: Path) -> None:
    """DeepSpeed's rank 0 marks a checkpoint when it has saved its own part."""
    saved(tmp_path, "_actor", 9, 12, marked=False)
    (tmp_path / "_actor" / "latest").write_text("global_step12")
    begin(tmp_path)
    assert marker(tmp_path, "_actor") == "global_step9"
    assert not (tmp_path / "_actor" / "global_step12").exists()


@pytest.mark.parametrize(("ahead", "behind"), [MODELS, MODELS[::-1]])
def test_actor_and_critic_go_on_from_the_same_update(
    ahead: str, behind: str, tmp_path: Path
) -> None:
    saved(tmp_path, ahead, 6, 9, 12)
    saved(tmp_path, behind, 6, 9)
    begin(tmp_path, critic=True)
    assert [marker(tmp_path, model) for model in MODELS] == ["global_step9"] * 2
    assert not (tmp_path / ahead / "global_step12").exists()


@pytest.mark.parametrize("missing", ["rank", "critic"])
def test_a_first_checkpoint_that_is_not_whole_begins_anew(
    missing: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved(tmp_path, "_actor", 3, marked=missing != "rank")
    for _ in range(2):  # a run may be killed there more than once
        begin(tmp_path, critic=missing == "critic")
        assert not (tmp_path / "_actor").exists()
        assert (tmp_path / "_actor.broken" / "global_step3").exists()
        assert "begins anew" in caplog.text
        saved(tmp_path, "_actor", 3, marked=missing != "rank")


def test_a_run_that_does_not_load_keeps_everything(tmp_path: Path) -> None:
    saved(tmp_path, "_actor", 3, marked=False)
    begin(tmp_path, load=False)
    assert (tmp_path / "_actor" / "global_step3").exists()


def test_half_an_evaluation_is_not_taken_for_the_next_ones(tmp_path: Path) -> None:
    (tmp_path / "evaluated").mkdir()
    (tmp_path / "evaluated" / "host-1.jsonl").write_text("[]\n")
    clear_leftovers(
        SimpleNamespace(ckpt=SimpleNamespace(load_enable=False)), Settings(record_dir=str(tmp_path))
    )
    assert not (tmp_path / "evaluated").exists()
