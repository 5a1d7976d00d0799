"""TRL's engines as samplers of `gem.rollout`, and its columns of what was played."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from typing import Any, TypeAlias

from gem.errors import RolloutError
from gem.rollout import Request, Sample
from gem.training.sampling import EngineSampler
from gem.training.seams import replaced
from gem.trajectory import TrainingRow, Trajectory

Ids: TypeAlias = list[int]
Answers: TypeAlias = tuple[list[Ids], list[list[float | None]] | None]
"""Sampled ids and, if they are known, their log-probabilities."""
Generate: TypeAlias = Callable[[list[Ids]], Answers]
"""Takes prompts."""
Most: TypeAlias = Callable[[int], int]
"""Returns the largest of all processes' numbers; a collective."""


class RoundSampler(EngineSampler):
    """Samples a turn of every open episode of this process.

    Where sampling is a collective, the processes must ask equally often and for equally many
    answers, but their episodes differ in number of turns. Each round is then filled up with idle
    prompts to the size of the largest, and `finish` takes part in the rounds of the others.
    """

    def __init__(
        self, generate: Generate, stop_ids: frozenset[int], most: Most | None = None
    ) -> None:
        """Prepare for a batch of episodes.

        Args:
            generate: The engine.
            stop_ids: Tokens at which a turn ends; the engine stops at all of them.
            most: None where the processes sample independently.
        """
        super().__init__(stop_ids)
        self._generate = generate
        self._most = most

    def __call__(self, requests: list[Request]) -> list[Sample]:
        """Sample one turn for every request; see `gem.rollout.play_batch`.

        Raises:
            RolloutError: The engine returned another number of answers than it was given prompts.
        """
        size = len(requests) if self._most is None else self._most(len(requests))
        answers, logprobs = self._round([request.prompt_ids for request in requests], size)
        samples = []
        for index, request in enumerate(requests):
            # Cutting a longer answer is the same as sampling with the smaller limit.
            ids = answers[index][: request.max_tokens]
            known = None
            if logprobs is not None:
                # vLLM's log-probability of a token may be unknown.
                known = [math.nan if p is None else p for p in logprobs[index][: len(ids)]]
            samples.append(self.sample(ids, known, cut=True))
        return samples

    def finish(self) -> None:
        """Take part in the rounds of processes that have open episodes."""
        while self._most is not None and (size := self._most(0)):
            self._round([], size)

    def _round(self, prompts: list[Ids], size: int) -> Answers:
        idle = [[self.stop_ids[0]]] * (size - len(prompts))
        answers, logprobs = self._generate([*prompts, *idle])
        if len(answers) != size:
            raise RolloutError(f"TRL's engine answered {len(answers)} of {size} prompts")
        return answers, logprobs


@contextmanager
def sampling_at(trainer: Any, temperature: float | None) -> Iterator[None]:
    """Sample at another temperature for a while, from all candidates; 0 is greedy.

    Args:
        trainer: A GRPOTrainer.
        temperature: None changes nothing.
    """
    with ExitStack() as stack:
        if temperature is not None:
            greedy = temperature == 0
            changes = {
                "temperature": 1.0 if greedy else temperature,
                "top_k": 1 if greedy else 0,
                "top_p": 1.0,
                "min_p": None,
            }
            if trainer.use_vllm:
                for name, value in changes.items():
                    stack.enter_context(replaced(trainer.vllm_generation, name, value))
            else:
                config = copy(trainer.generation_config)
                config.update(**changes)
                kwargs = {**trainer.generation_kwargs, **changes}
                stack.enter_context(replaced(trainer, "generation_config", config))
                stack.enter_context(replaced(trainer, "generation_kwargs", kwargs))
        yield


def training_row(trajectory: Trajectory) -> TrainingRow | None:
    """Return an episode's training row; None if it failed, or nothing follows its prompt."""
    rows = trajectory.training_rows()
    return rows[0] if rows and rows[0].response_ids else None


def columns(trajectories: Sequence[Trajectory], stop_id: int) -> dict[str, list[Any] | None]:
    """Return what TRL takes from a rollout, an entry an episode.

    Args:
        trajectories: The episodes of this process, in the order of the prompts.
        stop_id: The one token, not trained on, of a row without anything to train on; TRL cannot
            do without.
    """
    empty = TrainingRow([stop_id], [stop_id], [0], [0.0], [])
    rows = [training_row(trajectory) or empty for trajectory in trajectories]
    logprobs = [row.logprobs for row in rows]
    return {
        "prompt_ids": [row.prompt_ids for row in rows],
        "completion_ids": [row.response_ids for row in rows],
        "logprobs": None if any(known is None for known in logprobs) else logprobs,
        "env_mask": [row.mask for row in rows],
        "episode_return": [t.total_reward if t.valid else None for t in trajectories],
    }
