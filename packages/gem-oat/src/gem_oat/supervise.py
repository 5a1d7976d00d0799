"""Launchpad's processes, watched: a run that fails says why, ends all of them, and exits with 1.

Launchpad starts every node through a shell whose exit status it does not see: a learner that dies
leaves the others waiting, and the launcher ends with status 0. So nodes leave a word when they are
done or have failed, and whoever started them looks at that and at which of them are still alive.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from gem.training.processes import adopt_orphans, alive, children_of, end_all, name_of

STATUS = "GEM_OAT_STATUS"
"""Environment variable: folder in which nodes leave their word."""

_DONE = "done"
_FAILED = ".failed"
_POLL_S = 0.1
_GRACE_S = 5.0
"""How long nodes may take to say why they end."""


@contextlib.contextmanager
def reported(node: str) -> Iterator[None]:
    """Leave word of an exception that ends a node, and print it there."""
    try:
        yield
    except Exception as error:
        # First: whoever finds the word may end this process at once.
        with contextlib.suppress(OSError):
            traceback.print_exc()
        name = f"{time.time_ns():020d}-{os.getpid()}{_FAILED}"
        _leave(name, f"{node}: {type(error).__name__}: {error}")
        raise


def done() -> None:
    """Leave word that the training is complete."""
    _leave(_DONE, "")


def _leave(name: str, word: str) -> None:
    """Leave a word where `supervise`, if it has started this process, finds it as a whole."""
    folder = os.environ.get(STATUS)
    if folder is not None:
        path = Path(folder, f"{name}.partial")
        path.write_text(word, encoding="utf-8")
        path.replace(path.with_suffix(""))


def supervise(start: Callable[[], object]) -> int:
    """Start Launchpad's processes, wait for them, end them all; return the exit status.

    Args:
        start: Starts them.

    Returns:
        0 once a node called `done`; 1 if one failed or ended before that; 128 and the signal's
        number if this process was asked to end.
    """
    adopt_orphans()
    with tempfile.TemporaryDirectory(prefix="gem-oat-") as folder:
        os.environ[STATUS] = folder
        try:
            start()
            received: list[int] = []
            # Launchpad's own handlers, which end this process with SIGKILL after ten seconds.
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda number, frame: received.append(number))
            nodes = [_Node(process) for process in children_of()]
            status, cause = _watch(Path(folder), received, nodes)
        finally:
            end_descendants()
    # Only now have all nodes had their say.
    sys.stderr.write(f"{cause}\n" if cause else "")
    return status


def _watch(folder: Path, received: list[int], nodes: list[_Node]) -> tuple[int, str]:
    """Return the exit status, and what to say about it, when the nodes are to be ended."""
    deadline: float | None = None
    while True:
        # These two first: a node leaves its word before it ends or asks this process to end.
        ended = [node for node in nodes if node.ended()]
        asked = list(received)
        if (folder / _DONE).exists():
            # oat's learner asks this process to end when all is done; where it is not the first
            # of several machines, its learners just end.
            learners = [node for node in nodes if node.title.startswith("learner")]
            if asked or all(node in ended for node in learners):
                return 0, ""
        elif failures := sorted(folder.glob(f"*{_FAILED}")):
            cause = failures[0].read_text(encoding="utf-8")
            # A node that was killed says nothing; who missed it does.
            said = {int(path.stem.split("-")[1]) for path in failures}
            said_nothing = [node for node in nodes if node.pid and node.pid not in said]
            silent = ", ".join(node.title for node in said_nothing if node.ended())
            return 1, f"{silent} ended without a word; then {cause}" if silent else cause
        elif asked:
            number = signal.Signals(asked[0])
            return 128 + number, f"ended by {number.name} before the training was complete"
        elif ended:
            deadline = deadline or time.monotonic() + _GRACE_S
            if time.monotonic() > deadline:
                names = ", ".join(node.title for node in ended)
                why = "ended before the training was complete; what it said last is above"
                return 1, f"{names} {why}"
        time.sleep(_POLL_S)


class _Node:
    """A node of Launchpad's: a shell, below it the node itself and what passes on its output."""

    def __init__(self, shell: psutil.Process) -> None:
        self._shell = shell
        self._self: psutil.Process | None = None
        words: list[str] = []
        with contextlib.suppress(psutil.NoSuchProcess):  # nor has one that is a zombie already
            # bash decorate_output COLOUR TITLE COMMAND ...
            words = shell.cmdline()
        self.title = str(words[3]) if len(words) > 3 else f"process {shell.pid}"

    @property
    def pid(self) -> int | None:
        """Process id of the node; None if it was never seen."""
        return None if self._self is None else int(self._self.pid)

    def ended(self) -> bool:
        """Whether the node is gone; its shell stays as long as anybody holds the output."""
        if self._self is None and alive(self._shell):
            below = [p for p in children_of(self._shell) if alive(p)]
            self._self = next((p for p in below if not _carries(p)), None)
            # The shell starts the node first: where only its output is passed on, it is gone.
            return bool(below) and all(name_of(p) == "sed" for p in below)
        return not alive(self._self or self._shell)


def end_descendants() -> None:
    """End all descendants of this process; pipes that carry their last words go last."""
    _kill(carriers=False)
    psutil.wait_procs(children_of(recursive=True), timeout=_GRACE_S)
    _kill(carriers=True)


def _kill(*, carriers: bool) -> None:
    """Kill descendants, those included that are started or adopted meanwhile."""
    deadline = time.monotonic() + _GRACE_S
    while time.monotonic() < deadline:
        found = [process for process in children_of(recursive=True) if alive(process)]
        left = [process for process in found if carriers or not _carries(process)]
        if not left:
            return
        end_all(left, 0)
        time.sleep(0.02)


def _carries(process: psutil.Process) -> bool:
    return name_of(process) in ("sed", "bash", "decorate_output")
