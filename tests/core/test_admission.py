"""Cores: no more holders than cores on the machine, whoever dies, forks or nests."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from processes import forked, settles

from gem import admission
from gem.admission import Waits, admitted, usable, waits
from gem.executors.threads import CallTimeoutError, EnvThreads

pytestmark = pytest.mark.skipif(os.name != "posix", reason="without flock a process has no others")

HOLDER = """
import pathlib, sys, time
from gem import admission
admission._folder = lambda: pathlib.Path(sys.argv[1])
admission.usable = lambda: [0, 1]
with admission.admitted(alone=sys.argv[2] == "alone"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two cores that no process but this test's has.

    Their lock files stay open: the doorman's thread may look at them after the test's end. Only a
    forked process, which has no doorman, may close them.
    """
    monkeypatch.setattr(admission, "_folder", lambda: tmp_path)
    monkeypatch.setattr(admission, "usable", lambda: [0, 1])
    monkeypatch.setattr(admission, "_made", [])
    return tmp_path


def holder(folder: Path, how: str = "one") -> subprocess.Popen[str]:
    """Start a process that holds a core, or all of them."""
    command = [sys.executable, "-c", HOLDER, str(folder), how]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def holds(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"


class Room:
    """Counts who is inside."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inside = self.most = self.visits = 0

    def visit(self, alone: bool = False) -> None:
        with admitted(alone=alone):
            with self.lock:
                self.inside += 1
                self.visits += 1
                self.most = max(self.most, self.inside)
                assert not alone or self.inside == 1
            time.sleep(0.002)
            with self.lock:
                self.inside -= 1


def test_no_more_threads_run_than_there_are_cores() -> None:
    room = Room()
    with ThreadPoolExecutor(32) as threads:
        list(threads.map(lambda _: room.visit(), range(200)))
    assert (room.most, room.visits) == (2, 200)


def test_who_runs_alone_has_no_other_beside_it() -> None:
    room = Room()
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda n: room.visit(alone=n % 5 == 0), range(100)))
    assert room.visits == 100


def test_those_who_wait_are_served_in_order() -> None:
    came: list[int] = []

    def visit(number: int) -> None:
        with admitted(alone=True):
            came.append(number)

    with ThreadPoolExecutor(20) as threads, admitted(alone=True):
        for number in range(20):
            threads.submit(visit, number)
            assert settles(lambda n=number: len(admission._cores()._waiting) == n + 1)
    assert came == list(range(20))


def test_processes_share_the_cores_and_a_killed_holder_gives_its_core_back(folder: Path) -> None:
    others = [holder(folder) for _ in range(2)]
    for other in others:
        holds(other)
    entered = threading.Event()

    def enter() -> None:
        with admitted():
            entered.set()

    thread = threading.Thread(target=enter)
    thread.start()
    assert settles(lambda: len(admission._cores()._waiting) == 1)
    assert not entered.wait(0.1)
    others[0].send_signal(signal.SIGKILL)
    thread.join(60)
    assert entered.is_set()
    for other in others:
        other.kill()
        other.communicate()


def test_two_processes_that_want_all_cores_do_not_wait_for_each_other(folder: Path) -> None:
    with admitted():
        others = [holder(folder, "alone") for _ in range(3)]
    while others:
        assert settles(lambda: any(map(says, others)))
        [inside] = filter(says, others)
        inside.communicate("")
        others.remove(inside)


def says(process: subprocess.Popen[str]) -> bool:
    """Whether it has said that it holds its cores."""
    assert process.stdout is not None
    return bool(select.select([process.stdout], [], [], 0)[0])


def test_what_runs_inside_of_an_admitted_call_does_not_wait_for_it() -> None:
    with admitted(alone=True), admitted(), admitted(alone=True):
        pass


def test_a_released_core_is_free_at_once_and_only_once() -> None:
    with admitted() as core:
        core.release()
        core.release()
        assert sorted(admission._cores()._free) == [0, 1]
    assert sorted(admission._cores()._free) == [0, 1]


def test_a_forked_process_begins_with_nothing_and_keeps_nothing(folder: Path) -> None:
    def enter() -> str:
        with admitted() as core:
            return f"{core._held}"

    with admitted() as core:
        with forked(enter) as answer:
            text = answer()
        assert text == str([1 - core._held[0]])


def test_who_is_interrupted_while_waiting_leaves_the_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cores = admission._cores()

    class Interrupted:
        def __init__(self, alone: bool) -> None:
            self.alone, self.held, self.turn = alone, list[int](), self

        def acquire(self, timeout: float) -> bool:
            raise KeyboardInterrupt

    for alone in (False, True):
        with admitted(alone=True), monkeypatch.context() as patch:
            patch.setattr(admission, "_Waiter", Interrupted)
            with pytest.raises(KeyboardInterrupt):
                cores.acquire(alone)
    with admitted(alone=True):
        pass


def test_without_a_folder_the_process_still_counts_its_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admission, "_folder", lambda: None)
    room = Room()
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda _: room.visit(), range(50)))
    assert (room.most, room.visits) == (2, 50)


@pytest.mark.parametrize(
    ("text", "cores"), [("max 100000", None), ("150000 100000", 2), ("50000 100000", 1)]
)
def test_a_quota_bounds_the_cores(
    text: str, cores: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 3, 5, 7}, raising=False)
    file = tmp_path / "cpu.max"
    file.write_text(text)
    monkeypatch.setattr(admission, "_CGROUPS", (file, tmp_path / "none"))
    assert usable() == [1, 3, 5, 7][:cores]


def test_the_limit_of_a_step_does_not_count_its_waits_for_a_core() -> None:
    results: list[Any] = []
    threads = EnvThreads()
    with admitted(alone=True):
        threads.submit(_enter, results.extend, "waits", 0.5)
        threads.submit(lambda: time.sleep(2), results.extend, "sleeps", 0.5)
        assert settles(lambda: len(results) == 1)
        time.sleep(1)
    assert settles(lambda: len(results) == 2)
    (first, expired), (second, entered) = results
    assert (first, type(expired)) == ("sleeps", CallTimeoutError)
    assert (second, entered) == ("waits", "entered")


def _enter() -> str:
    with admitted():
        counted = waits.get()
        assert isinstance(counted, Waits)
        assert counted.total() > 0.5
        return "entered"


def test_a_stopped_holder_does_not_stop_the_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever was stopped holds all cores: threads go on one by one, and it is said."""
    monkeypatch.setattr(admission, "_LOOK_S", 0.01)
    monkeypatch.setattr(admission, "_PATIENCE_S", 0.2)
    process = holder(folder, "alone")
    holds(process)
    process.send_signal(signal.SIGSTOP)
    room = Room()
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda _: room.visit(), range(3)))
    assert room.visits == 3
    assert caplog.text.count("no core came free for 0.2 s") == 3
    process.kill()
    process.communicate()
    # The killed holder's cores are free, and admission holds again.
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: room.visit(), range(20)))
    assert room.most <= 2
