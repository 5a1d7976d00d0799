"""Replays recorded episodes and finds the first difference; `replay_cli` is the command."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Literal, TypeAlias

from gem.core import Env, Observation
from gem.errors import ConfigurationError, MissingExtraError, UnreachableError
from gem.fingerprint import canonical
from gem.tasks import Task
from gem.trajectory import Trajectory

What: TypeAlias = Literal["observation", "reward", "terminated", "truncated", "exception"]


@dataclass(frozen=True)
class Difference:
    """The first difference between a recorded episode and its replay."""

    turn: int
    """Number of turns played before it; 0 is the observation of `reset`."""
    what: What
    expected: Any
    """The recorded value."""
    found: Any
    """The replay's value."""

    def __str__(self) -> str:
        expected, found = self.expected, self.found
        if isinstance(expected, str) and isinstance(found, str):
            expected, found = _around(expected, found)
        where = f"turn {self.turn}, {self.what}"
        return f"{where}\n  expected {_clip(expected)}\n  found    {_clip(found)}"


def difference(
    trajectory: Trajectory, make_env: Callable[[Task], Env] = Task.make
) -> Difference | None:
    """Play the recorded actions and return the first difference, None if there is none.

    Episodes cut by a budget are compared as far as they go. Failed episodes are not compared: how
    they look depends on the infrastructure that failed.

    Args:
        trajectory: A recorded episode.
        make_env: Makes the environment of its task.

    Raises:
        GemError: The environment cannot be made or reached.
    """
    if trajectory.failure is not None:
        return None
    turn = 0
    with make_env(trajectory.task) as env:
        try:
            observation, _ = env.reset(seed=trajectory.task.seed)
            for turn, recorded in enumerate(trajectory.turns):
                if not same(recorded.observation, observation):
                    return Difference(turn, "observation", recorded.observation, observation)
                observation, reward, terminated, truncated, _ = env.step(recorded.text)
                pairs: tuple[tuple[What, Any, Any], ...] = (
                    ("reward", recorded.reward, float(reward)),
                    ("terminated", recorded.terminated, terminated),
                    ("truncated", recorded.truncated, truncated),
                )
                for what, expected, found in pairs:
                    if expected != found:
                        return Difference(turn + 1, what, expected, found)
        except (ConfigurationError, MissingExtraError, UnreachableError):
            raise
        except Exception as error:
            return Difference(turn, "exception", None, f"{type(error).__name__}: {error}")
    last = trajectory.final_observation
    if last is not None and not same(last, observation):
        return Difference(len(trajectory.turns), "observation", last, observation)
    return None


def same(one: Observation, other: Observation) -> bool:
    """Whether two observations are equal; images are compared by their bytes."""
    return canonical(one) == canonical(other)


def _around(one: str, other: str) -> tuple[str, str]:
    """Return both texts from shortly before their first difference."""
    alike = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    place = sum(1 for _ in alike)
    start = max(0, place - 40)
    lead = "..." if start else ""
    return lead + one[start:], lead + other[start:]


def _clip(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 160 else text[:157] + "..."
