"""TRL's reward functions on GEM's episodes: what they add to the reward of an episode's last turn.

A function has TRL's signature, `f(prompts, completions, **kwargs) -> list[float | None]`.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import statistics
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from torch.nn import Module

from gem.contract import shown
from gem.errors import ConfigurationError, RolloutError
from gem.rollout.tokens import ChatFormat
from gem.trajectory import Trajectory
from gem_train.packed import Played

RewardFunction: TypeAlias = Callable[..., Any]
"""`f(prompts, completions, **kwargs)`, which may be a coroutine function; see `RewardFunctions`."""

OWN, ADDED, SCORE = "reward/environment", "added/", "score/"
"""In the info of an episode's last turn: the environment's reward of the turn; before a function's
name what the function adds, and the number that it returned."""

_NO_MODEL = (
    "is a reward model, and reward_funcs takes functions; write one that calls the model "
    "(f(prompts, completions, **kwargs), a number or None for each episode)"
)


class RewardFunctions:
    """The reward functions of a training, with TRL's weights.

    A function is given the valid episodes of a process: `prompts` and `completions` as messages,
    as of a conversational dataset, `completion_ids` (all tokens after the first prompt),
    `episodes` (`gem.trajectory.Trajectory`), the columns of the dataset besides `prompt`, and
    what `score` is given. It returns a number for each, or None, which adds nothing.
    """

    def __init__(
        self,
        functions: RewardFunction | Sequence[RewardFunction] | None,
        weights: Sequence[float] | None = None,
    ) -> None:
        """Name the functions as TRL does.

        Args:
            functions: TRL's `reward_funcs`.
            weights: TRL's `reward_weights`, one for each function; None: all are 1.

        Raises:
            ConfigurationError: One is a reward model or no function, two have one name, or the
                weights are not one finite number for each function.
        """
        several = isinstance(functions, list | tuple)
        given: Any = functions if several else [functions] if functions is not None else []
        self._functions: dict[str, RewardFunction] = {}
        for function in given:
            if isinstance(function, str | Module):
                raise ConfigurationError(f"reward_funcs: {_shown(function)} {_NO_MODEL}")
            if not callable(function):
                raise ConfigurationError(f"reward_funcs: {_shown(function)} is not a function")
            name = _name(function)
            if name in self._functions:
                raise ConfigurationError(
                    f"reward_funcs: two functions have the name {name!r}, under which their "
                    "rewards are logged; give each its own __name__"
                )
            self._functions[name] = function
        names = list(self._functions)
        weights = [1.0] * len(names) if weights is None else list(weights)
        if len(weights) != len(names) or not all(map(math.isfinite, weights)):
            raise ConfigurationError(
                f"GRPOConfig.reward_weights must be one finite number for each of the "
                f"{len(names)} reward_funcs, got {weights}; the environment's reward has weight 1"
            )
        self.weights = dict(zip(names, map(float, weights), strict=True))
        """Weight by name."""
        self._loop = asyncio.Runner()

    @property
    def columns(self) -> list[RewardFunction]:
        """What TRL is given as `reward_funcs` in their place, to log the numbers under their names.

        Each returns its part of the column `scores` that `scores` makes, `[row][function]`.
        """
        return [_column(place, name) for place, name in enumerate(self._functions)]

    def score(
        self,
        episodes: Sequence[Trajectory],
        chat: ChatFormat,
        *,
        system_prompt: str | None = None,
        columns: Sequence[Mapping[str, Any]] = (),
        **context: Any,
    ) -> list[Trajectory]:
        """Return the episodes with the weighted rewards added to those of their last turns.

        Args:
            episodes: Of a process; failed ones are returned as they are.
            chat: Decodes what the policy said, thinking included.
            system_prompt: Text of the system message.
            columns: Of the dataset, for each episode; empty: there are none.
            **context: Further arguments of all functions.

        Raises:
            RolloutError: A function raised, or did not return a finite number or None for each
                episode; the message names the function.
        """
        places = [i for i, each in enumerate(episodes) if each.valid and each.turns]
        scored = list(episodes)
        if not self._functions or not places:
            return scored
        given = [episodes[place] for place in places]
        talks = [messages(each, chat, system_prompt) for each in given]
        rows = [each.training_rows() for each in given]
        kwargs = {name: [columns[i][name] for i in places] for name in (columns or [{}])[0]}
        kwargs |= {
            "prompts": [prompt for prompt, _ in talks],
            "completions": [completion for _, completion in talks],
            "completion_ids": [row.response_ids if row else [] for row, *_ in rows],
            "episodes": given,
            **context,
        }
        found = self._numbers(kwargs)
        for k, place in enumerate(places):
            scored[place] = self._with(
                given[k], {name: scores[k] for name, scores in found.items()}
            )
        return scored

    def _numbers(self, kwargs: Mapping[str, Any]) -> dict[str, list[float | None]]:
        """Return the numbers of each function for the episodes."""
        results: dict[str, Any] = {}
        try:
            # Not inside a loop: a function may run one of its own.
            for name, function in self._functions.items():
                with _named(name):
                    results[name] = function(**kwargs)
            waiting = [name for name, result in results.items() if inspect.isawaitable(result)]
            if waiting:
                results |= self._awaited({name: results[name] for name in waiting})
        finally:
            for result in results.values():
                if inspect.iscoroutine(result):
                    result.close()  # another function has failed
        return {name: _checked(name, each, kwargs["episodes"]) for name, each in results.items()}

    def _awaited(self, waiting: Mapping[str, Awaitable[Any]]) -> dict[str, Any]:
        """Return what coroutines return, which run side by side, as in TRL."""

        async def one(name: str) -> Any:
            with _named(name):
                return await waiting[name]

        async def every() -> dict[str, Any]:
            return dict(zip(waiting, await asyncio.gather(*map(one, waiting)), strict=True))

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._loop.run(every())
        with ThreadPoolExecutor(1) as thread:  # of a notebook, where a loop runs in this one
            return thread.submit(lambda: self._loop.run(every())).result()

    def _with(self, episode: Trajectory, scores: Mapping[str, float | None]) -> Trajectory:
        last = episode.turns[-1]
        added = {name: self.weights[name] * (score or 0.0) for name, score in scores.items()}
        info = {
            **last.info,
            # Whether it succeeded is the environment's to say, whatever the reward becomes.
            "success": episode.success,
            OWN: last.reward,
            **{f"{ADDED}{name}": part for name, part in added.items()},
            **{f"{SCORE}{name}": score for name, score in scores.items()},
        }
        reward = math.fsum([last.reward, *added.values()])
        return replace(
            episode, turns=[*episode.turns[:-1], replace(last, reward=reward, info=info)]
        )

    def scores(self, episode: Trajectory) -> list[float | None]:
        """Return what each function returned for an episode, `[function]`; None if it is void."""
        info = episode.turns[-1].info if episode.valid and episode.turns else {}
        return [info.get(f"{SCORE}{name}") for name in self._functions]

    def metrics(self, episodes: Sequence[Played]) -> dict[str, float]:
        """Summarise the numbers of the valid episodes of a batch.

        Returns:
            For each function `rewards/<name>/mean`, as TRL without the weight and over those that
            are not None (left out if there are none), and `rewards/<name>/unscored`, how many are.
        """
        found: dict[str, float] = {}
        valid = [each for each in episodes if each.valid]
        for name in self._functions:
            scores = [e.numbers[f"{SCORE}{name}"] for e in valid if f"{SCORE}{name}" in e.numbers]
            if scores:
                found[f"rewards/{name}/mean"] = statistics.fmean(scores)
            found[f"rewards/{name}/unscored"] = float(len(valid) - len(scores))
        return found


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Say which function raised."""
    try:
        yield
    except Exception as error:
        raise RolloutError(
            f"the reward function {name!r} failed: {type(error).__name__}: {error}"
        ) from error


