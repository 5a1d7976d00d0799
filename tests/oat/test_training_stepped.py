"""An engine is stepped beside the episodes: no turn waits for another episode's."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from gem.errors import RolloutError
from gem.rollout import Request, Sample
from gem_oat.stepped import SteppedEngine, SteppedSampler


class Scripted:
    """An engine that says when requests are finished, as vLLM's `LLMEngine` does.

    Args:
        finished: Given a request's parameters and the steps that it had, whether this is its last.
        answer: Makes the output of a prompt.
    """

    def __init__(
        self,
        finished: Callable[[Any, int], bool] = lambda params, steps: True,
        answer: Callable[[list[int]], Any] = lambda ids: SimpleNamespace(sum=sum(ids)),
    ) -> None:
        self.finished, self.answer = finished, answer
        self.running: dict[str, tuple[list[int], Any, int]] = {}
        self.events: list[str] = []
        self.aborted: list[Any] = []

    def add_request(self, request_id: str, prompt: Any, params: Any) -> None:
        self.events.append(f"begin {params}")
        self.running[request_id] = (prompt["prompt_token_ids"], params, 0)

    def has_unfinished_requests(self) -> bool:
        return bool(self.running)

    def abort_request(self, request_ids: list[str]) -> None:
        self.aborted += [self.running.pop(request)[1] for request in request_ids]

    def step(self) -> list[Any]:
        time.sleep(0.001)
        outputs = []
        for request, (ids, params, steps) in list(self.running.items()):
            self.running[request] = (ids, params, steps + 1)
            # vLLM may also tell what there is of an answer so far.
            output = SimpleNamespace(request_id=request, finished=False)
            if self.finished(params, steps + 1):
                self.events.append(f"end {params}")
                del self.running[request]
                output = self.answer(ids)
                output.request_id, output.finished = request, True
            outputs.append(output)
        return outputs


def play(engine: SteppedEngine, episodes: Sequence[Any]) -> list[Any]:
    async def run() -> list[Any]:
        return await asyncio.wait_for(engine.run(episodes), 30)

    return asyncio.run(run())


def test_every_request_gets_its_own_answer() -> None:
    engine = SteppedEngine(Scripted(lambda params, steps: steps == params))

    async def one(number: int) -> int:
        return int((await engine.sample([number, number], 1 + number * 7 % 5)).sum)

    assert play(engine, [one(i) for i in range(50)]) == [2 * i for i in range(50)]


def test_a_short_episodes_next_turn_begins_while_a_long_turn_is_sampled() -> None:
    scripted = Scripted(
        # The long turn ends only after all turns of the short episode.
        lambda params, steps: params != "long" or "end short 3" in scripted.events
    )
    engine = SteppedEngine(scripted)

    async def turns(*names: str) -> None:
        for name in names:
            await engine.sample([1], name)

    play(engine, [turns("long"), turns("short 1", "short 2", "short 3")])
    assert scripted.events[-1] == "end long"


def test_an_engine_that_fails_fails_everyone_from_then_on() -> None:
    scripted = Scripted(lambda params, steps: 1 // 0 == 1)
    engine = SteppedEngine(scripted)

    async def twice() -> None:
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                await engine.sample([1], None)

    play(engine, [twice(), twice()])
    assert len(scripted.events) <= 2


def test_a_request_that_the_engine_does_not_take_is_an_error() -> None:
    scripted = Scripted()
    scripted.add_request = lambda *request: 1 // 0  # type: ignore[assignment, method-assign]
    engine = SteppedEngine(scripted)
    with pytest.raises(ZeroDivisionError):
        play(engine, [engine.sample([1], None)])


def test_an_engine_that_leaves_an_answer_out_is_an_error() -> None:
    scripted = Scripted()
    scripted.step = lambda: scripted.running.clear() or []  # type: ignore[func-returns-value, method-assign]
    engine = SteppedEngine(scripted)
    with pytest.raises(RolloutError, match="left out the answer"):
        play(engine, [engine.sample([1], None)])


def test_an_episode_that_raises_ends_the_others_and_what_they_asked_for() -> None:
    ended: list[str] = []
    scripted = Scripted(lambda params, steps: params == "quick")
    engine = SteppedEngine(scripted)

    async def waits() -> None:
        try:
            await engine.sample([1], "endless")
        finally:
            ended.append("waits")

    async def fails() -> None:
        await engine.sample([1], "quick")
        raise OSError("the sandbox is gone")

    with pytest.raises(OSError, match="the sandbox is gone"):
        play(engine, [waits(), fails()])
    assert ended == ["waits"]
    assert scripted.aborted == ["endless"]
    assert not scripted.has_unfinished_requests()


def test_the_engine_goes_on_while_an_environment_is_stuck() -> None:
    freed = threading.Event()
    scripted = Scripted()
    engine = SteppedEngine(scripted)

    async def quick() -> None:
        for _ in range(5):
            await engine.sample([1], "quick")
        freed.set()

    async def stuck() -> None:
        await engine.sample([2], "stuck")
        loop = asyncio.get_running_loop()
        # Ends only because the other episode could play to its end meanwhile.
        assert await loop.run_in_executor(None, freed.wait, 20)
        await engine.sample([2], "freed")

    play(engine, [quick(), stuck()])
    assert scripted.events[-1] == "end freed"


@pytest.mark.parametrize("episodes", [2, 9])
def test_the_loop_stays_free_while_the_engine_samples(episodes: int) -> None:
    seen: list[int] = []
    sampling = threading.Event()
    engine = SteppedEngine(Scripted(lambda params, steps: sampling.wait(20)))

    async def other() -> None:
        for i in range(50):
            await asyncio.sleep(0)
            seen.append(i)
        sampling.set()

    play(engine, [*(engine.sample([i], None) for i in range(episodes)), other()])
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

    def finished(params: dict[str, Any], steps: int) -> bool:
        seen.append(params)
        return True

    engine = SteppedEngine(Scripted(finished, answer))
    sampler = SteppedSampler(
        frozenset([9, 2]), (1, 2), engine=engine, params=partial(dict, top_k=3)
    )

    async def episode() -> list[Sample]:
        first = Request(0, [5, 6], [5, 6], True, 8)
        second = Request(0, [5, 6, 7, 2, 3], [3], False, 4)
        return [await sampler(first), await sampler(second)]

    [samples] = play(engine, [episode()])
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
