"""Sessions: the environments of a server and their time limits; knows no network.

A `Hub` opens `Session`s, each with one environment of one client. Whatever speaks to clients (a
WebSocket with one environment, or with many) opens its sessions here, so that the same limits,
ids and metrics hold. All methods are called in one event loop; environments run elsewhere.
"""

from __future__ import annotations

import asyncio
import functools
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from gem.contract import check_reset, check_step
from gem.core import Env
from gem.errors import MisuseError, ResetNeededError, UnreachableError
from gem.executors.base import Executor
from gem.executors.held import (
    EnvFailedError,
    EpisodeKey,
    HeldEnv,
    check_options,
    env_failure,
)
from gem.executors.recipe import Recipe
from gem.executors.threads import CallTimeoutError, env_threads
from gem_serve.executed import ExecutedEnv
from gem_serve.messages import fault, json_value, observed, oversized, size_of
from gem_serve.metrics import Metrics
from gem_serve.offers import Limits, Offer, Refusal, full, not_now, refused

if TYPE_CHECKING:
    from gem_serve.batches import Batch

T = TypeVar("T")

CALLS = ("render", "sample_random_action", "oracle_action")
"""Methods of an environment, besides `reset` and `step`, that clients may call."""

STOPS = "this server is about to stop"
_LONGEST_EPISODE_ID = 255


class SessionFailedError(Exception):
    """The environment of a session failed; the session is over. `data` tells the client."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        super().__init__(str(data.get("message")))
        self.data = {"code": "EXECUTION_ERROR", **data, "over": True}


class Hub:
    """Opens sessions, within limits, and counts them."""

    def __init__(self, offer: Offer, limits: Limits, executor: Executor | None = None) -> None:
        """Store what is offered.

        Args:
            offer: Ids, and what clients may set.
            limits: How much clients may use.
            executor: Runs the environments; None runs them in threads of this process.
        """
        self.offer = offer
        self.limits = limits
        self.executor = executor
        self.metrics = Metrics()
        self.sessions: set[Session] = set()
        self.batches: set[Batch] = set()
        self.begun_draining = asyncio.Event()
        self.drained = asyncio.Event()
        """Set when `drain` was called and no session is open."""
        # Of clients; an environment counts until it is closed, which may be after its session.
        self._environments: Counter[str] = Counter()

    @property
    def draining(self) -> bool:
        """Whether `drain` was called."""
        return self.begun_draining.is_set()

    def open(self, id: str, client: str) -> Session:
        """Open a session; its environment is made at its first use.

        Args:
            id: Of the environment.
            client: Address of the client.

        Raises:
            Refusal: The id is not offered, a limit is reached, or the server is draining.
        """
        self.take(id, client)
        session = Session(self, id, client)
        self.sessions.add(session)
        return session

    def maker(self, recipe: Recipe) -> Callable[[], Env]:
        """Return what makes an environment, where this server's environments run."""
        if self.executor is None:
            return recipe.make
        limit_s = self.limits.step_timeout_s
        return functools.partial(ExecutedEnv, self.executor, recipe, limit_s)

    def take(self, id: str, client: str) -> None:
        """Count a further environment, until `released`; the arguments and errors of `open`."""
        self.offer.check_id(id)
        if self.draining:
            raise Refusal(503, "SESSION_ERROR", STOPS, UnreachableError(STOPS))
        limits, used = self.limits, self._environments.total()
        if used >= limits.max_envs:
            left = self._left()
            stuck = f", {left} of them in calls that have not ended" if left else ""
            raise full(503, f"all {limits.max_envs} environments are in use{stuck}")
        if 0 < limits.max_envs_per_client <= self._environments[client]:
            most = limits.max_envs_per_client
            raise full(429, f"{client} uses all {most} environments that a client may")
        self._environments[client] += 1
        self.metrics.count("sessions_opened", id=id)

    def expire(self, now: float) -> None:
        """End the sessions that had no message for `session_timeout_s`.

        Args:
            now: Of `time.monotonic`.
        """
        limit = self.limits.session_timeout_s
        for session in self.sessions:
            if not session.busy and now - session.used > limit:
                session.end("idle", f"the session had no message for {limit:g} s")
        for batch in self.batches:
            batch.expire(now, limit)

    def drain(self) -> None:
        """Begin no further session and no further episode; end what waits for one."""
        self.begun_draining.set()
        for session in self.sessions:
            session.end_if_drained()
        for batch in self.batches:
            batch.drain()
        self.closed()

    def metrics_text(self) -> str:
        """Return the metrics in the format of Prometheus."""
        used = self._environments.total()
        gauges = {
            "sessions": len(self.sessions),
            "environments": used,
            "environments_left": self._left(),
            "environments_most": self.limits.max_envs,
            "draining": int(self.draining),
        }
        return self.metrics.text(gauges)

    def closed(self) -> None:
        """Note that a session or batch was closed."""
        if self.draining and not self.sessions and not self.batches:
            self.drained.set()

    def _left(self) -> int:
        """Return the number of environments in calls that have outlasted their sessions."""
        open = len(self.sessions) + sum(batch.open for batch in self.batches)
        return self._environments.total() - open

    def released(self, client: str) -> None:
        """Note that an environment of a client was closed."""
        self._environments[client] -= 1
        if not self._environments[client]:
            del self._environments[client]


