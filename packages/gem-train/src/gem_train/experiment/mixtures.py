"""Several environments in one run, and parameters that change during it.

- `EnvPart`, `Stage`: a training environment of a RunSpec, and a change of its parameters.
- `Mixture`: the tasks of one or several environments in one order, as a `gem.tasks.TaskSet` has
  those of one.
- `parse_tasks`, `run_tasks`: either of them of a URI.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from math import gcd, lcm
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, quote

from gem.errors import ConfigurationError
from gem.tables import build, filled, json_or_text, setting
from gem.tasks import URI_SCHEME, Task, TaskSequence, TaskSet

MIXTURE = "mixture"
"""Stands in a URI in the place of an environment id."""
SEEDS = 10_000_000
"""Seeds of an environment of `[[env]]` begin at this times its index, unless it says otherwise."""


@dataclass(frozen=True)
class Stage:
    """Change of an environment's parameters during a run; it has `iteration` or `success`."""

    iteration: int | None = setting("first iteration with these parameters", None, least=1)
    success: float | None = setting(
        "or the success rate of the environment in an iteration after which they begin",
        None,
        above=0,
        most=1,
    )
    params: Mapping[str, Any] = setting("parameters that change; the others stay as they were", {})


@dataclass(frozen=True)
class EnvPart:
    """Training environment."""

    id: str = setting("registered environment id", check=filled)
    params: Mapping[str, Any] = setting("parameters given to `gem.make`", {})
    seed: int = setting("its tasks have the seeds `seed`, `seed + 1`, ...", 0)
    name: str | None = setting("name in the metrics; by default the id", None, check=filled)
    weight: float = setting("share of the tasks, relative to that of the others", 1.0, above=0)
    schedule: tuple[Stage, ...] = ()

    @property
    def shown(self) -> str:
        """Name in the metrics."""
        return self.name or self.id

    @property
    def adaptive(self) -> bool:
        """Whether its parameters depend on what happens in the run."""
        return any(stage.success is not None for stage in self.schedule)

    def params_at(self, iteration: int, rates: Sequence[float | None] = ()) -> Mapping[str, Any]:
        """Return the parameters that the tasks of an iteration have.

        Stages begin one after the other; after an iteration with a sufficient success rate one.

        Args:
            iteration: Its number.
            rates: Success rate of the environment in each earlier iteration; None where it had no
                valid episode. Without them no stage begins that waits for one.
        """
        begun = 0
        for k in range(iteration + 1) if rates else [iteration]:
            measured = rates[k - 1] if 0 < k <= len(rates) else None
            while begun < len(self.schedule) and _due(self.schedule[begun], k, measured):
                begun += 1
                measured = None  # of the parameters before
        return self.params_after(begun)

    def params_after(self, stages: int) -> Mapping[str, Any]:
        """Return the parameters after so many stages of the schedule have begun."""
        params = self.params
        for stage in self.schedule[:stages]:
            params = {**params, **stage.params}
        return params


