"""A taskset of verifiers with a tool: the letters of a hidden word."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf

__all__ = ["Words"]

WORDS = ("lamp", "river", "stone")


class Letters(vf.Toolset[vf.SharedToolsetConfig, vf.State]):
    @vf.tool
    async def letter(self, row: int, position: int) -> str:
        """Return a letter of the hidden word of a row, by its position from 1."""
        return WORDS[row][position - 1]


class WordData(vf.TaskData):
    answer: str


class WordTask(vf.Task[WordData]):
    @vf.reward
    async def exact(self, trace: Any) -> float:
        return float((trace.nodes[-1].message.content or "").strip() == self.data.answer)


class Words(vf.Taskset[WordTask, vf.TasksetConfig]):
    def load(self) -> Iterator[WordTask]:
        for row, word in enumerate(WORDS):
            prompt = f"Row {row} hides a word of {len(word)} letters."
            yield WordTask(WordData(prompt=prompt, answer=word), self.config.task)

    @classmethod
    def toolsets(cls, config: vf.TasksetConfig) -> list[Any]:
        return [Letters(vf.SharedToolsetConfig())]


if __name__ == "__main__":
    Letters.run()
