"""Requests of many episodes are answered in common rounds; nothing waits for a slow environment."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from gem.errors import RolloutError
from gem.rollout import Request, Sample
from gem.training.rounds import Rounds, RoundsSampler


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


class Answer:
    """vLLM's `RequestOutput` of one completion."""

    def __init__(self, prompt: list[int], reason: str = "stop") -> None:
        self.prompt_token_ids = tuple(prompt)
        token = SimpleNamespace(logprob=-0.5)
        self.outputs = [
            SimpleNamespace(
                token_ids=[7, 2], logprobs=[{7: token}, {2: token}], finish_reason=reason
            )
        ]


def sampled(answer: Callable[[list[int]], Answer]) -> tuple[list[Sample], list[dict[str, Any]]]:
    """Two turns of an episode, and the parameters that they were sampled with."""
    seen: list[dict[str, Any]] = []

    def generate(prompts: list[list[int]], params: list[Any]) -> list[Answer]:
        seen.extend(params)
        return [answer(prompt) for prompt in prompts]

    rounds = Rounds(generate)
    sampler = RoundsSampler(rounds, partial(dict, top_k=3), frozenset([9, 2]), (1, 2))

    async def episode() -> list[Sample]:
        first = Request(0, [5, 6], [5, 6], True, 8)
        second = Request(0, [5, 6, 7, 2, 3], [3], False, 4)
        return [await sampler(first), await sampler(second)]

    [samples] = play(rounds, [episode()])
    return samples, seen


def test_vllm_samples_the_turns_of_an_episode_each_with_its_seed() -> None:
    samples, seen = sampled(Answer)
    assert [(s.token_ids, s.logprobs, s.stop_reason) for s in samples] == [
        ([7, 2], [-0.5, -0.5], "stop")
    ] * 2
    assert [params["max_tokens"] for params in seen] == [8, 4]
    assert len({params["seed"] for params in seen}) == 2
    assert all(params["stop_token_ids"] == [2, 9] and params["top_k"] == 3 for params in seen)


def test_what_vllm_sampled_from_another_prompt_is_refused() -> None:
    with pytest.raises(RolloutError, match="another prompt"):
        sampled(lambda prompt: Answer(prompt[1:]))


def test_a_request_that_vllm_aborted_is_refused() -> None:
    with pytest.raises(RolloutError, match="'abort'"):
        sampled(lambda prompt: Answer(prompt, "abort"))
