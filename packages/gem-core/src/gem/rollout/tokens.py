"""Encodes text as tokens: the chat format of a model.

No other module of gem-core calls a tokenizer or a chat template.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from gem.core import Observation
from gem.errors import ConfigurationError
from gem.json_lines import read_json
from gem.rollout.thinking import MODES, Reply, Thinking, find_markers
from gem.trajectory import Image

# Placeholders for message contents, rendered to cut out the template's text around them. Plain
# letters: no template trims, escapes or interprets them.
_RESPONSE = "GemResponseMark"
_NEXT_RESPONSE = "GemNextResponseMark"
_OBSERVATION = "GemObservationMark"
_THOUGHT = "GemThoughtMark"

_GENERATION = "generation_config.json"
_REMEMBERED = 1024
"""Size of each cache of encoded texts: episodes of a group begin alike, and games repeat
observations."""


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that rollouts use."""

    chat_template: Any
    eos_token_id: Any
    all_special_ids: Any
    added_tokens_decoder: Any

    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> Any:
        """Render messages."""

    def encode(self, text: str, **kwargs: Any) -> Any:
        """Text to ids."""

    def decode(self, token_ids: Any, **kwargs: Any) -> Any:
        """Ids to text."""


class Past(NamedTuple):
    """An earlier response as later prompts show it, without its thinking."""

    head: str
    """Text before `ids` that the template is given: a placeholder for the thinking, which it
    drops, and whitespace, which it may drop."""
    ids: list[int]
    """As sampled, without control tokens."""
    tail: str
    """Whitespace after `ids` that the template may drop."""


