"""Runs that have to be kept apart."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def one_at_a_time(trainer: str) -> Iterator[None]:
    """Keep two runs of RL2 apart: its router always takes the same port for its metrics."""
    with contextlib.ExitStack() as held:
        if trainer == "rl2":
            path = Path(tempfile.gettempdir()) / f"gem-conformance-{os.getuid()}-rl2.lock"
            fcntl.flock(held.enter_context(path.open("w")), fcntl.LOCK_EX)
        yield
