"""A server of environments in a thread of the test, and environments that show what it does."""

from __future__ import annotations

import asyncio
import contextlib
import io
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from processes import settles

import gem
from gem.blame import boundary
from gem.core import Env, Info, Observation, Step
from gem.executors.base import Executor
from gem_serve.cli import listen, run
from gem_serve.offers import Limits, Offer
from gem_serve.sessions import Hub

T = TypeVar("T")


class Served:
    """A running server: `url`, `hub`, and `do` calls a function in its event loop."""

    def __init__(self, hub: Hub, url: str, loop: asyncio.AbstractEventLoop) -> None:
        self.hub = hub
        self.url = url
        self._loop = loop

    def do(self, function: Callable[..., T], *args: Any) -> T:
        async def call() -> T:
            return function(*args)

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(60)

    def remote(self, id: str, **parameters: Any) -> Env:
        return gem.make(f"remote:{self.url}/{id}", **parameters)

    def free(self) -> bool:
        """Whether the server comes to have no session and no environment."""
        return settles(lambda: not self.hub.sessions and not self.do(self.hub._environments.total))


@contextlib.contextmanager
def serving(
    ids: Sequence[str] = (),
    *,
    token: str | None = None,
    parameters: bool = False,
    tools: Sequence[str] = (),
    executor: Executor | None = None,
    most_idle: int = 1024,
    **limits: Any,
) -> Iterator[Served]:
    """Serve ids until the end of the block, and then check that the server ends."""
    hub = Hub(
        Offer(ids, parameters=parameters, tools=tools),
        Limits(**{"drain_timeout_s": 0.0, **limits}),
        executor,
    )
    listening = listen("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    loop = asyncio.new_event_loop()
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(loop.run_until_complete, run(hub, token, listening, most_idle))
        try:
            yield Served(hub, url, loop)
        finally:
            loop.call_soon_threadsafe(hub.drain)
            running.result(60)
    loop.close()


class Obliging(Env):
    """Does what the action says: `end`, `cut`, `raise`, `tool`, `wait`, or repeats it.

    `waits` holds up `wait`; `closed` counts the closed ones.
    """

    waits: ClassVar[threading.Event] = threading.Event()
    closed: ClassVar[list[int]] = []

    def __init__(self, *, greeting: str = "hello", seed: int | None = None) -> None:
        super().__init__(seed=seed)
        self.greeting = greeting

    def reset(self, seed: int | None = None, **options: Any) -> tuple[Observation, Info]:
        super().reset(seed=seed)
        return f"{self.greeting} {self.rng.random()} {sorted(options.items())}", {"pair": (1, 2)}

    def step(self, action: str) -> Step:
        if action == "raise":
            raise ValueError("boom")
        if action == "tool":
            with boundary("tool"):
                raise OSError("the tool is gone")
        if action == "wait":
            type(self).waits.wait(60)
        return f"{action} {self.rng.random()}", 0.1, action == "end", action == "cut", {}

    def close(self) -> None:
        self.closed.append(1)


class Pictures(Env):
    """Shows images in each of the forms that an observation may have."""

    folder: ClassVar[Path]
    replayable = False

    def reset(self, seed: int | None = None, **options: Any) -> tuple[Observation, Info]:
        from PIL import Image

        super().reset(seed=seed)
        pictures = [
            Image.new(mode, (3, 2), self.rng.randrange(2))
            for mode in ("1", "L", "RGB", "RGBA", "P")
        ]
        buffer = io.BytesIO()
        pictures[2].save(buffer, "JPEG")
        path = self.folder / "picture.gif"
        pictures[1].save(path)
        images = [*pictures, buffer.getvalue(), path, str(path)]
        return [
            {"type": "text", "text": "look"},
            *({"type": "image", "image": image} for image in images),
        ], {}

    def step(self, action: str) -> Step:
        return action, 0.0, True, False, {}


OBLIGING, PICTURES = "test:Obliging-v0", "test:Pictures-v0"


def register() -> None:
    """Register both, once a process."""
    for id, kind in ((OBLIGING, Obliging), (PICTURES, Pictures)):
        if id not in gem.list_envs():
            gem.register(id, kind)