class ChatFormat:
    """A model's chat template and tokenizer, reduced to what a rollout needs.

    Environment text never becomes control tokens: an observation that spells one (a quote of the
    policy, for instance) is encoded as ordinary text.
    """

    shows_images = False
    """Whether observations may have images (`gem.rollout.vision`)."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        system_prompt: str | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        thinking: str = "keep",
    ) -> None:
        """Examine the template.

        Args:
            tokenizer: Any Hugging Face tokenizer with a chat template.
            system_prompt: Text of a system message before everything else.
            template_kwargs: Further arguments of `apply_chat_template`, such as
                `{"enable_thinking": False}`.
            thinking: What becomes of thinking that the template knows (`gem.rollout.thinking`).
                `keep` leaves it in the conversation, `drop` takes earlier thinking out of later
                prompts; either way the environment is given what follows it. `text` takes it for
                a part of the answer: the environment is given all of it.

        Raises:
            ConfigurationError: There is no chat template, or it cannot be used turn by turn, or
                has no thinking to drop; or `thinking` is unknown.
        """
        if thinking not in MODES:
            raise ConfigurationError(
                f"thinking must be one of {', '.join(MODES)}, got {thinking!r}"
            )
        given = dict(template_kwargs or {})
        template = given.get("chat_template") or getattr(tokenizer, "chat_template", None)
        if not template:
            name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
            raise ConfigurationError(
                f"the tokenizer of {name!r} has no chat template; choose a model that has one or "
                "set tokenizer.chat_template (for base models, ChatML usually fits)"
            )
        self.tokenizer = tokenizer
        self._remembered = lru_cache(_REMEMBERED)(self._tokenize)
        self._pieces = lru_cache(2 * _REMEMBERED)(self._piece)
        self._spelled = lru_cache(_REMEMBERED)(partial(self._decode, skip_special_tokens=False))
        self._system = [] if system_prompt is None else [_message("system", system_prompt)]
        self._template_kwargs = given
        special = {int(i) for i in tokenizer.all_special_ids}
        special |= {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        self._special_ids = frozenset(special)
        spelled = (self._decode([i], skip_special_tokens=False) for i in special)
        self._special_texts = tuple(text for text in spelled if text)
        self._closing_id: int | None = None
        self._closing_end = 0
        for end, i in enumerate(self.bridge("x", closed=False), 1):
            if i in special:
                self._closing_id, self._closing_end = i, end
            # Some templates write whitespace before it.
            if i in special or self._decode([i], skip_special_tokens=False).strip():
                break
        ids = (self._closing_id, tokenizer.eos_token_id, *_generation_stops(tokenizer))
        self.stop_ids: frozenset[int] = frozenset(int(i) for i in ids if i is not None)
        """Tokens at which a sampler must end the turn: those that end a message or a text, and the
        others of the model's `generation_config.json`, at which engines such as vLLM end anyway."""
        self.drops_thinking = thinking == "drop"
        """Whether earlier thinking is taken out of later prompts."""
        self._thought = ""
        markers = find_markers(str(template))
        if markers is None and self.drops_thinking:
            raise ConfigurationError(
                "thinking='drop': the chat template knows no thinking; leave it at 'keep'"
            )
        read = markers if thinking != "text" else None
        self._thinking = None if read is None else self._find_thinking(*read)

    def _find_thinking(self, opening: str, closing: str) -> Thinking:
        if self.drops_thinking:
            # A template that drops thinking by itself is left to do it: it decides what remains of
            # the whitespace after it. Any other is given the answer alone.
            thought = f"{opening}\n{_THOUGHT}\n{closing}"
            past = self._render_around("x", right=f"{thought}\n\n")
            self._thought = "" if _THOUGHT in past else thought
        prompt = _cut(self._render_around(_OBSERVATION), _OBSERVATION)[1]
        tokens = [self._encode(marker) for marker in (opening, closing)]
        return Thinking(
            (opening, closing),
            tokens=(tokens[0][0], tokens[1][0]) if [*map(len, tokens)] == [1, 1] else None,
            opened=prompt.rfind(opening) > prompt.rfind(closing),
            encode=self.encode_text,
            decode=self.decode,
        )

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of a response for the environment, without control tokens.

        Bytes that do not form a character become U+FFFD.
        """
        return self._decode(ids, skip_special_tokens=True)

    def spell(self, ids: Sequence[int]) -> str:
        """Return the text of other ids (prompts, bridges), with control tokens as text."""
        return self._spelled(tuple(ids))

    def _decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        text = self.tokenizer.decode(
            list(ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )
        return str(text)

    def accept(self, observation: Observation) -> tuple[Observation, tuple[Image, ...]]:
        """Return an observation as an episode keeps it, and the images that it shows."""
        return observation, ()

    def usable(self, response_ids: Sequence[int]) -> int:
        """Return how many tokens of a response, from its beginning, can be in a prompt."""
        return len(response_ids)

    def _content(self, observation: Observation) -> Any:
        """Return an observation as a key of caches, which a message may have as its content."""
        return text_of(observation)

    def prompt(self, observation: Observation) -> list[int]:
        """Return the ids of the first prompt: system message, observation, generation prompt."""
        return self._pieces(self._content(observation)).tolist()

    def _piece(
        self, text: Any, left: tuple[str, str] | None = None, right: str | None = None
    ) -> array[int]:
        return self._around(text, partial(self._render_around, left=left, right=right))

    def _render_around(
        self, text: Any, left: tuple[str, str] | None = None, right: str | None = None
    ) -> str:
        """Render an observation as a user message, with the template's text on both sides.

        Args:
            text: Of the observation; its content if that has images.
            left: Beginning and end of the response before, whose text is left out; None: there is
                none, the conversation begins.
            right: Beginning of the response after, whose text is left out; None: it is to be
                sampled, the text ends with the generation prompt.
        """
        messages = list(self._system)
        if left is not None:
            response = left[0] + _RESPONSE + left[1]
            messages += [_message("user", "x"), _message("assistant", response)]
        messages.append(_message("user", text))
        if right is not None:
            messages += [_message("assistant", right + _NEXT_RESPONSE), _message("user", "x")]
        rendered = self._render(messages)
        if left is not None:
            rendered = _cut(rendered, _RESPONSE)[1]
        return rendered if right is None else _cut(rendered, _NEXT_RESPONSE)[0]

    def frame(self) -> tuple[list[int], list[int]]:
        """Return the ids before and after the content of a single user message."""
        before, after = _cut(self._render_around(_OBSERVATION), _OBSERVATION)
        return self._encode(before), self._encode(after)

    def _around(self, text: Any, render: Callable[[Any], str]) -> array[int]:
        """Return the ids of a rendering with an environment's text in it."""
        if not self._spells_special(text):
            return self._tokenize(render(text))
        before, after = _cut(render(_OBSERVATION), _OBSERVATION)
        ids = [*self._encode(before), *self.encode_text(text), *self._encode(after)]
        return array("i", ids)

    def bridge(self, observation: Observation, *, closed: bool) -> list[int]:
        """Return the ids between a response and the next one.

        That is: the end of the assistant's message, the observation as a user message, and the
        beginning of the assistant's next message. The cost of rendering depends on this
        observation alone, not on the length of the conversation.

        Args:
            observation: Next observation.
            closed: The response already ends with the token that closes a message.
        """
        ids = self._pieces(self._content(observation), ("", "")).tolist()
        return ids[self._closing_end :] if closed else ids

    def between(
        self, observation: Observation, before: Past | None = None, after: Past | None = None
    ) -> list[int]:
        """Return the ids between two responses without their thinking, the observation included.

        Args:
            observation: Shown between them.
            before: Earlier response; None: there is none, the conversation begins.
            after: Later response; None: it is to be sampled, the ids end with the generation
                prompt.
        """
        left = None if before is None else (before.head, before.tail)
        right = None if after is None else after.head
        return self._pieces(text_of(observation), left, right).tolist()

    def read(self, response_ids: Sequence[int]) -> Reply:
        """Return a sampled turn as its thinking and its answer."""
        whole = self.decode(response_ids)
        if self._thinking is None:
            return Reply(response_ids, whole, whole, response_ids)
        return self._thinking.read(response_ids, whole)

    def past(self, reply: Reply) -> Past:
        """Return what later prompts show of a turn whose thinking is dropped."""
        ids = self.content_ids(reply.answer)
        first, end = 0, len(ids)
        while first < end and self.decode([ids[first]]).isspace():
            first += 1
        while first < end and self.decode([ids[end - 1]]).isspace():
            end -= 1
        thought = self._thought if reply.thought else ""
        # Without the template's help, whitespace after the thinking goes with it.
        head = self.decode(ids[:first]) if thought or not reply.thought else ""
        return Past(thought + head, ids[first:end], self.decode(ids[end:]))

    def is_closed(self, response_ids: Sequence[int]) -> bool:
        """Return whether a response ends with the token that closes a message."""
        return (
            self._closing_id is not None
            and len(response_ids) > 0
            and response_ids[-1] == self._closing_id
        )

    def content_ids(self, response_ids: Sequence[int]) -> list[int]:
        """Return the ids of a response without control tokens."""
        return [i for i in response_ids if i not in self._special_ids]

    def encode_text(self, text: str) -> list[int]:
        """Encode environment text; control tokens that it spells become ordinary text."""
        if not self._spells_special(text):
            return self._encode(text)
        ids = self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        return [int(i) for i in ids]

    def render(self, observations: Sequence[Observation], texts: Sequence[str]) -> str:
        """Render a conversation afresh, up to the generation prompt.

        Args:
            observations: One more than `texts`.
            texts: The responses between the observations.
        """
        messages = list(self._system)
        for observation, text in zip(observations, [*texts, None], strict=True):
            messages.append(_message("user", self._content(observation)))
            if text is not None:
                messages.append(_message("assistant", text))
        return self._render(messages)

    def _spells_special(self, text: str) -> bool:
        return any(token in text for token in self._special_texts)

    def _render(self, messages: Sequence[Any]) -> str:
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    list(messages),
                    tokenize=False,
                    add_generation_prompt=True,
                    **self._template_kwargs,
                )
            )
        except Exception as error:
            # A template is a program and may raise anything; only another template helps.
            raise ConfigurationError(
                f"the chat template cannot render roles {[m['role'] for m in messages]}: {error}"
            ) from error

    def _encode(self, text: str) -> list[int]:
        return self._remembered(text).tolist()

    def _tokenize(self, text: str) -> array[int]:
        return array("i", self.tokenizer.encode(text, add_special_tokens=False))


