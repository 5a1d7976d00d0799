"""The doctor says in words what is wrong."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import pytest

import gem_train.doctor
from gem.errors import MissingExtraError, UnsupportedVersionError
from gem_trl import TRAINER


def test_trl_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(gem_train.doctor, "version", absent)
    with pytest.raises(MissingExtraError, match=r'pip install "trl>=1\.15,<2"'):
        TRAINER.describe()


def test_trl_of_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gem_train.doctor, "version", lambda name: "2.0.0")
    with pytest.raises(UnsupportedVersionError, match=r"trl 2\.0\.0 .* trl >=1\.15,<2"):
        TRAINER.describe()


def test_the_doctor_is_content_with_a_sound_installation() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "gem_trl.doctor"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "functions of trl are as expected" in done.stdout
    assert "engine: transformers" in done.stdout or "engine: vllm" in done.stdout
