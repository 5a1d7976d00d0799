"""Killable workers: limits, replacement, threads, forks, exits."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gem.errors import ConfigurationError, UnreachableError
from gem.workers.pool import Reply, WorkerPool, shared

EVAL = "builtins:eval"
FOREVER = "__import__('time').sleep(1000)"
PID = "__import__('os').getpid()"
posix = pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform cannot fork")


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    pool = WorkerPool(EVAL, 2)
    yield pool
    pool.close()


def run_python(code: str) -> str:
    command = [sys.executable, "-W", "error::ResourceWarning", "-c", code]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stderr) == (0, "")
    return run.stdout


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    # A process that has ended and that nobody waits for is gone, too.
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return state.stdout.strip()[:1] in ("", "Z")


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 30
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_a_call_returns_the_functions_value(pool: WorkerPool) -> None:
    assert pool.call("[1, 'ä', None]", timeout_s=30) == Reply([1, "ä", None])


def test_nothing_is_started_before_the_first_call() -> None:
    assert WorkerPool(EVAL).pids() == []


def test_a_call_that_never_ends_is_killed_and_the_next_one_is_answered(pool: WorkerPool) -> None:
    assert pool.call(FOREVER, timeout_s=0.2) == Reply(None, "timeout")
    assert pool.call("9**9**9", timeout_s=0.2) == Reply(None, "timeout")
    assert pool.call("1 + 1", timeout_s=30) == Reply(2)


def test_the_killed_process_is_gone_and_another_one_answers(pool: WorkerPool) -> None:
    before = pool.call(PID, timeout_s=30).value
    pool.call("__import__('time').sleep(1000)", timeout_s=0.2)
    assert eventually(lambda: gone(before))
    assert pool.call(PID, timeout_s=30).value != before


def test_an_exception_is_a_failure_of_that_call_only(pool: WorkerPool) -> None:
    assert pool.call("1 / 0", timeout_s=30).failure == "ZeroDivisionError: division by zero"
    assert pool.call("object()", timeout_s=30).failure == (
        "TypeError: Object of type object is not JSON serializable"
    )
    assert pool.call("1", timeout_s=30) == Reply(1)


def test_a_process_that_dies_is_a_crash_of_that_call_only(pool: WorkerPool) -> None:
    for code in ("__import__('os')._exit(0)", "__import__('os')._exit(3)"):
        assert pool.call(code, timeout_s=30) == Reply(None, "crash")
        assert pool.call("1", timeout_s=30) == Reply(1)


@posix
def test_a_crash_has_the_exit_status_of_the_process(pool: WorkerPool) -> None:
    assert pool.call("__import__('os')._exit(3)", timeout_s=30).status == 3
    assert pool.call(f"__import__('os').kill({PID}, 11)", timeout_s=30).status == -11
    assert pool.call("1", timeout_s=30).status is None


@posix
def test_a_process_that_is_killed_decides_nothing(pool: WorkerPool, tmp_path: Path) -> None:
    kill = f"__import__('os').kill({PID}, 9)"
    with pytest.raises(UnreachableError, match="killed from outside, twice"):
        pool.call(kill, timeout_s=30)
    mark = tmp_path / "killed"
    there, leave = f"__import__('os').path.exists({str(mark)!r})", f"open({str(mark)!r}, 'w')"
    once = f"7 if {there} else ({leave}, {kill})"
    assert pool.call(once, timeout_s=30) == Reply(7)


@posix
def test_a_process_that_died_while_it_was_idle_costs_no_call_its_answer() -> None:
    pool = WorkerPool(EVAL, 1)
    for number in range(3):
        assert pool.call("1", timeout_s=30) == Reply(1)
        [pid] = pool.pids()
        os.kill(pid, signal.SIGKILL)
        assert pool.call(str(number), timeout_s=30) == Reply(number)
        assert pool.call("-1", timeout_s=30) == Reply(-1)
    pool.close()


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="the platform has no /proc")
def test_a_thousand_calls_leave_no_process_and_no_descriptor_behind() -> None:
    pool = WorkerPool(EVAL, 1)

    def standing() -> tuple[int, int]:
        """Return how many processes descend from this one, and its open descriptors."""
        listed = subprocess.check_output(["ps", "-eo", "pid=,ppid="]).split()
        pairs = [
            (int(pid), int(parent)) for pid, parent in zip(listed[::2], listed[1::2], strict=True)
        ]
        family: set[int] = {os.getpid()}
        while more := {pid for pid, parent in pairs if parent in family} - family:
            family |= more
        # What lists them is one of them, each time.
        return len(family), len(list(Path("/proc/self/fd").iterdir()))

    pool.call("1", timeout_s=30)
    before = standing()
    for i in range(1000):
        if i % 20:
            assert pool.call(str(i), timeout_s=30) == Reply(i)
        else:
            assert pool.call(FOREVER, timeout_s=0.01) == Reply(None, "timeout")
    assert pool.call("1", timeout_s=30) == Reply(1)

    def no_more() -> bool:
        # There may be fewer: what earlier tests left ends some time.
        return all(now <= then for now, then in zip(standing(), before, strict=True))

    assert eventually(no_more)
    pool.close()


@posix
def test_memory_is_limited() -> None:
    import resource

    pool = WorkerPool(EVAL, 1, memory_mb=512)
    assert pool.call("len(bytearray(1 << 32))", timeout_s=30) == Reply(None, "MemoryError: ")
    assert pool.call("len(bytearray(1 << 20))", timeout_s=30) == Reply(1 << 20)
    pool.close()
    limit = "__import__('resource').getrlimit(__import__('resource').RLIMIT_AS)[0]"
    pool = WorkerPool(EVAL, 1, memory_mb=None)
    assert pool.call(limit, timeout_s=30) == Reply(resource.getrlimit(resource.RLIMIT_AS)[0])
    pool.close()


def test_what_the_function_prints_is_not_taken_for_an_answer(pool: WorkerPool) -> None:
    assert pool.call("print('{\"value\": 5}', flush=True)", timeout_s=30) == Reply(None)
    assert pool.call("__import__('os').write(1, b'junk')", timeout_s=30) == Reply(4)


def test_a_call_does_not_wait_for_one_that_hangs(pool: WorkerPool) -> None:
    hung: list[Reply] = []
    thread = threading.Thread(target=lambda: hung.append(pool.call(FOREVER, timeout_s=600)))
    pool.call("1", timeout_s=30)
    idle = len(pool._idle)
    thread.start()
    # Else it could have to start a process, which `close` would keep from starting.
    assert eventually(lambda: len(pool._idle) < idle)
    assert [pool.call(str(i), timeout_s=30).value for i in range(50)] == list(range(50))
    assert hung == []
    pool.close()
    thread.join(30)
    assert hung == [Reply(None, "crash")]
    # A closed pool begins anew.
    assert pool.call("1", timeout_s=30) == Reply(1)


def test_many_threads_get_their_own_answers_from_a_bounded_number_of_processes(
    pool: WorkerPool,
) -> None:
    answers: dict[int, object] = {}

    def ask(i: int) -> None:
        answers[i] = pool.call(f"({i}, {PID})", timeout_s=30).value

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(isinstance(answers[i], list) and answers[i][0] == i for i in range(32))
    assert len({answers[i][1] for i in range(32)}) <= pool.workers == 2
    assert len(pool.pids()) <= 2


@posix
def test_a_forked_child_has_processes_of_its_own() -> None:
    out = run_python(
        f"""
