"""Tells a model's thinking from its answer: what stands in the thinking never acts.

**When thinking is recognised.** Only if the model's chat template knows the closing marker of a
pair in `MARKERS`, comments aside. Replies of other models are never searched for markers.

**What counts as a marker.** The token, if the tokenizer has one for each of the two; a marker that
the model spells with other tokens is text then. Otherwise the text.

**Where thinking ends.** After the last closing marker, as in the templates. A reply whose thinking
is not closed (by the prompt, which may open it, or by the reply itself) never leaves its thinking.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple

from gem.errors import ConfigurationError

MODES = ("keep", "drop", "text")
"""What becomes of thinking, see `gem.rollout.ChatFormat`."""

MARKERS = (("<think>", "</think>"), ("<|channel>", "<channel|>"))
"""Known pairs of markers: of most models, and of Gemma 4."""

_BLANK_LINES = re.compile(r"\A\s*\n")
_COMMENT = re.compile(r"\{#.*?#\}", re.DOTALL)
# In the templates of gpt-oss (harmony) and of those that do alike, and in no other.
_CHANNELS = "<|message|>"


class Reply(NamedTuple):
    """A sampled turn."""

    ids: Sequence[int]
    """Exactly as sampled, the closing token included."""
    whole: str
    """`ids` decoded without control tokens, thinking included."""
    text: str
    """What the environment is given: without thinking and the blank lines after it; empty if the
    thinking never ends."""
    answer: Sequence[int]
    """End of `ids` after the thinking; empty if the thinking never ends."""
    thought: bool = False
    """Whether the reply has thinking that ends."""


def find_markers(template: str) -> tuple[str, str] | None:
    """Return the markers of thinking that a chat template knows; None if it knows none.

    Raises:
        ConfigurationError: The model answers in channels.
    """
    source = _COMMENT.sub("", template)
    if _CHANNELS in source:
        raise ConfigurationError(
            "the chat template is one for replies in channels (gpt-oss's harmony format, for "
            "instance): a reply is several messages, of which only the last is the answer; models "
            "of this kind are not supported"
        )
    return next((pair for pair in MARKERS if pair[1] in source), None)


class Thinking:
    """Finds the thinking in the replies of one model."""

    def __init__(
        self,
        markers: tuple[str, str],
        *,
        tokens: tuple[int, int] | None,
        opened: bool,
        encode: Callable[[str], list[int]],
        decode: Callable[[Sequence[int]], str],
    ) -> None:
        """Store how replies are read.

        Args:
            markers: Opening and closing one.
            tokens: Their tokens; None if the tokenizer does not have one for each.
            opened: The prompt ends inside of thinking.
            encode: Text to ids.
            decode: Ids to text without control tokens.
        """
        self._opening, self._closing = markers
        self._tokens, self._opened = tokens, opened
        self._encode, self._decode = encode, decode

    def read(self, ids: Sequence[int], whole: str) -> Reply:
        """Return a reply as its thinking and its answer.

        Args:
            ids: Exactly as sampled.
            whole: `ids` decoded.
        """
        if self._tokens is None:
            answer, closed, opened = self._by_text(ids, whole)
        else:
            answer, closed, opened = self._by_token(ids, *self._tokens)
        if opened or (self._opened and not closed):
            return Reply(ids, whole, "", ())
        if not closed:
            return Reply(ids, whole, whole, ids)
        # Not the whitespace of the first line: code may begin with its indentation.
        text = _BLANK_LINES.sub("", self._decode(answer))
        return Reply(ids, whole, text, answer, thought=True)

    def _by_token(
        self, ids: Sequence[int], opening: int, closing: int
    ) -> tuple[Sequence[int], bool, bool]:
        """Return the ids after the last closing marker, and whether there are markers.

        Returns:
            The ids; whether there is a closing marker; whether one that opens follows it.
        """
        start = max((place + 1 for place, i in enumerate(ids) if i == closing), default=0)
        return ids[start:], start > 0, opening in ids[start:]

    def _by_text(self, ids: Sequence[int], whole: str) -> tuple[Sequence[int], bool, bool]:
        """Return the same, where the markers have no tokens."""
        count, after = whole.count(self._closing), whole.rpartition(self._closing)[2]
        opened = self._opening in after
        if not count:
            return ids, False, opened
        # The shortest beginning that contains the last marker; its last token may hold more text.
        ends = range(len(ids) + 1)
        end = bisect_left(ends, count, key=lambda n: self._decode(ids[:n]).count(self._closing))
        rest = self._decode(ids[:end]).rpartition(self._closing)[2]
        return [*self._encode(rest), *ids[end:]], True, opened
