"""The process in which reasoning-gym runs, and how to talk to it.

One JSON object a line each way. Answers come from a policy and some generators evaluate them, so
that the process may be killed at any time; nothing it says is unpickled.
"""

from __future__ import annotations

import atexit
import json
import os
import selectors
import subprocess
import sys
import threading
from typing import Any

from gem.errors import ConfigurationError, DataError, MissingExtraError

# Importing the package and building the first data set included.
_GENERATION_TIMEOUT_S = 120.0


class _LostError(Exception):
    """There is no reply: `timeout`, and the process was killed, or `crash`."""


class _Process:
    """A running helper; one request at a time."""

    def __init__(self) -> None:
        paths = os.pathsep.join(path or os.curdir for path in sys.path)
        # A fixed hash seed: some generators iterate over sets of text.
        environment = {**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": "0"}
        self._child = subprocess.Popen(
            [sys.executable, "-c", "from gem.envs.reasoning_gym_child import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        self._ready = selectors.DefaultSelector()
        self._ready.register(self._child.stdout, selectors.EVENT_READ)  # type: ignore[arg-type]

    def ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Return the reply.

        Raises:
            _LostError: There is none.
        """
        child = self._child
        assert child.stdin is not None and child.stdout is not None
        try:
            child.stdin.write(json.dumps(request).encode() + b"\n")
            child.stdin.flush()
            if not self._ready.select(timeout_s):
                raise _LostError("timeout")
            reply = child.stdout.readline()
            answer: dict[str, Any] = json.loads(reply)
        except (OSError, ValueError):
            raise _LostError("crash") from None
        return answer

    def close(self, ours: bool = True) -> None:
        """Kill the process; after a fork, only let go of the parent's."""
        self._ready.close()
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                # Unsent bytes may be left, which closing would try to send.
                try:
                    pipe.close()
                except OSError:
                    continue
        if ours:
            self._child.kill()
            self._child.wait()
        else:
            self._child.returncode = 0


class _Helper:
    """The process of this process: started at the first request, replaced when it dies."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: _Process | None = None

    def ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        with self._lock:
            try:
                if self._process is None:
                    self._process = _Process()
                    # Importing the package must not count against the request.
                    self._process.ask({"op": "begin"}, _GENERATION_TIMEOUT_S)
                reply = self._process.ask(request, timeout_s)
            except BaseException:
                # Also on an interrupt: a reply that comes late would answer the next request.
                self._stop()
                raise
        if "error" in reply:
            kind = {"missing": MissingExtraError, "config": ConfigurationError}
            raise kind.get(reply["kind"], DataError)(reply["error"])
        return reply

    def _stop(self) -> None:
        """End the process; the next request starts another one."""
        if self._process is not None:
            self._process.close()
            self._process = None

    def after_fork(self) -> None:
        """Leave the parent's process to the parent."""
        self._lock = threading.Lock()
        if self._process is not None:
            self._process.close(ours=False)
            self._process = None


_helper = _Helper()
atexit.register(_helper._stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_helper.after_fork)


def item(which: dict[str, Any]) -> dict[str, Any]:
    """Return `{"question": str, "answer": str | None}` of an item.

    Raises:
        MissingExtraError: reasoning-gym is not installed.
        ConfigurationError: It has no such generator, level or configuration field.
        DataError: The generator fails on this item.
    """
    for attempt in range(2):
        try:
            return _helper.ask({"op": "item", **which}, _GENERATION_TIMEOUT_S)
        except _LostError as lost:
            # The process may have died before, for a reason that is none of this item's.
            if str(lost) == "timeout" or attempt == 1:
                raise DataError(
                    f"reasoning-gym {which['name']!r}, seed {which['seed']}, item "
                    f"{which['place']}: {lost}"
                ) from None
    raise AssertionError("unreachable")


def score(which: dict[str, Any], answer: str, timeout_s: float) -> tuple[float, str]:
    """Return the generator's score of an answer, from 0 to 1, and why; never raises for an answer.

    The item may have to be made again first, which does not count against the time.
    """
    for attempt in range(2):
        item(which)
        try:
            reply = _helper.ask({"op": "score", **which, "text": answer}, timeout_s)
            return reply["score"], reply["reason"]
        except _LostError as lost:
            # The process may have died for a reason that is none of this answer's.
            if str(lost) == "timeout" or attempt == 1:
                return 0.0, str(lost)
    raise AssertionError("unreachable")
