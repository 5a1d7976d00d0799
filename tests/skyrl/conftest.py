"""What the tests of gem-skyrl share: SkyRL without a GPU, its trainers without workers."""

from __future__ import annotations

import importlib.util
import os
from types import ModuleType

import pytest
import worlds

# Everything here needs the environment that `make env-skyrl` builds.
if importlib.util.find_spec("skyrl") is None:
    collect_ignore_glob = ["test_*.py"]
elif os.environ.get("GEM_CPU") == "1":
    from gem_cpu import skyrl_plugin

    skyrl_plugin.install()


@pytest.fixture(scope="session")
def world() -> ModuleType:
    """The helpers of world.py."""
    return worlds.load(__file__)
