"""The warm interpreters in bubblewrap: programs run as elsewhere, and leave nothing behind."""

from __future__ import annotations

import asyncio
import os
import pickle
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from processes import below, forked, settled, settles

from gem.admission import Core
from gem.errors import ConfigurationError, UnreachableError
from gem_sandbox import BwrapRunner, Limits, Runner, SubprocessRunner, resolve
from gem_sandbox.bwrap_server import Server
from gem_sandbox.inside import server as inside
from gem_sandbox.inside.clock import Clock
from gem_sandbox.inside.protocol import failure, pair
from gem_sandbox.inside.usage import Usage

pytestmark = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="bubblewrap is not installed: apt-get install bubblewrap"
)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[BwrapRunner]:
    yield BwrapRunner(servers=1)


PROGRAMS = [
    "print(1)",
    "print(sum(map(int, input().split())))",
    "import sys\nprint(sys.stdin.read()[::-1], file=sys.stderr)",
    "raise SystemExit",
    "raise SystemExit(3)",
    "import sys; sys.exit('words')",
    "print('é日本', end='')",
    "import os; os.write(1, b'a\\xff\\n')",
    "import atexit; atexit.register(print, 'last'); print('first')",
    "import threading; threading.Timer(0.05, print, ['later']).start()",
    "class A:\n    pass\nprint(A.__module__, __name__)",
    "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int = 1\nprint(P())",
    "import pickle\nclass A: x = 1\nprint(pickle.loads(pickle.dumps(A())).x)",
    "if __name__ == '__main__':\n    print('main')",
    "open('f', 'w').write('x'); print(open('f').read())",
    "print(open('/dev/null').read(), __import__('math').pi)",
    "import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', 'print(5)'],"
    " capture_output=True, text=True).stdout)",
    "from multiprocessing import get_context\n"
    "with get_context('fork').Pool(2) as pool: print(pool.map(abs, [-1, -2]))",
    "import asyncio\nasync def f(): return 4\nprint(asyncio.run(f()))",
    "x = 1\ndef f():\n    global x\n    x += 1\nf(); print(x)",
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_does_what_it_does_outside(sandbox: BwrapRunner, program: str) -> None:
    inside = sandbox.run(program, "1 2 3\n")
    outside = SubprocessRunner().run(program, "1 2 3\n")
    assert (inside.stdout, inside.stderr, inside.exit_code, inside.limit_hit) == (
        outside.stdout,
        outside.stderr,
        outside.exit_code,
        outside.limit_hit,
    )


@pytest.mark.parametrize("program", ["1/0", "def f(:", "x = (", "\0", "\ud800", "raise ValueError"])
def test_an_error_shows_the_programs_own_lines(sandbox: BwrapRunner, program: str) -> None:
    result = sandbox.run(program)
    outside = SubprocessRunner().run(program)
    assert result.exit_code == outside.exit_code == 1
    last, expected = (each.stderr.splitlines()[-1].split(":")[0] for each in (result, outside))
    assert last == expected
    assert "gem" not in result.stderr


def test_a_program_of_megabytes_and_input_of_megabytes_arrive_whole(sandbox: BwrapRunner) -> None:
    code = "x = '" + "y" * (5 << 20) + "'\nimport sys\nprint(len(x), len(sys.stdin.read()))"
    assert sandbox.run(code, "z" * (7 << 20)).stdout == f"{5 << 20} {7 << 20}\n"


def test_output_is_cut_at_its_limit_and_both_streams_are_kept(sandbox: BwrapRunner) -> None:
    limits = Limits(output_bytes=1000)
    exact = sandbox.run(
        "import sys; print('x' * 999); print('y' * 999, file=sys.stderr)", "", limits
    )
    assert (len(exact.stdout), len(exact.stderr), exact.limit_hit) == (1000, 1000, None)
    more = sandbox.run("print('x' * 1000)", "", limits)
    assert (more.stdout, more.limit_hit) == ("x" * 1000, "output")


def test_megabytes_of_output_within_the_limit_are_kept_whole(sandbox: BwrapRunner) -> None:
    limits = Limits(output_bytes=8 << 20)
    code = "import sys; print('x' * (7 << 20)); print('y' * (7 << 20), file=sys.stderr)"
    result = sandbox.run(code, "", limits)
    assert (len(result.stdout), len(result.stderr)) == ((7 << 20) + 1, (7 << 20) + 1)
    assert (result.exit_code, result.limit_hit) == (0, None)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cpu_s", 0),
        ("cpu_s", float("inf")),
        ("cpu_s", float("nan")),
        ("cpu_s", "5"),
        ("memory_mb", 0.5),
        ("memory_mb", 1 << 31),
        ("output_bytes", 0),
        ("output_bytes", 1e6),
        ("output_bytes", True),
        ("disk_mb", -1),
        ("processes", None),
    ],
)
def test_a_limit_that_means_nothing_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=rf"^{name} must be .*, got {value!r}$"):
        Limits(**{name: value})  # type: ignore[arg-type]


