"""`EnvHost`: environments of a worker, driven by requests; the side of the worker.

| request | answer |
|---|---|
| `["open", n, recipe, limit, after]` | none; the environment is made by the next request |
| `["load", n]` | `[n, "loaded"]` |
| `["reset", n, seed, options]` | `[n, "reset", observation, info, key, replayable, digest]` |
| `["step", n, action]` | `[n, "step", observation, reward, terminated, truncated, info, digest]` |
| `["resume", n, key, options, actions, digest, action]` | `[n, "resumed"]`, then that to `step` |
| `["close", n]` | none |

`limit` is that of each call, in seconds; `after` and `key` are keys of episodes. `resume` plays an
episode's actions again, compares what it shows with the digest, and plays one more. Instead of an
answer there is `[n, "error", [class, message, cause]]`, or `[n, "timeout", boundary]`, after which
the environment is gone.

An environment has one call at a time. Opening a number again closes what it named before. A frame
of anything else is a `FrameError`: of the peer, not of an environment.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

from gem.core import Env
from gem.errors import ConfigurationError, ContractError, UnreachableError
from gem.executors.frames import (
    FRAME_BYTES,
    MOST_BYTES,
    Digest,
    FrameError,
    decode_requests,
    encode_error,
    encode_info,
    encode_observation,
)
from gem.executors.held import HeldEnv
from gem.executors.recipe import Recipe
from gem.executors.threads import CallTimeoutError, Result, env_threads
from gem.foreign import contained, described

Admit: TypeAlias = Callable[
    [Mapping[str, Any]], tuple[Callable[[], Env], Callable[[], None] | None]
]
"""Takes a recipe; returns what makes the environment, and what to call when it is closed."""


def _anything(recipe: Mapping[str, Any]) -> tuple[Callable[[], Env], None]:
    return Recipe.from_dict(recipe).make, None


class EnvHost:
    """Runs environments in threads: those that wait share the process, none waits for another.

    Takes requests in one thread; answers come in any.

    Attributes:
        stops: Why no further episode begins; None while they do.
    """

    def __init__(
        self,
        send: Callable[[bytes], None],
        admit: Admit = _anything,
        most_action_bytes: int = MOST_BYTES,
        limit_s: float | None = None,
        most_replayed: float = math.inf,
        most_replay_s: float = math.inf,
    ) -> None:
        """Begin without environments.

        Args:
            send: Is given frames of answers, one at a time.
            admit: Decides what a recipe makes. What the function that it returns raises is the
                answer to the environment's first call.
            most_action_bytes: Limit of an action, as UTF-8.
            limit_s: Limit of each call, in seconds; also if a request names a longer one, or one
                that is not a positive number.
            most_replayed: Most actions of an episode that is played again.
            most_replay_s: Longest time, in seconds, for playing them again, besides the limit of
                the call.
        """
        self._send = send
        self._admit = admit
        self._most_action_bytes = most_action_bytes
        self._limit_s = limit_s
        self._most_replayed = most_replayed
        self._most_replay_s = most_replay_s
        self._sending = threading.Lock()
        self._unsent: deque[tuple[str, _HostedEnv | None]] = deque()
        self._lock = threading.Lock()
        self._envs: dict[int, _HostedEnv] = {}
        self._calling: set[_HostedEnv] = set()
        self.stops: str | None = None

    @property
    def calls(self) -> int:
        """Number of calls that have no answer yet."""
        return len(self._calling)

    @property
    def is_playing(self) -> bool:
        """Whether an episode has begun and is not over."""
        return any(env.playing for env in list(self._envs.values()))

    def receive(self, frame: bytes | str) -> None:
        """Begin what a frame of requests asks for; does not wait for environments.

        Raises:
            FrameError: It is not a frame, and nothing was begun; or it calls an environment whose
                last call has no answer yet.
        """
        unknown: list[tuple[str, _HostedEnv | None]] = []
        for name, n, *arguments in decode_requests(frame):
            if name in ("open", "close"):
                # Closed first: it may take the place of the one that is opened.
                self._replace(n, None)
                if name == "open":
                    self._open(n, *arguments)
                continue
            env = self._envs.get(n)
            if env is None:
                message = f"no environment has the number {n}; it was never opened, or is closed"
                error = json.dumps(["UnknownNumberError", message, "environment"])
                unknown.append((f'[{n},"error",{error}]', None))
            elif env in self._calling:
                raise FrameError(f"{name!r} of environment {n} before its last call has an answer")
            else:
                self._begin(n, env, name, arguments)
        if unknown:
            self._tell(unknown)

    def close(self, wait_s: float) -> None:
        """Close all environments; wait for those that are quick."""
        with self._lock:
            envs, self._envs = list(self._envs.values()), {}
        closed = threading.Semaphore(0)
        for env in envs:
            close = partial(env.held.close, wait=True)
            env_threads().submit(close, lambda results: closed.release(len(results)))
        ends = time.monotonic() + wait_s
        for _ in envs:
            if not closed.acquire(timeout=max(0.0, ends - time.monotonic())):
                return

    def _open(
        self, n: int, recipe: dict[str, Any], limit_s: float | None, after: list[int] | None
    ) -> None:
        # NaN is not in the range either.
        if self._limit_s is not None and not (limit_s is not None and 0 < limit_s <= self._limit_s):
            limit_s = self._limit_s
        make, closed = self._admit(recipe)
        key = None if after is None else (after[0], after[1])
        self._replace(n, _HostedEnv(HeldEnv(make, key, closed), limit_s))

    def _replace(self, n: int, env: _HostedEnv | None) -> None:
        """Give a number to an environment, or to none, and close the one that has it."""
        with self._lock:
            before = self._envs.pop(n, None)
            if env is not None:
                self._envs[n] = env
        if before is not None:
            before.held.close()

    def _begin(self, n: int, env: _HostedEnv, name: str, arguments: list[Any]) -> None:
        limit, call = env.limit_s, partial(getattr(env, f"call_{name}"), *arguments)
        if name in ("step", "resume"):
            size = len(arguments[-1].encode(errors="surrogatepass"))
            if size > self._most_action_bytes:
                message = (
                    f"an action has {size} bytes; {self._most_action_bytes} are allowed "
                    "(--max-action-bytes of a server)"
                )
                call = partial(_refuse, ConfigurationError(message))
            elif name == "resume":
                played = len(arguments[2])
                if limit is not None:  # a replay takes as long as its steps
                    limit += min(limit * (played + 1), self._most_replay_s)
                call = partial(call, resumed=partial(self._tell, [(f'[{n},"resumed"]', None)]))
                if played > self._most_replayed:
                    message = f"{played} actions to play again; {self._most_replayed} are allowed"
                    call = partial(_refuse, ReplayError(message))
        elif self.stops is not None:
            call = partial(_refuse, UnreachableError(self.stops))
        self._calling.add(env)
        env_threads().submit(partial(_answered, call), self._finished, (n, env), limit)

    def _finished(self, results: list[Result]) -> None:
        answers: list[tuple[str, _HostedEnv | None]] = []
        for (n, env), result in results:
            if isinstance(result, CallTimeoutError):
                with self._lock:
                    if self._envs.get(n) is env:
                        del self._envs[n]
                env.held.close()
                result = json.dumps(["timeout", result.inside])
            elif isinstance(result, Exception):
                env.playing = False
                result = json.dumps(["error", encode_error(result)])
            if self._envs.get(n, env) is env:
                answers.append((f"[{n},{result[1:]}", env))
            else:  # the number was opened again: nobody waits for this answer
                self._calling.discard(env)
        self._tell(answers)

    def _tell(self, answers: list[tuple[str, _HostedEnv | None]]) -> None:
        """Send answers, unless another thread sends: then it sends these, too.

        Args:
            answers: With the environment whose call each ends, if it ends one.
        """
        self._unsent.extend(answers)
        while self._unsent and self._sending.acquire(blocking=False):
            try:
                self._send_frame()
            finally:
                self._sending.release()

    def _send_frame(self) -> None:
        frame: list[str] = []
        size = 0
        while self._unsent and (not frame or size + len(self._unsent[0][0]) <= FRAME_BYTES):
            answer, env = self._unsent.popleft()
            frame.append(answer)
            size += len(answer)
            if env is not None:
                self._calling.discard(env)
        if frame:
            self._send(f"[{','.join(frame)}]".encode())


def _answered(call: Callable[[], str]) -> str:
    answer = call()
    if len(answer) > MOST_BYTES:
        raise ContractError(f"an answer of {len(answer)} bytes; {MOST_BYTES} are allowed")
    return answer


def _refuse(error: Exception) -> str:
    raise error


class _HostedEnv:
    """One environment, and what its episode has shown; `call_*` return answers."""

    def __init__(self, held: HeldEnv, limit_s: float | None) -> None:
        self.held = held
        self.limit_s = limit_s
        self.playing = False
        self._digest = Digest()

    def call_load(self) -> str:
        self.held.load()
        return '["loaded"]'

    def call_reset(self, seed: int | None, options: Mapping[str, Any]) -> str:
        self.playing = False
        observation, info = self.held.reset(seed, options)
        self._digest = Digest()
        digest = self._digest.add_reset(observation)
        seen = json.dumps(encode_observation(observation))
        rest = json.dumps([self.held.episode_key, self.held.load().replayable, digest])
        self.playing = True
        return f'["reset",{seen},{encode_info(info)},{rest[1:]}'

    def call_step(self, action: str) -> str:
        step = self.held.step(action)
        digest = self._digest.add_step(step)
        observation, reward, terminated, truncated, info = step
        self.playing = not (terminated or truncated)
        seen = json.dumps(["step", encode_observation(observation), reward, terminated, truncated])
        return f'{seen[:-1]},{encode_info(info)},"{digest}"]'

    def call_resume(
        self,
        key: list[int],
        options: Mapping[str, Any],
        actions: list[str],
        digest: str,
        action: str,
        resumed: Callable[[], None],
    ) -> str:
        base, episode = key
        try:
            if episode:
                self.held.load().seek(base, episode)
            self.call_reset(None if episode else base, options)
            for earlier in actions:
                self.call_step(earlier)
        except BaseException as error:
            raise ReplayError(described(contained(error))) from error
        if self._digest.value != digest:
            raise ReplayError("its seed and actions did not give the same observations and rewards")
        resumed()
        return self.call_step(action)


class ReplayError(Exception):
    """The episode of a worker that ended cannot be played again in another one."""
