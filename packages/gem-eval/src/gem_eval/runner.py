"""Plays an evaluation into a record, which a later call continues.

The record is that of training (`gem_train.record`): `run.json` has the settings,
`episodes.jsonl` a line per episode, written when it ends, `metrics.jsonl` a line per environment,
written at the end. An episode is known by its split, seed and sample; whatever stops an evaluation,
the next one plays only what is missing or failed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from gem.errors import ConfigurationError, GemError, RecordError
from gem.executors.base import Executor
from gem.executors.held import STEP_TIMEOUT_S
from gem.json_lines import drop_torn_line, read_lines
from gem.trajectory import Trajectory
from gem_eval.episode import Played, Plays
from gem_eval.tasks import Part, Play, covers, plays
from gem_train.ending import to_the_end
from gem_train.experiment.metrics import episode_metrics
from gem_train.folders import alone
from gem_train.packed import PackedTrajectory
from gem_train.record import (
    EPISODES,
    METRICS,
    REPLACED,
    RUN,
    EpisodeRecord,
    Recorder,
    read_episodes,
    read_run,
)
from gem_train.resuming import check_same

T = TypeVar("T")

KIND = "evaluation"


class TooManyFailedError(GemError):
    """More episodes failed than allowed: there is no result."""


@dataclass(frozen=True)
class Limits:
    """What bounds an evaluation, and may differ when it is continued."""

    concurrency: int = 16
    """Most episodes at a time."""
    max_failed: float = 0.1
    """Largest share of failed episodes."""
    retries: int = 1
    """Further attempts of an episode whose environment failed."""
    step_timeout_s: float | None = STEP_TIMEOUT_S
    """Limit of a call to an environment, in seconds."""
    executor: str | Executor | None = None
    """Where environments run, see `gem.executors.named.shared_executor`."""


Watch = Callable[[Played], None]
"""Called with each episode that ended."""


def evaluate(
    folder: Path,
    parts: Sequence[Part],
    play: Plays,
    *,
    about: dict[str, Any],
    samples: int = 1,
    turns: int | None = None,
    resume: bool = False,
    limits: Limits | None = None,
    watch: Watch = lambda _: None,
    around: Callable[[], contextlib.AbstractAsyncContextManager[object]] = contextlib.nullcontext,
    earlier: Callable[[EpisodeRecord], None] = lambda _: None,
    replaced: Callable[[Mapping[str, Any]], None] = lambda _: None,
) -> None:
    """Play all episodes that the record lacks.

    Args:
        folder: Of the record.
        parts: What is played, in this order, whatever the concurrency.
        play: Plays an episode.
        about: For `run.json`: `settings` and `versions`, which a continued evaluation must share,
            and whatever else is to be kept.
        samples: Episodes of each task.
        turns: Most turns of an episode, besides the environment's own limit.
        resume: Continue what the folder holds; with more samples, more tasks of an environment
            from the same first seed, or further environments the record is extended.
        limits: What bounds the evaluation.
        watch: Called with each episode that ended; what it raises ends the evaluation.
        around: Made and entered in the event loop while episodes are played.
        earlier: Called with each episode that the folder has already, likewise.
        replaced: Called with the notes of each void episode that was played again, likewise.

    Raises:
        ConfigurationError: The folder holds an evaluation and `resume` is not set, or one with
            other settings; another process uses the folder; the model's server refuses requests.
        TooManyFailedError: More episodes failed than `limits` allow; the record has the others.
        RecordError: The record cannot be read or written.
        UnfinishedError: Code that runs in the evaluation called `sys.exit()`.
    """
    limits = limits or Limits()
    with alone(folder):
        _begin(folder, about, resume)
        recorder = Recorder(folder)
        for line in read_lines(folder / REPLACED[1]):
            replaced(line.get("notes", {}))
        done = _kept(folder, earlier)
        wanted = plays(parts, samples)
        _check_known(folder, done, wanted)
        missing = [each for each in wanted if each.key not in done]
        (folder / METRICS).unlink(missing_ok=True)
        ended = 0

        def counted(played: Played) -> None:
            nonlocal ended
            ended += 1
            watch(played)

        # Around the event loop: what calls `sys.exit()` in one episode ends the loop.
        with to_the_end(lambda: ended, lambda: len(missing), "episodes"):
            asyncio.run(
                _play_all(missing, recorder, play, turns, limits, len(wanted), counted, around)
            )
        write_metrics(recorder, [part.split for part in parts])


def note_of(record: EpisodeRecord, name: str) -> int | None:
    """Return the sum of a number over the calls of an episode; None if no call has it."""
    found = [call[name] for call in record.notes.get("calls", []) if name in call]
    return sum(found) if found else None


async def _play_all(
    missing: Sequence[Play],
    recorder: Recorder,
    play: Plays,
    turns: int | None,
    limits: Limits,
    wanted: int,
    watch: Watch,
    around: Callable[[], contextlib.AbstractAsyncContextManager[object]],
) -> None:
    failed = 0

    async def one(each: Play) -> None:
        nonlocal failed
        played = await play(
            each,
            turns=turns,
            retries=limits.retries,
            step_timeout_s=limits.step_timeout_s,
            executor=limits.executor,
        )
        trajectory = played.trajectory
        notes: dict[str, Any] = {"sample": each.sample, "calls": played.notes}
        if played.tools:
            notes["tools"] = played.tools
        if played.lost:
            notes["lost"] = played.lost
        recorder.episodes(0, [trajectory], split=each.part.split, notes=[notes])
        watch(played)
        if trajectory.failure is not None:
            failed += 1
            # As a share: the product of 100 and 0.29 is below 29.
            if failed / wanted > limits.max_failed:
                raise TooManyFailedError(
                    f"{failed} episodes failed, more than --max-failed allows "
                    f"({limits.max_failed * wanted:g}); the last one: {trajectory.failure}"
                )

    async with around():
        await side_by_side(missing, min(limits.concurrency, len(missing)), one)


async def side_by_side(
    items: Iterable[T], most: int, function: Callable[[T], Awaitable[None]]
) -> None:
    """Call a function with each item, at most `most` at a time; they begin in order.

    The first exception cancels the others.
    """
    waiting = iter(items)

    async def work() -> None:
        # All workers take from one iterator.
        for each in waiting:
            await function(each)

    workers = [asyncio.create_task(work()) for _ in range(most)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


def holds_run(folder: Path) -> bool:
    """Whether a folder holds a record, or a part of one."""
    return any((folder / name).exists() for name in (RUN, METRICS, EPISODES))


def holds_already(folder: Path) -> str:
    """Say that a folder holds a record, and what can be done."""
    return f"{folder} holds a run already; --resume continues it, --out names another folder"


def begun(folder: Path, about: dict[str, Any], resume: bool, kind: str) -> dict[str, Any] | None:
    """Begin a record, or return what one that is to be continued says of itself.

    Args:
        folder: Of the record.
        about: What a new record says of itself.
        resume: Whether an earlier record may be continued.
        kind: `evaluation`, or another word for what is recorded.

    Raises:
        ConfigurationError: There is a record, and it may not be continued or is of another kind.
    """
    if not holds_run(folder):
        Recorder(folder).start({"kind": kind, **about})
        return None
    if not resume:
        raise ConfigurationError(holds_already(folder))
    meta = read_run(folder).meta
    if meta.get("kind") != kind:
        raise ConfigurationError(f"{folder} holds another record: not of kind {kind!r}")
    return meta


def _begin(folder: Path, about: dict[str, Any], resume: bool) -> None:
    meta = begun(folder, about, resume, KIND)
    if meta is None:
        return
    before, now = meta.get("settings", {}), about.get("settings", {})
    compared = {**now, **{key: before[key] for key in _extended(before, now)}}
    check_same(
        folder,
        {"settings": before, **{key: meta.get(key, {}) for key in ("model", "versions")}},
        {"settings": compared, **{key: about.get(key, {}) for key in ("model", "versions")}},
    )
    if compared != now:
        Recorder(folder).start({**meta, **about})


def _extended(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return the settings that ask for all of the earlier episodes and possibly for more."""
    found = []
    if before.get("samples", 1) <= now.get("samples", 1):
        found.append("samples")
    if covers(now.get("tasks", []), before.get("tasks", [])):
        found.append("tasks")
    if before.get("judge", {}).items() <= now.get("judge", {}).items():
        found.append("judge")
    return [key for key in found if key in before]