def test_a_hundred_threads_run_at_once_by_default_and_no_more_processes_than_allowed(
    sandbox: BwrapRunner,
) -> None:
    threads = (
        "import threading\nall_here = threading.Barrier(100)\n"
        "threads = [threading.Thread(target=all_here.wait) for _ in range(100)]\n"
        "for thread in threads: thread.start()\n"
        "for thread in threads: thread.join()\nprint(len(threads))"
    )
    assert sandbox.run(threads).stdout == "100\n"
    forks = (
        "import os, time\nstarted = 1\nfor _ in range(1000):\n"
        "    try:\n        if os.fork() == 0: time.sleep(60)\n"
        "        started += 1\n    except OSError: break\nprint(started)"
    )
    assert sandbox.run(forks, "", Limits(cpu_s=60.0)).stdout == f"{Limits().processes}\n"


STREAMS = (
    "import os\n"
    "print(open('/dev/stdin').read(), open('/dev/fd/0').read(), flush=True)\n"
    "open('/dev/stdout', 'w').write('out\\n'); open('/dev/stderr', 'w').write('err\\n')\n"
    "fd = os.open('here', os.O_CREAT | os.O_RDWR); os.write(fd, b'more')\n"
)


def test_streams_can_be_opened_by_name(sandbox: BwrapRunner) -> None:
    program = STREAMS + "print(open(f'/dev/fd/{fd}').read())"
    result = sandbox.run(program, "given")
    assert (result.stdout, result.stderr) == ("given given\nout\nmore\n", "err\n")
    with sandbox.session() as session:
        for number in "123":
            result = session.run(STREAMS, number)
            assert (result.stdout, result.stderr) == (f"{number} {number}\nout\n", "err\n")


def test_processes_that_a_program_starts_open_its_streams_by_name(sandbox: BwrapRunner) -> None:
    program = (
        "import subprocess, sys\n"
        "subprocess.run([sys.executable, '-c', \"print(open('/dev/stdin').read())\"], check=True)"
    )
    assert sandbox.run(program, "given").stdout == "given\n"


def test_of_proc_there_are_the_descriptors_of_the_program_alone(sandbox: BwrapRunner) -> None:
    show = "import os; print(os.listdir('/proc'), os.path.samefile('/dev/fd/..', '/dev'))"
    assert sandbox.run(show).stdout == "[] True\n"
    with sandbox.session() as session:
        assert session.run(show).stdout == "[] True\n"


def test_a_hung_program_costs_its_time_and_delays_no_other(sandbox: BwrapRunner) -> None:
    sandbox.run("1")
    with ThreadPoolExecutor(16) as threads:
        hung = [
            threads.submit(sandbox.run, "import time; time.sleep(60)", "", Limits(cpu_s=5.0))
            for _ in range(8)
        ]
        time.sleep(0.2)
        others = [threads.submit(sandbox.run, "print(1)") for _ in range(6)]
        assert all(other.result().stdout == "1\n" for other in others)
        # They were done while the hung ones still ran.
        assert not any(program.done() for program in hung)
        results = [program.result() for program in hung]
    assert all((result.limit_hit, result.exit_code) == ("time", -9) for result in results)
    assert all(result.seconds >= 10.0 for result in results)