def _checked(name: str, result: Any, episodes: Sequence[Trajectory]) -> list[float | None]:
    with _named(name):
        scores = [None if score is None else float(score) for score in result]
    if len(scores) != len(episodes):
        raise RolloutError(
            f"the reward function {name!r} returned {len(scores)} numbers for {len(episodes)} "
            "episodes; return one, or None, for each"
        )
    for score, episode in zip(scores, episodes, strict=True):
        if score is not None and not math.isfinite(score):
            raise RolloutError(
                f"the reward function {name!r} returned {score} for the episode of "
                f"{episode.task}; return a finite number, or None if it cannot be scored"
            )
    return scores


def environment_return(episode: Trajectory) -> float:
    """Return the undiscounted sum of the environment's own rewards."""
    if not episode.turns:
        return 0.0
    *before, last = episode.turns
    return math.fsum([*(turn.reward for turn in before), last.info.get(OWN, last.reward)])


def messages(
    episode: Trajectory, chat: ChatFormat, system_prompt: str | None
) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Return an episode as messages: those before the policy's first one, and the others.

    Args:
        episode: The episode.
        chat: Decodes what the policy said, thinking included.
        system_prompt: Text of the system message; None: there is none.
    """
    found = [] if system_prompt is None else [{"role": "system", "content": system_prompt}]
    first = len(found) + 1
    for turn in episode.turns:
        found.append({"role": "user", "content": shown(turn.observation)})
        found.append({"role": "assistant", "content": chat.decode(turn.response_ids)})
    return found[:first], found[first:]


def _name(function: RewardFunction) -> str:
    while isinstance(function, partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, str | int | float) else type(value).__name__


def _column(place: int, name: str) -> RewardFunction:
    def column(scores: list[list[float | None]], **_: Any) -> list[float | None]:
        return [row[place] for row in scores]

    column.__name__ = name
    return column
