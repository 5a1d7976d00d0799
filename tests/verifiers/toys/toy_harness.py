"""A taskset of verifiers with a harness of its own, which treats its history as it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import verifiers.v1 as vf

__all__ = ["Odd", "OddHarness"]


class OddConfig(vf.TasksetConfig):
    how: str = ""


class OddTask(vf.Task[vf.TaskData]):
    @vf.reward
    async def turns(self, trace: Any) -> float:
        return float(trace.num_turns)


class Odd(vf.Taskset[OddTask, OddConfig]):
    def load(self) -> Iterator[OddTask]:
        yield OddTask(vf.TaskData(prompt=self.config.how), self.config.task)


class OddHarness(vf.Harness[vf.HarnessConfig]):
    EXECUTES_CODE = NEEDS_CONTAINER = False

    async def launch(
        self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, *_: Any, **__: Any
    ) -> vf.ProgramResult:
        how = trace.task.data.prompt
        if how == "nothing":
            return vf.ProgramResult(exit_code=0, stdout="", stderr="")
        async with httpx.AsyncClient(timeout=None, trust_env=False) as http:

            async def ask(messages: list[Any], **further: Any) -> Any:
                answer = await http.post(
                    f"{endpoint}/chat/completions",
                    headers={"authorization": f"Bearer {secret}"},
                    json={"model": ctx.model, "messages": messages, **further},
                )
                if answer.status_code >= 400:
                    raise RuntimeError(answer.text)
                return answer

            messages = [{"role": "user", "content": "one"}]
            if how == "parallel":
                other = [{"role": "user", "content": "two"}]
                await asyncio.gather(ask(messages), ask(other))
            elif how == "stream":
                answer = await ask(messages, stream=True)
                assert answer.text.endswith("data: [DONE]\n\n"), answer.text
            else:
                message = (await ask(messages)).json()["choices"][0]["message"]
                if how == "compact":
                    messages = [{"role": "user", "content": "one, in short"}]
                messages += [message, {"role": "user", "content": "two"}]
                await ask(messages)
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")
