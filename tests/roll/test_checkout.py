"""Which ROLL is accepted: one commit, with the files that matter as they are, and no gem-llm."""

from __future__ import annotations

import importlib.metadata
import subprocess
from pathlib import Path

import pytest

from gem.errors import ConfigurationError, MissingExtraError, UnsupportedVersionError
from gem_roll import checkout
from gem_roll.checkout import LAUNCHER, check_roll


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    command = ["git", *identity, "-C", str(folder), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def commit(folder: Path) -> str:
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "x")
    return git(folder, "rev-parse", "HEAD")


def test_a_folder_with_the_right_files_is_accepted(fake: Path) -> None:
    assert check_roll() == fake
    fake.joinpath("roll/pipeline/agentic/env_manager/mine.py").write_text("of no interest")
    assert check_roll(fake) == fake


def test_a_clone_of_the_commit_is_accepted(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkout, "COMMIT", commit(fake))
    assert check_roll() == fake


def test_another_commit_is_refused_even_with_the_same_files(fake: Path) -> None:
    found = commit(fake)
    with pytest.raises(
        UnsupportedVersionError,
        match=rf"commit 8eb27cc of ROLL; .* is at {found[:7]}, changed: nothing",
    ):
        check_roll()


@pytest.mark.parametrize("name", [LAUNCHER, "roll/utils/functionals.py"])
def test_a_changed_seam_is_refused(fake: Path, name: str) -> None:
    fake.joinpath(name).write_text("changed")
    with pytest.raises(UnsupportedVersionError, match="changed: "):
        check_roll()


def test_git_names_the_changed_seam(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkout, "COMMIT", commit(fake))
    fake.joinpath(LAUNCHER).write_text("changed")
    with pytest.raises(UnsupportedVersionError, match=rf"changed: {LAUNCHER}; git"):
        check_roll()


def test_a_new_file_among_the_seams_is_a_change(fake: Path) -> None:
    fake.joinpath("roll/pipeline/agentic/another.py").write_text("")
    with pytest.raises(UnsupportedVersionError, match="changed: "):
        check_roll()


def test_a_missing_home_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GEM_ROLL_HOME", raising=False)
    with pytest.raises(MissingExtraError, match="ROLL is not installed, GEM_ROLL_HOME .* git clo"):
        check_roll()


def test_a_folder_that_is_no_checkout_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is no checkout of ROLL: no roll/pipeline"):
        check_roll(tmp_path)


def test_gem_llm_beside_gem_core_is_refused(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "distributions", lambda name: iter([name]))
    with pytest.raises(ConfigurationError, match="gem-llm is installed beside gem-core"):
        check_roll()


def test_this_checkout_is_the_supported_one(home: Path) -> None:
    assert check_roll() == home
