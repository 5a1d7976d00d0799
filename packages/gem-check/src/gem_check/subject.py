"""`Subject`, what a check gets: factory, limits, seeds, cached scores; and its exceptions."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gem.core import Env
from gem.executors.held import close_env
from gem.foreign import contained, described
from gem.multi import MultiAgentEnv
from gem.seat import Seat
from gem_check.playing import Policy, Score, cpu_time, oracle_policy, random_policy, score

if TYPE_CHECKING:
    from gem_check.other_process import OtherProcess

# If a reset and a step take more CPU seconds than this, half as many seeds are compared.
_SLOW_S = 0.01
# If they take more wall-clock seconds than this, checks of many steps are skipped.
_VERY_SLOW_S = 2.0


class FaultError(Exception):
    """The environment breaks promises; one argument per fault."""


class SkipCheck(Exception):  # noqa: N818
    """The check does not apply to the environment, or cannot be decided here."""


class Factory:
    """Makes environments and closes them: some hold processes, boxes or sessions of a server."""

    def __init__(self, make: Callable[..., Env]) -> None:
        self._make = make
        self._made: list[Env] = []

    def __call__(self, **params: Any) -> Env:
        """Make an environment; the parameters are further ones."""
        self._made.append(self._make(**params))
        return self._made[-1]

    def close(self) -> None:
        """Close what was made."""
        while self._made:
            close_env(self._made.pop())

    def __reduce__(self) -> tuple[type[Factory], tuple[Callable[..., Env]]]:
        return Factory, (self._make,)


@dataclass(frozen=True)
class Subject:
    """The environment under check, and how much of it to play."""

    factory: Factory
    """Makes the environment."""
    episodes: int = 32
    """Episodes per policy where success rates are compared."""
    max_steps: int = 200
    """Most turns played of an episode."""
    cpu_s: float = 1.0
    """CPU seconds per policy; when they are used up, no further episode is played once there are
    four."""
    max_return: float = 1.0
    """Highest return that an episode may pay."""
    seeds: range = range(4)
    """Seeds of the episodes that are compared step by step."""
    other: OtherProcess | None = None
    """The process that is playing the same episodes."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Methods needed by checks that do not work, with the reason."""

    def measure(self, policy: Policy, *, times: int = 1) -> Score:
        """Return the score of a policy over `times * episodes` episodes."""
        return score(
            self.factory(), policy, times * self.episodes, self.max_steps, times * self.cpu_s
        )

    @cached_property
    def game(self) -> MultiAgentEnv | None:
        """The game whose seat the environment is; None if it is not a seat."""
        with self.factory() as env:
            seat = env.unwrapped
            return seat.game.spawn() if isinstance(seat, Seat) else None

    @cached_property
    def random(self) -> Score:
        """The score of random play."""
        return self.measure(random_policy)

    @cached_property
    def oracle(self) -> Score:
        """The score of the oracle.

        Raises:
            SkipCheck: The environment has no oracle.
        """
        try:
            return self.measure(oracle_policy)
        except NotImplementedError:
            raise SkipCheck("no oracle_action()") from None


def seeds_for(factory: Callable[..., Env]) -> range:
    """Return the seeds to compare step by step: fewer for a slow environment.

    A single seed means that checks of many steps are skipped.
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
    return range(1 if min(wall) > _VERY_SLOW_S else 2 if min(cpu) > _SLOW_S else 4)


def lacking(factory: Callable[..., Env]) -> dict[str, str]:
    """Return the methods needed by checks that do not work, with the reason.

    Exceptions of the constructor and `reset` are passed on.
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
            except BaseException as error:
                missing[name] = describe(contained(error))
    return missing


def describe(error: Exception) -> str:
    """Return an error as one line, or a `FaultError` as one line per fault."""
    if not isinstance(error, FaultError):
        return _clipped(described(error))
    return "\n".join(_clipped(str(fault)) for fault in error.args)


def _clipped(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 300 else text[:297] + "..."


def require(condition: bool, message: str) -> None:
    """Raise `FaultError` unless the condition holds."""
    if not condition:
        raise FaultError(message)
