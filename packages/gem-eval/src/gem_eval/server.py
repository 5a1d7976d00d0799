"""`Server`: asks a model's server over HTTP; tells its failures apart.

- 408, 425, 429, 5xx, no connection, a time limit, an answer that is cut off or has no reply: the
  server is asked again with back-off, or when `Retry-After` says; in the end `ServerError`.
- 400, 413 or 422 about the length of the context: `ContextOverflowError`, not asked again.
- Any other status than 200 (401, 404, ...): `ConfigurationError` with the server's words.

What is asked is up to `gem_eval.client` (text) and `gem_eval.completions` (tokens).
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, TypeVar

import httpx

from gem.errors import ConfigurationError, GemError

T = TypeVar("T")

_RETRIED = (408, 425, 429)
_LENGTH_STATUS = (400, 413, 422)
_OVERFLOW = re.compile(
    r"context[ _-]?(length|size|window)|maximum context|prompt is too long|exceed_context|"
    r"`inputs` tokens \+",
    re.IGNORECASE,
)
_LONGEST_WAIT_S = 600.0
_LONGEST_PAUSE_S = 60.0
_FIRST_PAUSE_S = 0.5
_MOST_TEXT = 600


class ServerError(GemError):
    """The server did not answer, however often it was asked; the episode is void."""


class ContextOverflowError(GemError):
    """The conversation is longer than the model's context; the message is the server's."""


class Limiter:
    """Limits the calls that run at a time; fewer after the server said that it is too much.

    Calls begin in the order in which they came.
    """

    def __init__(self, most: int) -> None:
        self._most = self._limit = float(most)
        self._running = 0
        self._shrunk = -math.inf
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def limit(self) -> int:
        """Most calls at a time now."""
        return int(self._limit)

    @asynccontextmanager
    async def call(self) -> AsyncIterator[None]:
        """Wait until a call may run, and count it while the block does."""
        place = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        self._admit()
        try:
            await place
            yield
        finally:
            # Cancelled calls that still wait have taken no place.
            if place.done() and not place.cancelled():
                self._running -= 1
            self._admit()

    def grow(self) -> None:
        """A call was answered: allow one more after as many as run at a time."""
        self._limit = min(self._most, self._limit + 1 / self._limit)
        self._admit()

    def shrink(self) -> None:
        """The server refused a call; many refusals within a second count once."""
        now = time.monotonic()
        if now - self._shrunk >= 1:
            self._limit, self._shrunk = max(1.0, self._limit * 0.8), now

    def _admit(self) -> None:
        while self._waiting and self._running < self.limit:
            place = self._waiting.popleft()
            if not place.done():
                self._running += 1
                place.set_result(None)


@dataclass(frozen=True)
class Served:
    """What a server says of a model; None where it says nothing."""

    engine: str | None = None
    """Who owns the model; of a local server its name, such as `vllm` or `sglang`."""
    root: str | None = None
    """Folder or hub name that the model was loaded from."""
    context_tokens: int | None = None
    """Most tokens of prompt and reply."""
    version: tuple[int, ...] = ()
    """Of vLLM: three numbers."""

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Served:
        """Read the model's entry of `GET /models`."""
        engine, root, most = (entry.get(key) for key in ("owned_by", "root", "max_model_len"))
        return cls(
            engine if isinstance(engine, str) else None,
            root if isinstance(root, str) else None,
            most if type(most) is int and most > 0 else None,
        )


