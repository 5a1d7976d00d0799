"""Threads of environments: used again, none waits for another, none keeps a process alive."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

import pytest

from gem.executors.threads import CallTimeoutError, EnvThreads
from gem.foreign import ForeignExitError


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_an_environment_that_hangs_does_not_keep_the_process_alive() -> None:
    code = (
        "import threading\nfrom gem.executors.threads import EnvThreads\n"
        "EnvThreads().start(threading.Event().wait)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], timeout=60, check=False)
    assert done.returncode == 0


def test_threads_are_used_again_and_none_waits_for_another(gate: threading.Event) -> None:
    async def go() -> None:
        threads = EnvThreads()
        found = {await threads.run(threading.get_ident) for _ in range(50)}
        # The next call may come before a thread has said that it is idle.
        assert len(found) < 10
        waiting = [asyncio.create_task(threads.run(gate.wait, 20)) for _ in range(20)]
        await asyncio.sleep(0)
        assert await threads.run(int) == 0
        gate.set()
        assert all(await asyncio.gather(*waiting))

    asyncio.run(go())


def spin(gate: threading.Event) -> None:
    """Block without letting go of the interpreter."""
    while not gate.is_set():
        pass


@pytest.mark.parametrize("block", [threading.Event.wait, spin])
def test_a_result_does_not_wait_for_later_calls(
    block: Callable[[threading.Event], object], gate: threading.Event
) -> None:
    async def go() -> None:
        threads = EnvThreads()
        for _ in range(5):
            quick = [asyncio.create_task(threads.run(int)) for _ in range(3)]
            blocked = [asyncio.create_task(threads.run(block, gate)) for _ in range(2)]
            assert await asyncio.wait_for(asyncio.gather(*quick), 20) == [0, 0, 0]
            gate.set()
            await asyncio.wait_for(asyncio.gather(*blocked), 20)
            gate.clear()

    asyncio.run(go())


def test_event_loops_share_threads_and_get_their_own_results() -> None:
    threads = EnvThreads()

    def step(number: int) -> int:
        if number % 7 == 0:
            time.sleep(0.001)
        if number % 11 == 0:
            raise LookupError(number)
        return number

    async def go(first: int) -> None:
        numbers = range(first, first + 300)
        calls = [threads.run(step, number, timeout_s=20) for number in numbers]
        found = await asyncio.gather(*calls, return_exceptions=True)
        for number, result in zip(numbers, found, strict=True):
            if number % 11:
                assert result == number
            else:
                assert isinstance(result, LookupError)
                assert result.args == (number,)

    with ThreadPoolExecutor(4) as loops:
        list(loops.map(lambda first: asyncio.run(go(first)), range(0, 4000, 500)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_process_starts_threads_of_its_own() -> None:
    code = (
        "import asyncio, os\nfrom gem.executors.threads import env_threads\n"
        "run = lambda: asyncio.run(asyncio.wait_for(env_threads().run(int), 20))\n"
        "run()\nchild = os.fork()\nrun()\n"
        "if child: assert os.waitpid(child, 0)[1] == 0\n"
    )
    done = subprocess.run([sys.executable, "-c", code], timeout=60, check=False)
    assert done.returncode == 0


def allow_threads(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Let the system refuse further threads, as containers do."""
    start, left = threading.Thread.start, iter(range(most))

    def limited(thread: threading.Thread) -> None:
        if thread.name == "gem-env" and next(left, None) is None:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)


def test_calls_share_the_threads_that_the_system_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    allow_threads(monkeypatch, 2)

    async def go() -> list[int]:
        threads = EnvThreads()
        calls = [threads.run(lambda n=n: time.sleep(0.001) or n) for n in range(20)]
        return await asyncio.wait_for(asyncio.gather(*calls), 20)

    assert asyncio.run(go()) == list(range(20))


def test_a_result_does_not_wait_where_only_one_thread_is_allowed(
    monkeypatch: pytest.MonkeyPatch, gate: threading.Event
) -> None:
    allow_threads(monkeypatch, 1)

    async def go() -> None:
        threads = EnvThreads()
        quick = asyncio.create_task(threads.run(int))
        blocked = asyncio.create_task(threads.run(gate.wait, 60))
        assert await asyncio.wait_for(quick, 20) == 0
        gate.set()
        assert await blocked

    asyncio.run(go())


def test_a_system_that_allows_no_thread_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    allow_threads(monkeypatch, 0)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        asyncio.run(EnvThreads().run(int))


def test_what_a_call_raises_reaches_who_waits_for_it() -> None:
    with pytest.raises(ZeroDivisionError):
        asyncio.run(EnvThreads().run(lambda: 1 / 0))


def test_stop_iteration_which_no_future_can_hold_does_not_hang() -> None:
    def empty() -> NoReturn:
        raise StopIteration("no more rows")

    with pytest.raises(ForeignExitError, match="StopIteration: no more rows") as caught:
        asyncio.run(asyncio.wait_for(EnvThreads().run(empty), 20))
    assert isinstance(caught.value.__cause__, StopIteration)


def test_a_thread_is_left_behind_after_its_time_limit(gate: threading.Event) -> None:
    threads = EnvThreads()
    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(threads.run(gate.wait, 20, timeout_s=0.01))
    gate.set()  # its result comes after the loop has been closed
    assert asyncio.run(threads.run(int)) == 0


def test_the_limit_of_a_call_begins_when_the_call_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread: the last of 20 calls waits for 2 s, twice its limit, and then takes 0.1 s."""
    allow_threads(monkeypatch, 1)

    async def go() -> None:
        threads = EnvThreads()
        calls = [threads.run(time.sleep, 0.1, timeout_s=1.0) for _ in range(20)]
        assert await asyncio.gather(*calls) == [None] * 20

    asyncio.run(go())


def test_a_call_for_which_no_thread_is_left_is_given_up(
    monkeypatch: pytest.MonkeyPatch, gate: threading.Event
) -> None:
    allow_threads(monkeypatch, 1)

    async def go() -> None:
        threads = EnvThreads()
        calls = [threads.run(gate.wait, 60, timeout_s=0.1) for _ in range(3)]
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(each) for each in found] == [CallTimeoutError] * 3

    asyncio.run(go())


def test_calls_that_nobody_waits_for_have_results_limits_and_errors(gate: threading.Event) -> None:
    pool, found, all_found = EnvThreads(), dict[str, object](), threading.Event()

    def take(results: list[tuple[str, object]]) -> None:
        found.update(results)
        if len(found) == 4:
            all_found.set()

    def leave() -> NoReturn:
        raise SystemExit(3)

    pool.submit(int, take, "quick", 60)
    pool.submit(gate.wait, take, "hanging", 0.1)
    pool.submit(leave, take, "leaving")
    pool.submit(lambda: 1 / 0, take, "failing", 60)
    assert all_found.wait(60)
    assert found["quick"] == 0
    assert isinstance(found["hanging"], CallTimeoutError)
    assert isinstance(found["leaving"], ForeignExitError)
    assert isinstance(found["leaving"].__cause__, SystemExit)
    assert isinstance(found["failing"], ZeroDivisionError)


class Later(EnvThreads):
    """Keeps calls instead of making them."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Callable[[], None]] = []

    def start(self, call: Callable[[], None]) -> None:
        self.kept.append(call)


def test_a_call_that_nobody_waits_for_any_more_is_not_begun() -> None:
    threads, calls = Later(), list[int]()
    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(threads.run(calls.append, 1, timeout_s=0.01))
    (call,) = threads.kept
    call()
    assert calls == []
