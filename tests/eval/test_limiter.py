"""How many calls run at a time, and when."""

from __future__ import annotations

import asyncio

import pytest

from gem_eval.server import Limiter


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time; its only entry may be changed."""
    now = [100.0]
    monkeypatch.setattr("gem_eval.server.monotonic", lambda: now[0])
    return now


def test_refusals_allow_fewer_calls_once_a_second_and_never_none(clock: list[float]) -> None:
    limiter = Limiter(10)
    found = []
    for _ in range(3):
        limiter.shrink()
        limiter.shrink()
        found.append(limiter.limit)
        clock[0] += 1
    assert found == [8, 6, 5]
    for _ in range(30):
        limiter.shrink()
        clock[0] += 1
    assert limiter.limit == 1


def test_answers_allow_more_calls_again_up_to_the_most(clock: list[float]) -> None:
    limiter = Limiter(10)
    limiter.shrink()
    for _ in range(9):
        limiter.grow()
    assert limiter.limit == 9
    for _ in range(100):
        limiter.grow()
    assert limiter.limit == 10


def test_no_more_calls_run_than_the_limit_and_none_is_forgotten(clock: list[float]) -> None:
    async def main() -> tuple[int, int]:
        limiter = Limiter(6)
        running = most = ended = 0

        async def call(number: int) -> None:
            nonlocal running, most, ended
            async with limiter.call():
                running += 1
                most = max(most, running if number > 40 else 0)
                await asyncio.sleep(0)
                if number == 20:
                    clock[0] += 1
                    limiter.shrink()
                running -= 1
            ended += 1

        calls = [asyncio.create_task(call(number)) for number in range(100)]
        await asyncio.sleep(0)
        for cancelled in calls[60:70]:
            cancelled.cancel()
        async with asyncio.timeout(10):
            await asyncio.gather(*calls, return_exceptions=True)
        return most, ended

    assert asyncio.run(main()) == (4, 90)