def text_of(observation: Observation) -> str:
    """Return the text of an observation.

    Raises:
        ConfigurationError: It has image parts, which text-only chat formats cannot show.
    """
    if isinstance(observation, str):
        return observation
    other = sorted({str(part.get("type")) for part in observation} - {"text"})
    if other:
        raise ConfigurationError(
            f"observation has parts of type {', '.join(other)}; this chat format shows text only"
        )
    return "".join(part["text"] for part in observation)


def _message(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def _cut(rendered: str, mark: str) -> tuple[str, str]:
    before, found, after = rendered.partition(mark)
    if not found:
        raise ConfigurationError(
            "the chat template changes or drops message contents; it cannot be used turn by turn"
        )
    return before, after


def _generation_stops(tokenizer: Tokenizer) -> list[int]:
    """Return the ends of text that a model's `generation_config.json` lists; [] without one.

    Raises:
        ConfigurationError: The file cannot be read.
    """
    name = str(getattr(tokenizer, "name_or_path", "") or "")
    if not name:
        return []
    file: object = Path(name) / _GENERATION
    if not Path(str(file)).is_file():
        try:
            from huggingface_hub import try_to_load_from_cache

            file = try_to_load_from_cache(name, _GENERATION)
        except (ImportError, ValueError):  # ValueError: the name is a folder
            return []
        if not isinstance(file, str):  # it is not in the cache, or the model has none
            return []
    path = Path(str(file))
    known = read_json(path, dict[str, Any], ConfigurationError).get("eos_token_id")
    ids = known if isinstance(known, list) else [] if known is None else [known]
    if not all(type(each) is int for each in ids):
        raise ConfigurationError(f"{path}: eos_token_id must be token ids, got {known!r}")
    return ids
