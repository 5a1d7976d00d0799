"""What the checks look at, and the words in which they report."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gem.core import Env
from gem.testing.playing import (
    Policy,
    Score,
    cpu_time,
    oracle_policy,
    random_policy,
    score,
)

if TYPE_CHECKING:
    from gem.testing.elsewhere import OtherProcess

# Where a start and a step cost more CPU seconds than this, half as many seeds are compared.
_SLOW_S = 0.01
# Where they take longer than this on the clock, checks of many steps are left out.
_VERY_SLOW_S = 2.0


class FaultError(Exception):
    """The environment breaks a promise, or several: an argument each."""


class SkipCheck(Exception):  # noqa: N818
    """The environment does not make this promise, or it cannot be decided here."""


@dataclass(frozen=True)
class Subject:
    """What is checked, and how much of it."""

    factory: Callable[..., Env]
    """Makes the environment; further keywords are further parameters."""
    episodes: int = 32
    """Episodes per policy where success rates are compared."""
    max_steps: int = 200
    """Longest episode played."""
    cpu_s: float = 1.0
    """CPU seconds per policy: where they are used up fewer episodes are played, at least four."""
    max_return: float = 1.0
    """Most that an episode may pay."""
    seeds: range = range(4)
    """Seeds of the episodes that are compared step by step."""
    other: OtherProcess | None = None
    """Has been asked to play the same episodes."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Methods that checks depend on and that do not work, with the reason."""

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process needs to play the same episodes."""
        kept = ("factory", "episodes", "max_steps", "cpu_s", "max_return", "seeds")
        return {name: getattr(self, name) for name in kept}

    def measure(self, policy: Policy, *, times: int = 1) -> Score:
        """Return the score of a policy, of `times` as many episodes as usual."""
        return score(
            self.factory(), policy, times * self.episodes, self.max_steps, times * self.cpu_s
        )

    @cached_property
    def random(self) -> Score:
        """The score of random play."""
        return self.measure(random_policy)

    @cached_property
    def oracle(self) -> Score:
        """The score of the oracle.

        Raises:
            SkipCheck: There is none.
        """
        try:
            return self.measure(oracle_policy)
        except NotImplementedError:
            raise SkipCheck("no oracle_action()") from None


def seeds_for(factory: Callable[..., Env]) -> range:
    """Return the seeds to compare step by step: fewer for a slow environment.

    A single one says that only checks of a few steps make sense.
    """
    env = factory()
    env.reset(seed=0)
    cpu, wall = [], []
    for seed in (1, 2):
        began, began_wall = cpu_time(), time.perf_counter()
        env.reset(seed=seed)
        env.step(env.sample_random_action())
        cpu.append(cpu_time() - began)
        wall.append(time.perf_counter() - began_wall)
    env.close()
    return range(1 if min(wall) > _VERY_SLOW_S else 2 if min(cpu) > _SLOW_S else 4)


def lacking(factory: Callable[..., Env]) -> dict[str, str]:
    """Return the methods that checks depend on and that do not work, with the reason.

    Raises whatever the constructor or `reset` raises.
    """
    missing = {}
    with factory() as env:
        env.reset(seed=0)
        probes: dict[str, Callable[[], object]] = {
            "sample_random_action": env.sample_random_action,
            "snapshot": lambda: env.restore(env.snapshot()),
        }
        for name, probe in probes.items():
            try:
                probe()
            except NotImplementedError:
                missing[name] = "not implemented"
            except Exception as error:
                missing[name] = describe(error)
    return missing


def describe(error: Exception) -> str:
    """Return an error on one line, one with several faults on a line each."""
    if not isinstance(error, FaultError):
        return _clipped(f"{type(error).__name__}: {error}")
    return "\n".join(_clipped(str(fault)) for fault in error.args)


def _clipped(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 300 else text[:297] + "..."


def require(condition: bool, message: str) -> None:
    """Raise `FaultError` unless the condition holds."""
    if not condition:
        raise FaultError(message)
