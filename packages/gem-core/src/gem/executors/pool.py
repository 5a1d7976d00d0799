"""`PoolExecutor`: environments in workers that may end at any time; the side of the caller.

An episode is its seed and its actions. If a worker ends, its episodes are played again in other
workers and compared with what they have shown (`host`). Which of the calls that were running ended
the worker is found by running them again in smaller and smaller company: one that ends its worker
twice while it runs alone fails.

Executors of processes, Ray actors and servers are subclasses that start workers and move frames.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import math
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gem.core import Env, checked_seed
from gem.errors import ConfigurationError, MisuseError, UnreachableError
from gem.executors.base import EnvHandle, Executor
from gem.executors.frames import (
    FRAME_COMMAS,
    FRAME_REQUESTS,
    MOST_BYTES,
    decode_error,
    decode_observation,
)
from gem.executors.held import NO_OPTIONS, STEP_TIMEOUT_S, EnvFailedError, EpisodeKey
from gem.executors.recipe import Recipe
from gem.executors.threads import CallTimeoutError, Result, Sink, deliver
from gem.parameters import integer, optional
from gem.tables import plain_values

logger = logging.getLogger(__name__)

COMPANY = (None, 16, 1)
"""Most calls that run at the same time in a worker of calls whose workers have ended never, once,
and more often; None for no limit."""
MOST_WORKERS = 1024
LONE_ENDS = 2
"""Ends of a worker during a call that ran alone after which the call fails."""
REPLAY_ENDS = 8
"""Ends of a worker while an episode was played again after which its call fails."""
STARTS = 3
"""Default of `PoolExecutor.most_failed_starts`."""
GRACE_S = 20.0
"""How long after the limits of its calls a worker that answers nothing at all is ended."""
IDLE_S = 60.0
"""How long a worker without environments is kept."""
START_S = 120.0
"""How long a worker may take to start. If there are others, the pool then makes do with fewer."""


class Worker(ABC):
    """A worker, as the pool sees it; subclasses move the frames.

    A subclass calls `pool.received(worker, frame)` and, once, `pool.ended(worker, why)`; neither
    while it holds a lock of its own.
    """

    def __init__(self) -> None:
        self.handles: dict[int, PoolHandle] = {}
        self.company = 0
        """Index into `COMPANY`: 0 for all calls, more for those during which a worker ended."""
        self.running: dict[int, float] = {}
        """Environments with a call that was sent, and how long it may take, in seconds."""
        self.waiting: deque[PoolHandle] = deque()
        """Environments whose call waits until fewer run."""
        self.requests: list[Any] = []
        """Requests to send with the next frame."""
        self.episodes = 0
        self.frame_bytes = math.inf
        """Size that frames of several requests do not exceed."""
        self.answered = False
        self.heard_at = self.began_at = time.monotonic()
        self.ends = False
        """Whether it was asked to end."""
        self.over = False

    @abstractmethod
    def send(self, frame: bytes) -> None:
        """Send a frame; does not block. Nothing happens if the worker has ended."""

    @abstractmethod
    def end(self, *, kill: bool = False) -> None:
        """Have the worker close its environments and end, or end it at once; safe to repeat."""

    @property
    def is_full(self) -> bool:
        most = COMPANY[self.company]
        return most is not None and len(self.running) >= most


class PoolHandle(EnvHandle):
    """An environment in one of a pool's workers, or in none: with what another one needs to go on.

    The pool's lock guards all attributes.
    """

    def __init__(
        self, pool: PoolExecutor, recipe: dict[str, Any], sink: Sink, limit_s: float | None
    ) -> None:
        self._pool = pool
        self.recipe = recipe
        self.sink = sink
        self.limit_s = limit_s
        self.number = -1
        """Its number in its worker, a new one in each."""
        self.worker: Worker | None = None
        self.is_new = True
        """Whether its worker does not have the environment yet."""
        self.call: tuple[str, Any, list[Any]] | None = None
        """The call that has no result yet: name, token, arguments."""
        self.key: EpisodeKey | None = None
        self.options: Mapping[str, Any] = NO_OPTIONS
        self.actions: list[str] = []
        self.digest = ""
        self.playing = False
        """Whether an episode has begun that a step can go on with."""
        self.replayable = True
        self.ends = 0
        """Workers that ended during the call that has no result yet."""
        self.lone_ends = 0
        """Those in which it ran alone."""
        self.replay_ends = 0
        """Workers that ended before that, while the episode was played again."""
        self.begun = False
        """Whether nothing is left to be played again before the call."""
        self.closed = False

    def load(self, token: Any) -> None:
        self._pool.call(self, "load", token, [])

    def reset(
        self, token: Any, seed: int | None = None, options: Mapping[str, Any] = NO_OPTIONS
    ) -> None:
        try:
            plain = plain_values(options, "options")
        except ConfigurationError as error:
            raise ConfigurationError(
                f"an option of reset cannot leave this process: {error}"
            ) from None
        self._pool.call(self, "reset", token, [checked_seed(seed), plain])

    def step(self, token: Any, action: str) -> None:
        if len(action) > MOST_BYTES:
            raise ConfigurationError(
                f"an action has {len(action)} characters; {MOST_BYTES} are allowed"
            )
        self._pool.call(self, "step", token, [action])

    def close(self, token: Any = None) -> None:
        self._pool.leave(self)
        if token is not None:
            self.sink([(token, None)])


class PoolExecutor(Executor):
    """Environments in workers: started when they are needed, replaced when they end."""

    most_failed_starts = STARTS
    """Workers in a row that end without an answer after which calls fail."""

    def __init__(
        self, workers: int, *, least: int = 0, episodes_per_worker: int | None = None
    ) -> None:
        """Store the parameters; nothing is started.

        Args:
            workers: Most workers, besides one for each step of narrowing down what ends them.
            least: Workers that stay although they have nothing to do for `IDLE_S`.
            episodes_per_worker: Episodes after which a worker takes no further ones and is
                replaced; None for no limit.

        Raises:
            ConfigurationError: A number is below 1, or there are more workers than `MOST_WORKERS`.
        """
        self._most = integer("workers", workers, 1, MOST_WORKERS)
        optional(integer, "episodes_per_worker", episodes_per_worker, 1, 2**31)
        self._least = least
        self._episodes = math.inf if episodes_per_worker is None else episodes_per_worker
        self._lock = threading.RLock()
        self._begin()

    def _begin(self) -> None:
        """Begin without workers; also in a forked process, which has none of its parent's."""
        self._numbers = itertools.count()
        self._workers: list[Worker] = []
        self._unsent: set[Worker] = set()
        self._due: list[tuple[Sink, Result]] = []
        self._flushing: set[asyncio.AbstractEventLoop] = set()
        self._failed_starts = 0
        self._is_closed = False

    @abstractmethod
    def _start(self) -> Worker:
        """Start a worker; does not wait until it is ready.

        Raises:
            UnreachableError: It cannot be started.
        """

    def open(
        self,
        source: Recipe | Callable[[], Env],
        sink: Sink,
        *,
        timeout_s: float | None = STEP_TIMEOUT_S,
        after: EpisodeKey | None = None,
    ) -> PoolHandle:
        """Return a handle of a new environment, which its first call makes."""
        if not isinstance(source, Recipe):
            raise ConfigurationError(
                "an environment that a function makes runs in threads only: this executor needs an "
                "id and parameters, which other processes can be told"
            )
        handle = PoolHandle(self, source.to_dict(), sink, timeout_s)
        handle.key = after
        return handle

    def call(self, handle: PoolHandle, name: str, token: Any, arguments: list[Any]) -> None:
        """Begin a call of a handle.

        Raises:
            MisuseError: It has a call that has no result yet, or the executor is closed.
        """
        with self._lock:
            if self._is_closed or handle.closed:
                raise MisuseError("the environment or its executor is closed")
            if handle.call is not None:
                raise MisuseError(f"{name} is called before {handle.call[0]} has a result")
            handle.call = (name, token, arguments)
            self._dispatch(handle)

    def leave(self, handle: PoolHandle) -> None:
        """Close a handle."""
        with self._lock:
            handle.closed, handle.call = True, None
            self._release(handle)
        self.flush()

    def flush(self) -> None:
        """Send the requests that wait, a frame a worker, and deliver what has failed."""
        with self._lock:
            while self._unsent:
                worker = self._unsent.pop()
                requests, worker.requests = worker.requests, []
                if requests and not worker.over:
                    for frame in _frames(requests, worker.frame_bytes):
                        worker.send(frame)
            due, self._due = self._due, []
        deliver(due)

    def flush_soon(self) -> None:
        """Flush after what the running event loop does now: other episodes may call, too."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if loop in self._flushing:
                return
            self._flushing.add(loop)
        loop.call_soon(self._flush_for, loop)

    def _flush_for(self, loop: asyncio.AbstractEventLoop) -> None:
        self._flushing.discard(loop)
        self.flush()

    def close(self) -> None:
        """End all workers; calls without a result fail."""
        with self._lock:
            workers, self._is_closed = list(self._workers), True
        for worker in workers:
            worker.end()
            self.ended(worker, "the executor was closed")

    def received(self, worker: Worker, frame: bytes | str) -> None:
        """Take a frame of answers of a worker."""
        answers = json.loads(frame)
        with self._lock:
            worker.heard_at = time.monotonic()
            worker.answered = True
            self._failed_starts = 0
            for number, name, *rest in answers:
                handle = worker.handles.get(number)
                if name == "resumed":
                    if handle is not None:
                        handle.begun = True
                    continue
                worker.running.pop(number, None)
                if handle is not None and handle.call is not None:
                    self._due.append((handle.sink, self._result(handle, name, rest)))
            while worker.waiting and not worker.is_full:
                self._request(worker.waiting.popleft())
        self.flush()

    def ended(self, worker: Worker, why: str, error: Exception | None = None) -> None:
        """Take the end of a worker: its calls begin again in others, or fail.

        Args:
            worker: Whose end it is.
            why: For messages.
            error: Why no other worker would do better; all calls fail with it.
        """
        with self._lock:
            if worker.over:
                return
            worker.over = True
            self._workers.remove(worker)
            self._failed_starts += not worker.answered
            if worker.handles and not self._is_closed:
                logger.warning("a worker of %d environments ended: %s", len(worker.handles), why)
            alone = len(worker.running) == 1
            for number, handle in worker.handles.items():
                handle.worker = None
                # Before its first answer a worker has begun no call.
                if number in worker.running and worker.answered:
                    handle.ends += handle.begun
                    handle.lone_ends += alone and handle.begun
                    handle.replay_ends += not handle.begun
                if handle.call is None:
                    continue  # its next call plays the episode again
                if error is not None:
                    self._fail(handle, error)
                elif self._is_closed or self._failed_starts >= self.most_failed_starts:
                    self._fail(handle, UnreachableError(f"no worker: {why}"))
                elif handle.lone_ends >= LONE_ENDS:
                    message = f"its worker ended {handle.lone_ends} times during this call: {why}"
                    self._fail(handle, EnvFailedError(message))
                elif handle.replay_ends >= REPLAY_ENDS:
                    message = f"its worker ended {REPLAY_ENDS} times before this call: {why}"
                    self._fail(handle, EnvFailedError(message))
                else:
                    self._dispatch(handle)
        self.flush()

    def look(self) -> None:
        """End workers that answer nothing and those that are idle; called now and then."""
        now = time.monotonic()
        with self._lock:
            idle = [w for w in self._workers if not w.handles and now - w.heard_at > IDLE_S]
            for worker in idle[: max(0, len(self._workers) - self._least)]:
                self._end(worker)
            for worker in self._workers:
                silent_s = now - worker.heard_at
                if not worker.answered and now - worker.began_at > START_S:
                    logger.warning("a worker has not started for %.0f s", START_S)
                    self._most = max(1, self._most - 1)
                    self._end(worker, kill=True)
                elif worker.running and silent_s > max(worker.running.values()):
                    logger.warning("a worker has answered nothing for %.0f s", silent_s)
                    self._end(worker, kill=True)

    def _dispatch(self, handle: PoolHandle) -> None:
        """Begin the call of a handle in its worker, or in one that is found for it."""
        assert handle.call is not None
        worker = handle.worker
        if worker is not None and handle.call[0] != "step" and self._is_leaving(worker):
            self._release(handle)
        if handle.worker is None:
            if handle.call[0] == "step" and handle.playing and not handle.replayable:
                message = "its worker ended, and the environment says that it cannot be replayed"
                self._fail(handle, EnvFailedError(message))
                return
            try:
                self._place(handle)
            except UnreachableError as error:
                self._fail(handle, error)
                return
        assert handle.worker is not None
        if handle.worker.is_full:
            handle.worker.waiting.append(handle)
        else:
            self._request(handle)

    def _place(self, handle: PoolHandle) -> None:
        """Find or start a worker for a handle."""
        company = min(handle.ends, len(COMPANY) - 1)
        fit = [
            worker
            for worker in self._workers
            if worker.company == company and worker.episodes < self._episodes and not worker.ends
        ]
        worker = min(fit, key=lambda w: len(w.handles), default=None)
        most = 1 if company else self._most
        if worker is None or (worker.handles and len(fit) < most):
            worker = self._start()
            worker.company = company
            self._workers.append(worker)
        handle.worker, handle.number, handle.is_new = worker, next(self._numbers), True
        worker.handles[handle.number] = handle

    def _request(self, handle: PoolHandle) -> None:
        """Queue the requests of a handle's call."""
        worker, call, n = handle.worker, handle.call, handle.number
        assert worker is not None and call is not None
        name, _, arguments = call
        steps = 1
        if handle.is_new:
            resumes = name == "step" and handle.playing
            after = None if resumes else handle.key
            worker.requests.append(["open", n, handle.recipe, handle.limit_s, after])
            if resumes:
                name, steps = "resume", len(handle.actions) + 2
                past = [handle.key, dict(handle.options), handle.actions, handle.digest]
                arguments = [*past, *arguments]
            handle.is_new = False
        handle.begun = name != "resume"
        worker.requests.append([name, n, *arguments])
        if not worker.running:
            worker.heard_at = time.monotonic()
        limit = math.inf if handle.limit_s is None else handle.limit_s * steps + GRACE_S
        worker.running[n] = limit
        self._unsent.add(worker)

    def _result(self, handle: PoolHandle, name: str, rest: list[Any]) -> Result:
        """Return the result of a handle's call; remember what another worker would need."""
        assert handle.call is not None and handle.worker is not None
        _, token, arguments = handle.call
        handle.call = None
        handle.ends = handle.lone_ends = handle.replay_ends = 0
        if name == "step":
            observation, reward, terminated, truncated, info, handle.digest = rest
            handle.actions.append(arguments[0])
            handle.playing = not (terminated or truncated)
            return token, (decode_observation(observation), reward, terminated, truncated, info)
        if name == "reset":
            observation, info, key, handle.replayable, handle.digest = rest
            handle.key = None if key is None else tuple(key)
            handle.replayable = handle.replayable and key is not None
            handle.options, handle.actions, handle.playing = arguments[1], [], True
            handle.worker.episodes += 1
            return token, (decode_observation(observation), info)
        if name == "loaded":
            return token, None
        handle.playing = False
        if name == "timeout":
            self._release(handle, tell=False)
            return token, CallTimeoutError(rest[0])
        return token, decode_error(rest[0])

    def _fail(self, handle: PoolHandle, error: Exception) -> None:
        assert handle.call is not None
        _, token, _ = handle.call
        handle.call, handle.playing = None, False
        handle.ends = handle.lone_ends = handle.replay_ends = 0
        self._due.append((handle.sink, (token, error)))

    def _release(self, handle: PoolHandle, tell: bool = True) -> None:
        """Take a handle out of its worker, which closes the environment if it is told."""
        worker, handle.worker = handle.worker, None
        if worker is None:
            return
        del worker.handles[handle.number]
        if handle in worker.waiting:
            worker.waiting.remove(handle)
        if tell and not handle.is_new:
            worker.requests.append(["close", handle.number])
            self._unsent.add(worker)
        if not worker.handles:
            worker.heard_at = time.monotonic()
            if self._is_leaving(worker):
                self._end(worker)

    def _end(self, worker: Worker, *, kill: bool = False) -> None:
        worker.ends = True
        worker.end(kill=kill)

    def _is_leaving(self, worker: Worker) -> bool:
        """Whether a worker takes no new episodes."""
        return worker.company > 0 or worker.episodes >= self._episodes


def _frames(requests: list[Any], most_bytes: float) -> Iterator[bytes]:
    """Return requests as frames, of more than `most_bytes` only where one request is as large.

    None has more than `FRAME_REQUESTS`.
    """
    frame = json.dumps(requests).encode()
    fits = len(frame) <= most_bytes and frame.count(b",") <= FRAME_COMMAS
    if (fits and len(requests) <= FRAME_REQUESTS) or len(requests) == 1:
        yield frame
    else:
        half = len(requests) // 2
        yield from _frames(requests[:half], most_bytes)
        yield from _frames(requests[half:], most_bytes)
