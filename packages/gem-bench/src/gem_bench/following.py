"""Follows the record of a run while its trainer writes it.

- `Lines`: the complete lines that are appended to a file, read in bounded blocks.
- `Follower`: a run's `run.json`, metrics and last episodes, brought up to date by `poll`.

Damage is named in `Follower.problems`; what can be read is still shown.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gem.errors import RecordError
from gem.json_lines import parse_as
from gem_train.record import (
    EPISODES,
    METRICS,
    RUN,
    EpisodeRecord,
    RunRecord,
    read_episode_line,
    read_metrics_line,
    read_run_file,
)

_BLOCK = 8 * 2**20
"""Most bytes that are read of a file at once."""
_MARK = 64
"""Bytes before the place of reading that are compared, to notice another file."""
_MOST_PROBLEMS = 20


@dataclass(frozen=True)
class Block:
    """What was read of a file."""

    again: bool = False
    """The file was replaced: what was read before is void, the lines are from its beginning."""
    lines: list[tuple[str, bytes]] = field(default_factory=list)
    """Complete lines with their places: `line 3`, or `byte 4096` where lines were skipped."""
    size: int = 0
    """Bytes of the lines, empty ones included; 0 means that nothing is new."""
    skipped: bool = False
    """Lines before these were not read, because they are more than a block."""


class Lines:
    """Reads the complete lines that are appended to a file, which need not exist yet."""

    def __init__(self, path: Path, *, newest: bool = False, block: int = _BLOCK) -> None:
        """Begin before the first line.

        Args:
            path: The file.
            newest: Read only the last `block` bytes of what is new, and leave out what is before.
            block: Most bytes that are read at once; a longer line is read whole, or, with `newest`,
                left out.
        """
        self._path = path
        self._newest = newest
        self._block = block
        self._begin()

    def _begin(self) -> None:
        self._offset = 0
        self._file: int | None = None
        self._mark = b""
        self._count: int | None = 0
        """Lines before the offset; None where some were skipped."""

    def read(self) -> Block:
        """Return the next lines, none if there is no complete one.

        Raises:
            RecordError: The file cannot be read.
        """
        try:
            with self._path.open("rb") as file:
                return self._read(file.fileno())
        except FileNotFoundError:
            again = self._file is not None
            self._begin()
            return Block(again)
        except OSError as error:
            raise RecordError(f"cannot read {self._path}: {error}") from error

    def _read(self, file: int) -> Block:
        status = os.fstat(file)
        mark = os.pread(file, len(self._mark), self._offset - len(self._mark))
        again = self._file is not None and (status.st_ino != self._file or mark != self._mark)
        if again:
            self._begin()
        self._file = status.st_ino
        begin = self._offset
        skipped = self._newest and status.st_size - begin > self._block
        if skipped:
            begin = status.st_size - self._block
            self._count = None
        content = os.pread(file, self._block, begin)
        while b"\n" not in content and len(content) >= self._block and not self._newest:
            more = os.pread(file, self._block, begin + len(content))
            if not more:
                break
            content += more
        if skipped:
            # It begins in the middle of a line, or at the beginning of one: nobody knows.
            first = content.find(b"\n") + 1
            begin, content = begin + first, content[first:]
        whole = content[: content.rfind(b"\n") + 1]
        if not whole and skipped:
            return Block(again, skipped=True)
        self._offset = begin + len(whole)
        self._mark = (self._mark + whole)[-_MARK:] if not skipped else whole[-_MARK:]
        return Block(again, list(self._placed(whole, begin)), len(whole), skipped)

    def _placed(self, whole: bytes, begin: int) -> Iterator[tuple[str, bytes]]:
        for text in whole.split(b"\n")[:-1]:
            line = text + b"\n"
            if self._count is not None:
                self._count += 1
            if line.strip():
                yield f"byte {begin}" if self._count is None else f"line {self._count}", line
            begin += len(line)


@dataclass(frozen=True)
class Numbered:
    """An episode, with a number that no other episode of its `Follower` has."""

    number: int
    record: EpisodeRecord


class Follower:
    """The record of one run as far as it is written; the run may begin later."""

    def __init__(self, folder: Path, *, episodes: int = 0) -> None:
        """Follow a folder, which need not exist yet.

        Args:
            folder: Of the run.
            episodes: How many of the last episodes are kept.
        """
        self.folder = folder
        self.meta: dict[str, Any] = {}
        """`run.json`, without `schema`."""
        self.metrics: list[dict[str, Any]] = []
        """The lines of `metrics.jsonl`, each iteration of each split once."""
        self.episodes: deque[Numbered] = deque(maxlen=episodes)
        self.written: float | None = None
        """When the record was last written, in seconds since the epoch."""
        self._metrics = Lines(folder / METRICS)
        self._episodes = Lines(folder / EPISODES, newest=True)
        self.replaced = 0
        """How often the metrics were replaced, as a resumed run does, or removed."""
        self._seen: dict[tuple[int, str], str] = {}
        self._numbered = 0
        self._run_file: tuple[int, int, int] | None = None
        self._damage: dict[str, dict[str, str]] = {}

    @property
    def exists(self) -> bool:
        """Whether anything is recorded."""
        return bool(self.meta or self.metrics or self._run_file)

    @property
    def record(self) -> RunRecord:
        """What was read so far, as `gem_train.record.read_run` returns it."""
        return RunRecord(self.folder, self.meta, list(self.metrics))

    @property
    def problems(self) -> list[str]:
        """What cannot be read, with file and line."""
        return [text for found in self._damage.values() for text in found.values()]

    def poll(self) -> bool:
        """Read what was written since the last call, at most a block of each file.

        Returns:
            Whether anything changed; more may be there.
        """
        before = (self.meta, list(map(id, self.metrics[-1:])), self._numbered, self.problems)
        changed = [self._read_run(), self._read_metrics(), self._read_episodes()]
        self.written = _written(self.folder)
        return any(changed) or before[3] != self.problems

    def poll_all(self) -> None:
        """Read all that is there, block by block."""
        while self.poll():
            pass

    def _read_run(self) -> bool:
        path = self.folder / RUN
        try:
            status = path.stat()
            version = (status.st_ino, status.st_size, status.st_mtime_ns)
        except OSError:
            version = None
        if version == self._run_file:
            return False
        self._run_file = version
        self._damage.pop(RUN, None)
        try:
            self.meta = read_run_file(path) if version is not None else {}
        except RecordError as error:
            self._named(RUN, "", str(error))
        return True

    def _read_metrics(self) -> bool:
        block = self._block(METRICS, self._metrics)
        if block.again:
            self.metrics = []
            self._seen = {}
            self.replaced += 1
        for place, content in block.lines:
            where = f"{self.folder / METRICS}, {place}"
            try:
                line = parse_as(content, dict[str, Any], where, RecordError)
                read_metrics_line(line, where)
            except RecordError as error:
                self._named(METRICS, place, str(error))
                continue
            key = (line["iteration"], line["split"])
            if self._seen.setdefault(key, place) != place:
                self._named(
                    METRICS,
                    place,
                    f"{where}: iteration {key[0]} of {key[1]} is already in {self._seen[key]}; two "
                    "runs were recorded into one folder",
                )
                continue
            self.metrics.append(line)
        return block.again or block.size > 0

    def _read_episodes(self) -> bool:
        if not self.episodes.maxlen:
            return False
        block = self._block(EPISODES, self._episodes)
        if block.again:
            self.episodes.clear()
        for place, content in block.lines[-self.episodes.maxlen :]:
            where = f"{self.folder / EPISODES}, {place}"
            try:
                line = parse_as(content, dict[str, Any], where, RecordError)
                found = read_episode_line(line, where)
            except RecordError as error:
                self._named(EPISODES, place, str(error))
                continue
            self._numbered += 1
            self.episodes.append(Numbered(self._numbered, found))
        return block.again or block.size > 0

    def _block(self, name: str, lines: Lines) -> Block:
        """Read a block; without one, say why."""
        try:
            block = lines.read()
        except RecordError as error:
            self._named(name, "file", str(error))
            return Block()
        found = self._damage.get(name, {})
        found.pop("file", None)
        if block.again:
            found.clear()
        return block

    def _named(self, name: str, place: str, text: str) -> None:
        found = self._damage.setdefault(name, {})
        if len(found) < _MOST_PROBLEMS:
            found[place] = text
        else:
            found["more"] = f"{self.folder / name}: further lines are damaged"


def _written(folder: Path) -> float | None:
    times = []
    for name in (RUN, METRICS, EPISODES):
        try:
            times.append((folder / name).stat().st_mtime)
        except OSError:
            continue
    return max(times, default=None)
