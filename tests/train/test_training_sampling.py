"""What samplers of all engines share: seeds of turns, cut turns, vLLM's answers."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from gem.errors import RolloutError
from gem.rollout.collect import together
from gem_train import sampling
from gem_train.sampling import EngineSampler, NoAnswerError, answered

STOP = frozenset({7, 2})


def test_turns_have_seeds_of_their_own_that_depend_on_nothing_else() -> None:
    first, second = EngineSampler(STOP, (5, 0)), EngineSampler(STOP, [5, 0])
    seeds = [first.turn_seed() for _ in range(4)]
    assert [second.turn_seed() for _ in range(4)] == seeds
    assert len(set(seeds)) == 4 and all(s is not None and 0 <= s < 2**31 for s in seeds)
    assert EngineSampler(STOP, (5, 1)).turn_seed() not in seeds
    assert EngineSampler(STOP).turn_seed() is None
    assert first.stop_ids == [2, 7]


@pytest.mark.parametrize(
    ("ids", "cut", "reason"),
    [
        ([3, 7], False, "stop"),
        ([3, 4], True, "length"),
        ([3, 2], True, "stop"),
        ([], True, "length"),
    ],
)
def test_a_turn_is_cut_unless_its_last_token_ends_it(
    ids: list[int], cut: bool, reason: str
) -> None:
    sample = EngineSampler(STOP).sample(ids, None, cut=cut, version=3)
    assert (sample.token_ids, sample.stop_reason, sample.version) == (ids, reason, 3)


def answer(**output: Any) -> Any:
    return SimpleNamespace(outputs=[SimpleNamespace(**output)])


def test_vllms_log_probabilities_are_those_of_the_sampled_tokens() -> None:
    known = [{3: SimpleNamespace(logprob=-1), 9: SimpleNamespace(logprob=-2)}]
    sampler = EngineSampler(STOP)
    sample = sampler.vllm_sample(answer(token_ids=(3,), logprobs=known, finish_reason="length"))
    assert (sample.token_ids, sample.logprobs, sample.stop_reason) == ([3], [-1.0], "length")
    sample = sampler.vllm_sample(answer(token_ids=(7,), logprobs=None, finish_reason="stop"))
    assert (sample.logprobs, sample.stop_reason) == (None, "stop")


@pytest.mark.parametrize(
    "given", [None, SimpleNamespace(outputs=[]), answer(token_ids=(), finish_reason="abort")]
)
def test_no_answer_of_vllm_is_no_turn(given: Any) -> None:
    with pytest.raises(RolloutError, match="the engine ended a request with"):
        EngineSampler(STOP).vllm_sample(given)


def test_the_first_exception_ends_all_that_run_together() -> None:
    cancelled = []

    async def one(number: int) -> int:
        try:
            await asyncio.sleep(0 if number < 2 else 60)
        except asyncio.CancelledError:
            cancelled.append(number)
            raise
        if number == 1:
            raise RolloutError("no engine")
        return number

    async def fails() -> None:
        with pytest.raises(RolloutError, match="no engine"):
            await together([one(n) for n in range(4)])
        await asyncio.sleep(0)

    asyncio.run(fails())
    assert cancelled == [2, 3]

    async def works() -> list[int]:
        return await together([one(0), one(0)])

    assert asyncio.run(works()) == [0, 0]


def asked(*reasons: NoAnswerError | None, retries: int) -> int:
    """Number of the attempt that was answered; None is an answer."""
    left = list(enumerate(reasons, 1))

    async def ask() -> int:
        number, reason = left.pop(0)
        if reason is not None:
            raise reason
        return number

    return asyncio.run(answered(ask, "the engine", retries))


def test_a_request_is_repeated_as_often_as_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "FIRST_DELAY_S", 0.0)
    busy, away = NoAnswerError("busy"), NoAnswerError("away", patience_s=60.0)
    assert asked(busy, busy, None, retries=2) == 3
    assert asked(away, away, away, None, retries=0) == 4
    with pytest.raises(RolloutError, match="the engine did not answer: 2 failures in .*: busy"):
        asked(busy, away, busy, None, retries=1)


def test_waits_between_attempts_grow_up_to_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(sampling, "sleep", sleep)
    assert asked(*[NoAnswerError("busy")] * 6, None, retries=6) == 7
    assert waits == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
