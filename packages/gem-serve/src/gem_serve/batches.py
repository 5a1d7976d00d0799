"""Many environments on one connection: the server's side of `gem_serve.executors.remote`."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Mapping
from typing import Any

from gem.core import Env
from gem.errors import ConfigurationError, GemError, UnreachableError
from gem.executors.host import EnvHost
from gem.executors.recipe import Recipe
from gem_serve.door import bounded
from gem_serve.offers import Refusal, full, refused
from gem_serve.sessions import STOPS, Hub, in_loop

_EMPTY_S = 120.0
"""How long a connection without environments is kept; a client closes it earlier."""
_PAUSE_S = 0.02
_MOST_REPLAYED = 4096
"""Most turns of an episode that is played again."""
_MOST_REPLAY_S = 3600.0
"""How long that may take, besides the limit of the next turn."""


class Batch:
    """The environments of one connection, within the limits of the hub.

    Attributes:
        ended: Set to `(reason, message)` when the server ends the connection.
        open: Number of environments that are not closed.
        client: Address of the client.
    """

    def __init__(self, hub: Hub, client: str, send: Callable[[bytes], None]) -> None:
        """Begin without environments.

        Args:
            hub: Says what may be opened.
            client: Address of the client.
            send: Is given frames of answers, in any thread.

        Raises:
            Refusal: The server is draining, or there are as many connections as environments may
                be.
        """
        if hub.draining:
            raise Refusal(503, "SESSION_ERROR", STOPS, UnreachableError(STOPS))
        limits, own = hub.limits, [each for each in hub.batches if each.client == client]
        if len(hub.batches) >= limits.max_envs:
            raise full(503, f"all {limits.max_envs} connections are in use")
        if 0 < limits.max_envs_per_client <= len(own):
            raise full(429, f"{client} uses all {len(own)} connections that a client may")
        self._hub = hub
        self.client: str = client
        self._loop = asyncio.get_running_loop()
        self._send = send
        self._host = EnvHost(
            self._answer,
            self._admit,
            limits.max_action_bytes,
            limits.step_timeout_s,
            most_replayed=_MOST_REPLAYED,
            most_replay_s=_MOST_REPLAY_S,
        )
        self.ended: asyncio.Future[tuple[str, str]] = self._loop.create_future()
        self.open = 0
        self._used = time.monotonic()
        hub.batches.add(self)

    def receive(self, frame: str) -> None:
        """Begin what a frame of requests asks for.

        Raises:
            Refusal: It is no frame.
        """
        self._used = time.monotonic()
        try:
            self._host.receive(bounded(frame))
        except ValueError as error:
            message = f"not a frame of requests: {error}"
            raise Refusal(400, "INVALID_JSON", message) from error

    async def room(self) -> None:
        """Wait until no more calls run than there may be environments.

        A number that is opened again during a call leaves that call behind.
        """
        while self._host.calls > self._hub.limits.max_envs:
            await asyncio.sleep(_PAUSE_S)

    def end(self, reason: str, message: str) -> None:
        """Ask whoever speaks to the client to end the connection; see `ended`."""
        if not self.ended.done():
            self.ended.set_result((reason, message))

    def expire(self, now: float, limit_s: float) -> None:
        """End the connection if it had no message for a while and no environment works.

        One without environments is not kept for as long as others.
        """
        if not self.open:
            limit_s = min(limit_s, _EMPTY_S)
        if not self._host.calls and now - self._used > limit_s:
            self.end("idle", f"the connection had no message for {limit_s:g} s")

    def drain(self) -> None:
        """Begin no further episode; end the connection if none runs."""
        self._host.stops = STOPS
        self._end_if_drained()

    def close(self) -> None:
        """Free the connection now, and its environments when the calls that run return."""
        self._hub.batches.discard(self)
        self._host.close(wait_s=0)
        self._hub.closed()

    def _answer(self, frame: bytes) -> None:
        self._send(frame)
        if self._host.stops is not None:
            in_loop(self._loop, self._end_if_drained)

    def _end_if_drained(self) -> None:
        if not self._host.is_playing and not self._host.calls:
            self.end("drained", STOPS)

    def _admit(
        self, recipe: Mapping[str, Any]
    ) -> tuple[Callable[[], Env], Callable[[], None] | None]:
        """Return what makes an environment and what notes its end; or what raises a refusal."""
        try:
            params = dict(recipe["params"])
            tools = params.pop("tools", [])
            tools = [tools] if isinstance(tools, str) else tools
            if not isinstance(tools, list):
                raise refused("tools are a list")
            if recipe["wrappers"]:
                message = "a server adds no wrappers; add tools, or wrap the environment here"
                raise Refusal(400, "VALIDATION_ERROR", message, ConfigurationError(message))
            self._hub.offer.check_parameters(params, tools)
            _check_registered(recipe)
            self._hub.take(recipe["id"], self.client)
        except Refusal as refusal:
            return functools.partial(_raise, refusal.error), None
        self.open += 1
        released = functools.partial(in_loop, self._loop, self._released)
        made = Recipe(recipe["id"], {**params, "tools": tools})
        return self._hub.maker(made), released

    def _released(self) -> None:
        self.open -= 1
        self._hub.released(self.client)


def _check_registered(recipe: Mapping[str, Any]) -> None:
    """Refuse an id that stands for something else at the client.

    Raises:
        Refusal: It does; the message names both.
    """
    try:
        own = Recipe(recipe["id"]).to_dict()["registered"]
    except GemError:
        return  # not known here; or not by a name, so that no client can have it
    if recipe.get("registered", own) != own:
        message = (
            f"{recipe['id']!r} is another environment on the server: {own}, and here "
            f"{recipe['registered']}"
        )
        raise Refusal(409, "VALIDATION_ERROR", message, ConfigurationError(message))


def _raise(error: Exception) -> Env:
    raise error
