"""Tasks for rollouts: a `Task` is one seeded episode, a `TaskSet` a range of consecutive seeds."""

from __future__ import annotations

import json
import string
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import Any, overload
from urllib.parse import quote, unquote

from gem.core import Env
from gem.errors import ConfigurationError
from gem.making import make
from gem.tables import json_or_text, query_values

URI_SCHEME = "gem:"
# What stays as it is in the id of a URI: all but what ends the id, or the URI.
_SAFE = " " + string.punctuation.translate({ord(each): None for each in "%?#"})


@dataclass(frozen=True)
class Task:
    """One episode to play; the same in every trainer."""

    env_id: str
    """Registered environment id."""
    seed: int
    """Seed given to `reset`."""
    params: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Parameters given to `make`."""
    name: str = ""
    """Name of the environment in a run of several (`gem_train.experiment.mixtures`); else empty."""

    def make(self) -> Env:
        """Make the environment (not yet reset)."""
        return make(self.env_id, **self.params)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready mapping."""
        named = {"name": self.name} if self.name else {}
        return {"env_id": self.env_id, "seed": self.seed, "params": dict(self.params), **named}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Task:
        """Rebuild from `to_dict`.

        Raises:
            KeyError, TypeError, ValueError: A field is missing or of another type.
        """
        seed = int(index(data["seed"]))
        return cls(data["env_id"], seed, dict(data["params"]), data.get("name", ""))


class TaskSequence(Sequence[Task], ABC):
    """`n` tasks; each is made when it is asked for."""

    n: int

    @abstractmethod
    def task(self, place: int) -> Task:
        """Return the task at a place from 0 to `n - 1`."""

    def __len__(self) -> int:
        return self.n

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> list[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | list[Task]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self.n))]
        if not -self.n <= index < self.n:
            raise IndexError(f"task {index} of {self.n}")
        return self.task(index % self.n)


@dataclass(frozen=True)
class TaskSet(TaskSequence):
    """`n` tasks of one environment with the seeds `seed`, `seed + 1`, ..."""

    env_id: str
    n: int
    seed: int = 0
    params: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ConfigurationError(f"a task set needs n >= 1, got n={self.n}")

    @classmethod
    def parse(cls, uri: str) -> TaskSet:
        """Parse `gem:<env id>?n=64&seed=0&<parameter>=<value>...`.

        `n` (default 1) and `seed` (default 0) belong to the task set; every other key is an
        environment parameter. A value that is valid JSON (`4`, `true`, `null`) is parsed as JSON,
        any other is text. In the id, `%`, `?` and `#` are percent-encoded.

        Raises:
            ConfigurationError: The URI is malformed, a key is repeated, or `n` or `seed` is not an
                integer.
        """
        if not uri.startswith(URI_SCHEME) or not uri[len(URI_SCHEME) :].partition("?")[0]:
            raise ConfigurationError(
                f"a task URI is gem:<env id>?n=<tasks>&seed=<first seed>&<parameter>=<value>, "
                f"got {uri!r}"
            )
        env_id, _, query = uri[len(URI_SCHEME) :].partition("?")
        values = query_values(query, f"task URI {uri!r}")
        numbers = {"n": values.pop("n", 1), "seed": values.pop("seed", 0)}
        for key, value in numbers.items():
            if type(value) is not int:
                raise ConfigurationError(
                    f"task URI {uri!r}: {key} must be an integer, got {value!r}"
                )
        return cls(unquote(env_id), **numbers, params=values)

    @property
    def uri(self) -> str:
        """URI of the task set; the inverse of `parse`."""
        query = {"n": self.n, "seed": self.seed, **self.params}
        parts = (f"{quote(k)}={quote(_text(v))}" for k, v in query.items())
        return f"{URI_SCHEME}{quote(self.env_id, _SAFE)}?{'&'.join(parts)}"

    def task(self, place: int) -> Task:
        """Return the task at a place from 0 to `n - 1`."""
        return Task(self.env_id, self.seed + place, self.params)


def _text(value: Any) -> str:
    # A string that is valid JSON keeps its quotes, so that parse(uri) returns the string.
    if isinstance(value, str) and json_or_text(value) == value:
        return value
    return json.dumps(value)
