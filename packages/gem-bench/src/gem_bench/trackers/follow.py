"""Follows a run's record and sends it to a tracker, each point once.

What was sent is written down in the run's folder, `trackers/<name>/sent.json`, before and after
each batch. A process that goes on therefore knows which points are certain; of a batch that was cut
off it asks the tracker. A tracker that cannot say gets these points no second time.

Where a resumed run does iterations again, another run replaced the record, or another project is
named, the tracker gets a new run with the whole record: trackers do not take points back.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from gem.errors import ConfigurationError, GemError, RecordError, UnreachableError
from gem.json_lines import read_json
from gem.tables import flatten
from gem_bench.following import Follower
from gem_bench.series import TRAIN
from gem_bench.state import State
from gem_bench.trackers import About, OpenRun, Point, TrackedRun, opener
from gem_train.folders import alone

FOLDER, SENT = "trackers", "sent.json"
_NO_METRICS = ("iteration", "split", "time_s")
_BATCH = 100
"""Most points that are sent at once."""


class _Sent(TypedDict):
    """`sent.json`."""

    project: str
    name: str
    """Of the tracker's run."""
    id: str
    number: int
    """How many runs of the tracker this record has had."""
    sent: int
    """Lines that the tracker has."""
    sending: int
    """Lines that were being sent; as many, if the last batch was complete."""
    digest: str
    """Of the lines up to `sending`."""


@dataclass(frozen=True)
class Logged:
    """What was sent."""

    points: int
    place: str | None
    """Where it is; None if nothing was recorded."""
    status: str
    """The run's."""


def log(
    folder: Path,
    to: str,
    *,
    project: str = "gem",
    name: str | None = None,
    once: bool = False,
    interval_s: float = 5.0,
    say: Callable[[str], object] = lambda _: None,
    ended: Callable[[], bool] = lambda: False,
    sleep: Callable[[float], object] = time.sleep,
) -> Logged:
    """Send a run's metrics to a tracker, until the run has ended.

    Args:
        folder: Of the run, which may begin later.
        to: One of `trackers.NAMES`.
        project: The tracker's project or experiment.
        name: The tracker's name of the run; by default that of the folder. A record that was sent
            before keeps its name.
        once: Send what is recorded and return.
        interval_s: Seconds between two looks at the record.
        say: Called with what a user ought to know.
        ended: Whether to look once more and return.
        sleep: Waits that many seconds.

    Raises:
        ConfigurationError, MissingExtraError: The tracker is unknown or not installed, another
            process sends this record to it, or it was sent under another name.
        RecordError: `sent.json` is damaged or cannot be written.
        UnreachableError: The tracker failed; the same call goes on later.
    """
    opened = opener(to)
    with _alone(folder / FOLDER / to, to):
        sender = _Sender(folder, to, opened, project, name, say)
        run = Follower(folder)
        status = "interrupted"
        try:
            while True:
                last = once or ended()
                run.poll_all()
                state = State.of(run)
                if run.exists and (run.meta or last):
                    sender.send(run)
                status = state.status
                if last or state.ended:
                    break
                sleep(interval_s)
        finally:
            sender.close(status)
        for problem in run.problems:
            say(problem)
        return Logged(sender.points, sender.place, status)


