"""`ModelServer`: a language model behind an OpenAI-compatible server, asked by environments."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypedDict
from urllib.parse import parse_qsl

from gem.blame import boundary
from gem.errors import ConfigurationError
from gem.fetching import asked, http_address
from gem.json_lines import parse_as
from gem.parameters import integer, number, positive
from gem.tables import json_or_text

_RETRIES = 2
_TIMEOUT_S = 60.0
_KEY_ENV = "OPENAI_API_KEY"


class Reply(NamedTuple):
    """What a model answers."""

    text: str
    """Without its thinking."""
    model: str
    """The server's name of the model that answers; empty if it does not say."""
    fingerprint: str
    """The server's `system_fingerprint`; empty if it has none."""


class ModelServer:
    """A model behind `POST <url>/chat/completions`; each conversation is up to the caller."""

    def __init__(
        self,
        url: str,
        model: str = "",
        *,
        timeout_s: float = _TIMEOUT_S,
        api_key_env: str = _KEY_ENV,
        sampling: Mapping[str, Any] | None = None,
    ) -> None:
        """Connect to nothing yet.

        Args:
            url: Of the API, such as `http://127.0.0.1:8000/v1`.
            model: The server's name of the model; by default the first one that the server lists.
            timeout_s: Time limit of one attempt.
            api_key_env: Environment variable that holds the server's key, if it needs one.
            sampling: Further fields of each request, such as `temperature`.

        Raises:
            ConfigurationError: A value is not allowed.
        """
        parts = http_address("url", url)
        if parts.username is not None or parts.query or parts.fragment:
            raise ConfigurationError(
                f"url {url!r} must have neither credentials nor a query nor a fragment"
            )
        self.url = url.rstrip("/").removesuffix("/chat/completions")
        self.model = model
        self._timeout_s = positive("timeout_s", timeout_s)
        self._key_env = api_key_env
        self._sampling = dict(sampling or {})

    @classmethod
    def of_address(cls, address: str) -> ModelServer:
        """Return the server of an address whose query says how the model is asked.

        Args:
            address: Such as `http://127.0.0.1:8000/v1?model=NAME&temperature=0.7`. The query may
                have `model`, `temperature`, `top_p`, `max_tokens`, `timeout_s` and `api_key_env`;
                what it leaves out of the sampling is up to the server.

        Raises:
            ConfigurationError: The address is malformed, or a value is not allowed.
        """
        query = http_address("opponent", address).query
        pairs = parse_qsl(query, keep_blank_values=True)
        given = dict(pairs)
        names = ("model", "timeout_s", "api_key_env", *_SAMPLING)
        unknown = sorted(set(given) - set(names))
        if unknown or len(pairs) > len(given):
            raise ConfigurationError(
                f"the query of {address!r} may have {', '.join(names)}, each once; "
                f"got {', '.join(name for name, _ in pairs)}"
            )
        sampling = {
            name: check(name, json_or_text(given[name]))
            for name, check in _SAMPLING.items()
            if name in given
        }
        timeout_s = json_or_text(given.get("timeout_s", f"{_TIMEOUT_S}"))
        return cls(
            address.partition("?")[0],
            given.get("model", ""),
            timeout_s=timeout_s,
            api_key_env=given.get("api_key_env", _KEY_ENV),
            sampling=sampling,
        )

    def reply(self, messages: Sequence[Mapping[str, str]], *, silent: bool = False) -> str:
        """Return the model's answer to a conversation, without its thinking.

        Args:
            messages: The conversation, as the API takes it.
            silent: Allow an empty answer, such as of a model that never stops thinking; else the
                model is asked again.

        Raises:
            UnreachableError: The server fails, `_RETRIES` times after the first.
        """
        with boundary("tool"):
            return self.ask(messages, silent=silent).text

    def ask(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        silent: bool = False,
        deadline: float = math.inf,
        **sampling: Any,
    ) -> Reply:
        """Return the model's answer to a conversation, and who gave it.

        Args:
            messages: The conversation, as the API takes it.
            silent: See `reply`.
            deadline: Time of `time.monotonic` at which the last attempt ends.
            **sampling: Further fields of this request, such as `seed`.

        Raises:
            RefusedError: The server says that the request is at fault.
            UnreachableError: The server fails, `_RETRIES` times after the first.
        """
        if not self.model:
            [self.model, *_] = self.models(deadline=deadline)
        wanted = {"model": self.model, "messages": list(messages), **self._sampling, **sampling}
        reply: Reply = self._ask(
            f"the model {self.model!r} at {self.url}",
            "chat/completions",
            partial(_said, silent),
            "a chat completion with text",
            body=json.dumps(wanted).encode("utf-8", "replace"),
            deadline=deadline,
        )
        return reply

    def models(self, *, deadline: float = math.inf) -> list[str]:
        """Return the names of the models that the server lists, at least one.

        Raises:
            UnreachableError: The server fails, or lists none.
        """
        who = f"the server {self.url}"
        names: list[str] = self._ask(who, "models", _listed, "a list of models", deadline=deadline)
        return names

    def _ask(self, who: str, path: str, read: Any, malformed: str, **request: Any) -> Any:
        headers = {"Content-Type": "application/json"}
        key = os.environ.get(self._key_env, "") if self._key_env else ""
        if key:
            headers["Authorization"] = f"Bearer {key}"
        return asked(
            who,
            f"{self.url}/{path}",
            read,
            timeout_s=self._timeout_s,
            retries=_RETRIES,
            malformed=malformed,
            reread=True,
            headers=headers,
            **request,
        )


class _Entry(TypedDict):
    id: str


class _Models(TypedDict):
    data: list[_Entry]


class _Choice(TypedDict, total=False):
    index: Any
    message: dict[str, Any]


class _Served(TypedDict, total=False):
    model: str | None
    system_fingerprint: str | None


class _Answer(_Served):
    choices: list[_Choice]


_SAMPLING: dict[str, Callable[[str, Any], Any]] = {
    "temperature": number,
    "top_p": positive,
    "max_tokens": partial(integer, low=1, high=1 << 24),
}


def _listed(body: bytes) -> list[str]:
    listed = parse_as(body, _Models, "the list of models")["data"]
    if not listed:
        raise ValueError("it lists none")
    return [str(each["id"]) for each in listed]


def _said(silent: bool, body: bytes) -> Reply:
    answer = parse_as(body, _Answer, "the answer")
    choices = answer["choices"]
    message = next((c["message"] for c in choices if c.get("index", 0) == 0), None)
    if message is None:
        raise ValueError("no choice has the index 0")
    content = message.get("content")
    if silent and content is None:
        content = ""
    if not isinstance(content, str):
        raise TypeError("content is no text")
    said = content.rpartition("</think>")[2].strip()
    if said.startswith("<think>"):
        said = ""
    if not said and not silent:
        raise ValueError("content is empty")
    # Half a surrogate pair is text that no observation may have.
    said = said.encode("utf-8", "replace").decode("utf-8")
    return Reply(said, answer.get("model") or "", answer.get("system_fingerprint") or "")
