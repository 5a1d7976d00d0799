"""What the tests of gem-skyrl share: SkyRL without a GPU, its trainers without workers."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

# Everything here needs the environment that `make env-skyrl` builds.
if importlib.util.find_spec("skyrl") is None:
    collect_ignore_glob = ["test_*.py"]
elif os.environ.get("GEM_CPU") == "1":
    from gem_cpu import skyrl_plugin

    skyrl_plugin.install()


def _world() -> ModuleType:
    spec = importlib.util.spec_from_file_location("world", Path(__file__).with_name("world.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["world"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def world() -> ModuleType:
    """The helpers of world.py."""
    return _world()
