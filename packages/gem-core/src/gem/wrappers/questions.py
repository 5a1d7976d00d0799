"""Wrapper that keeps a part of an environment's questions."""

from __future__ import annotations

import hashlib
from typing import Any

from gem.core import Env, Info, Observation, Wrapper
from gem.errors import ConfigurationError
from gem.fingerprint import canonical
from gem.parameters import number

_MOST = 1_000
"""Episodes that a reset looks through."""


class Questions(Wrapper):
    """Plays only episodes whose first observation belongs to one part of all questions.

    Seeds alone do not hold questions out: a generator asks the same question with many seeds. A
    hash gives each first observation a place from 0 to 1, so parts that do not overlap share no
    question, in every process and on every machine. The hash is of the whole observation: the
    same question gets another place if the instructions differ, for example because of tools.

    Where `eval=True` walks the rows of a data set in order, it walks the rows of this part: the
    seeds 0, 1, 2, … visit each once. The first reset then looks at all rows.
    """

    _apart = ("env", "_kept")
    # Rows of this part, once they are known; here because the child of a `spawn` begins without.
    _kept: list[int] | None = None

    def __init__(self, env: Env, first: float = 0.0, last: float = 1.0) -> None:
        """Wrap an environment.

        Args:
            env: The environment.
            first: Least place of a question that is kept.
            last: Places from here on are left out.

        Raises:
            ConfigurationError: Not `0 <= first < last <= 1`.
        """
        super().__init__(env)
        self.first, self.last = number("first", first), number("last", last)
        if not 0 <= self.first < self.last <= 1:
            raise ConfigurationError(
                f"questions: 0 <= first < last <= 1 must hold, got first={first!r}, last={last!r}"
            )

    def reset(self, seed: int | None = None, **options: Any) -> tuple[Observation, Info]:
        """Begin the next episode of the seed that asks a question of this part.

        Raises:
            ConfigurationError: None of 1,000 episodes does.
        """
        env: Any = self.env.unwrapped
        rows = self._part()
        for _ in range(_MOST):
            if rows:
                env.walked = rows
            try:
                observation, info = self.env.reset(seed=seed, **options)
            finally:
                if rows:
                    env.walked = None
            if self._has(observation):
                return observation, info
            seed = None
        raise ConfigurationError(
            f"questions: {_MOST:,} episodes in a row of {self.env!r} ask nothing from "
            f"first={self.first!r} to last={self.last!r}; take a larger part"
        )

    def _has(self, observation: Observation) -> bool:
        return self.first <= place(observation) < self.last

    def _part(self) -> list[int]:
        """Return the rows of this part where `eval=True` walks rows in order, else none."""
        if self._kept is None:
            count = None if leaves_out(self.env) else getattr(self.env.unwrapped, "in_order", None)
            self._kept = []
            if count:
                with self.env.spawn() as probe:
                    asked = (probe.reset(seed=0, idx=row)[0] for row in range(count))
                    self._kept = [row for row, shown in enumerate(asked) if self._has(shown)]
        return self._kept


def leaves_out(env: Env) -> bool:
    """Return whether an environment, with its wrappers, plays only a part of its episodes."""
    while isinstance(env, Wrapper) and not isinstance(env, Questions):
        env = env.env
    return isinstance(env, Questions)


def place(observation: Observation) -> float:
    """Hash an observation, images included, to a number from 0 to 1 (exclusive)."""
    digest = hashlib.sha256(str(canonical(observation)).encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48
