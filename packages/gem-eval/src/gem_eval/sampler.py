"""A model of transformers in this process, which samples for all episodes that are open.

It is the sampler of the reference trainer. A turn is sampled for all open episodes together, as
soon as all of them ask, one round after the other; every turn of every episode has random numbers
of its own, so that what is sampled depends on the other open episodes by rounding only.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from random import Random
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gem.errors import GemError
from gem.rollout import ChatFormat, Request, Sample, Sampler
from gem_bench.sampler import CachedSampler, warp
from gem_bench.seeing import SeeingSampler
from gem_eval.completions import Notes
from gem_eval.tasks import Play
from gem_train.experiment.runspec import SamplingPart
from gem_train.sampling import EngineSampler


class LocalModelError(GemError):
    """The model in this process failed."""


class SeededSampler(CachedSampler):
    """Draws the tokens of a row with random numbers of its own; log-probabilities are raw."""

    def __init__(self, model: Any, chat: ChatFormat, sampling: SamplingPart) -> None:
        """Begin without any conversation; see `CachedSampler` for the arguments."""
        super().__init__(model, chat, sampling, torch.Generator())  # which nothing is drawn from
        self.stopped = threading.Event()
        """If set, sampling ends before the next token."""

    def sample(self, requests: list[Request], seeds: Sequence[int]) -> list[Sample]:
        """Sample one turn for every request.

        Raises:
            LocalModelError: The model fails, for want of memory for instance.
        """
        self._numbers = [Random(seed) for seed in seeds]
        try:
            return self(requests)
        except RuntimeError as error:
            raise LocalModelError(
                f"the model failed with {len(requests)} episodes at a time (--concurrency), the "
                f"longest of {max(len(r.prompt_ids) for r in requests)} tokens: {error}"
            ) from error

    def _draw(self, logits: Tensor, seen: Tensor | None) -> tuple[Tensor, Tensor]:
        if self.stopped.is_set():
            raise LocalModelError("interrupted")
        warped = warp(logits, self.sampling, seen)
        if self.sampling.top_k == 1:
            token = warped.argmax(-1, keepdim=True)
        else:
            cumulative = warped.double().softmax(-1).cumsum(-1)
            drawn = [[each.random()] for each in self._numbers]
            places = torch.tensor(drawn, device=self.device, dtype=torch.float64)
            token = torch.searchsorted(cumulative, places * cumulative[:, -1:], right=True)
            # Where rounding has left the place beyond the last token.
            token = token.clamp(max=logits.shape[-1] - 1)
        return token[:, 0], logits.log_softmax(-1).gather(1, token)[:, 0]


class SeededSeeingSampler(SeededSampler, SeeingSampler):
    """The same for a model that sees."""


class _Asked(NamedTuple):
    """A request that waits for a round."""

    episode: EngineSampler
    request: Request
    seed: int
    future: asyncio.Future[Sample]


class LocalModel:
    """Brings the requests of all open episodes to the sampler together."""

    def __init__(self, sampler: SeededSampler, seed: int) -> None:
        """Store the sampler.

        Args:
            sampler: Has the model.
            seed: Decides, with the seed of the task and the number of the sample, what is drawn.
        """
        self._sampler = sampler
        self._seed = seed
        self._open = 0
        self._asking: list[_Asked] = []
        self._round: asyncio.Task[None] | None = None

    async def __aenter__(self) -> LocalModel:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._sampler.stopped.set()
        if self._round is not None:
            await asyncio.wait([self._round])

    @contextmanager
    def episode(self, each: Play, notes: Notes) -> Iterator[Sampler]:
        """Make the sampler of an episode, which is open until the block ends."""
        seeds = EngineSampler(frozenset(), (self._seed, each.task.seed, each.sample))
        self._open += 1
        try:
            yield partial(self._ask, seeds, notes)
        finally:
            self._open -= 1
            # Whoever played it begins another episode at once.
            asyncio.get_running_loop().call_soon(self._begin_round)

    async def _ask(self, seeds: EngineSampler, notes: Notes, request: Request) -> Sample:
        future: asyncio.Future[Sample] = asyncio.get_running_loop().create_future()
        self._asking.append(_Asked(seeds, request, seeds.turn_seed() or 0, future))
        self._begin_round()
        sample = await future
        counts = {"prompt_tokens": len(request.prompt_ids), "reply_tokens": len(sample.token_ids)}
        notes.append({**counts, "finish_reason": sample.stop_reason})
        return sample

    def _begin_round(self) -> None:
        self._asking = [each for each in self._asking if not each.future.done()]
        runs = self._round is not None and not self._round.done()
        if not runs and 0 < self._open == len({id(each.episode) for each in self._asking}):
            self._round = asyncio.create_task(self._answer())

    async def _answer(self) -> None:
        # Only now: in self-play, seats that move at the same time ask one after the other.
        waiting = [each for each in self._asking if not each.future.done()]
        asking, self._asking = sorted(waiting, key=lambda each: each.request.episode), []
        if not asking:
            return
        requests, seeds = [each.request for each in asking], [each.seed for each in asking]
        try:
            samples = await asyncio.to_thread(self._sampler.sample, requests, seeds)
        except Exception as error:
            # Who asked gets it; the first one ends the evaluation.
            for each in asking:
                if not each.future.done():
                    each.future.set_exception(error)
            return
        for each, sample in zip(asking, samples, strict=True):
            if not each.future.done():
                each.future.set_result(sample)
