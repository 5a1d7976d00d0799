"""A taskset of verifiers that breaks as it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import verifiers.v1 as vf

__all__ = ["Faulty"]


class FaultyConfig(vf.TasksetConfig):
    how: str = ""
    judge: str = ""


class FaultyData(vf.TaskData):
    how: str
    judge: str


class FaultyTask(vf.Task[FaultyData]):
    async def setup(self, trace: Any, runtime: Any) -> None:
        if self.data.how == "setup":
            raise RuntimeError("no disk")

    async def finalize(self, trace: Any, runtime: Any) -> None:
        if self.data.how == "slow":
            await asyncio.sleep(5)

    @vf.reward
    async def judged(self, trace: Any) -> float:
        if self.data.how == "reward":
            raise ValueError("what is this?")
        if self.data.how == "judge":
            async with httpx.AsyncClient(trust_env=False) as http:
                answer = await http.post(self.data.judge, json={})
                return float(answer.json()["score"])
        return 1.0

    @vf.stop
    async def enough(self, response: vf.Response) -> bool:
        return self.data.how == "stop"


class Faulty(vf.Taskset[FaultyTask, FaultyConfig]):
    INFINITE = True

    def load(self) -> Iterator[FaultyTask]:
        c = self.config
        prompt: Any = "Say something."
        if c.how == "image":
            part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
            prompt = [vf.UserMessage(content=[part])]
        timeout = vf.TaskTimeout(finalize=0.2 if c.how == "slow" else None)
        while True:
            yield FaultyTask(
                FaultyData(prompt=prompt, how=c.how, judge=c.judge, timeout=timeout), c.task
            )
