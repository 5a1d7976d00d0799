"""Estimators as objects: a function of the table of turns, and what a trainer must know about it.

- `Estimator`: name, function and traits; call it with a `TurnTable`.
- `Options`: what a run sets for its estimator. `Estimate`: what comes out.
- `estimator(name)`: a built-in one, or one that an installed package adds through the entry-point
  group `gem.estimators`. `estimator_names()` lists them.

Every trainer asks the traits and never the name, so that an estimator of your own package works
wherever its traits can be met. `gem.advantage` has the formulas of the built-in ones.
"""

from __future__ import annotations

import functools
import keyword
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np

from gem import advantage
from gem.advantage import AllReduce, Floats, TurnTable
from gem.errors import ConfigurationError
from gem.plugins import installed, load_object

ENTRY_POINT_GROUP = "gem.estimators"

Comparison: TypeAlias = Literal["nothing", "batch", "group", "role"]


def _one_rank(x: Floats) -> Floats:
    return x


@dataclass(frozen=True)
class Options:
    """What a run sets for its estimator; an estimator ignores what its formula does not have."""

    gamma: float = 1.0
    """Discount per turn, within [0, 1]."""
    lam: float = 1.0
    """GAE's lambda per turn, within [0, 1]."""
    group_std: bool = True
    """Whether `grpo` divides by the standard deviation of the group."""
    state: Mapping[str, float] = field(default_factory=dict)
    """What an estimator with `keeps_state` returned for the batch before; `{}` at the beginning."""
    all_reduce: AllReduce = _one_rank
    """Element-wise sum over data-parallel ranks; by default there is one rank."""


@dataclass(frozen=True)
class Estimate:
    """The result of an estimator for one batch."""

    advantages: Floats
    """Advantage of each turn, `[turns]`; 0 in invalid episodes."""
    targets: Floats
    """Target of the critic's value at each turn, `[turns]`; returns where there is no critic."""
    state: Mapping[str, float] = field(default_factory=dict)
    """What the next batch gets as `Options.state`; JSON represents it exactly."""


Function: TypeAlias = Callable[[TurnTable, Options], "Floats | Estimate"]


@dataclass(frozen=True)
class Estimator:
    """An advantage estimator with the traits that decide where it can be used.

    Raises:
        ConfigurationError: A trait or the name is not allowed.
    """

    name: str
    """As in `algorithm.advantage` of a RunSpec; a Python identifier."""
    function: Function
    """Returns the advantages `[turns]` of a table, or an `Estimate` if there are targets for a
    critic or a state. It must not change the table."""
    compares: Comparison = "nothing"
    """What an episode is compared with: `nothing`; `batch`, all turns of its part of the batch;
    `group`, the other episodes of its task, of which a run must play at least two; `role`, earlier
    batches of its role. Estimators that compare groups or roles always get one part per role."""
    needs_critic: bool = False
    """Whether `TurnTable.value` must be there: the run trains a critic."""
    keeps_state: bool = False
    """Whether `Options.state` carries something from batch to batch, which is in checkpoints."""

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and self.name.isidentifier()) or keyword.iskeyword(
            self.name
        ):
            raise ConfigurationError(
                f"the name of an estimator must be an identifier, got {self.name!r}"
            )
        known = ("nothing", "batch", "group", "role")
        if self.compares not in known:
            raise ConfigurationError(
                f"estimator {self.name}: compares must be one of {', '.join(known)}, "
                f"got {self.compares!r}"
            )
        if not callable(self.function):
            raise ConfigurationError(
                f"estimator {self.name}: function must be callable, got {self.function!r}"
            )

    @property
    def by_role(self) -> bool:
        """Whether episodes of different roles must be in different parts of the table."""
        return self.compares in ("group", "role")

    def __call__(self, table: TurnTable, options: Options = Options()) -> Estimate:
        """Return the estimate for a batch.

        Args:
            table: The turns of the batch; of this data-parallel rank, if `options.all_reduce`
                knows others.
            options: What the run sets.

        Raises:
            ConfigurationError: The table has no values and the estimator needs a critic; an option
                is out of range; or the function returned something that is not a finite number
                per turn, or advantages other than 0 for an invalid episode.
        """
        if self.needs_critic and table.value is None:
            raise ConfigurationError(
                f"{self.name} needs a value for every turn; the table has none"
            )
        result = self.function(table, options)
        if not isinstance(result, Estimate):
            result = Estimate(result, advantage.returns(table, options.gamma))
        if result.state and not self.keeps_state:
            raise ConfigurationError(
                f"estimator {self.name} returned a state; make it with keeps_state=True"
            )
        return Estimate(
            self._checked("advantages", result.advantages, table),
            self._checked("targets", result.targets, table),
            result.state,
        )

    def _checked(self, name: str, column: object, table: TurnTable) -> Floats:
        try:
            values = np.asarray(column, np.float64)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"estimator {self.name}: {name}: {error}") from None
        if values.shape != (len(table),):
            raise ConfigurationError(
                f"estimator {self.name}: {name} must have a number for each of {len(table)} turns, "
                f"got the shape {values.shape}"
            )
        wrong = np.flatnonzero(~np.isfinite(values) | (~table.valid & (values != 0)))
        if len(wrong):
            turn = wrong[0]
            must = "be finite" if table.valid[turn] else "be 0, as its episode failed"
            raise ConfigurationError(
                f"estimator {self.name}: {name} of episode {table.episode[turn]}, turn "
                f"{table.turn[turn]} must {must}, got {values[turn]}"
            )
        return values


def _gae(table: TurnTable, options: Options) -> Estimate:
    return Estimate(*advantage.gae(table, options.gamma, options.lam))


def _rae(table: TurnTable, options: Options) -> Estimate:
    advantages, state = advantage.rae(table, options.gamma, options.state)
    return Estimate(advantages, advantage.returns(table, options.gamma), state)


BUILT_IN: Mapping[str, Estimator] = {
    each.name: each
    for each in (
        Estimator("reinforce", lambda table, o: advantage.reinforce(table, o.gamma)),
        Estimator(
            "rebn", lambda table, o: advantage.rebn(table, o.gamma, o.all_reduce), compares="batch"
        ),
        Estimator("grpo", lambda table, o: advantage.grpo(table, o.group_std), compares="group"),
        Estimator("rloo", lambda table, o: advantage.rloo(table), compares="group"),
        Estimator("gae", _gae, needs_critic=True),
        Estimator("rae", _rae, compares="role", keeps_state=True),
    )
}
"""The estimators of `gem.advantage` by name."""


def estimator_names() -> list[str]:
    """Return the names of the built-in estimators, then those of installed packages."""
    return [*BUILT_IN, *(name for name in installed(ENTRY_POINT_GROUP) if name not in BUILT_IN)]


def estimator(name: str) -> Estimator:
    """Return the estimator of a name; an installed package cannot replace a built-in one.

    Raises:
        ConfigurationError: The name is unknown; or the entry point of that name cannot be imported,
            is not an `Estimator`, or has another name.
    """
    return BUILT_IN[name] if name in BUILT_IN else _installed(name)


def check_name(name: str) -> None:
    """Raise `ConfigurationError` unless `estimator` knows the name."""
    estimator(name)


@functools.cache
def _installed(name: str) -> Estimator:
    found = load_object(ENTRY_POINT_GROUP, name, Estimator, BUILT_IN)
    if found.name != name:
        raise ConfigurationError(
            f"the entry point {name!r} of {ENTRY_POINT_GROUP} names the estimator {found.name!r}; "
            "both names must be equal"
        )
    return found
