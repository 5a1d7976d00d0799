"""The user played by a language model behind any chat endpoint, the published setting."""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.error
import urllib.parse
from typing import Any

from gem.blame import boundary
from gem.envs.tau.data import Task, text
from gem.envs.tau.scripted import GREETING, Scene
from gem.errors import ConfigurationError, UnreachableError
from gem.fetching import fetched
from gem.parameters import number, positive
from gem.parameters import text as named

_ATTEMPTS = 3
_PAUSE_S = 0.2
# HTTP statuses that are not retried.
_FINAL = frozenset({400, 401, 403, 404, 405, 415, 422})


class LlmUser:
    """A customer played by a model; it sees the task's instructions and the conversation.

    The system prompt is tau2-bench's guidelines and the instructions. A server that does not answer
    raises, so that the episode is void; it never costs reward.

    Attributes:
        words: What the user said in this episode, in order.
    """

    def __init__(
        self, url: str, model: str, temperature: float, timeout_s: float, api_key_env: str
    ) -> None:
        """Store how the model is asked.

        Raises:
            ConfigurationError: A value is not allowed.
        """
        parts = urllib.parse.urlsplit(url) if isinstance(url, str) else None
        if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigurationError(
                f"url must be the http(s) address of a chat endpoint for user='llm', got {url!r}"
            )
        self.url = url.rstrip("/").removesuffix("/chat/completions")
        self.model = named("model", model)
        self.temperature = number("temperature", temperature)
        self.timeout_s = positive("timeout_s", timeout_s)
        self.api_key_env = api_key_env
        self.words: list[str] = []
        self._messages: list[dict[str, str]] = []

    def opening(self, scene: Scene) -> str:
        """Return the first message.

        Raises:
            UnreachableError: The server fails.
        """
        self.words = []
        self._messages = [{"role": "system", "content": scenario(scene.task)}]
        return self.reply(scene, GREETING)

    def reply(self, scene: Scene, message: str) -> str:
        """Return the answer to a message.

        Raises:
            UnreachableError: The server fails; the conversation is as before.
        """
        asked = [*self._messages, {"role": "user", "content": message or "(no message)"}]
        with boundary("tool"):
            said = self._ask(asked)
        self._messages = [*asked, {"role": "assistant", "content": said}]
        self.words.append(said)
        return said

    def _ask(self, messages: list[dict[str, str]]) -> str:
        wanted = {"model": self.model, "messages": messages, "temperature": self.temperature}
        key = os.environ.get(self.api_key_env, "") if self.api_key_env else ""
        headers = {"Content-Type": "application/json"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        reason: object = ""
        for attempt in range(_ATTEMPTS):
            time.sleep(_PAUSE_S * (2**attempt - 1))
            try:
                _, body = fetched(
                    f"{self.url}/chat/completions",
                    self.timeout_s,
                    body=json.dumps(wanted).encode("utf-8", "replace"),
                    headers=headers,
                )
                return _said(json.loads(body))
            except urllib.error.HTTPError as error:
                error.close()
                reason = f"it answers {error.code} {error.reason}"
                if error.code in _FINAL:
                    break
            except (OSError, http.client.HTTPException) as error:
                reason = getattr(error, "reason", error)
            except (ValueError, LookupError, TypeError, RecursionError) as error:
                reason = f"its answer is no chat completion with text: {error}"
        raise UnreachableError(
            f"the user's model {self.model!r} at {self.url}: {reason}; is the address right and "
            "is it up?"
        )


def _said(answer: Any) -> str:
    content = answer["choices"][0]["message"]["content"]
    if not isinstance(content, str):
        raise TypeError("content is no text")
    said = content.rpartition("</think>")[2].strip()
    if not said:
        raise ValueError("content is empty")
    # Half a surrogate pair is text that no observation may have.
    return said.encode("utf-8", "replace").decode("utf-8")


def scenario(task: Task) -> str:
    """Return what a user is told: tau2-bench's guidelines, and the task's instructions."""
    parts = [
        ("Reason for call", task.reason),
        ("Known info", task.known),
        ("Unknown info", task.unknown),
        ("Task instructions", task.manner),
    ]
    told = "\n\n".join(f"{title}:\n{part}" for title, part in parts if part)
    return f"{text('user_guidelines.md')}\n\n<scenario>\n{told}\n</scenario>"
