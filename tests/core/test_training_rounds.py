"""Requests of many episodes are answered in common rounds; nothing waits for a slow environment."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from gem.training.rounds import Rounds


def play(rounds: Rounds, episodes: Sequence[Any]) -> list[Any]:
    async def run() -> list[Any]:
        return await asyncio.wait_for(rounds.run(episodes), 30)

    return asyncio.run(run())


def test_episodes_that_ask_together_share_a_call() -> None:
    sizes: list[int] = []

    def generate(prompts: list[list[int]], params: list[Any]) -> list[int]:
        sizes.append(len(prompts))
        return [sum(p) + q for p, q in zip(prompts, params, strict=True)]

    rounds = Rounds(generate)
    found = play(rounds, [rounds.sample([i, i], 100) for i in range(20)])
    assert found == [100 + 2 * i for i in range(20)]
    assert sizes == [20]


def test_an_engine_that_fails_fails_everyone_who_waits_and_goes_on() -> None:
    calls = 0

    def generate(prompts: list[list[int]], params: list[Any]) -> list[int]:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise MemoryError("no room for the cache")
        return [7] * len(prompts)

    rounds = Rounds(generate)

    async def twice() -> int:
        try:
            await rounds.sample([1], None)
        except MemoryError:
            return int(await rounds.sample([1], None))
        raise AssertionError("the first call must fail")

    assert play(rounds, [twice(), twice()]) == [7, 7]


def test_an_engine_that_leaves_an_answer_out_is_an_error() -> None:
    rounds = Rounds(lambda prompts, params: [])
    with pytest.raises(ValueError, match="zip"):
        play(rounds, [rounds.sample([1], None)])


def test_an_episode_that_raises_ends_the_others() -> None:
    ended: list[str] = []
    rounds = Rounds(lambda prompts, params: [0] * len(prompts))

    async def waits() -> None:
        try:
            await asyncio.sleep(600)
        finally:
            ended.append("waits")

    async def fails() -> None:
        await rounds.sample([1], None)
        raise OSError("the sandbox is gone")

    with pytest.raises(OSError, match="the sandbox is gone"):
        play(rounds, [waits(), fails()])
    assert ended == ["waits"]


def test_the_engine_goes_on_while_an_environment_is_stuck() -> None:
    freed = threading.Event()
    answered: list[str] = []

    def generate(prompts: list[list[int]], params: list[str]) -> list[str]:
        return params

    rounds = Rounds(generate)

    async def quick() -> None:
        answered.extend([await rounds.sample([1], "quick") for _ in range(5)])
        freed.set()

    async def stuck() -> None:
        answered.append(await rounds.sample([2], "stuck"))
        loop = asyncio.get_running_loop()
        # Ends only because the other episode could play to its end meanwhile.
        assert await loop.run_in_executor(None, freed.wait, 20)
        answered.append(await rounds.sample([2], "freed"))

    assert play(rounds, [quick(), stuck()]) == [None, None]
    assert answered.index("freed") == 6


@pytest.mark.parametrize("episodes", [2, 9])
def test_the_loop_stays_free_while_the_engine_samples(episodes: int) -> None:
    seen: list[int] = []
    sampling = threading.Event()

    def generate(prompts: list[list[int]], params: list[Any]) -> list[int]:
        assert sampling.wait(20)
        return [0] * len(prompts)

    rounds = Rounds(generate)

    async def other() -> None:
        for i in range(50):
            await asyncio.sleep(0)
            seen.append(i)
        sampling.set()

    play(rounds, [*(rounds.sample([i], None) for i in range(episodes)), other()])
    assert len(seen) == 50
