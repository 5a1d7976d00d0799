"""`alone`: one process at a time writes a record into a folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from gem.errors import ConfigurationError, RecordError

LOCK = "lock"
"""File in the folder of a record: locked by the process that writes it, whose id it has."""

_ATTEMPTS = 100


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Create a folder, and keep other processes of this machine from writing a record into it.

    A folder that is still empty at the end, because nothing could be started, is removed.

    Raises:
        ConfigurationError: Another process writes a record into the folder; the message has its id.
        RecordError: The folder cannot be created or written.
    """
    path = folder / LOCK
    created = not folder.exists()
    held = _locked(path)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if created and [each.name for each in folder.iterdir()] == [LOCK]:
                path.unlink()
                folder.rmdir()
        # Before that, another process would lock a file that is about to be removed.
        os.close(held)


def _locked(path: Path) -> int:
    """Return the descriptor of the locked file."""
    for _ in range(_ATTEMPTS):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            held = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except FileNotFoundError:
            continue  # its folder was removed meanwhile
        except OSError as error:
            raise RecordError(f"cannot use the record folder {path.parent}: {error}") from error
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is(path, held):
                os.ftruncate(held, 0)
                os.pwrite(held, f"{os.getpid()}\n".encode(), 0)
                return held
        except BlockingIOError:
            pid = os.pread(held, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(held)
            raise ConfigurationError(
                f"another process writes a record into {path.parent}: process id {pid}; wait for "
                "it, or name another folder with --out"
            ) from None
        except OSError as error:
            os.close(held)
            raise RecordError(f"cannot lock {path}: {error}") from error
        os.close(held)
    raise RecordError(f"cannot lock {path}: it is removed again and again")


def _is(path: Path, held: int) -> bool:
    """Whether the path still names the file that was opened."""
    try:
        return os.path.samestat(path.stat(), os.fstat(held))
    except FileNotFoundError:
        return False