class Session:
    """One environment of one client; calls come one after the other.

    Attributes:
        busy: A call runs.
        running: An episode has begun and is not over.
        used: When the last call ended, of `time.monotonic`.
        ended: Set to `(reason, message)` when the server ends the session; whoever speaks to the
            client then tells it and calls `close`.
    """

    def __init__(self, hub: Hub, id: str, client: str) -> None:
        self.env_id = id
        self._hub = hub
        self._client = client
        self._recipe = Recipe(id)
        self._held: HeldEnv | None = None
        self._episode_id: str | None = None
        self._key: EpisodeKey | None = None
        # The episode of a reset without a seed.
        self._next: EpisodeKey | None = None
        self._steps = 0
        self.busy = self.running = False
        self.used = time.monotonic()
        self.ended: asyncio.Future[tuple[str, str]] = asyncio.get_running_loop().create_future()

    async def make(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Make the environment, with parameters and tools; before its first use only.

        Args:
            data: `params`, a mapping, and `tools`, a list.

        Raises:
            Refusal: The client may not set these, the environment does not have them, or it is
                made already.
            SessionFailedError: The environment cannot be made.
        """
        params, tools = data.get("params") or {}, data.get("tools") or []
        if not isinstance(params, dict) or not isinstance(tools, list) or len(data) > 2:
            raise refused("make takes 'params', a mapping, and 'tools', a list")
        if self._held is not None:
            raise refused("the environment is made already")
        self._hub.offer.check_parameters(params, tools)
        self._recipe = Recipe(self.env_id, {**params, "tools": tools})
        if type(params.get("seed")) is int:
            self._next = params["seed"], 0
        replayable = await self._call("make", lambda env: env.replayable)
        return {
            "id": self.env_id,
            "max_action_bytes": self._hub.limits.max_action_bytes,
            "replayable": replayable,
        }

    async def reset(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Begin an episode; return the data of the answer.

        Args:
            data: `seed`, `episode` (its place in the series of that seed, 0 by default),
                `episode_id` and options of the environment; all may be missing.

        Raises:
            Refusal: One of them is not allowed, or the server is draining.
            SessionFailedError: The environment failed.
        """
        options = dict(data)
        seed, episode = options.pop("seed", None), options.pop("episode", 0)
        episode_id = options.pop("episode_id", None)
        if seed is not None and type(seed) is not int:
            raise refused(f"seed must be an integer or null, got {seed!r:.100}")
        if type(episode) is not int or episode < 0 or (episode and seed is None):
            raise refused(f"episode must be 0 or more, and needs a seed, got {episode!r:.100}")
        if episode_id is not None and not isinstance(episode_id, str):
            raise refused(f"episode_id must be a text or null, got {episode_id!r:.100}")
        if episode_id is not None and len(episode_id) > _LONGEST_EPISODE_ID:
            raise refused(f"episode_id has at most {_LONGEST_EPISODE_ID} characters")
        if self._hub.draining:
            raise Refusal(503, "SESSION_ERROR", STOPS, UnreachableError(STOPS))
        key = (seed, episode) if seed is not None else self._next or (secrets.randbits(63), 0)
        self.running = False

        def begin(env: Env) -> dict[str, Any]:
            check_options(env, options)
            if key[1]:
                env.seek(*key)
            found = env.reset(seed=None if key[1] else key[0], **options)
            return observed(*check_reset(found), key)

        answer = await self._call("reset", begin)
        self._key, self._next = key, (key[0], key[1] + 1)
        self._episode_id, self._steps, self.running = episode_id, 0, True
        return answer

    async def step(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Play one turn; return the data of the answer.

        Args:
            data: `text`, the action; `metadata` is ignored.

        Raises:
            Refusal: The action is not a text or too large, or no episode runs.
            SessionFailedError: The environment failed.
        """
        action = data.get("text")
        if not isinstance(action, str) or data.keys() - {"text", "metadata"}:
            raise refused(f"an action is {{'text': '...'}}, got {data!r:.200}")
        size, limit = size_of(action), self._hub.limits.max_action_bytes
        if size > limit:
            raise Refusal(413, "VALIDATION_ERROR", oversized(size, limit))
        if not self.running or self._key is None:
            raise not_now(ResetNeededError(f"{self.env_id}: no episode runs; call reset()"))
        key = self._key

        def play(env: Env) -> dict[str, Any]:
            observation, reward, terminated, truncated, info = check_step(env.step(action))
            return observed(observation, info, key, reward, terminated, truncated)

        answer = await self._call("step", play)
        self._steps += 1
        self.running = not answer["done"]
        return answer

    async def call(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Call one of `CALLS`, named by `name`; return what it returns as `value`.

        Raises:
            Refusal: There is no such method, or the environment does not have it.
            SessionFailedError: The environment failed.
        """
        name = data.get("name")
        if name not in CALLS:
            raise refused(f"name must be one of {', '.join(CALLS)}, got {name!r:.100}")
        value = await self._call(name, lambda env: getattr(env, name)())
        return {"value": json_value(value)}

    def state(self) -> dict[str, Any]:
        """Return OpenEnv's state of the episode."""
        return {
            "episode_id": self._episode_id,
            "step_count": self._steps,
            "env_id": self.env_id,
            "seed": None if self._key is None else self._key[0],
            "episode": None if self._key is None else self._key[1],
        }

    def end(self, reason: str, message: str) -> None:
        """Ask whoever speaks to the client to end the session; see `ended`."""
        if not self.ended.done():
            self.ended.set_result((reason, message))

    def end_if_drained(self) -> None:
        """End the session if the server is draining and no episode or call runs."""
        if self._hub.draining and not self.running and not self.busy:
            self.end("drained", STOPS)

    def close(self, reason: str) -> None:
        """Free the session now, and the environment when the call that runs returns.

        Args:
            reason: Of the metrics: `closed` or `gone` (by the client), `idle`, `drained`, `failed`.
        """
        if self not in self._hub.sessions:
            return
        self._hub.sessions.remove(self)
        self._hub.metrics.count("sessions_ended", reason=reason)
        if self._held is None:
            self._hub.released(self._client)
        else:
            self._held.close()
        self._hub.closed()

    def failed(self, error: Exception) -> SessionFailedError:
        """Close the session, as its environment failed; return what tells the client."""
        failure = env_failure(error, self._hub.limits.step_timeout_s)
        self.running = False
        self._hub.metrics.count("failures", id=self.env_id, cause=failure.cause)
        self.close("failed")
        data = {**fault(error), "cause": failure.cause}
        if isinstance(error, CallTimeoutError | EnvFailedError):
            data["message"] = failure.message
        return SessionFailedError(data)

    async def _call(self, what: str, function: Callable[[Env], T]) -> T:
        limit_s = self._hub.limits.step_timeout_s
        if self._held is None:
            released = functools.partial(
                in_loop, asyncio.get_running_loop(), self._hub.released, self._client
            )
            self._held = HeldEnv(self._hub.maker(self._recipe), closed=released)
        began = time.monotonic()
        self.busy = True
        try:
            return await env_threads().run(self._held.run, function, timeout_s=limit_s)
        except (MisuseError, ResetNeededError, NotImplementedError) as error:
            raise not_now(error) from error
        except Exception as error:
            raise self.failed(error) from error
        finally:
            self.busy = False
            self.used = time.monotonic()
            self._hub.metrics.time(self.used - began, call=what)


def in_loop(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *args: Any) -> None:
    """Call a function in an event loop, unless that is closed."""
    try:
        loop.call_soon_threadsafe(function, *args)
    except RuntimeError:
        if not loop.is_closed():
            raise
