"""A batch of training rows, cut into optimiser steps and those into forward passes.

Every trainer whose adapter cuts batches itself cuts them here, so that the same rows meet in one
step everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from typing import Protocol, TypeVar


class OfEpisode(Protocol):
    """A row that knows which episode it is from."""

    @property
    def episode(self) -> int:
        """Index of the episode in the batch."""


class OfTokens(Protocol):
    """A row that has tokens."""

    @property
    def ids(self) -> Sized:
        """Prompt and response, `[tokens]`."""


E = TypeVar("E", bound=OfEpisode)
T = TypeVar("T", bound=OfTokens)


def minibatches(rows: Sequence[E], parts: int) -> list[list[E]]:
    """Cut rows into runs of whole consecutive episodes, as even as possible.

    An episode is never cut; the episodes of a group may fall into two runs, because advantages are
    taken before the batch is cut. The order is kept, so that trainers need not agree on a random
    one.

    Args:
        rows: In the order of their episodes.
        parts: How many runs; some are empty if there are fewer episodes.
    """
    episodes = sorted({row.episode for row in rows})
    n = len(episodes)
    cuts = [set(episodes[n * i // parts : n * (i + 1) // parts]) for i in range(parts)]
    return [[row for row in rows if row.episode in cut] for cut in cuts]


def chunks(rows: Sequence[T], most_tokens: int) -> Iterator[list[T]]:
    """Split rows, in order, so that a padded chunk holds at most `most_tokens`, or one row."""
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
