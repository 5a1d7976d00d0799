"""`Server`: asks a model's server over HTTP; tells its failures apart.

- 408, 425, 429, 5xx, no connection, a time limit, an answer that is cut off, has no reply or says
  that the reply was broken off: the server is asked again with back-off, or when `Retry-After`
  says; in the end `ServerError`.
- 400, 413 or 422 about the length of the context: `ContextOverflowError`, not asked again.
- Any other status than 200 (401, 404, ...): `ConfigurationError` with the server's words.

What is asked is up to `gem_eval.client` (text) and `gem_eval.completions` (tokens).
"""

from __future__ import annotations

import asyncio
import base64
import math
import random
import re
from asyncio import sleep
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from time import monotonic
from types import TracebackType
from typing import Any, TypedDict, TypeVar
from urllib.parse import quote

import httpx

from gem.errors import ConfigurationError, DataError, GemError
from gem.fetching import is_local
from gem.json_lines import parse, parse_as

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
MOST_ANSWER_BYTES = 32 << 20
"""Largest answer of a server, decompressed; a larger one is a failed call."""


_LEAST_CODED = 6
_LEAST_SHOWN = 3
"""Fewer characters beside a mask may be any word's."""
_MASKED = re.compile(
    r"(?P<left>[\w.+/=-]*?)(?:[*\u2022\u25cf\u2026#]+|\.{3,}|[xX]{4,})(?P<right>[\w+/=-]*)"
)


class _Entry(TypedDict):
    id: str


class _Models(TypedDict):
    data: list[_Entry]


class _Version(TypedDict):
    version: str


class ServerError(GemError):
    """The server did not answer, however often it was asked; the episode is void."""


class ContextOverflowError(GemError):
    """The conversation is longer than the model's context; the message is the server's."""


@dataclass(frozen=True)
class _Answer:
    """What a server sent."""

    status: int
    reason: str
    headers: httpx.Headers
    content: bytes

    @property
    def text(self) -> str:
        """The content as text, whatever it is."""
        return self.content.decode("utf-8", "replace")