@dataclass(frozen=True)
class Mixture(TaskSequence):
    """`n` tasks of environments in turns, `batch` of them an iteration.

    After each task, every environment is owed its share of one task more; the next task is of the
    environment that is owed most, the first of equals (smooth weighted round-robin). So a batch is
    interleaved, an environment is never ahead of its share by a whole task, and the shares are
    exact after every `period` tasks, whatever a batch's size.
    """

    parts: tuple[EnvPart, ...]
    n: int
    batch: int

    def __post_init__(self) -> None:
        if not self.parts:
            raise ConfigurationError("env: at least one environment is needed")
        if self.n < 1 or self.batch < 1:
            raise ConfigurationError(
                f"a mixture needs n >= 1 and batch >= 1, got n={self.n} and batch={self.batch}"
            )
        self._check_names()
        for index, part in enumerate(self.parts):
            for number, stage in enumerate(part.schedule):
                if (stage.iteration is None) == (stage.success is None):
                    raise ConfigurationError(
                        f"{self.key(index)}.schedule[{number}]: either `iteration` or `success` "
                        "says when it begins"
                    )
            begins = [s.iteration for s in part.schedule if s.iteration is not None]
            if sorted(set(begins)) != begins:
                raise ConfigurationError(
                    f"{self.key(index)}.schedule: iterations must ascend, got {begins}"
                )
        for iteration in sorted({0, *(s.iteration or 0 for p in self.parts for s in p.schedule)}):
            self._check_different(iteration)

    def key(self, index: int) -> str:
        """Return what messages call an environment."""
        return "env" if len(self.parts) == 1 else f"env[{index}]"

    @classmethod
    def parse(cls, uri: str) -> Mixture:
        """Parse `gem:mixture?n=64&batch=8&env=[...]`; `env` is JSON, as in a RunSpec, in quotes.

        Raises:
            ConfigurationError: The URI is malformed, or the environments do not fit together.
        """
        try:
            pairs = parse_qsl(uri.partition("?")[2], strict_parsing=True)
        except ValueError as error:
            raise ConfigurationError(f"task URI {uri!r}: {error}") from None
        values = {key: json_or_text(text) for key, text in pairs}
        if len(values) < len(pairs) or not values.keys() <= {"n", "batch", "env"}:
            raise ConfigurationError(
                f"a mixture's URI is {URI_SCHEME}{MIXTURE}?n=<tasks>&batch=<tasks of an iteration>"
                f"&env=<JSON>, got {uri!r}"
            )
        found = build(_Query, values, f"task URI {uri!r}: ")
        return cls(found.env, found.n, found.batch)

    @property
    def uri(self) -> str:
        """URI of the mixture; the inverse of `parse`."""
        env = json.dumps([asdict(part) for part in self.parts], separators=(",", ":"))
        return f"{URI_SCHEME}{MIXTURE}?n={self.n}&batch={self.batch}&env={quote(env)}"

    @property
    def env_id(self) -> str:
        """Name of the tasks where one is needed."""
        return self.parts[0].id if len(self.parts) == 1 else MIXTURE

    @property
    def period(self) -> int:
        """Number of tasks after which the shares are exact and the order begins again."""
        return sum(self._weights)

    @property
    def never(self) -> list[int]:
        """Environments, by index, that have no task."""
        return [index for index in range(len(self.parts)) if not self.count(index)]

    def count(self, index: int) -> int:
        """Return how many of the tasks are of an environment, by index."""
        order = [part for part, _ in self._order]
        rounds, rest = divmod(self.n, len(order))
        return rounds * order.count(index) + order[:rest].count(index)

    @property
    def samples(self) -> list[Task]:
        """One task of every environment and stage of its schedule."""
        return [
            self._task(part, 0, part.params_after(begun))
            for part in self.parts
            for begun in range(len(part.schedule) + 1)
        ]

    def task(self, place: int) -> Task:
        """Return the task at a place from 0 to `n - 1`."""
        rounds, at = divmod(place, len(self._order))
        which, count = self._order[at]
        number = rounds * self._weights[which] + count
        part = self.parts[which]
        return self._task(part, number, part.params_at(place // self.batch))

    def _task(self, part: EnvPart, number: int, params: Mapping[str, Any]) -> Task:
        name = part.shown if len(self.parts) > 1 or part.name is not None else ""
        return Task(part.id, part.seed + number, params, name)

    @cached_property
    def _weights(self) -> tuple[int, ...]:
        """Weights as whole numbers without a common factor."""
        exact = [Fraction(str(part.weight)) for part in self.parts]
        whole = [int(each * lcm(*(e.denominator for e in exact))) for each in exact]
        return tuple(each // gcd(*whole) for each in whole)

    @property
    def _order(self) -> list[tuple[int, int]]:
        return _order(self._weights, min(self.n, self.period))

    def _check_names(self) -> None:
        names = [part.shown for part in self.parts]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise ConfigurationError(
                    f"env[{names.index(name)}] and env[{index}] are both called {name!r}; give "
                    "each a name"
                )

    def _check_different(self, iteration: int) -> None:
        seen: dict[str, int] = {}
        for index, part in enumerate(self.parts):
            key = json.dumps([part.id, part.params_at(iteration)], sort_keys=True)
            if key in seen:
                raise ConfigurationError(
                    f"env[{seen[key]}] and env[{index}] are the same environment with the same "
                    f"parameters in iteration {iteration}; give one a larger weight instead"
                )
            seen[key] = index


@dataclass(frozen=True)
class _Query:
    """What stands after `?` in a mixture's URI."""

    n: int = setting("tasks", 1, least=1)
    batch: int = setting("tasks of an iteration", 1, least=1)
    env: tuple[EnvPart, ...] = ()


def _due(stage: Stage, iteration: int, rate: float | None) -> bool:
    """Return whether a stage begins, whose environment had a success rate just before."""
    if stage.success is None:
        return stage.iteration is not None and stage.iteration <= iteration
    return rate is not None and rate >= stage.success


Tasks: TypeAlias = TaskSet | Mixture
"""What a run is trained on."""


def parse_tasks(uri: str) -> Tasks:
    """Return the task set or mixture of a URI.

    Raises:
        ConfigurationError: It is malformed.
    """
    mixed = uri.partition("?")[0] == URI_SCHEME + MIXTURE
    return Mixture.parse(uri) if mixed else TaskSet.parse(uri)


def run_tasks(uri: str, iterations: int, batch: int) -> Tasks:
    """Return the tasks of a run: those of a URI, whose `n` and `batch` are not looked at.

    Args:
        uri: See `parse_tasks`.
        iterations: Of the run.
        batch: Tasks of an iteration.
    """
    tasks, n = parse_tasks(uri), iterations * batch
    return replace(tasks, n=n) if isinstance(tasks, TaskSet) else replace(tasks, n=n, batch=batch)


def samples(tasks: Tasks) -> list[Task]:
    """Return tasks with which all environments and parameters of a run can be tried."""
    return [tasks[0]] if isinstance(tasks, TaskSet) else tasks.samples


@lru_cache(maxsize=16)
def _order(weights: tuple[int, ...], n: int) -> list[tuple[int, int]]:
    """Return, for each of `n` tasks, its environment and how many of that came before it."""
    total, owed, count = sum(weights), [0] * len(weights), [0] * len(weights)
    order = []
    for _ in range(n):
        owed = [each + weight for each, weight in zip(owed, weights, strict=True)]
        chosen = max(range(len(owed)), key=owed.__getitem__)
        owed[chosen] -= total
        order.append((chosen, count[chosen]))
        count[chosen] += 1
    return order
