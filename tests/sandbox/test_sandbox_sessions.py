"""Sessions: programs that go on where the one before ended, alone with what they left."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import below, settled, settles

from gem.errors import ConfigurationError
from gem_sandbox import (
    BwrapRunner,
    Limits,
    Session,
    SubprocessRunner,
    bwrap_server,
)

LIMITS = Limits(cpu_s=20.0, memory_mb=256, disk_mb=8, processes=16)


def bwrap() -> BwrapRunner:
    try:
        return BwrapRunner(servers=1)
    except ConfigurationError as error:
        pytest.skip(str(error))


@pytest.fixture
def session() -> Iterator[Session]:
    with bwrap().session(LIMITS) as made:
        yield made


@pytest.fixture
def warm(session: Session) -> Session:
    """A session in bubblewrap."""
    return session


def server(runner: BwrapRunner, program: str = "import sympy") -> int:
    """The process id of its sandbox, in which all interpreters have started."""
    # The interpreter with the most modules starts last.
    runner.run(program)
    [pid] = runner.pids()
    return settled(pid)


def test_variables_functions_and_imports_stay(session: Session) -> None:
    assert session.run("import math\nx = 1\ndef f(y): return math.sqrt(y) + x").exit_code == 0
    assert session.run("x += 1; print(f(16))").stdout == "6.0\n"


def test_a_program_that_fails_keeps_what_it_did_up_to_there(session: Session) -> None:
    failed = session.run("x = 1\n1 / 0\nx = 2")
    assert failed.exit_code == 1
    assert "ZeroDivisionError" in failed.stderr
    assert session.run("print(x)").stdout == "1\n"


def test_any_text_is_a_program_and_ends_no_session(session: Session) -> None:
    session.run("x = 1")
    for program in ("(", "\0", "\ud800", "(" * 300):
        assert session.run(program).exit_code == 1
    # Its error shows the whole line, which is more output than is taken.
    assert session.run("x = '" + "y" * 10**7).exit_code != 0
    assert session.run("print(x)").stdout == "1\n"


def test_a_snapshot_is_gone_back_to_any_number_of_times(session: Session) -> None:
    session.run("import random\nrandom.seed(7)\nlog = [random.random()]")
    state = session.snapshot()
    further = "log.append(random.random()); print(log)"
    first = [session.run(further).stdout for _ in range(3)]
    for _ in range(3):
        session.restore(state)
        assert [session.run(further).stdout for _ in range(3)] == first
    assert len(set(first)) == 3


def test_a_spawned_session_goes_on_by_itself(session: Session) -> None:
    session.run("x = [1]")
    with session.spawn() as child:
        assert child.run("x.append(2); print(x)").stdout == "[1, 2]\n"
        assert session.run("print(x)").stdout == "[1]\n"
        session.close()
        assert child.run("print(x)").stdout == "[1, 2]\n"


def test_a_snapshot_can_be_restored_in_another_session(session: Session) -> None:
    session.run("x = 5")
    state = session.snapshot()
    session.close()
    with session.spawn() as other:
        other.restore(state)
        assert other.run("print(x)").stdout == "5\n"


def test_sessions_do_not_see_each_other(session: Session) -> None:
    with session.spawn() as other:
        session.run("secret = 1")
        assert "NameError" in other.run("print(secret)").stderr


def test_a_program_that_hits_a_limit_is_undone() -> None:
    with bwrap().session(Limits(cpu_s=3.0, memory_mb=128)) as short:
        short.run("x = 1")
        hung = short.run("x = 2\nwhile True: pass")
        assert (hung.limit_hit, hung.exit_code) == ("time", -9)
        assert short.run("print(x)").stdout == "1\n"


def test_a_closed_session_begins_from_nothing(session: Session) -> None:
    session.run("x = 1")
    session.close()
    session.close()
    assert "NameError" in session.run("print(x)").stderr


def test_sessions_run_beside_each_other_without_blocking_the_loop(session: Session) -> None:
    async def all_of_them() -> list[str]:
        others = [session.spawn() for _ in range(4)]
        try:
            results = await asyncio.gather(*(other.arun("print(1)") for other in others))
        finally:
            for other in others:
                other.close()
        return [result.stdout for result in results]

    assert asyncio.run(all_of_them()) == ["1\n"] * 4


def test_runners_without_sessions_say_so() -> None:
    with pytest.raises(ConfigurationError, match="SubprocessRunner keeps nothing .*'bwrap'"):
        SubprocessRunner().session()


def test_files_stay_and_are_part_of_snapshots(warm: Session) -> None:
    warm.run(
        "import os\nopen('f', 'w').write('1'); os.mkdir('d'); open('d/g', 'w').write('2')\n"
        "os.symlink('f', 'link'); os.chmod('f', 0o600)"
    )
    state = warm.snapshot()
    show = (
        "print({p: open(p).read() for p in ('f', 'd/g', 'link') if os.path.exists(p)}, "
        "oct(os.stat('f').st_mode), os.path.islink('link'))"
    )
    shown = warm.run(show).stdout
    assert "'d/g': '2'" in shown
    warm.run("import shutil; open('f', 'a').write('x'); shutil.rmtree('d'); os.remove('link')")
    assert warm.run("print(open('f').read())").stdout == "1x\n"
    warm.restore(state)
    assert warm.run(show).stdout == shown
    with warm.spawn() as child:
        warm.run("open('f', 'w').write('later')")
        assert child.run(show).stdout == shown


def test_all_sessions_draw_the_same_random_numbers() -> None:
    runner = bwrap()
    drawn = []
    for _ in range(2):
        with runner.session(LIMITS) as session:
            session.run("import random; x = random.random()")
            drawn.append(session.run("print(x, random.random())").stdout)
    assert drawn[0] == drawn[1]


def test_random_numbers_go_on_across_programs(warm: Session) -> None:
    warm.run("import random, numpy; random.seed(1); numpy.random.seed(1)")
    across = [warm.run("print(random.random(), numpy.random.rand())").stdout for _ in range(3)]
    together = "random.seed(1); numpy.random.seed(1)\n" + "\n".join(
        ["print(random.random(), numpy.random.rand())"] * 3
    )
    assert "".join(across) == warm.run(together).stdout


def test_a_traceback_shows_the_lines_of_the_program_that_has_them(warm: Session) -> None:
    warm.run("def f():\n    raise KeyError('deep')")
    shown = warm.run("1\n2\nf()").stderr
    assert "    f()\n" in shown
    assert "    raise KeyError('deep')\n" in shown
    assert "/session.py" not in shown


def test_stdin_and_exit_codes_are_those_of_each_program(warm: Session) -> None:
    assert warm.run("print(input())", "a\nb").stdout == "a\n"
    assert warm.run("import sys; print(sys.stdin.read())", "c").stdout == "c\n"
    assert warm.run("raise SystemExit(3)").exit_code == 3
    assert warm.run("import os; os._exit(4)").exit_code == 4
    assert warm.run("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)").exit_code == -11
    assert warm.run("print(sys.flags.optimize)").stdout == "0\n"


def test_nothing_runs_between_programs(warm: Session) -> None:
    warm.run(
        "import os, threading, time\nticks = os.open('ticks', os.O_CREAT | os.O_WRONLY)\n"
        "def tick():\n    while True: os.write(ticks, b'x'); time.sleep(0.001)\n"
        "threading.Thread(target=tick, daemon=True).start()\n"
        "if os.fork() == 0:\n    os.setsid(); tick()"
    )
    first = int(warm.run("print(os.path.getsize('ticks'))").stdout)
    time.sleep(2)
    second = int(warm.run("print(os.path.getsize('ticks'))").stdout)
    # Two seconds would have added thousands; the programs that look take a moment, too.
    assert second - first < 1500


def test_a_process_that_a_program_forks_is_not_the_session(warm: Session) -> None:
    forked = warm.run(
        "import os\npid = os.fork()\nx = 'parent' if pid else 'child'\n"
        "print(x, flush=True)\nif pid: os.waitpid(pid, 0)"
    )
    assert sorted(forked.stdout.split()) == ["child", "parent"]
    assert [warm.run("print(x)").stdout for _ in range(3)] == ["parent\n"] * 3


@pytest.mark.parametrize(
    "program",
    [
        "fs = []\nwhile True: fs.append(open('/dev/null'))",
        "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
        "import os; os.closerange(0, 3)",
        "import builtins; builtins.print = None; del builtins.open",
        "import sys; sys.stdout = sys.stdin = None",
        "import gc, sys, threading; gc.disable(); sys.setrecursionlimit(50); sys.modules.clear()",
    ],
)
def test_a_session_outlives_what_a_program_does_to_its_interpreter(
    warm: Session, program: str
) -> None:
    warm.run("x = 1; import os")
    warm.run(program)
    assert warm.run("os._exit(3)").exit_code in (3, -9)
    assert warm.run("os.write(1, b'%d' % x)").stdout == "1"


def test_processes_that_take_all_room_are_named(warm: Session) -> None:
    warm.run("import os, time; x = 1")
    warm.snapshot()
    warm.run("while True:\n    if os.fork() == 0: time.sleep(60)")
    assert "left too many processes" in warm.run("print(x)").stderr
    warm.close()
    assert warm.run("print(1)").stdout == "1\n"


def test_a_file_that_cannot_be_read_costs_no_snapshot(warm: Session) -> None:
    warm.run("import os\nopen('f', 'w').close(); os.chmod('f', 0); x = 1")
    state = warm.snapshot()
    assert warm.run("x = 2").exit_code == 0
    warm.restore(state)
    assert warm.run("print(x)").stdout == "1\n"


def test_a_process_that_is_left_behind_holds_up_no_output(warm: Session) -> None:
    left = warm.run("import os, time\nif os.fork() == 0: time.sleep(60)\nprint('done')")
    assert (left.stdout, left.limit_hit) == ("done\n", None)
    assert left.seconds < 20


def test_closing_ends_every_process_of_a_session(warm: Session) -> None:
    pid = server(BwrapRunner(servers=1))
    before = set(below(pid))
    warm.run("import os, time\nfor _ in range(3):\n    if os.fork() == 0: time.sleep(60)")
    warm.snapshot()
    warm.run("x = 1")
    assert len(set(below(pid)) - before) >= 6
    warm.close()
    assert settles(lambda: not set(below(pid)) - before)


def test_a_session_that_is_forgotten_ends() -> None:
    runner = bwrap()
    pid = server(runner)
    before = set(below(pid))
    session = runner.session()
    session.run("x = 1")
    assert set(below(pid)) - before
    del session
    assert settles(lambda: not set(below(pid)) - before)


def test_many_programs_leave_no_process_or_descriptor(warm: Session) -> None:
    pid = server(BwrapRunner(servers=1))
    warm.run("x = 0")

    def traces() -> tuple[int, int]:
        return len(below(pid)), len(list(Path("/proc/self/fd").iterdir()))

    before = traces()
    state = warm.snapshot()
    for _ in range(20):
        warm.restore(state)
        warm.run("import os; os._exit(1)")
        warm.run("x += 1")
        warm.run("x += 1")
    assert warm.run("print(x)").stdout == "2\n"
    # The process of the snapshot is there besides.
    assert settles(lambda: traces() <= (before[0] + 1, before[1]))


def test_snapshots_beyond_those_kept_can_still_be_gone_back_to(warm: Session) -> None:
    states = []
    for number in range(20):
        warm.run(f"x = {number}")
        states.append(warm.snapshot())
    for number in (19, 0, 10, 3):
        warm.restore(states[number])
        assert warm.run("print(x)").stdout == f"{number}\n"


def test_a_session_outlives_its_sandbox(warm: Session) -> None:
    pid = server(BwrapRunner(servers=1))
    warm.run("x = 1")
    os.kill(pid, signal.SIGKILL)
    assert settles(lambda: not below(pid))
    assert warm.run("x += 1; print(x)").stdout == "2\n"


def test_a_program_whose_sandbox_is_killed_goes_on_in_another(warm: Session) -> None:
    pid = server(BwrapRunner(servers=1))
    warm.run("x = 1")
    waiting = len(below(settled(pid)))

    def end() -> None:
        # The program is there besides.
        assert settles(lambda: len(below(pid)) > waiting)
        os.kill(pid, signal.SIGKILL)

    ending = threading.Thread(target=end)
    ending.start()
    assert warm.run("x += 1; import time; time.sleep(4); print(x)").stdout == "2\n"
    ending.join()
    assert BwrapRunner(servers=1).pids() != [pid]
    assert warm.run("print(x)").stdout == "2\n"


def test_a_program_that_is_interrupted_leaves_no_state_that_is_half_repeated(
    warm: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm.run("log = [1]")
    warm.run("log.append(2)")
    run, sent = bwrap_server.Server.run, []

    def interrupted(server: bwrap_server.Server, *given: Any) -> Any:
        if sent:
            raise KeyboardInterrupt
        sent.append(given)
        return run(server, *given)

    with warm.spawn() as child:
        with monkeypatch.context() as patched:
            patched.setattr(bwrap_server.Server, "run", interrupted)
            with pytest.raises(KeyboardInterrupt):
                child.run("log.append(3)")
        assert child.run("print(log)").stdout == "[1, 2]\n"


def test_what_does_not_repeat_itself_is_not_continued_elsewhere(warm: Session) -> None:
    warm.run("import os; x = os.urandom(8); print(x)")
    with warm.spawn() as child:
        lost = child.run("print(5)")
        assert (lost.stdout, lost.exit_code) == ("", 1)
        assert "is lost, and this one was not run" in lost.stderr
        # It begins from nothing.
        assert "NameError" in child.run("print(x)").stderr
    # The session's own process is still there.
    assert warm.run("print(len(x))").stdout == "8\n"


def test_a_program_that_ends_its_session_costs_the_state_at_most(warm: Session) -> None:
    end = (
        "import ctypes, resource\nlibc = ctypes.CDLL(None)\n"
        "cpu = (ctypes.c_long * 2)(0, 0)\nlibc.prlimit(1, resource.RLIMIT_CPU, cpu, None)\n"
        "import os; os.kill(-1, 9)\nwhile True: pass"
    )
    warm.run("x = 1")
    assert warm.run(end).exit_code != 0
    assert warm.run("print(x)").stdout == "1\n"
    warm.run("import time; print(time.time_ns())")
    assert warm.run(end).exit_code != 0
    lost = warm.run("print(x)")
    assert lost.stdout == "1\n" or "is lost" in lost.stderr


LIBC = "import ctypes, os, resource, signal, time; libc = ctypes.CDLL(None)\n"


@pytest.mark.parametrize(
    "program",
    [
        "os.kill(-1, 9)",
        "signal.alarm(1)",
        "signal.setitimer(signal.ITIMER_PROF, 0.01)",
        *(
            f"libc.prlimit(1, resource.RLIMIT_{name}, (ctypes.c_long * 2)(0, 0), None)"
            for name in ("CPU", "NOFILE", "AS", "NPROC", "FSIZE", "SIGPENDING", "STACK")
        ),
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))\nwhile True: os.dup(1)",
        "while True:\n    if os.fork() == 0: signal.pause()",
        "held = bytearray(200 << 20)",
        "for _ in range(400): os.mkdir('d' * 200); os.chdir('d' * 200)",
        "os.mkdir('d'); open('d/f', 'w'); os.chmod('d', 0)",
        "open('f', 'wb').write(bytes(8 << 20))",
        "os.mkfifo('fifo'); os.symlink('/', 'link'); os.symlink('loop', 'loop')",
    ],
)
def test_what_a_program_does_to_its_own_session_is_told_to_the_program(
    warm: Session, program: str
) -> None:
    """None of it is an error of the sandbox, which would void the episode."""
    # Something that does not come out the same when it is repeated.
    warm.run(LIBC + "print(time.time_ns())")
    warm.run(program)
    time.sleep(1.1)
    state = warm.snapshot()
    for number in range(4):
        warm.run(f"print({number})")
    warm.restore(state)
    for number in range(4):
        warm.run(f"print({number})")
    # A session that is lost begins from nothing; otherwise it goes on or is full for good.
    with warm.spawn() as child:
        child.run("print(1)")
        assert child.run("print(2)").exit_code in (0, 1, -9)


def test_a_session_that_ends_after_each_of_its_programs_is_given_up(warm: Session) -> None:
    end = "print(1); " + LIBC + "libc.prlimit(1, 7, (ctypes.c_long * 2)(0, 0), None)"
    assert warm.run(end).stdout == "1\n"
    ended = [warm.run("print(2)") for _ in range(6)]
    assert all(result.exit_code in (0, 1, -9) for result in ended)


@pytest.mark.parametrize(("limit", "value"), [("_SESSIONS", 2), ("_IDLE_S", 2.0)])
def test_sessions_that_wait_too_long_end_and_still_go_on(
    limit: str, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    bwrap()
    monkeypatch.setattr(bwrap_server, limit, value)
    # A sandbox of its own, which starts now.
    module = {"_SESSIONS": "html", "_IDLE_S": "csv"}[limit]
    runner = BwrapRunner(servers=1, modules=(module,))
    before = len(below(server(runner, f"import {module}")))
    sessions = [runner.session(LIMITS) for _ in range(5)]
    for number, session in enumerate(sessions):
        session.run(f"x = {number}")
    # A keeper and a state each.
    held = {"_SESSIONS": 4, "_IDLE_S": 0}[limit]
    assert settles(lambda: len(below(*runner.pids())) - before <= held)
    for number, session in enumerate(sessions):
        assert session.run("print(x)").stdout == f"{number}\n"
        session.close()
