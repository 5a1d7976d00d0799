"""Stand-in for `pyarrow.plasma`, which pyarrow dropped in version 12.

An object is a file in shared memory. oat pickles its data itself, so bytes are enough. oat kills
its processes with SIGKILL: the leftovers of a store are removed when the next one is made.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
PREFIX = "gem-cpu-plasma-"
"""Prefix of a store's folder; the pid of its process follows."""


class ObjectID:
    """Name of an object."""

    def __init__(self, name: bytes) -> None:
        self._name = bytes(name)

    def binary(self) -> bytes:
        """Its bytes."""
        return self._name


class PlasmaClient:
    """Puts objects into a store and takes them out."""

    def __init__(self, store: str) -> None:
        self._folder = Path(store)

    def put(self, data: bytes) -> ObjectID:
        """Store bytes; return their name."""
        name = ObjectID(uuid.uuid4().bytes)
        self._file(name).write_bytes(data)
        return name

    def get(self, name: ObjectID) -> bytes:
        """Return the bytes of a name."""
        return self._file(name).read_bytes()

    def delete(self, names: Iterable[ObjectID]) -> None:
        """Delete objects."""
        for name in names:
            self._file(name).unlink()

    def _file(self, name: ObjectID) -> Path:
        return self._folder / name.binary().hex()


def connect(store: str) -> PlasmaClient:
    """Return a client of a store."""
    return PlasmaClient(store)


@contextlib.contextmanager
def start_plasma_store(
    plasma_store_memory: int = 0,
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Make a store; yield its path and the process that oat watches."""
    parent = SHARED_MEMORY if SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir())
    for left in parent.glob(f"{PREFIX}*"):
        if not Path("/proc", left.name.removeprefix(PREFIX).partition("-")[0]).exists():
            shutil.rmtree(left, ignore_errors=True)
    store = tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=parent)
    process = subprocess.Popen(["sleep", "infinity"])
    try:
        yield store, process
    finally:
        process.kill()
        shutil.rmtree(store, ignore_errors=True)