import os
from gem.workers.pool import shared
pool = shared({EVAL!r})
ask = lambda: pool.call({PID!r}, timeout_s=30).value
mine = ask()
child = os.fork()
if child == 0:
    os._exit(0 if pool is shared({EVAL!r}) and pool.pids() == [] and ask() != mine else 1)
assert os.waitpid(child, 0)[1] == 0
assert ask() == mine
print("ok")
"""
    )
    assert out == "ok\n"


@posix
def test_a_child_forked_while_another_thread_is_in_a_call_is_not_stuck() -> None:
    run_python(
        f"""
import os, threading
from gem.workers.pool import WorkerPool
pool = WorkerPool({EVAL!r}, 1)
pool.call("1", timeout_s=30)
thread = threading.Thread(target=pool.call, args=({FOREVER!r},), kwargs={{"timeout_s": 600}})
thread.start()
while pool._idle: pass
child = os.fork()
if child == 0:
    os._exit(0 if pool.call("2", timeout_s=30).value == 2 else 1)
assert os.waitpid(child, 0)[1] == 0
pool.close()
thread.join()
"""
    )


@posix
def test_no_process_outlives_an_ordinary_exit() -> None:
    out = run_python(
        f"""
from gem.workers.pool import shared, WorkerPool
other = WorkerPool({EVAL!r}, 1)
for pool in (shared({EVAL!r}), other):
    print(*pool.call("[__import__('os').getpid(), __import__('os').getppid()]", timeout_s=30).value)
"""
    )
    assert len(out.split()) == 4
    assert all(gone(int(pid)) for pid in out.split())


@posix
def test_no_process_outlives_a_killed_parent() -> None:
    code = f"""
import time
from gem.workers.pool import WorkerPool
pool = WorkerPool({EVAL!r}, 1)
pids = "[__import__('os').getpid(), __import__('os').getppid()]"
print(*pool.call(pids, timeout_s=30).value, flush=True)
time.sleep(1000)
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        parent.send_signal(signal.SIGKILL)
    assert len(pids) == 2
    assert eventually(lambda: all(map(gone, pids)))


def test_a_target_that_cannot_be_loaded_is_named() -> None:
    with pytest.raises(UnreachableError, match="no_such_module:f.*ModuleNotFoundError"):
        WorkerPool("no_such_module:f").call(timeout_s=1)
    with pytest.raises(UnreachableError, match="builtins:no_such.*AttributeError"):
        WorkerPool("builtins:no_such").call(timeout_s=1)


@pytest.mark.parametrize("timeout_s", [1e10, math.inf])
@pytest.mark.parametrize("size", [3, 100_000])
def test_a_limit_may_be_longer_than_any_clock_counts(timeout_s: float, size: int) -> None:
    pool = WorkerPool("builtins:len", 1)
    assert pool.call("x" * size, timeout_s=timeout_s).value == size
    pool.close()


def test_wrong_parameters_are_named() -> None:
    for limit in (0.0, -1.0, math.nan):
        with pytest.raises(ConfigurationError, match="timeout_s must be above 0, got"):
            WorkerPool(EVAL, 1).call("1", timeout_s=limit)
    with pytest.raises(ConfigurationError, match="workers must be at least 1, got 0"):
        WorkerPool(EVAL, 0)
    with pytest.raises(ConfigurationError, match="target must be 'module:function', got 'eval'"):
        WorkerPool("eval")


def test_a_process_has_one_shared_pool_for_a_function() -> None:
    pools: list[WorkerPool] = []
    threads = [threading.Thread(target=lambda: pools.append(shared("json:dumps"))) for _ in "1234"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(pool) for pool in pools}) == 1
    assert shared("json:loads") is not pools[0]
