"""Plays episodes by tokens: `gem.rollout` makes the prompts, as it does in training.

A model is whatever makes a sampler for an episode: a server (`gem_eval.completions`), or a model in
this process (`gem_eval.local`).
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from gem.executors.base import Executor
from gem.executors.held import STEP_TIMEOUT_S
from gem.rollout import Budget, ChatFormat, Request, Sample, Sampler, play
from gem.tasks import Task
from gem.trajectory import Failure, Trajectory
from gem_eval.completions import Notes
from gem_eval.episode import Played
from gem_eval.server import ServerError
from gem_eval.tasks import Play

Sampling = Callable[[Play, Notes], AbstractContextManager[Sampler]]
"""Makes the sampler of an episode, which notes every call, until the episode ends."""


def setting_of(task: Task) -> str:
    """Return a task's environment and parameters as one text."""
    return json.dumps([task.env_id, dict(task.params)], sort_keys=True)


class TokenPlays:
    """Plays episodes by tokens; is called as `gem_eval.episode.Plays`."""

    def __init__(
        self,
        sampling: Sampling,
        chat: ChatFormat,
        budget: Budget,
        context: str = "chat",
        trained: Mapping[str, Budget] | None = None,
    ) -> None:
        """Store the model and how it is prompted.

        Args:
            sampling: The model.
            chat: Its chat format.
            budget: Token limits.
            trained: Those of the environments that the model was trained in, by `setting_of`.
            context: What builds the prompts, see `gem.rollout.context`.
        """
        self.sampling = sampling
        self.chat = chat
        self.budget = budget
        self.context = context
        self._trained = trained or {}
        self._numbers = itertools.count()

    async def __call__(
        self,
        each: Play,
        *,
        turns: int | None = None,
        retries: int = 1,
        step_timeout_s: float | None = STEP_TIMEOUT_S,
        executor: str | Executor | None = None,
    ) -> Played:
        """Play an episode; see `gem_eval.episode.play` for arguments and failures."""
        notes: Notes = []
        asked: list[tuple[Request, dict[str, Any]]] = []
        budget = self._trained.get(setting_of(each.task), self.budget)
        budget = budget if turns is None else replace(budget, turns=turns)
        with self.sampling(each, notes) as sampler:

            async def noted(request: Request) -> Sample:
                sample = await sampler(request)
                asked.append((request, notes[-1]))
                return sample

            try:
                trajectory = await play(
                    each.task,
                    noted,
                    self.chat,
                    budget=budget,
                    context=self.context,
                    group=each.group,
                    index=next(self._numbers),
                    retries=retries,
                    step_timeout_s=step_timeout_s,
                    executor=executor,
                )
            except ServerError as error:
                failure = Failure("engine", str(error), 1)
                trajectory = Trajectory(each.task, group=each.group, end="failed", failure=failure)
        if not trajectory.valid:
            return Played(trajectory, notes)
        own = _calls_of(trajectory, asked)
        known = set(map(id, own))
        return Played(trajectory, own, lost=[note for note in notes if id(note) not in known])


def _calls_of(
    trajectory: Trajectory, asked: Sequence[tuple[Request, dict[str, Any]]]
) -> list[dict[str, Any]]:
    """Return the notes of a valid episode's turns.

    The others are of attempts in environments that failed and, in self-play, of the other seats.
    """
    shown = [turn.context_ids for turn in trajectory.turns]
    seats: defaultdict[int, list[tuple[Request, dict[str, Any]]]] = defaultdict(list)
    for call in asked:
        seats[call[0].episode].append(call)
    for calls in seats.values():
        last = calls[len(calls) - len(shown) :]
        if [request.new_ids for request, _ in last] == shown:
            return [note for _, note in last]
    raise AssertionError("a turn of the episode was not asked for")
