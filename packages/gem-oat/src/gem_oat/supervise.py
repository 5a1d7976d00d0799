"""Launchpad's processes, watched: a run that fails says why, ends all of them, and exits with 1.

Launchpad starts every node through a shell whose exit status it does not see: a learner that dies
leaves the others waiting, and the launcher ends with status 0. So nodes write status files when
they are done or have failed, and this process watches the files, and which nodes are still alive.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from gem_oat import status_files
from gem_train.processes import adopt_orphans, alive, children_of, end_descendants, name_of

_POLL_S = 0.1
_GRACE_S = 5.0
"""How long nodes may take to say why they end."""
_CARRIERS = ("sed", "bash", "decorate_output")
"""Names of processes that pass on the output of nodes."""


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
        os.environ[status_files.STATUS] = folder
        try:
            start()
            received: list[int] = []
            # Launchpad's own handlers, which end this process with SIGKILL after ten seconds.
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda number, frame: received.append(number))
            nodes = [_Node(process) for process in children_of()]
            status, cause = _watch(Path(folder), received, nodes)
        finally:
            end_descendants(_CARRIERS)
    # Only now have all nodes printed what they had to.
    sys.stderr.write(f"{cause}\n" if cause else "")
    return status


def _watch(folder: Path, received: list[int], nodes: list[_Node]) -> tuple[int, str]:
    """Return the exit status, and what to say about it, when the nodes are to be ended."""
    deadline: float | None = None
    while True:
        # These two first: a node writes its status file before it ends or asks this process to end.
        ended = [node for node in nodes if node.ended()]
        asked = list(received)
        if status_files.is_done(folder):
            # oat's learner asks this process to end when all is done; where it is not the first
            # of several machines, its learners just end.
            learners = [node for node in nodes if node.title.startswith("learner")]
            if asked or all(node in ended for node in learners):
                return 0, ""
        elif failed := status_files.failures(folder):
            cause = failed[0][1]
            # A node that was killed writes nothing; one that missed it does.
            seen = [node for node in nodes if node.process and node.process.pid not in dict(failed)]
            silent = ", ".join(node.title for node in seen if node.ended())
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
        self.process: psutil.Process | None = None
        """The node itself; None if it was never seen."""
        self.title = f"process {shell.pid}"

    def ended(self) -> bool:
        """Whether the node is gone; its shell stays as long as anybody holds the output."""
        if self.process is None and alive(self._shell):
            below = [p for p in children_of(self._shell) if alive(p)]
            self.process = next((p for p in below if name_of(p) not in _CARRIERS), None)
            # A zombie has no command, nor has a shell that is just being started.
            with contextlib.suppress(psutil.NoSuchProcess, IndexError):
                # bash decorate_output COLOUR TITLE COMMAND ...
                self.title = str(self._shell.cmdline()[3])
            # The shell starts the node first: where only its output is passed on, it is gone.
            return bool(below) and all(name_of(p) == "sed" for p in below)
        return not alive(self.process or self._shell)
