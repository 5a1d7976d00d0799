"""Status files are whole where the launcher looks for them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gem_oat.status_files import STATUS, done, failures, is_done, reported


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(STATUS, str(tmp_path))
    return tmp_path


def fail(name: str, error: Exception) -> None:
    with pytest.raises(type(error)), reported(name):
        raise error


def test_failures_are_found_in_the_order_in_which_they_happened(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fail("learner 1", ValueError("the loss is not a number\nat all"))
    fail("actor 0", RuntimeError("late"))
    assert failures(folder) == [
        (os.getpid(), "learner 1: ValueError: the loss is not a number\nat all"),
        (os.getpid(), "actor 0: RuntimeError: late"),
    ]
    assert not is_done(folder)
    assert "Traceback" in capsys.readouterr().err


def test_a_training_is_complete_when_a_process_says_so(folder: Path) -> None:
    with reported("learner 0"):
        assert not is_done(folder)
    done()
    assert is_done(folder)
    assert failures(folder) == []


def test_an_interrupt_is_no_failure_of_the_process(folder: Path) -> None:
    with pytest.raises(KeyboardInterrupt), reported("learner 0"):
        raise KeyboardInterrupt
    assert failures(folder) == []


def test_a_half_written_file_is_not_found(folder: Path) -> None:
    (folder / "00000000000000000001-7.failed.partial").write_text("learner 0: Val")
    (folder / "done.partial").touch()
    assert failures(folder) == []
    assert not is_done(folder)


def test_without_a_folder_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(STATUS, raising=False)
    monkeypatch.chdir(tmp_path)
    fail("learner 0", ValueError("why"))
    done()
    assert list(tmp_path.iterdir()) == []
