"""What the tests of gem-rl2 share: RL2 without a GPU, a tokenizer, a scripted server."""

from __future__ import annotations

import importlib.util
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gem.errors import GemError


def _prepare() -> bool:
    """Make RL2 importable; whether it is there."""
    if importlib.util.find_spec("gem_rl2") is None or os.environ.get("GEM_CPU") != "1":
        return False
    from gem_cpu import rl2_plugin
    from gem_rl2.release import check_rl2

    try:
        rl2 = check_rl2()
    except GemError:
        return False
    rl2_plugin.install()
    sys.path[:0] = [rl2.path, *rl2_plugin.folders().split(os.pathsep)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module("RL2.trainer.ppo")
    return True


# Everything here needs the environment that `make env-rl2` builds.
if not _prepare():
    collect_ignore_glob = ["test_*.py"]


def load(name: str) -> ModuleType:
    """Import a helper that lies beside this file."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def world() -> ModuleType:
    """The helpers of world.py."""
    return load("world")


@pytest.fixture
def server(world: ModuleType, tokenizer: Any) -> Iterator[Callable[..., Any]]:
    """Start a server from what it answers; it answers as SGLang does, see `world.Server`."""
    started: list[Any] = []

    def start(answers: list[Any]) -> Any:
        started.append(world.Server(tokenizer, answers))
        return started[-1]

    yield start
    for each in started:
        each.close()