def test_a_thousand_calls_leave_no_process_file_or_descriptor(
    sandbox: BwrapRunner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    sandbox.run("import sympy")
    [server] = sandbox.pids()

    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(sandbox.run, ["print(1)"] * 8))
        # Forks that were used are replaced a moment later.
        processes, before = len(below(settled(server))), descriptors()
        programs = [
            "open('x', 'w').write('y')",
            "import os; os.fork()",
            "1/0",
            "import os; os.abort()",
        ]
        list(threads.map(sandbox.run, programs * 250))
    assert settles(lambda: len(below(server)) == processes)
    # There may be fewer: what earlier tests left is closed some time.
    assert settles(lambda: descriptors() <= before)
    assert list(tmp_path.iterdir()) == []


def test_programs_draw_different_random_numbers_and_order_sets_alike(
    sandbox: BwrapRunner,
) -> None:
    draw = "import random, numpy; print(random.random(), numpy.random.rand())"
    numbers = [float(n) for _ in range(3) for n in sandbox.run(draw).stdout.split()]
    assert len(set(numbers)) == 6
    order = "print(set('abcdefghijklm'))"
    assert len({BwrapRunner(servers=n).run(order).stdout for n in (1, 1, 2)}) == 1


def test_the_environment_of_the_user_stays_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEM_TEST_SECRET", "a secret word")
    # Its servers start now, with that variable around them.
    runner = BwrapRunner(servers=1, modules=("json",))
    shown = runner.run("import os; print(dict(os.environ), os.environb)").stdout
    assert "PYTHONHASHSEED" in shown
    assert "secret" not in shown.lower()


def test_without_chosen_distributions_no_package_is_shown() -> None:
    runner = BwrapRunner(servers=1, modules=(), distributions=())
    assert runner.run("import numpy").stderr.endswith("No module named 'numpy'\n")
    assert runner.run("import os; print(os.listdir('/packages'))").stdout == "[]\n"


def test_numpy_and_sympy_work(sandbox: BwrapRunner) -> None:
    assert sandbox.run("import numpy as np; print(np.arange(4).sum())").stdout == "6\n"
    code = "from sympy import *; x = Symbol('x'); print(integrate(x * cos(x), x))"
    assert sandbox.run(code).stdout == "x*sin(x) + cos(x)\n"
    hungry = sandbox.run("import numpy as np; np.ones(10**9)", "", Limits(memory_mb=200))
    assert hungry.limit_hit == "memory"


def test_a_server_that_was_killed_is_replaced() -> None:
    runner = BwrapRunner(servers=1, modules=("numpy",))
    assert runner.run("print(1)").stdout == "1\n"
    [server] = runner.pids()
    os.kill(server, signal.SIGKILL)
    stat = Path(f"/proc/{server}/stat")
    assert settles(lambda: stat.read_text().rsplit(")", 1)[1].split()[0] == "Z")
    assert runner.run("print(2)").stdout == "2\n"
    assert runner.pids() != [server]


@pytest.mark.parametrize("times", [1, 2])
def test_a_program_whose_server_is_killed_runs_again_in_a_fresh_one_once(times: int) -> None:
    runner = BwrapRunner(servers=1, modules=("numpy",))
    runner.run("1")
    killed: list[int] = []

    def end() -> None:
        while len(killed) < times:
            assert settles(lambda: [pid for pid in runner.pids() if pid not in killed] != [])
            [server] = runner.pids()
            assert settles(lambda: len(sleepers(server)) > 0)
            killed.append(server)
            os.kill(server, signal.SIGKILL)

    def sleepers(server: int) -> list[int]:
        return [pid for pid in below(server) if name_of(pid) == "sleeper"]

    def name_of(pid: int) -> str:
        try:
            return Path(f"/proc/{pid}/comm").read_text().strip()
        except OSError:
            return ""

    program = (
        "import ctypes, time\nctypes.CDLL(None).prctl(15, b'sleeper', 0, 0, 0)\n"
        "time.sleep(4)\nprint('rested')"
    )
    ending = threading.Thread(target=end)
    ending.start()
    if times == 1:
        assert runner.run(program, "", Limits(cpu_s=60)).stdout == "rested\n"
    else:
        with pytest.raises(UnreachableError, match="ended while it ran a program"):
            runner.run(program, "", Limits(cpu_s=60))
    ending.join()
    assert len(killed) == times


