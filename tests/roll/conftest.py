"""What the tests of gem-roll share; those that need a checkout of ROLL say so and are skipped."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HOME = os.environ.get("GEM_ROLL_HOME")

if importlib.util.find_spec("gem_roll") is None:
    collect_ignore_glob = ["test_*.py"]


def pytest_report_header() -> str:
    return f"ROLL: {HOME or 'GEM_ROLL_HOME names no checkout; tests that need one are skipped'}"


def load(name: str) -> ModuleType:
    """Import a helper that lies beside this file."""
    path = Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"roll_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def batches() -> ModuleType:
    """The helpers of batches.py."""
    return load("batches")


@pytest.fixture(scope="session")
def home() -> Path:
    """The checkout of ROLL that `GEM_ROLL_HOME` names."""
    if HOME is None:
        pytest.skip("needs a checkout of ROLL: GEM_ROLL_HOME is not set (docs/roll.md)")
    return Path(HOME)


@pytest.fixture(scope="session")
def imported(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Import modules of ROLL: `imported("roll.pipeline.agentic.utils")`."""
    if importlib.util.find_spec("ray") is None or os.environ.get("GEM_CPU") != "1":
        pytest.skip("needs the environment of `make env-roll`, with GEM_CPU=1")
    from gem_cpu import roll_plugin

    os.environ["ROLL_LOG_DIR"] = str(tmp_path_factory.mktemp("logs"))
    roll_plugin.install()
    sys.path.insert(0, str(home))
    return importlib.import_module


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is taken for the right one as long as nothing in it changes."""
    from gem_roll import checkout

    for pattern in checkout.SEAMS:
        path = tmp_path / pattern.replace("*", "file")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("as it was")
    monkeypatch.setattr(checkout, "DIGEST", checkout.digest(tmp_path))
    monkeypatch.setenv("GEM_ROLL_HOME", str(tmp_path))
    return tmp_path
