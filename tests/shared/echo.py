"""An environment that quotes, and scripted samplers, for tests of rollouts."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

from gem.core import Env
from gem.rollout import (
    Budget,
    ChatFormat,
    Request,
    Sample,
    play,
    play_batch,
)
from gem.tasks import Task
from gem.trajectory import Trajectory

BUDGET = Budget(turn_tokens=64, response_tokens=4096, prompt_tokens=4096)
TASK = Task("test:Echo-v0", seed=3)


class Echo(Env):
    """Quotes the action, pays its turn number, ends after `turns`; can be told to misbehave."""

    def __init__(self, turns: int = 3, fail: Any = None) -> None:
        super().__init__()
        self.turns, self.fail, self.t, self.closed = turns, fail, 0, False

    def reset(self, seed: int | None = None, **options: Any) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        if self.fail == "reset":
            raise OSError("no such server")
        return f"Say something. ({seed})", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.t += 1
        if self.fail == self.t:
            raise OSError("server gone")
        done = self.t >= self.turns
        info = {"success": done, "format_error": False, "object": object()}
        return f"You said: {action} ", float(self.t), done, False, info

    def close(self) -> None:
        self.closed = True


def scripted(responses: list[list[int]]) -> Any:
    """A sampler that answers the k-th request of every episode with the k-th response."""
    requests: list[Request] = []
    asked: dict[int, int] = {}

    def answer(request: Request) -> Sample:
        requests.append(request)
        k = asked.get(request.episode, 0)
        asked[request.episode] = k + 1
        ids = responses[k % len(responses)][: request.max_tokens]
        return Sample(ids, [-0.5] * len(ids), "length" if len(ids) == 64 else "stop")

    answer.requests = requests  # type: ignore[attr-defined]
    return answer


def rollout(tokenizer: Any, responses: list[list[int]], **kwargs: Any) -> tuple[Trajectory, Any]:
    sampler = scripted(responses)
    kwargs.setdefault("make_env", lambda task: Echo(len(responses)))
    kwargs.setdefault("budget", BUDGET)
    [trajectory] = play_batch(
        [TASK], lambda batch: [sampler(r) for r in batch], ChatFormat(tokenizer), **kwargs
    )
    return trajectory, sampler.requests


def drive(
    driver: str,
    tokenizer: Any,
    make_env: Any,
    *,
    error: Exception | None = None,
    responses: Any = ((9,),),
    logprobs: Any = None,
    **kwargs: Any,
) -> Trajectory:
    sampler, chat = scripted([list(ids) for ids in responses]), ChatFormat(tokenizer)

    def answer_all(batch: list[Request]) -> list[Sample]:
        if error is not None:
            raise error
        if logprobs is not None:
            return [Sample([9] * len(logprobs), list(logprobs), "stop") for _ in batch]
        return [sampler(r) for r in batch]

    async def answer(request: Request) -> Sample:
        return answer_all([request])[0]

    if driver == "batch":
        [trajectory] = play_batch(
            [TASK], answer_all, chat, budget=BUDGET, make_env=make_env, **kwargs
        )
        return trajectory
    return asyncio.run(play(TASK, answer, chat, budget=BUDGET, make_env=make_env, **kwargs))


def wait_until(condition: Any) -> None:
    """Environments are closed in a thread: give it time before calling it forgotten."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "an environment was never closed"
        threading.Event().wait(0.01)
