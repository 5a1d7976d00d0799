"""Words that the processes of a run leave when the training is complete, or when one has failed.

For launchers that do not see how the processes end that they have started: a process calls `done`,
or runs in `reported`; whoever started it names the folder in the environment variable `STATUS` and
looks at `is_done` and `failures`.
"""

from __future__ import annotations

import contextlib
import os
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

STATUS = "GEM_STATUS"
"""Environment variable: folder in which processes leave their words; without it they leave none."""

_DONE, _FAILED = "done", ".failed"


@contextlib.contextmanager
def reported(name: str) -> Iterator[None]:
    """Leave word of an exception that ends a process, and print it there.

    Args:
        name: Of the process, for the message.
    """
    try:
        yield
    except Exception as error:
        # First: whoever finds the word may end this process at once.
        with contextlib.suppress(OSError):
            traceback.print_exc()
        word = f"{name}: {type(error).__name__}: {error}"
        _leave(f"{time.time_ns():020d}-{os.getpid()}{_FAILED}", word)
        raise


def done() -> None:
    """Leave word that the training is complete."""
    _leave(_DONE, "")


def is_done(folder: Path) -> bool:
    """Return whether a process left word that the training is complete."""
    return (folder / _DONE).exists()


def failures(folder: Path) -> list[tuple[int, str]]:
    """Return the id and the word of each process that failed, the first one first."""
    paths = sorted(folder.glob(f"*{_FAILED}"))
    return [(int(path.stem.split("-")[1]), path.read_text(encoding="utf-8")) for path in paths]


def _leave(name: str, word: str) -> None:
    """Leave a word where it is found as a whole."""
    folder = os.environ.get(STATUS)
    if folder is not None:
        path = Path(folder, f"{name}.partial")
        path.write_text(word, encoding="utf-8")
        path.replace(path.with_suffix(""))
