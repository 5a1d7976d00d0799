"""Splits a batch of training rows into optimiser steps, and each step into forward passes.

All adapters that split batches themselves use this module, so that each optimiser step has the same
rows in every trainer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from typing import Protocol, TypeVar


class HasEpisode(Protocol):
    """A row with the index of its episode."""

    @property
    def episode(self) -> int:
        """Index of the episode in the batch."""


class HasTokens(Protocol):
    """A row with tokens."""

    @property
    def ids(self) -> Sized:
        """Prompt and response, `[tokens]`."""


E = TypeVar("E", bound=HasEpisode)
T = TypeVar("T", bound=HasTokens)


def minibatches(rows: Sequence[E], parts: int) -> list[list[E]]:
    """Split rows into parts of whole consecutive episodes, with sizes as even as possible.

    An episode is never split. A group may be, because advantages are computed before. Rows are not
    shuffled, so that trainers need not agree on a random order.

    Args:
        rows: In the order of their episodes.
        parts: Number of parts; some are empty if there are fewer episodes.
    """
    episodes = sorted({row.episode for row in rows})
    n = len(episodes)
    cuts = [set(episodes[n * i // parts : n * (i + 1) // parts]) for i in range(parts)]
    return [[row for row in rows if row.episode in cut] for cut in cuts]


def chunks(rows: Sequence[T], most_tokens: int) -> Iterator[list[T]]:
    """Split rows, in order, into chunks of at most `most_tokens` with padding, or of one row."""
    chunk: list[T] = []
    width = 0
    for row in rows:
        width = max(width, len(row.ids))
        if chunk and (len(chunk) + 1) * width > most_tokens:
            yield chunk
            chunk, width = [], len(row.ids)
        chunk.append(row)
    if chunk:
        yield chunk