class _TooLargeError(Exception):
    """An answer is larger than `MOST_ANSWER_BYTES`."""

    def __init__(self) -> None:
        super().__init__(f"an answer of more than {MOST_ANSWER_BYTES >> 20} MiB")


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
        now = monotonic()
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
        # A proxy cannot reach this machine, and would be sent the key.
        self._proxies = not is_local(self.url)

    @contextmanager
    def _http(self) -> Iterator[httpx.AsyncClient]:
        """Lend a client that no other call uses."""
        if not self._free:
            client = httpx.AsyncClient(
                headers=self._headers,
                timeout=httpx.Timeout(self._timeout_s, connect=min(30.0, self._timeout_s)),
                verify=self._tls,
                trust_env=self._proxies,
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
        except (httpx.HTTPError, _TooLargeError) as error:
            raise ConfigurationError(
                f"no server answers at {self.url}: {_described(error)}; start it, or name "
                "another with --url"
            ) from None
        if response.status in (401, 403):
            raise self._refused(response)
        served = Served()
        # Servers need not say any of this; proxies say some.
        with suppress(httpx.HTTPError, _TooLargeError, DataError):
            listed = parse_as(response.content, _Models, "the list of models")
            models = {each["id"]: each for each in listed["data"]}
            served = Served.of(models.get(self.model, {}))
            if served.engine == "vllm":
                answer = self._get(f"{self.url.removesuffix('/v1')}/version").content
                version = parse_as(answer, _Version, "the version")["version"]
                served = replace(served, version=tuple(map(int, re.findall(r"\d+", version)[:3])))
        return served

    def _get(self, url: str) -> _Answer:
        timeout_s = min(30.0, self._timeout_s)
        deadline = monotonic() + timeout_s
        options: dict[str, Any] = {"verify": self._tls, "trust_env": self._proxies}
        with (
            httpx.Client(headers=self._headers, timeout=timeout_s, **options) as http,
            http.stream("GET", url) as response,
        ):
            content = bytearray()
            for chunk in response.iter_bytes():
                content += chunk
                if len(content) > MOST_ANSWER_BYTES:
                    raise _TooLargeError
                if monotonic() > deadline:
                    raise httpx.ReadTimeout(f"no whole answer within {timeout_s:g} s")
            return _answer(response, content)

    async def ask(
        self, url: str, body: Mapping[str, Any], read: Callable[[Any], T]
    ) -> tuple[T, dict[str, Any]]:
        """Return what `read` makes of an answer, and how it came.

        Args:
            url: Of the request.
            body: Of the request.
            read: Is given the answer's JSON; a `ValueError`, `TypeError`, `KeyError`, `IndexError`
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
            began = monotonic()
            try:
                async with self._limiter.call(), asyncio.timeout(self._timeout_s):
                    began = monotonic()
                    with self._http() as http:
                        response = await _posted(http, url, body)
            except TimeoutError:
                problem = f"no answer within {self._timeout_s:g} s"
            except (httpx.HTTPError, _TooLargeError) as error:
                problem = _described(error)
            else:
                status, seconds = response.status, monotonic() - began
                if status == 200:
                    try:
                        found = read(parse(response.content, "the answer"))
                    except ConfigurationError:
                        raise
                    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
                        what = self._hidden(_described(error))[:_MOST_TEXT]
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
                await sleep(wait_s)
        raise ServerError(f"{self.url} failed {self._retries + 1} times, at last: {problem}")

    def _refused(self, response: _Answer) -> ConfigurationError:
        hint = ""
        if response.status in (401, 403):
            hint = "; the key is the value of the environment variable that --key-env names"
        elif response.status == 404:
            hint = f"; is {self.model!r} a model of this server, and does the URL end in /v1?"
        elif response.status == 400:
            hint = "; --param NAME=VALUE changes a field of the request, NAME=null leaves it out"
            if "vocabulary" in response.text:
                hint = "; --tokenizer must be the model's"
        return ConfigurationError(
            f"{self.url} answers {response.status}: {self._words(response)}{hint}"
        )

    def _words(self, response: _Answer) -> str:
        """Return the server's message without the key, which some servers repeat."""
        text = response.text
        with suppress(DataError):
            error = parse(response.content, "the answer")
            while isinstance(error, dict) and ("error" in error or "message" in error):
                error = error.get("error") or error.get("message")
            text = error if isinstance(error, str) else text
        return self._hidden(text)[:_MOST_TEXT] or response.reason

    def _hidden(self, text: str) -> str:
        """Return a text without the key, as it is, encoded, or with its middle masked."""
        return hidden(self._key, text) if self._key else text


async def _posted(http: httpx.AsyncClient, url: str, body: Mapping[str, Any]) -> _Answer:
    async with http.stream("POST", url, json=body) as response:
        content = bytearray()
        async for chunk in response.aiter_bytes():
            content += chunk
            if len(content) > MOST_ANSWER_BYTES:
                raise _TooLargeError
        return _answer(response, content)


def _answer(response: httpx.Response, content: bytearray) -> _Answer:
    status, reason = response.status_code, response.reason_phrase
    return _Answer(status, reason, response.headers, bytes(content))


def hidden(key: str, text: str) -> str:
    """Return a text in which a key is replaced.

    It is found as it is, quoted for an address, in base64 (also as a part of a longer text) and
    hexadecimal, and with all but its beginning or end masked by stars, points or the like.
    """
    raw = key.encode()
    forms = {key, quote(key, safe=""), raw.hex(), raw.hex().upper()}
    for offset in range(3):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            coded = encode(bytes(offset) + raw).decode()
            # Only characters that no byte before or after the key takes part in.
            whole = coded[-(-offset * 8 // 6) : (offset + len(raw)) * 8 // 6]
            forms.add(whole if len(whole) >= _LEAST_CODED else key)
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, "<key>")

    def shown(found: re.Match[str]) -> str:
        left, right = found["left"], found["right"]
        begun = next((n for n in range(len(left)) if key.startswith(left[n:])), len(left))
        ended = next((n for n in range(len(right), 0, -1) if key.endswith(right[:n])), 0)
        if len(left) - begun < _LEAST_SHOWN:
            begun = len(left)
        if ended < _LEAST_SHOWN:
            ended = 0
        if begun == len(left) and not ended:
            return found[0]
        return f"{left[:begun]}<key>{right[ended:]}"

    return _MASKED.sub(shown, text)


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


def _retry_after(response: _Answer) -> float | None:
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
