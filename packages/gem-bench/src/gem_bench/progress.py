"""Shows the progress of a run, from the metrics that its trainer records."""

from __future__ import annotations

import itertools
import math
import shutil
import statistics
import sys
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from gem.errors import RecordError
from gem.json_lines import parse_as
from gem_bench.following import Lines
from gem_train.record import METRICS, read_metrics_line

RECENT = 10
"""Iterations over which a shown value is averaged."""
_LINES = 12
"""Approximate number of lines that a run prints without a terminal."""


class Tail:
    """Reads the complete lines appended to a run's metrics file.

    A trainer that resumes from a checkpoint replaces the file by one without the iterations after
    the checkpoint; of the new file, the lines that were kept are not returned again.
    """

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / METRICS
        self._lines = Lines(self._path)
        self._known: list[int] = []
        """A hash of each line that was read."""

    def read(self) -> list[dict[str, Any]]:
        """Return the lines added since the last call, without an incomplete last line.

        Raises:
            RecordError: The file cannot be read, or a line is damaged.
        """
        found: list[tuple[str, bytes]] = []
        kept: list[int] = []
        while (block := self._lines.read()).size or block.again:
            if block.again:
                found, kept, self._known = [], [*kept, *self._known], []
            found += block.lines
        hashes = [hash(line) for _, line in found]
        self._known += hashes
        same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(kept, hashes, strict=False))
        return [
            read_metrics_line(
                parse_as(line, dict[str, Any], f"{self._path}, {place}", RecordError),
                f"{self._path}, {place}",
            )
            for place, line in found[len(list(same)) :]
        ]


class Progress:
    """Turns metrics into one live line on a terminal, or into about a dozen lines in a log."""

    def __init__(
        self, name: str, iterations: int, output: TextIO | None = None, *, done: int = 0
    ) -> None:
        """Start.

        Args:
            name: Shown first, such as the trainer's name.
            iterations: Number of iterations of the run.
            output: Where to write; standard error by default.
            done: Iterations recorded before.
        """
        self._name = name
        self.iterations = iterations
        self._output: TextIO | None = output or sys.stderr
        self._live = self._output.isatty()
        self._every = max(1, math.ceil(iterations / _LINES))
        self._began = time.monotonic()
        self._recent: deque[dict[str, Any]] = deque(maxlen=RECENT)
        self._shown = 0
        self.done = done
        """Iterations recorded so far."""

    def update(self, lines: list[dict[str, Any]]) -> None:
        """Process new lines of metrics and show the progress."""
        for line in lines:
            if line["split"] != "train":
                continue
            if self._recent and line["iteration"] <= self._recent[-1]["iteration"]:
                self._recent.clear()  # the trainer goes on from a checkpoint
            self._recent.append(line)
            self.done = line["iteration"] + 1
            if not self._live and (self.done % self._every == 0 or self.done == 1):
                self._write(self.status() + "\n")
        if self._live:
            # A wrapped line could not be overwritten.
            text = self.status()[: shutil.get_terminal_size().columns - 1]
            # Padding overwrites the rest of a longer line.
            self._write(f"\r{text:<{self._shown}}")
            self._shown = len(text)

    def say(self, text: str) -> None:
        """Show a line that stays."""
        line = f"{self._name}  {text}"
        self._write(f"\r{line:<{self._shown}}\n" if self._live else f"{line}\n")

    def close(self) -> None:
        """End the live line and keep it on the screen."""
        if self._live and self._shown:
            self._write("\n")

    def _write(self, text: str) -> None:
        if self._output is None:
            return
        try:
            self._output.write(text)
            self._output.flush()
        except OSError:
            # The terminal or pipe is closed: stop the output, but let the run go on.
            self._output = None

    def status(self) -> str:
        """Return the line."""
        elapsed = time.monotonic() - self._began
        if not self._recent:
            return f"{self._name}  starting  {clock(elapsed)}"
        parts = [self._name, f"{self.done}/{self.iterations}"]
        for label, key in (("success", "success_rate"), ("return", "return_mean")):
            parts.append(f"{label} {self._mean(key)}")
        parts.append(f"turns {self._mean('turns_mean', 1)}")
        recent = list(self._recent)
        rate = tokens_per_s(recent)
        parts.append(f"{rate:,.0f} tok/s" if rate is not None else "- tok/s")
        parts.append(f"{clock(elapsed)} elapsed")
        per_iteration = seconds_per_iteration(recent)
        if per_iteration is not None and self.done < self.iterations:
            parts.append(f"ETA {clock(per_iteration * (self.iterations - self.done))}")
        return "  ".join(parts)

    def _mean(self, key: str, digits: int = 3) -> str:
        mean = recent_mean(self._recent, key)
        return "-" if mean is None else f"{mean:.{digits}f}"


def recent_mean(lines: Iterable[Mapping[str, Any]], metric: str) -> float | None:
    """Return the mean of a metric over the lines that have it, None if none has."""
    known = [line[metric] for line in lines if line.get(metric) is not None]
    return statistics.fmean(known) if known else None


def seconds_per_iteration(lines: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the mean seconds between lines of training, None for fewer than two."""
    times = [line["time_s"] for line in lines]
    return (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None


def tokens_per_s(lines: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the sampled tokens per second of wall time, updates included; None if unknown."""
    seconds = lines[-1]["time_s"] - lines[0]["time_s"] if lines else 0.0
    if seconds <= 0:
        return None
    return float(sum(line.get("sampled_tokens") or 0 for line in lines[1:])) / seconds


def clock(seconds: float) -> str:
    """Return `m:ss` or `h:mm:ss`."""
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02d}:{s:02d}" if hours else f"{m}:{s:02d}"
