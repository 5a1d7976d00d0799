"""A real trainer in a session of its own: started, held up, killed, ended. For trainers on Ray."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from gem_train.launch import Launch

TIMEOUT_S = 900
QUIET_S = 20.0


@contextlib.contextmanager
def started(launch: Launch, folder: Path, *overrides: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a run; its processes are gone afterwards."""
    for name, text in launch.files.items():
        folder.joinpath(name).write_text(text)
    env = {k: v for k, v in os.environ.items() if k not in launch.unset} | launch.env
    with folder.joinpath("log").open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, *launch.argv[1:], *overrides],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=env,
            cwd=folder,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            for pid in session(process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()


def log(folder: Path) -> str:
    """What the run has said."""
    return folder.joinpath("log").read_text(encoding="utf-8", errors="replace")


def traced(folder: Path, *words: str) -> bool:
    """Whether a traceback of the run has all of the words."""
    return any(all(word in text for word in words) for text in log(folder).split("Traceback")[1:])


def session(leader: int) -> list[int]:
    """The processes of a run: Ray keeps them in its session."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if os.getsid(int(entry.name)) == leader:
                found.append(int(entry.name))
    return found


def until(process: subprocess.Popen[bytes], folder: Path, said: str) -> None:
    """Wait until the run has said something."""
    deadline = time.monotonic() + TIMEOUT_S
    while said not in log(folder):
        assert process.poll() is None and time.monotonic() < deadline, log(folder)[-4000:]
        time.sleep(0.5)


def kill(
    process: subprocess.Popen[bytes], folder: Path, title: str, held: str | None = None
) -> None:
    """Kill the processes whose title begins so.

    Args:
        process: The run.
        folder: Where its log is.
        title: Of those to kill.
        held: Title of processes that are stopped meanwhile. They go on once nothing else of the
            run did, so that they are the first to meet the dead; or after a while, should
            something go on saying things.
    """
    if held is not None:
        _signal(process, held, signal.SIGSTOP)
        size, since = -1, time.monotonic()
        deadline = since + TIMEOUT_S
        while time.monotonic() < min(since + QUIET_S, deadline):
            if len(log(folder)) != size:
                size, since = len(log(folder)), time.monotonic()
            time.sleep(0.2)
    _signal(process, title, signal.SIGKILL)
    if held is not None:
        _signal(process, held, signal.SIGCONT)


def _signal(process: subprocess.Popen[bytes], title: str, number: int) -> None:
    pids = []
    for pid in session(process.pid):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(title.encode()):
                pids.append(pid)
    assert pids, f"no process is called {title}"
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