@pytest.mark.parametrize("length", range(16, 40))
def test_words_of_any_length_are_no_report(length: int) -> None:
    words = "[Errno 32] Broken pipe".ljust(length, "!")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server = Server.__new__(Server)
    server.broken, server.requests = False, [ours]

    def refuse() -> None:
        _, (report, *others), _, _ = socket.recv_fds(theirs, 256, 5)
        os.write(report, failure(words))
        for descriptor in (report, *others):
            os.close(descriptor)

    with ours, theirs:
        thread = threading.Thread(target=refuse)
        thread.start()
        with pytest.raises(UnreachableError, match=re.escape(f"cannot start programs: {words}")):
            server.run(b"print(1)", b"", Limits(), 0, Core())
        thread.join()


def test_counting_memory_outlives_a_process_that_ends_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proc = os.open("/proc", os.O_RDONLY)
    clock, usage = Clock(os.getpid(), proc=proc), Usage(proc)

    def gone(_: int) -> list[str]:
        raise FileNotFoundError

    monkeypatch.setattr(os, "listdir", gone)
    clock.look()
    assert usage.memory(clock.pids, 1 << 40) == 0
    os.close(proc)


def test_a_server_outlives_a_session_that_ends_with_orders_unread() -> None:
    channel, theirs = pair()
    channel.send(b"an order that nobody reads")
    theirs.close()
    with pytest.raises(ConnectionResetError):
        channel.recv(256)
    channel, theirs = pair()
    channel.send(b"an order that nobody reads")
    theirs.close()
    serving = inside._Server.__new__(inside._Server)
    serving.poll = select.poll()
    serving.poll.register(channel.fileno(), select.POLLIN)
    serving._answered(inside._Session(1, os.getpid(), channel))
    channel.close()


def test_sandboxes_end_with_the_process_that_started_them() -> None:
    code = (
        "import os, signal\nfrom gem_sandbox import BwrapRunner\n"
        "e = BwrapRunner(servers=1); e.run('1'); print(*e.pids(), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    server = int(run.stdout)

    def ended() -> bool:
        state = subprocess.run(["ps", "-o", "stat=", "-p", str(server)], capture_output=True)
        return state.stdout.strip()[:1] in (b"", b"Z")

    assert settles(ended)


def test_a_forked_child_starts_servers_of_its_own(sandbox: BwrapRunner) -> None:
    sandbox.run("1")
    mine = sandbox.pids()

    def child() -> str:
        return f"{sandbox.run('print(3)').stdout.strip()} {sandbox.pids() != mine}"

    with forked(child) as answer:
        assert answer() == "3 True"
    assert sandbox.run("print(4)").stdout == "4\n"
    assert sandbox.pids() == mine


def test_the_strongest_runner_is_the_default_and_pickles() -> None:
    runner: Runner = pickle.loads(pickle.dumps(resolve(None)))
    assert isinstance(runner, BwrapRunner)
    assert asyncio.run(runner.arun("print(input())", "a")).stdout == "a\n"


def test_without_bubblewrap_the_error_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    for name in (None, "bwrap"):
        with pytest.raises(ConfigurationError, match="apt-get install bubblewrap"):
            resolve(name)
    with pytest.raises(ConfigurationError, match="servers must be an integer from 1 .* got 0"):
        BwrapRunner(servers=0)