class Server:
    """A model behind an HTTP API."""

    def __init__(
        self,
        url: str,
        model: str,
        *,
        key: str | None = None,
        concurrency: int = 16,
        retries: int = 8,
        timeout_s: float = 600.0,
    ) -> None:
        """Connect to nothing yet.

        Args:
            url: Of the API, such as `http://localhost:8000/v1`.
            model: The server's name of the model.
            key: Sent as bearer token; it enters no message and no record.
            concurrency: Most calls at a time.
            retries: Further attempts of a call.
            timeout_s: Limit of one attempt, in seconds.

        Raises:
            ConfigurationError: `url` is no URL or contains credentials; no request can have `key`.
        """
        self.url = checked_url(url)
        if key is not None and not (key.isascii() and key.isprintable()):
            raise ConfigurationError(
                "the key has a line break or another character that no request can have; it is the "
                "value of the environment variable that --key-env names"
            )
        self.model = model
        self._key = key
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._retries = retries
        self._timeout_s = timeout_s
        self._limiter = Limiter(concurrency)
        # One client for each call at a time: in httpx a request costs time for each connection that
        # its client has open.
        self._clients: list[httpx.AsyncClient] = []
        self._free: list[httpx.AsyncClient] = []
        self._tls = httpx.create_ssl_context()

    @contextmanager
    def _http(self) -> Iterator[httpx.AsyncClient]:
        """Lend a client that no other call uses."""
        if not self._free:
            client = httpx.AsyncClient(
                headers=self._headers,
                timeout=httpx.Timeout(self._timeout_s, connect=min(30.0, self._timeout_s)),
                verify=self._tls,
            )
            self._clients.append(client)
            self._free.append(client)
        lent = self._free.pop()
        try:
            yield lent
        finally:
            self._free.append(lent)

    async def __aenter__(self) -> Server:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for client in self._clients:
            await client.aclose()

    def served(self) -> Served:
        """Ask what the server serves, without using the model.

        Raises:
            ConfigurationError: There is no server, or it refuses the key.
        """
        try:
            response = self._get(f"{self.url}/models")
        except httpx.HTTPError as error:
            raise ConfigurationError(
                f"no server answers at {self.url}: {_described(error)}; start it, or name "
                "another with --url"
            ) from None
        if response.status_code in (401, 403):
            raise self._refused(response)
        served = Served()
        # Servers need not say any of this; proxies say some.
        with suppress(httpx.HTTPError, ValueError, TypeError, KeyError, AttributeError):
            models = {each["id"]: each for each in response.json()["data"]}
            served = Served.of(models.get(self.model, {}))
            if served.engine == "vllm":
                version = self._get(f"{self.url.removesuffix('/v1')}/version").json()["version"]
                served = replace(served, version=tuple(map(int, re.findall(r"\d+", version)[:3])))
        return served

    def _get(self, url: str) -> httpx.Response:
        timeout_s = min(30.0, self._timeout_s)
        with httpx.Client(headers=self._headers, timeout=timeout_s, verify=self._tls) as http:
            return http.get(url)

    async def ask(
        self, url: str, body: Mapping[str, Any], parse: Callable[[Any], T]
    ) -> tuple[T, dict[str, Any]]:
        """Return what `parse` makes of an answer, and how it came.

        Args:
            url: Of the request.
            body: Of the request.
            parse: Is given the answer's JSON; a `ValueError`, `TypeError`, `KeyError`, `IndexError`
                or `AttributeError` that it raises means that the answer lacks a reply, and the
                server is asked again. A `ConfigurationError` ends the evaluation.

        Returns:
            The result, and for the record `seconds` of the attempt and `retries`, if any.

        Raises:
            ContextOverflowError: The conversation is too long.
            ServerError: All attempts failed.
            ConfigurationError: The server refuses the request.
        """
        problem = ""
        for attempt in range(self._retries + 1):
            wait_s: float | None = None
            began = time.monotonic()
            try:
                async with self._limiter.call(), asyncio.timeout(self._timeout_s):
                    began = time.monotonic()
                    with self._http() as http:
                        response = await http.post(url, json=body)
            except TimeoutError:
                problem = f"no answer within {self._timeout_s:g} s"
            except httpx.HTTPError as error:
                problem = _described(error)
            else:
                status, seconds = response.status_code, time.monotonic() - began
                if status == 200:
                    try:
                        found = parse(response.json())
                    except ConfigurationError:
                        raise
                    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
                        what = _described(error)
                        problem = f"an answer without a reply ({what}): {self._words(response)}"
                    else:
                        self._limiter.grow()
                        note: dict[str, Any] = {"seconds": round(seconds, 4)}
                        return found, note | ({"retries": attempt} if attempt else {})
                elif status in _RETRIED or status >= 500:
                    problem = f"{status}: {self._words(response)}"
                    wait_s = _retry_after(response)
                    if status in (429, 503):
                        self._limiter.shrink()
                elif status in _LENGTH_STATUS and _OVERFLOW.search(response.text):
                    raise ContextOverflowError(self._words(response))
                else:
                    raise self._refused(response)
            if attempt < self._retries:
                if wait_s is None:
                    most = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0**attempt)
                    wait_s = random.uniform(0, most)
                await asyncio.sleep(wait_s)
        raise ServerError(f"{self.url} failed {self._retries + 1} times, at last: {problem}")

    def _refused(self, response: httpx.Response) -> ConfigurationError:
        hint = ""
        if response.status_code in (401, 403):
            hint = "; the key is the value of the environment variable that --key-env names"
        elif response.status_code == 404:
            hint = f"; is {self.model!r} a model of this server, and does the URL end in /v1?"
        elif response.status_code == 400:
            hint = "; --param NAME=VALUE changes a field of the request, NAME=null leaves it out"
            if "vocabulary" in response.text:
                hint = "; --tokenizer must be the model's"
        return ConfigurationError(
            f"{self.url} answers {response.status_code}: {self._words(response)}{hint}"
        )

    def _words(self, response: httpx.Response) -> str:
        """Return the server's message without the key, which some servers repeat."""
        text = response.text
        try:
            error = json.loads(text)
            while isinstance(error, dict) and ("error" in error or "message" in error):
                error = error.get("error") or error["message"]
            text = error if isinstance(error, str) else text
        except ValueError:
            pass
        if self._key:
            text = text.replace(self._key, "<key>")
        return text[:_MOST_TEXT] or response.reason_phrase


def checked_url(url: str) -> str:
    """Return the URL without a slash at the end.

    Raises:
        ConfigurationError: It is no URL, or contains credentials, which a record would keep.
    """
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ConfigurationError(f"--url {url!r} is no URL: {error}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ConfigurationError(f"--url must be http://... or https://..., got {url!r}")
    if parsed.userinfo or parsed.query:
        raise ConfigurationError(
            "--url must have no credentials and no query; a key comes from the environment "
            "variable that --key-env names"
        )
    return url.rstrip("/")


def _retry_after(response: httpx.Response) -> float | None:
    """Return the seconds that the server asks to wait, as a number or a date; None if neither."""
    text = response.headers.get("Retry-After", "")
    try:
        seconds = float(text)
    except ValueError:
        try:
            when = parsedate_to_datetime(text)
        except (TypeError, ValueError):
            return None
        if when.tzinfo is None:
            when = when.replace(tzinfo=timezone.utc)
        seconds = (when - datetime.now(timezone.utc)).total_seconds()
    # NaN compares false with everything.
    return min(max(seconds, 0.0), _LONGEST_WAIT_S) if seconds == seconds else None


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
