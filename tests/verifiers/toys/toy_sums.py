"""A taskset of verifiers: sums, with a reward of exactness and one of brevity."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf

__all__ = ["Sums"]


class SumsConfig(vf.TasksetConfig):
    largest: int = 9
    rows: int = 50


class SumData(vf.TaskData):
    answer: int


class SumTask(vf.Task[SumData]):
    @vf.reward(weight=1.0)
    async def exact(self, trace: Any) -> float:
        return float(trace.nodes[-1].message.content.strip() == str(self.data.answer))

    @vf.reward(weight=0.1)
    async def short(self, trace: Any) -> float:
        return float(len(trace.nodes[-1].message.content) < 10)

    @vf.metric
    async def length(self, trace: Any) -> float:
        return float(len(trace.nodes[-1].message.content))


class Sums(vf.Taskset[SumTask, SumsConfig]):
    def load(self) -> Iterator[SumTask]:
        for n in range(self.config.rows):
            a, b = n % self.config.largest, (3 * n) % self.config.largest
            prompt, system = f"{a} + {b} = ?", "Answer with the number."
            data = SumData(name=f"sum {n}", prompt=prompt, system_prompt=system, answer=a + b)
            yield SumTask(data, self.config.task)
