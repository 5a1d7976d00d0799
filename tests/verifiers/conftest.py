"""What gem-verifiers' tests need: the environment of `make env-verifiers`, and toys."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TOYS = Path(__file__).parent / "toys"

if importlib.util.find_spec("verifiers") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    from chat_server import Stub

    sys.path.insert(0, str(TOYS))
    # Servers of tools and `vf-eval` are processes.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(TOYS), *filter(None, [os.environ.get("PYTHONPATH")])]
    )

    @pytest.fixture
    def server() -> Iterator[Stub]:
        """A chat server that answers by rule."""
        stub = Stub()
        yield stub
        stub.close()
