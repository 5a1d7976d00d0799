"""Processes that wait for programs: always enough of them, alone, and never used before."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from processes import settles, started

from gem_sandbox import BwrapRunner, Limits
from gem_sandbox.inside import spare
from gem_sandbox.inside.confine import end_with_parent, filters
from gem_sandbox.inside.protocol import FAILED, REQUEST
from gem_sandbox.inside.server import SPARES

pytestmark = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="bubblewrap is not installed: apt-get install bubblewrap"
)


@pytest.fixture
def sandbox() -> Iterator[BwrapRunner]:
    # Interpreters of its own: those without imports, with common ones, and with this module.
    runner = BwrapRunner(servers=1, modules=("colorsys",))
    runner.run("import colorsys")
    assert settles(lambda: len(waiting(runner)) == 3)
    yield runner


def children(pid: int) -> list[int]:
    try:
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except OSError:
        return []


def waiting(runner: BwrapRunner) -> dict[int, list[int]]:
    """By process id of an interpreter, the processes that wait for its programs."""
    [bwrap] = runner.pids()
    [first] = children(bwrap)
    found: dict[int, list[int]] = {}
    servers = children(first)
    while servers:
        [server] = servers
        below = children(server)
        servers = [pid for pid in below if children(pid)]
        found[server] = [pid for pid in below if pid not in servers]
    return {server: pids for server, pids in found.items() if len(pids) == SPARES}


def test_those_that_died_are_replaced(sandbox: BwrapRunner) -> None:
    before = waiting(sandbox)
    died = {pid for pids in before.values() for pid in pids}
    for pid in died:
        os.kill(pid, signal.SIGKILL)
    assert settles(lambda: len(waiting(sandbox)) == 3 and not died & set(everyone(sandbox)))
    assert set(waiting(sandbox)) == set(before)
    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(sandbox.run, ["print(1)", "import os; print(1)"] * 8))
    assert [result.stdout for result in results] == ["1\n"] * 16


def everyone(runner: BwrapRunner) -> list[int]:
    return [pid for pids in waiting(runner).values() for pid in pids]


def test_they_end_with_their_interpreter_and_the_next_program_runs(sandbox: BwrapRunner) -> None:
    *_, (server, pids) = waiting(sandbox).items()
    before = {pid: started(pid) for pid in pids}
    os.kill(server, signal.SIGKILL)
    assert settles(lambda: all(started(pid) != before[pid] for pid in pids))
    assert sandbox.run("import colorsys; print(2)").stdout == "2\n"


def test_a_process_whose_parent_ended_before_it_asked_to_end_with_it_ends() -> None:
    hears, tells = os.pipe()
    held, holds = os.pipe()
    parent = os.fork()
    if parent == 0:
        this = os.pidfd_open(os.getpid())
        if os.fork() == 0:
            os.close(hears)
            os.close(holds)
            os.read(held, 1)  # Until the parent is dead.
            end_with_parent(this)
            os.write(tells, b"lives")
        os._exit(0)
    os.waitpid(parent, 0)
    os.close(holds)
    os.close(tells)
    assert os.read(hears, 5) == b""
    os.close(hears)
    os.close(held)


def test_each_runs_one_program(sandbox: BwrapRunner) -> None:
    for _ in range(2 * SPARES):
        ready = set(everyone(sandbox))
        assert sandbox.run("print(1)").stdout == "1\n"
        assert settles(lambda: len(waiting(sandbox)) == 3 and set(everyone(sandbox)) != ready)
        assert len(ready - set(everyone(sandbox))) == 1


def test_more_programs_than_processes_wait_run_at_a_time(sandbox: BwrapRunner) -> None:
    # The interpreter of programs that import something.
    _, server, *_ = waiting(sandbox)
    programs = 3 * SPARES
    # They sleep: those that use a core wait for one another.
    hung, program = Limits(cpu_s=8.0), "import time; time.sleep(60)"
    with ThreadPoolExecutor(programs) as threads:
        running = [threads.submit(sandbox.run, program, "", hung) for _ in range(programs)]
        assert settles(lambda: len(children(server)) >= programs + SPARES)
        assert {program.result().limit_hit for program in running} == {"time"}


def test_waiting_costs_a_program_none_of_its_time(sandbox: BwrapRunner) -> None:
    limit = Limits(cpu_s=2.0)
    time.sleep(2.5)
    result = sandbox.run("print(1)", "", limit)
    assert (result.stdout, result.limit_hit) == ("1\n", None)
    assert result.seconds < 2.0


@pytest.mark.parametrize("disk_mb", [3, 64, 65])
def test_the_folder_is_empty_and_as_large_as_asked_for(sandbox: BwrapRunner, disk_mb: int) -> None:
    show = (
        "import os; s = os.statvfs('/tmp')\n"
        "print(s.f_blocks * s.f_frsize >> 20, os.listdir('/tmp'))"
    )
    result = sandbox.run(show, "", Limits(disk_mb=disk_mb))
    assert result.stdout == f"{disk_mb} ['program.py']\n"


def test_programs_have_limits_ids_and_random_numbers_of_their_own(sandbox: BwrapRunner) -> None:
    show = (
        "import os, random, resource\n"
        "print(os.getuid(), random.random(), os.getpid(), os.getsid(0), "
        "resource.getrlimit(resource.RLIMIT_FSIZE)[0] >> 20, "
        "resource.getrlimit(resource.RLIMIT_NPROC)[0])"
    )
    rows = [
        sandbox.run(show, "", Limits(disk_mb=20 + n, processes=10 + n)).stdout.split()
        for n in range(6)
    ]
    assert [row[2:] for row in rows] == [["1", "1", str(20 + n), str(10 + n)] for n in range(6)]
    assert len({row[1] for row in rows}) == 6


def ask(theirs: socket.socket, request: bytes) -> socket.socket:
    """Make a request; return where it is reported."""
    report, their_report = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with their_report, Path(os.devnull).open() as null:
        socket.send_fds(theirs, [request], [their_report.fileno(), *[null.fileno()] * 4])
    report.settimeout(30)
    return report


def test_what_cannot_be_confined_says_so_and_runs_nothing() -> None:
    request = REQUEST.pack(5.0, 10.0, 100.0, 100, 64, 8, 0, 0, 0, 0, 0, False)
    asking, requests = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    hearing, taken = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with asking, requests, hearing, taken, ask(asking, request) as report:
        pid = os.fork()
        if pid == 0:
            try:
                # Without rights, no namespace can be made.
                if os.geteuid() == 0:
                    os.setresuid(4242, 4242, 4242)
                spare.wait(spare.Origin(requests, taken, 0, 1 << 30, filters()[1]), 1)
            finally:
                os._exit(99)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 1
        assert report.recv(999) == FAILED + b"[Errno 1] unshare: Operation not permitted"
        hearing.setblocking(False)
        with pytest.raises(BlockingIOError):
            hearing.recv(99)
