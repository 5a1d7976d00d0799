"""A trainer's own objects for tests, which its folder has in `world.py`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def load(conftest: str) -> ModuleType:
    """Import the `world.py` beside a conftest; folders of tests are no packages.

    Args:
        conftest: Its `__file__`.
    """
    spec = importlib.util.spec_from_file_location("world", Path(conftest).with_name("world.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["world"] = module
    spec.loader.exec_module(module)
    return module
