"""Processes beside a run that send its record to trackers.

A tracker may be slow, hang or break; the run goes on. Each process is in a session of its own, so
that Ctrl-C ends the run and not what sends its last points. It ends with the run, and also when the
pipe from `gem-bench run` is closed because that was killed.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from gem_bench.trackers import require

_INPUT = 0
"""File descriptor of standard input."""
_GRACE_S = 120.0
"""Time for sending the last points after the run has ended."""


class Beside:
    """The processes of a run, as a context: at its end all have ended."""

    def __init__(self, trackers: Sequence[str], folder: Path) -> None:
        """Check that the trackers are installed; nothing is started.

        Args:
            trackers: Of `trackers.NAMES`.
            folder: Of the run.

        Raises:
            MissingExtraError: A tracker is not installed.
        """
        for name in trackers:
            require(name)
        self._trackers = list(dict.fromkeys(trackers))
        self._folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start a process for each tracker."""
        for name in self._trackers:
            command = [sys.executable, "-m", "gem_bench", "log", str(self._folder), "--to", name]
            self._processes[name] = subprocess.Popen(
                [*command, "--interval", "2", "--until-eof"],
                stdin=subprocess.PIPE,
                start_new_session=True,
            )

    def __enter__(self) -> Beside:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._processes.values():
            if process.stdin is not None:
                process.stdin.close()
        for name, process in self._processes.items():
            try:
                process.wait(timeout=_GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                print(
                    f"gem-bench: {name} did not take the last points within {_GRACE_S:.0f} s; "
                    f"`gem-bench log {self._folder} --to {name}` sends them",
                    file=sys.stderr,
                )


def ended() -> Callable[[], bool]:
    """Return a function that tells whether standard input was closed."""

    def closed() -> bool:
        ready, _, _ = select.select([_INPUT], [], [], 0)
        return bool(ready) and not os.read(_INPUT, 65536)

    return closed
