"""A client's WebSocket to an environment on a server; clients are `remote` and `openenv`."""

from __future__ import annotations

import contextlib
import os
import socket
import time
import weakref
from collections.abc import Mapping
from dataclasses import replace
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from gem.contract import refusal
from gem.core import Env, EnvSpec, Info, Observation, Step, reset_options
from gem.errors import (
    ConfigurationError,
    GemError,
    ServerFullError,
    UnknownEnvError,
    UnreachableError,
)
from gem.fetching import is_local
from gem.json_lines import parse
from gem.parameters import number, optional, positive, text
from gem.plugins import extra
from gem_serve.messages import (
    MOST_ANSWER_BYTES,
    NEEDED,
    TOKEN_VARIABLE,
    dumps,
    loads,
    raise_fault,
)

ANSWER_TIMEOUT_S = 660.0
"""Default limit of an answer: the server's own limit of a step, and a minute."""

_CONNECT_S = 10.0
_CLOSE_S = 2.0
_PAUSE_S = 0.2
_MOST_REFUSAL = 500


class Connection:
    """A session on a server: asks, and waits for the answer; one thread at a time."""

    def __init__(self, url: str, token: str | None, answer_timeout_s: float) -> None:
        """Connect.

        Args:
            url: `http://...` or `https://...`, without `/ws`.
            token: Sent as `Authorization: Bearer <token>`.
            answer_timeout_s: Limit of each answer in seconds.

        Raises:
            MissingExtraError: The extra `serve` is not installed.
            ConfigurationError: The token is refused, the id is not offered, or no OpenEnv server
                is there.
            UnknownEnvError: The server does not know the id.
            UnreachableError: No server answers, or it takes no further session.
        """
        self._url = url
        self._timeout_s = answer_timeout_s
        self._pid = os.getpid()
        self._closed = False
        # In an exit stack: outside of a `with`, newer versions of `websockets` warn.
        with contextlib.ExitStack() as stack:
            self._socket = connected(stack, f"{url}/ws", token)
            self._open = stack.pop_all()
        # An environment that nobody closes must not hold a session until that is idle for long.
        self._abandoned = weakref.finalize(self, _hang_up, self._socket, self._pid)

    @property
    def closed(self) -> bool:
        """Whether it is closed; in a forked process it is, as the connection is the parent's."""
        return self._closed or self._pid != os.getpid()

    def ask(self, kind: str, data: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a message; return the data of the answer.

        Raises:
            UnreachableError: The connection is lost, or there is no answer in time; the session
                is over.
            GemError: The server tells of an error; see `gem_serve.messages.raise_fault`.
        """
        from websockets.exceptions import ConnectionClosed

        try:
            # An ended session leaves a message that says why, also if sending fails.
            with contextlib.suppress(ConnectionClosed):
                self._socket.send(dumps(kind, data or {}))
            told = self._socket.recv(timeout=self._timeout_s)
        except TimeoutError:
            self.close()
            raise UnreachableError(
                f"{self._url} did not answer within {self._timeout_s:g} s"
            ) from None
        except (ConnectionClosed, OSError) as error:
            self.close()
            raise UnreachableError(f"the connection to {self._url} was lost: {error}") from error
        except BaseException:  # the answer would be taken for that to the next message
            self.close()
            raise
        try:
            answered, found = loads(told if isinstance(told, str) else "")
        except ValueError as error:
            self.close()
            raise ConfigurationError(f"{self._url} is no OpenEnv server: {error}") from error
        if answered == "error":
            if found.get("over"):
                self.close()
            raise_fault(found)
        return found

    def close(self) -> None:
        """End the session; safe to repeat."""
        from websockets.exceptions import ConnectionClosed

        if self.closed:
            return
        self._closed = True
        self._abandoned.detach()
        with contextlib.suppress(ConnectionClosed, OSError), self._open:
            self._socket.send(dumps("close", {}))


def connected(stack: contextlib.ExitStack, url: str, token: str | None) -> Any:
    """Return a WebSocket that an exit stack closes.

    Args:
        stack: The exit stack.
        url: `http://...` or `https://...`.
        token: Sent as `Authorization: Bearer <token>`.

    Raises:
        MissingExtraError: The extra `serve` is not installed.
        ConfigurationError: The token is refused, the id is not offered, or no such server is there.
        UnknownEnvError: The server does not know the id.
        UnreachableError: No server answers, or it takes no further session.
    """
    extra("websockets.sync.client", NEEDED)
    from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
    from websockets.sync.client import connect

    try:
        return stack.enter_context(
            connect(
                f"ws{url[len('http') :]}",
                additional_headers=_headers(token),
                compression=None,
                open_timeout=_CONNECT_S,
                close_timeout=_CLOSE_S,
                max_size=MOST_ANSWER_BYTES,
                **({"proxy": None} if is_local(url) else {}),
            )
        )
    except InvalidStatus as error:
        body = bytes(error.response.body or b"")
        raise _refused(url, error.response.status_code, body) from error
    except InvalidHandshake as error:
        if isinstance(error.__cause__, EOFError):  # it was closed: perhaps it restarts
            raise UnreachableError(f"{url} does not respond: {error}") from error
        raise ConfigurationError(f"{url} is no OpenEnv server: {error}") from error
    except (ConnectionClosed, OSError) as error:
        raise UnreachableError(f"{url} does not respond: {error}") from error


def _hang_up(connection: Any, pid: int) -> None:
    # Without the closing handshake, which waits: garbage collection may do this anywhere.
    if pid == os.getpid():
        with contextlib.suppress(OSError):
            connection.socket.shutdown(socket.SHUT_RDWR)


class ServedEnv(Env):
    """An environment on a server; subclasses say how its messages read.

    It connects when it is made, and again at the `reset` after a lost connection, never during an
    episode. It has no state of its own to pickle; see `snapshot`.
    """

    _made_as: EnvSpec | None = None

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        wait_s: float = 0.0,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
        seed: int | None = None,
    ) -> None:
        """Store where the server is.

        Args:
            url: Of the environment, without `/ws`.
            token: That the server wants; by default the value of `GEM_SERVE_TOKEN`, if set. It is
                no part of `spec`: what makes the environment again needs the variable.
            wait_s: Seconds to ask a full server again and again before giving up.
            answer_timeout_s: Limit of each answer in seconds.
            seed: Base seed of the first `reset` without one.
        """
        super().__init__(seed=seed)
        self.url = url
        self._token = optional(text, "token", token) or os.environ.get(TOKEN_VARIABLE) or None
        self._wait_s = number("wait_s", wait_s)
        self._answer_timeout_s = positive("answer_timeout_s", answer_timeout_s)
        self._running = False
        self._connection: Connection | None = None

    @property
    def spec(self) -> EnvSpec | None:
        """How it was made, without the token."""
        return self._made_as

    @spec.setter
    def spec(self, spec: EnvSpec | None) -> None:
        if spec is not None:
            kwargs = {name: value for name, value in spec.kwargs.items() if name != "token"}
            spec = replace(spec, kwargs=kwargs)
        self._made_as = spec

    def reset(self, seed: int | None = None, **options: Any) -> tuple[Observation, Info]:
        """Begin an episode, on a new connection if there is none; options go to the server.

        If it fails, the next one without a seed is the one that this would have been.

        Raises:
            UnreachableError: The server does not respond, or takes no further session.
            GemError: The server tells of an error.
        """
        self._running = False
        before = self._base_seed, self._episode
        super().reset(seed=seed)
        try:
            first = self._begin(reset_options(options))
        except BaseException:
            self._base_seed, self._episode = before
            raise
        self._running = True
        return first

    def step(self, action: str) -> Step:
        """Play one turn.

        Raises:
            ResetNeededError: The episode has not begun, is over, or its connection was lost.
            UnreachableError: The connection is lost, and the episode with it.
            GemError: The server tells of an error.
        """
        if not self._running or not isinstance(action, str):
            raise refusal(self.url, not self._running, action)
        step = self._play(action)
        self._running = not (step[2] or step[3])
        return step

    def close(self) -> None:
        """End the session, and with it the environment on the server; safe to repeat."""
        self._running = False
        if self._connection is not None:
            self._connection.close()

    def connect(self) -> bool:
        """Connect if there is no connection; return whether there was none.

        Raises:
            ServerFullError: The server takes no further session, not even after `wait_s`.
            GemError: See `Connection`.
        """
        if self._connection is not None and not self._connection.closed:
            return False
        given_up = time.monotonic() + self._wait_s
        while True:
            connection = Connection(self.url, self._token, self._answer_timeout_s)
            try:
                self._greet(connection)
                break
            except ServerFullError:
                connection.close()
                if time.monotonic() >= given_up:
                    raise
                time.sleep(_PAUSE_S)
            except BaseException:
                connection.close()
                raise
        self._connection = connection
        return True

    def ask(self, kind: str, data: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Ask within the connection that there is; an error ends the episode.

        Raises:
            NotImplementedError: The environment does not have the method asked for; the episode
                goes on.
            GemError: See `Connection.ask`.
        """
        if self._connection is None or self._connection.closed:
            raise UnreachableError(f"there is no connection to {self.url}; reset() connects")
        running, self._running = self._running, False
        try:
            answer = self._connection.ask(kind, data)
        except NotImplementedError:
            self._running = running
            raise
        self._running = running
        return answer

    def _greet(self, connection: Connection) -> None:
        """Exchange the first message of a connection, before any episode."""
        raise NotImplementedError

    def _begin(self, options: Mapping[str, Any]) -> tuple[Observation, Info]:
        """Begin the episode of `episode_key`."""
        raise NotImplementedError

    def _play(self, action: str) -> Step:
        raise NotImplementedError


def fetched(url: str, token: str | None) -> Any:
    """Return the JSON that a server has at an address.

    Raises:
        ConfigurationError: The server refuses the token, or has no JSON there.
        UnreachableError: The server does not respond.
    """
    opener = build_opener(ProxyHandler({})) if is_local(url) else build_opener()
    try:
        with opener.open(Request(url, headers=_headers(token)), timeout=_CONNECT_S) as response:
            return parse(response.read(MOST_ANSWER_BYTES), "the answer")
    except HTTPError as error:
        raise _refused(url, error.code, error.read(_MOST_REFUSAL)) from error
    except (HTTPException, ValueError) as error:
        raise ConfigurationError(f"{url} is no OpenEnv server: {error}") from error
    except OSError as error:
        raise UnreachableError(f"{url} does not respond: {error}") from error


def checked_url(url: Any) -> str:
    """Return an address without a slash at its end.

    Raises:
        ConfigurationError: It is none of HTTP.
    """
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except (ValueError, AttributeError, TypeError):
        usable = False
    if not usable or parts.query or parts.fragment:
        raise ConfigurationError(f"the address of a server is http://host:port/..., got {url!r}")
    return str(url).rstrip("/")


def _refused(url: str, status: int, body: bytes) -> GemError:
    """Return the error of an answer of HTTP that is none."""
    known = True
    try:
        reason = str(parse(body, "the answer")["message"])
    except (ValueError, KeyError, TypeError):
        known = False
        reason = body.decode(errors="replace")[:_MOST_REFUSAL].strip() or "without a reason"
    if status == 404 and known:
        return UnknownEnvError(f"{url}: {reason}")
    if status in (401, 403):
        return ConfigurationError(f"{url}: {reason}")
    if status in (408, 429) or status >= 500:
        return UnreachableError(f"{url} answers {status}: {reason}")
    return ConfigurationError(f"{url} is no OpenEnv server; it answers {status}: {reason}")


def _headers(token: str | None) -> dict[str, str]:
    return {} if token is None else {"Authorization": f"Bearer {token}"}
