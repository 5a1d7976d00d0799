"""`ChatClient`: asks an OpenAI-compatible server for replies; tells its failures apart.

- 408, 425, 429, 5xx, no connection, a time limit, an answer that is cut off or has no reply: the
  server is asked again with back-off, or when `Retry-After` says; in the end `ServerError`.
- 400, 413 or 422 about the length of the context: `ContextOverflowError`, not asked again.
- Any other status than 200 (401, 404, ...): `ConfigurationError` with the server's words.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any

import httpx

from gem.errors import ConfigurationError, GemError
from gem.rollout.thinking import MARKERS
from gem.trajectory import StopReason

Message = dict[str, str]

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


@dataclass(frozen=True)
class Reply:
    """A model's reply."""

    text: str
    """What the environment is given: without reasoning."""
    stop_reason: StopReason = "stop"
    note: dict[str, Any] = field(default_factory=dict)
    """What the record keeps besides: `prompt_tokens`, `reply_tokens`, `cached_tokens`,
    `reasoning_tokens` and `finish_reason` if the server said them, `reasoning` (text), `seconds`
    of the call that was answered, and `retries`."""


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


class ChatClient:
    """A model behind `POST <url>/chat/completions`, text only."""

    def __init__(
        self,
        url: str,
        model: str,
        *,
        key: str | None = None,
        sampling: Mapping[str, Any] | None = None,
        concurrency: int = 16,
        retries: int = 8,
        timeout_s: float = 600.0,
    ) -> None:
        """Connect to nothing yet.

        Args:
            url: Of the API, such as `http://localhost:8000/v1`.
            model: The server's name of the model.
            key: Sent as bearer token; it enters no message and no record.
            sampling: Further fields of each request, such as `temperature`.
            concurrency: Most calls at a time.
            retries: Further attempts of a call.
            timeout_s: Limit of one attempt, in seconds.

        Raises:
            ConfigurationError: `url` is no URL, or contains credentials.
        """
        self._url = checked_url(url)
        self._model = model
        self._key = key
        self._sampling = dict(sampling or {})
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
                headers={"Authorization": f"Bearer {self._key}"} if self._key else {},
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

    async def __aenter__(self) -> ChatClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for client in self._clients:
            await client.aclose()

    async def check(self) -> None:
        """Check that there is a server, and that it accepts the key, without using the model.

        Raises:
            ConfigurationError: There is none, or it refuses the key.
        """
        try:
            with self._http() as http:
                response = await http.get(f"{self._url}/models")
        except httpx.HTTPError as error:
            raise ConfigurationError(
                f"no server answers at {self._url}: {_described(error)}; start it, or name "
                "another with --url"
            ) from None
        if response.status_code in (401, 403):
            raise self._refused(response)

    async def reply(self, messages: Sequence[Message]) -> Reply:
        """Return the model's reply to a conversation.

        Raises:
            ContextOverflowError: The conversation is too long.
            ServerError: All attempts failed.
            ConfigurationError: The server refuses the request.
        """
        body = {"model": self._model, "messages": list(messages), **self._sampling}
        problem = ""
        for attempt in range(self._retries + 1):
            wait_s: float | None = None
            began = time.monotonic()
            try:
                async with self._limiter.call(), asyncio.timeout(self._timeout_s):
                    began = time.monotonic()
                    with self._http() as http:
                        response = await http.post(f"{self._url}/chat/completions", json=body)
            except TimeoutError:
                problem = f"no answer within {self._timeout_s:g} s"
            except httpx.HTTPError as error:
                problem = _described(error)
            else:
                status = response.status_code
                if status == 200:
                    try:
                        reply = _parsed(response, time.monotonic() - began, attempt)
                    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
                        what = _described(error)
                        problem = f"an answer without a reply ({what}): {self._words(response)}"
                    else:
                        self._limiter.grow()
                        return reply
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
        raise ServerError(f"{self._url} failed {self._retries + 1} times, at last: {problem}")

    def _refused(self, response: httpx.Response) -> ConfigurationError:
        hint = ""
        if response.status_code in (401, 403):
            hint = "; the key is the value of the environment variable that --key-env names"
        elif response.status_code == 404:
            hint = f"; is {self._model!r} a model of this server, and does the URL end in /v1?"
        elif response.status_code == 400:
            hint = "; --param NAME=VALUE changes a field of the request, NAME=null leaves it out"
        return ConfigurationError(
            f"{self._url} answers {response.status_code}: {self._words(response)}{hint}"
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


def _parsed(response: httpx.Response, seconds: float, retries: int) -> Reply:
    data = response.json()
    choice = data["choices"][0]
    message = choice["message"]
    text, thought = _split(_content(message.get("content")))
    usage = data.get("usage") or {}
    details = usage.get("completion_tokens_details") or {}
    counts = {
        "prompt_tokens": usage.get("prompt_tokens"),
        "reply_tokens": usage.get("completion_tokens"),
        "cached_tokens": (usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
        "reasoning_tokens": details.get("reasoning_tokens"),
    }
    note = {
        **{name: count for name, count in counts.items() if isinstance(count, int)},
        "finish_reason": choice.get("finish_reason"),
        # vLLM has called it both.
        "reasoning": message.get("reasoning_content") or message.get("reasoning") or thought,
        "seconds": round(seconds, 4),
        "retries": retries or None,
    }
    return Reply(
        text,
        "length" if choice.get("finish_reason") == "length" else "stop",
        {name: value for name, value in note.items() if value is not None and value != ""},
    )


def _content(content: Any) -> str:
    """Return a message's text; lone surrogates, which are no text, are replaced."""
    if isinstance(content, list):
        content = "".join(part.get("text", "") for part in content)
    if content is None:
        content = ""
    if not isinstance(content, str):
        raise TypeError(f"content is {type(content).__name__}")
    return content.encode("utf-8", "replace").decode()


def _split(content: str) -> tuple[str, str]:
    """Return answer and thinking, which servers without a reasoning parser leave in one text."""
    for opening, closing in MARKERS:
        thought, marker, answer = content.rpartition(closing)
        if marker:
            return answer.lstrip(), thought.removeprefix(opening).strip()
        if content.lstrip().startswith(opening):
            return "", content.strip().removeprefix(opening).strip()
    return content, ""


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
