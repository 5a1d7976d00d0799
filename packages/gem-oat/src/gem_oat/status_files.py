"""Status files of a run's processes: that the training is complete, or why a process failed.

For launchers that do not see how the processes end that they have started: a process calls `done`,
or runs in `reported`; the launcher names the folder in the environment variable `STATUS` and reads
it with `is_done` and `failures`.
"""

from __future__ import annotations

import contextlib
import os
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

STATUS = "GEM_STATUS"
"""Environment variable: folder of the status files; without it none are written."""

_DONE, _FAILED = "done", ".failed"


@contextlib.contextmanager
def reported(name: str) -> Iterator[None]:
    """Print an exception that ends a process, write it to a status file, and re-raise it.

    Args:
        name: Of the process, for the message.
    """
    try:
        yield
    except Exception as error:
        # Print first: the launcher may kill this process once the status file exists.
        with contextlib.suppress(OSError):
            traceback.print_exc()
        message = f"{name}: {type(error).__name__}: {error}"
        _write(f"{time.time_ns():020d}-{os.getpid()}{_FAILED}", message)
        raise


def done() -> None:
    """Write that the training is complete."""
    _write(_DONE, "")


def is_done(folder: Path) -> bool:
    """Return whether a process wrote that the training is complete."""
    return (folder / _DONE).exists()


def failures(folder: Path) -> list[tuple[int, str]]:
    """Return the id and the message of each process that failed, the first one first."""
    paths = sorted(folder.glob(f"*{_FAILED}"))
    return [(int(path.stem.split("-")[1]), path.read_text(encoding="utf-8")) for path in paths]


def _write(name: str, text: str) -> None:
    """Write a file that readers find whole or not at all."""
    folder = os.environ.get(STATUS)
    if folder is not None:
        path = Path(folder, f"{name}.partial")
        path.write_text(text, encoding="utf-8")
        path.replace(path.with_suffix(""))
