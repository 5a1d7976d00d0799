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
"""

from __future__ import annotations

import json
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
    encode_error,
    encode_info,
    encode_observation,
)
from gem.executors.held import HeldEnv
from gem.executors.recipe import Recipe
from gem.executors.threads import CallTimeoutError, EnvThreads, Result

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
        calls: Number of calls that have no answer yet.
    """

    def __init__(
        self,
        send: Callable[[bytes], None],
        admit: Admit = _anything,
        most_action_bytes: int = MOST_BYTES,
        limit_s: float | None = None,
    ) -> None:
        """Begin without environments.

        Args:
            send: Is given frames of answers, one at a time.
            admit: Decides what a recipe makes. What the function that it returns raises is the
                answer to the environment's first call.
            most_action_bytes: Limit of an action, as UTF-8.
            limit_s: Limit of each call, in seconds, if a request names none or a longer one.
        """
        self._send = send
        self._admit = admit
        self._most_action_bytes = most_action_bytes
        self._limit_s = limit_s
        self._sending = threading.Lock()
        self._unsent: deque[tuple[str, bool]] = deque()
        self._threads = EnvThreads()
        self._envs: dict[int, _HostedEnv] = {}
        self.stops: str | None = None
        self.calls = 0

    @property
    def is_playing(self) -> bool:
        """Whether an episode has begun and is not over."""
        return any(env.playing for env in list(self._envs.values()))

    def receive(self, frame: bytes | str) -> None:
        """Begin what a frame of requests asks for; does not wait for environments."""
        for name, n, *arguments in json.loads(frame):
            if name == "open":
                recipe, limit_s, after = arguments
                if limit_s is None or (self._limit_s is not None and limit_s > self._limit_s):
                    limit_s = self._limit_s
                make, closed = self._admit(recipe)
                key = None if after is None else tuple(after)
                self._envs[n] = _HostedEnv(HeldEnv(make, key, closed), limit_s)
            elif name == "close":
                if n in self._envs:
                    self._envs.pop(n).held.close()
            elif n in self._envs:  # else it exceeded its limit, and the answer says so
                self._begin(n, self._envs[n], name, arguments)

    def close(self, wait_s: float) -> None:
        """Close all environments; wait for those that are quick."""
        envs, self._envs = list(self._envs.values()), {}
        closed = threading.Semaphore(0)
        for env in envs:
            close = partial(env.held.close, wait=True)
            self._threads.submit(close, lambda results: closed.release(len(results)))
        ends = time.monotonic() + wait_s
        for _ in envs:
            if not closed.acquire(timeout=max(0.0, ends - time.monotonic())):
                return

    def _begin(self, n: int, env: _HostedEnv, name: str, arguments: list[Any]) -> None:
        steps, call = 1, partial(getattr(env, f"call_{name}"), *arguments)
        if name in ("step", "resume"):
            size = len(arguments[-1].encode(errors="surrogatepass"))
            if size > self._most_action_bytes:
                message = f"an action has {size} bytes; {self._most_action_bytes} are allowed"
                call = partial(_refuse, ConfigurationError(message))
            elif name == "resume":  # a replay takes as long as its steps
                steps = len(arguments[2]) + 2
                call = partial(
                    call, resumed=partial(self._tell, [f'[{n},"resumed"]'], end_calls=False)
                )
        elif self.stops is not None:
            call = partial(_refuse, UnreachableError(self.stops))
        limit = None if env.limit_s is None else env.limit_s * steps
        self.calls += 1
        self._threads.submit(partial(_answered, call), self._finished, (n, env), limit)

    def _finished(self, results: list[Result]) -> None:
        answers = []
        for (n, env), result in results:
            if isinstance(result, CallTimeoutError):
                self._envs.pop(n, None)
                env.held.close()
                result = json.dumps(["timeout", result.inside])
            elif isinstance(result, BaseException):
                env.playing = False
                result = json.dumps(["error", encode_error(result)])
            answers.append(f"[{n},{result[1:]}")
        self._tell(answers, end_calls=True)

    def _tell(self, answers: list[str], *, end_calls: bool) -> None:
        """Send answers, unless another thread sends: then it sends these, too."""
        self._unsent.extend((answer, end_calls) for answer in answers)
        while self._unsent and self._sending.acquire(blocking=False):
            try:
                self._send_frame()
            finally:
                self._sending.release()

    def _send_frame(self) -> None:
        frame: list[str] = []
        size = 0
        while self._unsent and (not frame or size + len(self._unsent[0][0]) <= FRAME_BYTES):
            answer, ends_call = self._unsent.popleft()
            frame.append(answer)
            size += len(answer)
            self.calls -= ends_call
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
        except Exception as error:
            raise ReplayError(f"{type(error).__name__}: {error}") from error
        if self._digest.value != digest:
            raise ReplayError("its seed and actions did not give the same observations and rewards")
        resumed()
        return self.call_step(action)


class ReplayError(Exception):
    """The episode of a worker that ended cannot be played again in another one."""
