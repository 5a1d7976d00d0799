"""Contexts: build the prompts of an episode, as one growing conversation or anew in every turn.

- `chat` (default): append-only messages; one growing token sequence per episode.
- `concat`: one user message with every observation so far.
- `concat_with_action`: the same with the policy's responses between the observations.
- `window:k`: the first observation (the instructions) and the last k exchanges.

All four show the latest observation and end with the generation prompt. Each text is encoded once;
responses enter later prompts with the ids that were sampled.

Where the chat format drops earlier thinking (`ChatFormat(thinking="drop")`), responses enter later
prompts without it, and `chat` makes a prompt of its own for every turn: the conversation as the
template renders it, earlier thinking left out.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from gem.core import Observation
from gem.errors import ConfigurationError
from gem.rollout.thinking import Reply
from gem.rollout.tokens import ChatFormat, Past, text_of
from gem.rollout.transcript import TokenTranscript
from gem.trajectory import Drift


class Prompt(NamedTuple):
    """Prompt tokens of the next turn."""

    ids: list[int]
    """New prompt tokens: the whole prompt if `fresh`, else what follows the last response."""
    fresh: bool


class Context(Protocol):
    """Turns observations and responses of one episode into prompts."""

    def start(self, observation: Observation) -> Prompt:
        """Return the first prompt."""

    def extend(self, response: Reply, observation: Observation) -> Prompt:
        """Append a response and the observation that followed; return the next prompt."""

    def finish(self, last: Reply | None) -> list[Drift]:
        """Append the last response unless `extend` got it; return where rendering would differ."""


class ChatContext:
    """One append-only conversation; each prompt extends the one before."""

    def __init__(self, chat: ChatFormat) -> None:
        self._transcript = TokenTranscript(chat)

    def start(self, observation: Observation) -> Prompt:
        """Return the rendered first user message."""
        return Prompt(self._transcript.start(observation), fresh=True)

    def extend(self, response: Reply, observation: Observation) -> Prompt:
        """Return the tokens between this response and the next one."""
        self._transcript.respond(response.ids, response.whole)
        return Prompt(self._transcript.observe(observation), fresh=False)

    def finish(self, last: Reply | None) -> list[Drift]:
        """Compare the transcript with a fresh rendering."""
        if last is not None:
            self._transcript.respond(last.ids, last.whole)
        return self._transcript.drift()


class DroppingContext:
    """The conversation without earlier thinking; every turn has a prompt of its own."""

    def __init__(self, chat: ChatFormat) -> None:
        self._chat = chat
        self._earlier: list[int] = []
        self._response: Past | None = None

    def start(self, observation: Observation) -> Prompt:
        """Return the rendered first user message."""
        self._observation = observation
        return Prompt(self._chat.between(observation), fresh=True)

    def extend(self, response: Reply, observation: Observation) -> Prompt:
        """Return a new prompt with this response, without its thinking, and the observation."""
        past = self._chat.past(response)
        self._earlier += self._chat.between(self._observation, self._response, past)
        self._earlier += past.ids
        self._observation, self._response = observation, past
        return Prompt([*self._earlier, *self._chat.between(observation, past)], fresh=True)

    def finish(self, last: Reply | None) -> list[Drift]:
        """Return nothing: every prompt is a sequence of its own, so none can drift."""
        return []


class ConcatContext:
    """One user message per turn, concatenated from pieces that were encoded once."""

    def __init__(self, chat: ChatFormat, *, actions: bool, window: int | None = None) -> None:
        self._chat = chat
        self._actions = actions
        self._window = window
        self._head, self._tail = chat.frame()
        self._newline = chat.encode_text("\n")
        self._first: list[int] = []
        self._exchanges: list[list[int]] = []

    def start(self, observation: Observation) -> Prompt:
        """Return the prompt with the first observation."""
        self._first = self._chat.encode_text(text_of(observation) + "\n")
        return self._prompt()

    def extend(self, response: Reply, observation: Observation) -> Prompt:
        """Return a new prompt with this exchange at its end."""
        piece = self._chat.encode_text(text_of(observation) + "\n")
        if self._actions:
            piece = [*self._shown(response), *self._newline, *piece]
        self._exchanges.append(piece)
        if self._window is not None:
            del self._exchanges[: -self._window]
        return self._prompt()

    def finish(self, last: Reply | None) -> list[Drift]:
        """Return nothing: every prompt is a sequence of its own, so none can drift."""
        return []

    def _shown(self, response: Reply) -> list[int]:
        chat = self._chat
        return chat.past(response).ids if chat.drops_thinking else chat.content_ids(response.ids)

    def _prompt(self) -> Prompt:
        body = [i for piece in (self._first, *self._exchanges) for i in piece]
        return Prompt([*self._head, *body, *self._tail], fresh=True)


def make_context(name: str, chat: ChatFormat) -> Context:
    """Make the context called `name` for one episode.

    Raises:
        ConfigurationError: Unknown name, `window:k` without a positive integer, or the context
            cannot show the images that the chat format can.
    """
    window = check_context(name)
    if chat.shows_images and name != "chat":
        raise ConfigurationError(f"context {name!r} cannot show images; choose 'chat'")
    if name == "chat":
        return DroppingContext(chat) if chat.drops_thinking else ChatContext(chat)
    return ConcatContext(chat, actions=name != "concat", window=window)


def check_context(name: str) -> int | None:
    """Check the name of a context; return k of `window:k`, None for the others.

    Raises:
        ConfigurationError: Unknown name, or `window:k` without a positive integer.
    """
    if name in ("chat", "concat", "concat_with_action"):
        return None
    kind, _, size = name.partition(":")
    if kind == "window" and size.isdecimal() and int(size) > 0:
        return int(size)
    raise ConfigurationError(
        f"unknown context {name!r}; known: chat, concat, concat_with_action, window:<k> (k >= 1)"
    )
