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
        self._responses: list[list[int]] = []
        self._texts: list[str] = []
        self._starts: list[int] = []
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
        self._texts.append(self._chat.decode(response_ids) if text is None else text)
        self._starts.append(len(self.ids))
        self._responses.append(list(response_ids))
        self.ids.extend(response_ids)

    def observe(self, observation: Observation) -> list[int]:
        """Append the bridge to the next turn; return its ids.

        If the response was cut off, the bridge begins with the tokens that close it.

        Raises:
            RolloutError: No response was appended since the last observation.
        """
        if len(self._responses) != len(self._observations):
            raise RolloutError("TokenTranscript.observe: a response must come first")
        closed = self._chat.is_closed(self._responses[-1])
        ids = self._chat.bridge(observation, closed=closed)
        self._observations.append(observation)
        self.ids.extend(ids)
        return ids

    def drift(self) -> list[Drift]:
        """Return every turn where re-rendering or re-encoding would have changed the ids.

        Encodes each response once and renders the conversation once: linear in its length.
        """
        chat, texts, found = self._chat, self._texts, list[Drift]()
        for turn, text in enumerate(texts):
            body, fresh = self._body(turn), chat.encode_text(text)
            if fresh != body:
                pairs = zip(body, fresh, strict=False)
                same = next((i for i, (a, b) in enumerate(pairs) if a != b), len(body))
                found.append(Drift("tokens", turn, self._starts[turn] + min(same, len(fresh))))
        rendered = chat.render(self._observations[: len(texts)], texts[:-1])
        position = 0
        for turn, text in enumerate(texts):
            header = self._text_before(turn)
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

    def _body(self, turn: int) -> list[int]:
        ids = self._responses[turn]
        return ids[:-1] if self._chat.is_closed(ids) else ids

    def _text_before(self, turn: int) -> str:
        """Return the template's text between the previous response's content and this response."""
        begin = 0 if turn == 0 else self._starts[turn - 1] + len(self._body(turn - 1))
        return self._chat.spell(self.ids[begin : self._starts[turn]])