@contextlib.contextmanager
def _alone(folder: Path, to: str) -> Iterator[None]:
    """Keep other processes from sending the same record to the same tracker."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(alone(folder))
        except ConfigurationError as error:
            raise ConfigurationError(f"this run is being sent to {to} already ({error})") from None
        yield


class _Sender:
    """Knows what a tracker has of one record."""

    def __init__(
        self,
        folder: Path,
        to: str,
        opened: OpenRun,
        project: str,
        name: str | None,
        say: Callable[[str], object],
    ) -> None:
        self.points = 0
        self.place: str | None = None
        self._folder = folder
        self._to = to
        self._open_run = opened
        self._project = project
        self._name = name
        self._shown = ""
        self._say = say
        self._path = folder / FOLDER / to / SENT
        self._run: TrackedRun | None = None
        self._replaced = 0
        self._sent = 0
        self._number = 0
        self._hash = hashlib.sha256()

    def send(self, run: Follower) -> None:
        """Send the lines that the tracker does not have."""
        if self._run is None or run.replaced != self._replaced:
            self._begin(run)
        self._replaced = run.replaced
        for begin in range(self._sent, len(run.metrics), _BATCH):
            lines = run.metrics[begin : begin + _BATCH]
            _update(self._hash, lines)
            self._write_down(begin, begin + len(lines))
            self._hand_over([point for line in lines if (point := _point(line)).values])
            self._sent = begin + len(lines)
            self._write_down(self._sent, self._sent)

    def close(self, status: str) -> None:
        """End the tracker's run, if one is open."""
        if self._run is not None:
            self._try(lambda run: run.close(status))

    def _begin(self, run: Follower) -> None:
        """Go on with the tracker's run if it has the beginning of this record, else begin one."""
        earlier = self._earlier()
        if earlier is not None and (why := self._other(earlier, run)):
            self._say(f"{self._to}: {why} has all of it")
            self._number = earlier["number"]
            earlier = None
        elif earlier is not None and self._name not in (None, earlier["name"]):
            raise ConfigurationError(
                f"--name {self._name}: {self._to} has this record as {earlier['name']!r}; leave "
                "out --name, or name another --project"
            )
        if self._run is not None:
            self._try(lambda tracked: tracked.close("interrupted"))
            self._run = None
        self._hash = hashlib.sha256()
        self._sent = 0
        if earlier is None:
            self._number += 1
            base = self._name or self._folder.resolve().name
            self._shown = base if self._number == 1 else f"{base}-{self._number}"
            self._open(run, None)
            self._write_down(0, 0)
            return
        self._number, self._shown = earlier["number"], earlier["name"]
        self._open(run, earlier["id"])
        self._sent = earlier["sending"]
        _update(self._hash, run.metrics[: self._sent])
        self._complete(run.metrics[earlier["sent"] : earlier["sending"]])
        self._write_down(self._sent, self._sent)

    def _other(self, earlier: _Sent, run: Follower) -> str:
        """Return why the tracker's run cannot go on; empty if it can."""
        if earlier["project"] != self._project:
            return (
                f"the record was sent to the project {earlier['project']!r}; a new run of "
                f"{self._project!r}"
            )
        if _digest(run.metrics[: earlier["sending"]]) != earlier["digest"]:
            return "the record was replaced; a new run"
        return ""

    def _open(self, run: Follower, earlier: str | None) -> None:
        about = About(self._folder, self._project, self._shown, _group(run.meta), _config(run.meta))
        self._run = self._try(lambda _: self._open_run(about, earlier))
        self.place = self._run.place

    def _complete(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Send what is missing of a batch that was cut off."""
        unknown = []
        for point in map(_point, lines):
            missing = self._try(lambda run: run.missing(point))  # noqa: B023
            if missing is None:
                unknown.append(str(point.step))
            elif missing.values:
                self._hand_over([missing])
        if unknown:
            self._say(
                f"{self._to}: an earlier process was killed while it sent the iterations "
                f"{', '.join(dict.fromkeys(unknown))}; they may be missing"
            )

    def _hand_over(self, points: list[Point]) -> None:
        if points:
            self._try(lambda run: run.write(points))
            self.points += len(points)

    def _try(self, call: Callable[[Any], Any]) -> Any:
        """Call something of the tracker; say what to do if it fails."""
        try:
            return call(self._run)
        except GemError:
            raise
        except Exception as error:
            raise UnreachableError(
                f"{self._to} failed: {type(error).__name__}: {error}. The record has everything; "
                f"`gem-bench log {self._folder} --to {self._to} --project "
                f"{shlex.quote(self._project)}` sends the rest later"
            ) from error

    def _earlier(self) -> _Sent | None:
        if not self._path.exists():
            return None
        found: _Sent = read_json(self._path, _Sent)
        return found

    def _write_down(self, sent: int, sending: int) -> None:
        assert self._run is not None
        known: _Sent = {
            "project": self._project,
            "name": self._shown,
            "id": self._run.id,
            "number": self._number,
            "sent": sent,
            "sending": sending,
            "digest": self._hash.hexdigest(),
        }
        partial = self._path.with_suffix(".partial")
        try:
            partial.write_text(json.dumps(known) + "\n", encoding="utf-8")
            partial.replace(self._path)
        except OSError as error:
            raise RecordError(f"cannot write {self._path}: {error}") from error


def _point(line: Mapping[str, Any]) -> Point:
    """Return what a tracker gets of a line of `metrics.jsonl`."""
    split = line["split"]
    prefix = "train" if split == TRAIN else f"eval/{split.removeprefix('eval:')}"
    values = {
        f"{prefix}/{name}": float(value)
        for name, value in line.items()
        if name not in _NO_METRICS and value is not None and math.isfinite(value)
    }
    return Point(line["iteration"], values, line["time_s"])


def _group(meta: Mapping[str, Any]) -> str | None:
    found = meta.get("spec", {}).get("name")
    return None if found is None else str(found)


def _config(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the RunSpec by dotted key, and who trains."""
    known = {key: meta[key] for key in ("trainer", "model", "run_id") if key in meta}
    return {**known, **flatten(meta.get("spec", {}))}


def _digest(lines: Sequence[Mapping[str, Any]]) -> str:
    found = hashlib.sha256()
    _update(found, lines)
    return found.hexdigest()


def _update(digest: Any, lines: Sequence[Mapping[str, Any]]) -> None:
    for line in lines:
        digest.update(json.dumps(line, sort_keys=True).encode() + b"\n")
