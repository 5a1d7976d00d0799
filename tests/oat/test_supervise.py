"""A run whose part fails says why, leaves no process behind, and exits with another status than 0.

Nodes are started as Launchpad starts them: through a shell that joins their output to `sed`.
"""

from __future__ import annotations

import inspect
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from gem_oat.supervise import _Node, _watch
from gem_train.processes import name_of

LAUNCHER = """
import subprocess, sys
from gem_oat.supervise import supervise

NODES = {nodes!r}

def start():
    for title, code in NODES.items():
        subprocess.Popen(["bash", {decorate!r}, "33", title, sys.executable, "-c", code])

sys.exit(supervise(start))
"""
DECORATE = """
trap '' TERM INT
exec "${@:3}" 2>&1 | sed "s!^![$2] !"
"""
FOREVER = "import time; print('waits', flush=True); time.sleep(600)"


def hears(pid: int) -> bool:
    """Whether a process has a handler for SIGTERM."""
    status = Path(f"/proc/{pid}/status").read_text()
    [caught] = [line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")]
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


DONE = f"""
import os, signal, time
from pathlib import Path
{inspect.getsource(hears)}
from gem_oat.status_files import done, reported
with reported("learner 0"):
    print("trained")
done()
launcher = int(os.environ["LAUNCHER"])
while not hears(launcher):
    time.sleep(0.01)
os.kill(launcher, signal.SIGTERM)  # as oat's learner does
time.sleep(600)
"""
FAILS = """
from gem_oat.status_files import reported
with reported("learner 0"):
    raise ValueError("the loss is not a number")
"""
VANISHES = """
import os, pathlib, signal, time
print("last words", flush=True)
time.sleep(2)  # so that the launcher knows its name
pathlib.Path(os.environ["NOTE"]).write_text(f"{os.getpid()}.")
os.kill(os.getpid(), signal.SIGKILL)
"""
MISSES = """
import os, pathlib, psutil, time
from gem_oat.status_files import reported
note = pathlib.Path(os.environ["NOTE"])
with reported("learner 0"):
    while not note.exists() or not note.read_text().endswith("."):
        time.sleep(0.01)
    while psutil.pid_exists(int(note.read_text()[:-1])):
        time.sleep(0.01)
    raise ConnectionError("actor 0 is gone")
"""
ORPHANS = """
import subprocess, sys, os
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(os.environ["NOTE"], "w").write(str(child.pid))
os._exit(3)
"""


@pytest.fixture
def decorate(tmp_path: Path) -> Path:
    """A shell script that does what Launchpad's does."""
    script = tmp_path / "decorate_output"
    script.write_text(textwrap.dedent(DECORATE))
    return script


@pytest.fixture
def launch(decorate: Path, tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Start a supervised program of nodes `{title: code}`."""

    def start(**nodes: str) -> subprocess.Popen[str]:
        code = LAUNCHER.format(nodes=nodes, decorate=str(decorate))
        first = "import os; os.environ['LAUNCHER'] = str(os.getpid())\n"
        return subprocess.Popen(
            [sys.executable, "-c", first + code],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "NOTE": str(tmp_path / "note")},
        )

    return start


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit status and output, which ends only when nobody holds the pipe any more."""
    output, _ = process.communicate(timeout=60)
    return process.returncode, output


Launch = Callable[..., subprocess.Popen[str]]


def test_a_complete_training_ends_with_0(launch: Launch) -> None:
    status, output = ended(launch(learner_0_0=DONE, actor_0_0=FOREVER))
    assert status == 0, output
    assert "[learner_0_0] trained" in output


def test_a_training_that_is_complete_between_two_looks_is_complete() -> None:
    received: list[int] = []

    class Folder:
        """Where the learner leaves its word, and asks the launcher to end, just after a look."""

        def __truediv__(self, name: str) -> Folder:
            return self

        def exists(self) -> bool:
            known = bool(received)
            received.append(signal.SIGTERM)
            return known

        def glob(self, pattern: str) -> list[Path]:
            return []

    folder: Any = Folder()
    assert _watch(folder, received, []) == (0, "")


def test_a_node_that_fails_ends_all_and_its_cause_comes_last(launch: Launch) -> None:
    status, output = ended(launch(learner_0_0=FAILS, actor_0_0=FOREVER))
    assert status == 1
    assert output.splitlines()[-1] == "learner 0: ValueError: the loss is not a number"


def test_a_node_that_is_killed_is_named(launch: Launch) -> None:
    status, output = ended(launch(learner_0_0=FOREVER, actor_0_0=VANISHES))
    assert status == 1
    assert "actor_0_0 ended before the training was complete" in output
    assert "[actor_0_0] last words" in output


def test_a_node_that_died_before_anybody_looked_is_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as shell:
        process = psutil.Process(shell.pid)
        deadline = time.monotonic() + 60
        while process.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert _Node(process).ended()


def test_a_node_that_died_before_anybody_looked_is_ended_though_its_child_lives(
    decorate: Path, tmp_path: Path
) -> None:
    note = tmp_path / "note"
    with subprocess.Popen(
        ["bash", str(decorate), "33", "actor_0_0", sys.executable, "-c", ORPHANS],
        env={**os.environ, "NOTE": str(note)},
    ) as shell:
        process = psutil.Process(shell.pid)
        deadline = time.monotonic() + 60
        while not note.exists() or [name_of(p) for p in process.children()] != ["sed"]:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        try:
            node = _Node(process)
            assert node.ended()
            # Whether the word is its own is not known, so it is not said to be silent.
            (tmp_path / f"1-{note.stat().st_ino}.failed").write_text("actor 0: ValueError: why")
            assert _watch(tmp_path, [], [node]) == (1, "actor 0: ValueError: why")
        finally:
            os.kill(int(note.read_text()), signal.SIGKILL)


def test_a_node_that_is_killed_is_named_though_another_misses_it_first(launch: Launch) -> None:
    status, output = ended(launch(learner_0_0=MISSES, actor_0_0=VANISHES))
    assert status == 1
    last = "actor_0_0 ended without a word; then learner 0: ConnectionError: actor 0 is gone"
    assert output.splitlines()[-1] == last
    assert "Traceback" in output


def test_who_ends_the_launcher_ends_everything(launch: Launch) -> None:
    process = launch(learner_0_0=FOREVER, actor_0_0=FOREVER)
    parent = psutil.Process(process.pid)
    deadline = time.monotonic() + 60
    while len(parent.children(recursive=True)) < 6 or not hears(process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    nodes = parent.children(recursive=True)
    process.send_signal(signal.SIGTERM)
    status, _ = ended(process)
    assert status == 128 + signal.SIGTERM
    assert not [node for node in nodes if node.is_running()]


def test_processes_that_lost_their_parent_end_too(launch: Launch, tmp_path: Path) -> None:
    status, output = ended(launch(learner_0_0=FOREVER, actor_0_0=ORPHANS))
    assert status == 1, output
    assert not psutil.pid_exists(int((tmp_path / "note").read_text()))
