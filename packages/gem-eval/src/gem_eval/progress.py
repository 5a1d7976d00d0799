"""A line on the terminal about the episodes so far; nothing where there is no terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

from gem.trajectory import Trajectory
from gem_eval.spending import Spending

_EVERY_S = 1.0


class Progress:
    """Counts episodes and shows what is known of them, at most once a second."""

    def __init__(
        self,
        episodes: int,
        spending: Spending,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with no episode.

        Args:
            episodes: How many there will be.
            spending: What they cost; others add to it.
            stream: The terminal, standard error by default.
            clock: Returns seconds.
        """
        self._all = episodes
        self._spending = spending
        self._stream = sys.stderr if stream is None else stream
        self._visible = self._stream.isatty()
        self._clock = clock
        self._began = self._shown = clock()
        self._tokens_before = 0
        self._earlier = self._played = self._void = self._won = 0

    def earlier(self, trajectory: Trajectory) -> None:
        """Count an episode that was recorded before; a void one is played again."""
        self._earlier += trajectory.valid
        self._won += trajectory.success
        self._tokens_before = self._spending.reply_tokens

    def played(self, trajectory: Trajectory) -> None:
        """Count an episode that ended now."""
        self._played += 1
        self._void += not trajectory.valid
        self._won += trajectory.success
        now = self._clock()
        if self._visible and now - self._shown >= _EVERY_S:
            self._shown = now
            self._stream.write(f"\r{self.line()}\x1b[K")
            self._stream.flush()

    def line(self) -> str:
        """Return the line: success so far, void episodes, tokens a second, time left, cost."""
        seconds = self._clock() - self._began
        done = self._earlier + self._played
        valid = done - self._void
        parts = [
            f"{done}/{self._all} episodes",
            f"success {self._won / valid:.3f}" if valid else "success -",
            f"failed {self._void}",
        ]
        if seconds > 0:
            rate = (self._spending.reply_tokens - self._tokens_before) / seconds
            parts.append(f"{rate:.0f} tokens/s")
        if self._played:
            parts.append(f"{seconds / self._played * (self._all - done):.0f} s left")
        if self._spending.prices is not None:
            parts.append(f"cost {self._spending.shown()}")
        return "  ".join(parts)

    def end(self) -> None:
        """Remove the line."""
        if self._visible:
            self._stream.write("\r\x1b[K")
