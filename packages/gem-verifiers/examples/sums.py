"""A taskset of verifiers: sums (docs/bridges.md)."""

from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf

__all__ = ["Sums"]


class Data(vf.TaskData):
    """A sum."""

    answer: int


class Sum(vf.Task[Data]):
    """The task of one sum."""

    @vf.reward
    async def exact(self, trace: Any) -> float:
        """Whether the last reply is the sum."""
        said = trace.nodes[-1].message.content or ""
        return float(said.strip() == str(self.data.answer))


class Config(vf.TasksetConfig):
    """Settings."""

    rows: int = 10


class Sums(vf.Taskset[Sum, Config]):
    """Sums of a number with itself."""

    def load(self) -> Iterator[Sum]:
        """Yield the tasks."""
        for n in range(self.config.rows):
            yield Sum(Data(prompt=f"{n} + {n} = ?", answer=2 * n))
