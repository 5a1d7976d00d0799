"""An environment in threads is closed once, and never while a call to it runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from gem.core import Env
from gem.executors.asynchronous import AsyncEnv
from gem.executors.held import STEP_TIMEOUT_S, EnvFailedError

# Much more than a call that does not wait takes on a busy machine.
LIMIT_S = 1.0


class Gate:
    """What the environments of one test wait for, and what they set; no two tests share it."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.env_closed = threading.Event()


class Gated(Env):
    """Waits where it is told to, and notes what happens to it."""

    def __init__(self, waits: str, gate: Gate, log: list[str]) -> None:
        super().__init__()
        self.waits, self.gate, self.log = waits, gate, log
        self._call("make")

    def _call(self, name: str) -> None:
        self.log.append(name)
        if name == self.waits:
            assert self.gate.opened.wait(60)
        self.log.append(f"{name} ended")

    def reset(self, seed: int | None = None, **options: Any) -> Any:
        self._call("reset")
        return "begin", {}

    def step(self, action: str) -> Any:
        self._call("step")
        return "go on", 0.0, False, False, {}

    def close(self) -> None:
        self.log.append("closed")
        self.gate.env_closed.set()

    def sample_random_action(self) -> str:
        return "x"


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


async def visit(env: AsyncEnv) -> None:
    try:
        await env.reset(0)
        await env.step("x")
    finally:
        env.close()


@pytest.mark.parametrize("waits", ["make", "reset", "step"])
def test_what_exceeds_its_limit_is_closed_when_it_returns(waits: str, gate: Gate) -> None:
    log: list[str] = []
    with pytest.raises(EnvFailedError, match="time limit of 1 s"):
        asyncio.run(visit(AsyncEnv(lambda: Gated(waits, gate, log), LIMIT_S)))
    assert log[-1] == waits
    assert not gate.env_closed.wait(0.1)
    gate.opened.set()
    assert gate.env_closed.wait(60)
    assert log.count("closed") == 1
    assert log[-1] == "closed"
    assert f"{waits} ended" in log


def test_a_time_out_of_the_environments_own_is_not_taken_for_the_limit(
    gate: Gate,
) -> None:
    class Remote(Gated):
        def reset(self, seed: int | None = None, **options: Any) -> Any:
            raise TimeoutError("the web site does not answer")

    with pytest.raises(EnvFailedError, match="TimeoutError: the web site does not answer"):
        asyncio.run(visit(AsyncEnv(lambda: Remote("nothing", gate, []))))


def test_what_failed_is_closed(gate: Gate) -> None:
    class Broken(Gated):
        def step(self, action: str) -> Any:
            raise OSError("sandbox gone")

    async def left_alone() -> None:
        env = AsyncEnv(lambda: Broken("nothing", gate, []))
        await env.reset(0)
        with pytest.raises(EnvFailedError, match="sandbox gone"):
            await env.step("x")

    asyncio.run(left_alone())
    assert gate.env_closed.wait(60)


def test_what_is_cancelled_is_closed_when_it_returns(gate: Gate) -> None:
    log: list[str] = []

    async def cancelled() -> None:
        task = asyncio.ensure_future(visit(AsyncEnv(lambda: Gated("step", gate, log))))
        for _ in range(6000):
            if "step" in log:
                break
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert "closed" not in log
    gate.opened.set()
    assert gate.env_closed.wait(60)
    assert log[-2:] == ["step ended", "closed"]


def test_what_is_closed_twice_is_closed_once(gate: Gate) -> None:
    log: list[str] = []
    env = AsyncEnv(lambda: Gated("nothing", gate, log))
    asyncio.run(visit(env))
    env.close()
    assert gate.env_closed.wait(60)
    assert log.count("closed") == 1
    with pytest.raises(EnvFailedError, match="closed"):
        asyncio.run(env.step("x"))


def test_there_is_a_limit_by_default() -> None:
    from gem_train.settings import Settings

    assert Settings().step_timeout_s == STEP_TIMEOUT_S
