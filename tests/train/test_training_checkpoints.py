"""The saved states of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gem.errors import RecordError
from gem_train.checkpoints import (
    CHECKPOINTS,
    Checkpoint,
    Checkpoints,
    read_state,
    save_state,
)


def test_the_newest_state_is_found_again(tmp_path: Path) -> None:
    saved = Checkpoints(str(tmp_path))
    assert saved.last is None
    for iteration in (2, 4):
        saved.add(Checkpoint(iteration, f"state-{iteration}"))
    assert saved.last == Checkpoints(str(tmp_path)).last == Checkpoint(4, "state-4")


def test_without_a_folder_the_newest_is_known_until_the_end() -> None:
    saved = Checkpoints(None)
    saved.add(Checkpoint(2, "state"))
    assert saved.last == Checkpoint(2, "state")


def test_a_line_that_was_cut_off_is_no_state_and_spoils_no_other(tmp_path: Path) -> None:
    Checkpoints(str(tmp_path)).add(Checkpoint(2, "a"))
    with (tmp_path / CHECKPOINTS).open("a", encoding="utf-8") as file:
        file.write('{"iteration": 4, "st')
    saved = Checkpoints(str(tmp_path))
    assert saved.last == Checkpoint(2, "a")
    saved.add(Checkpoint(4, "b"))
    lines = (tmp_path / CHECKPOINTS).read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["iteration"] for line in lines] == [2, 4]


@pytest.mark.parametrize(
    ("line", "message"),
    [("{]", "line 1 is damaged"), ('{"state": 1}', "line 1 is damaged: iteration is missing")],
)
def test_a_damaged_list_is_refused(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / CHECKPOINTS).write_text(line + "\n")
    with pytest.raises(RecordError, match=message):
        Checkpoints(str(tmp_path))


def test_baselines_of_roles_are_read_as_they_were_saved(tmp_path: Path) -> None:
    path = tmp_path / "checkpoints" / "estimator_3.json"
    for state in ({}, {"first": 0.1, "second": -1 / 3}):
        save_state(path, state)
        assert read_state(path) == state
    assert [each.name for each in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("text", [None, "", '{"first": 0.', "[1]", '{"first": null}'])
def test_baselines_that_cannot_be_read_are_named_with_what_to_do(
    tmp_path: Path, text: str | None
) -> None:
    path = tmp_path / "estimator_3.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(RecordError, match=r"estimator_3\.json: .* put the file back, or resume"):
        read_state(path)