def _kept(folder: Path, earlier: Callable[[EpisodeRecord], None]) -> set[tuple[str, int, int]]:
    """Return the keys of the valid episodes; set aside the failed ones, which are played again."""
    path, aside = folder / EPISODES, folder / REPLACED[1]
    keys: set[tuple[str, int, int]] = set()
    failed = set()
    for number, record in enumerate(read_episodes(path)):
        earlier(record)
        if record.trajectory.valid:
            keys.add((record.split, record.trajectory.task.seed, record.notes.get("sample", 0)))
        else:
            failed.add(number)
    if failed:
        partial = path.with_suffix(".partial")
        drop_torn_line(aside)
        with path.open("rb") as old, partial.open("wb") as kept, aside.open("ab") as end:
            for number, line in enumerate(filter(bytes.strip, old)):
                (end if number in failed else kept).write(line)
        partial.replace(path)
    return keys


def _check_known(folder: Path, done: set[tuple[str, int, int]], wanted: Sequence[Play]) -> None:
    unknown = done - {each.key for each in wanted}
    if unknown:
        raise RecordError(f"{folder / EPISODES} has episodes of other tasks: {min(unknown)}")


def write_metrics(recorder: Recorder, splits: Iterable[str]) -> None:
    """Write a line of metrics for each environment, by the splits of the record."""
    for split in splits:
        counted, known = [], []
        for record in read_episodes(recorder.folder / EPISODES, split):
            counted.append(_counted(record.trajectory))
            tokens = note_of(record, "reply_tokens")
            if tokens is not None and record.trajectory.valid:
                known.append(tokens)
        metrics = episode_metrics(counted)
        # The turns have no tokens; the server may have counted them.
        for name in ("sampled_tokens", "tokens_per_episode"):
            metrics.pop(name, None)
        if known:
            metrics["sampled_tokens"] = float(sum(known))
            metrics["tokens_per_episode"] = sum(known) / len(known)
        recorder.metrics(0, metrics, split)


def _counted(trajectory: Trajectory) -> PackedTrajectory:
    """Return an episode without its turns: all of an evaluation need not fit into memory."""
    names = [each.name for each in fields(PackedTrajectory) if each.name not in ("layout", "data")]
    numbers = {name: getattr(trajectory, name) for name in names}
    return PackedTrajectory(**numbers, layout={}, data=b"")
