"""`gem_trl.lockstep`: batches of all open episodes, alone and in step with other processes."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gem.errors import ConfigurationError, RolloutError
from gem.rollout import Request, Sample
from gem.rollout.collect import Player
from gem.rollout.play import Sampler
from gem_trl.lockstep import Lockstep

STOP = frozenset({2, 7})


def request(prompt: list[int], most: int = 8) -> Request:
    return Request(episode=0, prompt_ids=prompt, new_ids=prompt, fresh=True, max_tokens=most)


def asking(*requests: Request) -> Player[list[Sample]]:
    """An episode that asks for a turn after the other."""

    async def play(sampler: Sampler) -> list[Sample]:
        return [await sampler(each) for each in requests]

    return play


def answered(
    requests: Sequence[Request], answers: list[list[int]], logprobs: Any = None
) -> list[Sample]:
    engine = Lockstep(lambda prompts: (answers, logprobs), STOP)
    return [sample for [sample] in engine.play([asking(each) for each in requests])]


def test_an_answer_is_cut_to_what_the_episode_has_left() -> None:
    requests = [request([1], most) for most in (2, 2, 3)]
    long, stopped, last = answered(requests, [[5, 6, 2], [5, 2], [5, 6, 7]], [[-0.5] * 3] * 3)
    assert (long.token_ids, long.logprobs, long.stop_reason) == ([5, 6], [-0.5, -0.5], "length")
    assert (stopped.token_ids, stopped.stop_reason) == ([5, 2], "stop")
    assert (last.token_ids, last.stop_reason) == ([5, 6, 7], "stop")


def test_log_probabilities_may_be_unknown() -> None:
    [sample] = answered([request([1])], [[5, 2]])
    assert sample.logprobs is None
    [sample] = answered([request([1])], [[5, 2]], [[None, -1.0]])
    assert sample.logprobs is not None
    assert math.isnan(sample.logprobs[0]) and sample.logprobs[1] == -1.0


def test_an_engine_that_loses_prompts_stops_the_run() -> None:
    with pytest.raises(RolloutError, match="answered 1 of 2 prompts"):
        answered([request([1]), request([1])], [[5]])


def test_a_round_has_the_prompts_of_all_open_episodes_in_their_order() -> None:
    """However long their environments take; the engine runs in the caller's thread."""
    seen: list[tuple[int, list[list[int]]]] = []

    def generate(prompts: list[list[int]]) -> tuple[list[list[int]], None]:
        seen.append((threading.get_ident(), prompts))
        return [[2]] * len(prompts), None

    def episode(number: int, turns: int) -> Player[int]:
        async def play(sampler: Sampler) -> int:
            for turn in range(turns):
                await asyncio.sleep(0.01 * (3 - number))
                await sampler(request([number, turn]))
            return number

        return play

    assert Lockstep(generate, STOP).play([episode(n, n + 1) for n in range(3)]) == [0, 1, 2]
    here = threading.get_ident()
    assert seen == [
        (here, [[0, 0], [1, 0], [2, 0]]),
        (here, [[1, 1], [2, 1]]),
        (here, [[2, 2]]),
    ]


def test_the_first_error_of_an_episode_ends_the_others() -> None:
    async def wrong(sampler: Sampler) -> Any:
        await sampler(request([1]))
        raise ConfigurationError("no such parameter")

    with pytest.raises(ConfigurationError, match="no such parameter"):
        Lockstep(lambda prompts: ([[2]] * len(prompts), None), STOP).play(
            [asking(*[request([1])] * 3), wrong]
        )


def test_an_error_of_the_engine_is_the_callers() -> None:
    def broken(prompts: list[list[int]]) -> Any:
        raise MemoryError("no room")

    with pytest.raises(MemoryError, match="no room"):
        Lockstep(broken, STOP).play([asking(request([1]))])


def test_a_notebooks_event_loop_is_no_obstacle() -> None:
    async def cell() -> list[list[Sample]]:
        engine = Lockstep(lambda prompts: ([[2]] * len(prompts), None), STOP)
        return engine.play([asking(request([1]))])

    [[sample]] = asyncio.run(cell())
    assert sample.token_ids == [2]


class Processes:
    """Threads in the place of processes; a collective waits until all of them call it."""

    def __init__(self, episodes: list[list[int]], in_step: bool = True) -> None:
        self.episodes = episodes
        self.in_step = in_step
        self.barrier = threading.Barrier(len(episodes), timeout=60 if in_step else 2)
        self.posted: list[Any] = [None] * len(episodes)
        self.rounds: list[list[int]] = [[] for _ in episodes]

    def gather(self, rank: int, value: Any) -> list[Any]:
        self.barrier.wait()
        self.posted[rank] = value
        self.barrier.wait()
        found = list(self.posted)
        self.barrier.wait()
        return found

    def play(self, rank: int) -> None:
        """Play episodes with so many turns; each turn's prompt names episode and turn."""

        def generate(prompts: list[list[int]]) -> tuple[list[list[int]], None]:
            # TRL's server mode: all prompts go to the main process, answers are cut by position.
            everyone = [p for each in self.gather(rank, prompts) for p in each]
            answers = [[*prompt, 2] for prompt in everyone]
            self.rounds[rank].append(len(prompts))
            first = rank * len(prompts)
            return answers[first : first + len(prompts)], None

        async def episode(number: int, turns: int, sampler: Sampler) -> None:
            for turn in range(turns):
                prompt = [100 * rank + number, turn]
                sample = await sampler(request(prompt))
                assert sample.token_ids == [*prompt, 2]

        most = (lambda n: max(self.gather(rank, n))) if self.in_step else None
        numbered = enumerate(self.episodes[rank])
        Lockstep(generate, STOP, most).play([partial(episode, *each) for each in numbered])

    def run(self) -> None:
        errors: list[BaseException] = []

        def guarded(rank: int) -> None:
            try:
                self.play(rank)
            except BaseException as error:
                self.barrier.abort()
                errors.append(error)

        threads = [threading.Thread(target=guarded, args=(r,)) for r in range(len(self.episodes))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(90)
        assert not errors and not any(thread.is_alive() for thread in threads), errors


@given(
    st.integers(2, 3).flatmap(
        lambda n: st.lists(st.lists(st.integers(1, 5), max_size=4), min_size=n, max_size=n)
    )
)
def test_processes_sample_in_step_whatever_their_episodes(episodes: list[list[int]]) -> None:
    """Every round has the size of the largest; every process gets the answers to its prompts."""
    processes = Processes(episodes)
    processes.run()
    assert len({tuple(sizes) for sizes in processes.rounds}) == 1
    longest = max((max(turns, default=0) for turns in episodes), default=0)
    assert len(processes.rounds[0]) == longest
    for turn, size in enumerate(processes.rounds[0]):
        assert size == max(sum(n > turn for n in turns) for turns in episodes)


@pytest.mark.parametrize("episodes", [[[2, 2], [2]], [[2], [1]]], ids=["sizes", "numbers"])
def test_rounds_of_different_sizes_or_numbers_would_not_work(episodes: list[list[int]]) -> None:
    with pytest.raises(AssertionError):
        Processes(episodes, in_step=False).run()
