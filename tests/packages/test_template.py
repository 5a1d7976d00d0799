"""The template of an adapter: its copy installs under another name, and its tests pass."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import new_adapter
import pytest

NAME = "other"


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package and its tests under another name."""
    folder = tmp_path_factory.mktemp("copy")
    new_adapter.create(NAME, folder)
    return folder


def test_nothing_of_the_copy_is_called_template(copy: Path) -> None:
    files = [path for path in copy.rglob("*") if path.is_file() and path.name != "LICENSE"]
    assert len(files) > 12
    for path in files:
        assert "template" not in path.name
        assert "template" not in path.read_text().lower(), path


@pytest.mark.nightly
def test_the_copy_installs_and_its_tests_pass(copy: Path, tmp_path: Path) -> None:
    site, tests = tmp_path / "site", copy / "tests" / NAME
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    what = [copy / "packages" / f"gem-{NAME}", tests / "fake_trainer"]
    subprocess.run([*install, "--target", site, *what], check=True, timeout=300)
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--rootdir", copy, "-p", "no:cacheprovider", tests],
        env={**os.environ, "PYTHONPATH": path},
        cwd=copy,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout


@pytest.mark.parametrize("name", ["", "Two", "gem-x", "template", "core", "1st"])
def test_a_bad_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="small letters"):
        new_adapter.create(name, tmp_path)


def test_an_existing_adapter_is_left_alone(copy: Path) -> None:
    with pytest.raises(ValueError, match="exists"):
        new_adapter.create(NAME, copy)
