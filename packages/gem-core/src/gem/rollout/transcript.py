"""The append-only transcript of a conversation, in tokens."""

from __future__ import annotations

from collections.abc import Sequence

from gem.core import Observation
from gem.errors import RolloutError
from gem.rollout.tokens import ChatFormat
from gem.trajectory import Drift


class TokenTranscript:
    """The ids of one append-only conversation; responses are kept exactly as sampled."""

    def __init__(self, chat: ChatFormat) -> None:
        self._chat = chat
        self._observations: list[Observation] = []
        self._texts: list[str] = []
        self._headers: list[str] = []
        """The template's text before each response."""
        self._starts: list[int] = []
        self._body_end = 0
        """Where the last response ends, without the token that closes it."""
        self._closed = False
        self._drift: list[Drift] = []
        self.ids: list[int] = []
        """Prompt, responses and bridges so far."""

    def start(self, observation: Observation) -> list[int]:
        """Begin with the first observation; return the prompt's ids."""
        self._observations.append(observation)
        self.ids = self._chat.prompt(observation)
        return list(self.ids)

    def respond(self, response_ids: Sequence[int], text: str | None = None) -> None:
        """Append a response as sampled; it may be empty or cut off.

        Args:
            response_ids: Exactly as sampled.
            text: Result of `ChatFormat.decode` for them, if known.
        """
        # Compared at once, not all at the end, where it would hold up other episodes for long.
        chat, start = self._chat, len(self.ids)
        text = chat.decode(response_ids) if text is None else text
        self._closed = chat.is_closed(response_ids)
        body = list(response_ids[:-1] if self._closed else response_ids)
        fresh = chat.encode_text(text)
        if fresh != body:
            pairs = zip(body, fresh, strict=False)
            same = next((i for i, (a, b) in enumerate(pairs) if a != b), len(body))
            place = start + min(same, len(fresh))
            self._drift.append(Drift("tokens", len(self._texts), place))
        self._headers.append(chat.spell(self.ids[self._body_end :]))
        self._texts.append(text)
        self._starts.append(start)
        self._body_end = start + len(body)
        self.ids.extend(response_ids)

    def observe(self, observation: Observation) -> list[int]:
        """Append the bridge to the next turn; return its ids.

        If the response was cut off, the bridge begins with the tokens that close it.

        Raises:
            RolloutError: No response was appended since the last observation.
        """
        if len(self._texts) != len(self._observations):
            raise RolloutError("TokenTranscript.observe: a response must come first")
        ids = self._chat.bridge(observation, closed=self._closed)
        self._observations.append(observation)
        self.ids.extend(ids)
        return ids

    def drift(self) -> list[Drift]:
        """Return every turn where re-rendering or re-encoding would have changed the ids.

        Renders the conversation once: linear in its length.
        """
        texts, found = self._texts, list(self._drift)
        rendered = self._chat.render(self._observations[: len(texts)], texts[:-1])
        position = 0
        for turn, (header, text) in enumerate(zip(self._headers, texts, strict=True)):
            place = rendered.find(header, position)
            if place != position:
                blamed = max(turn - 1, 0)
                found.append(Drift("text", blamed, self._starts[blamed]))
            if place < 0:
                break
            position = place + len(header)
            if rendered.startswith(text, position):
                position += len(text)
        return sorted(found, key=lambda d: (d.turn, d.position))
