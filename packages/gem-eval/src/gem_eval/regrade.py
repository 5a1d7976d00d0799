"""`gem eval regrade`: scores a record again with today's environments and graders, no model.

The recorded replies are given to new environments with the recorded seeds and parameters.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gem import version
from gem.__main__ import at_least
from gem.errors import ConfigurationError
from gem.executors.named import NAMES, check_name
from gem.replay import same
from gem.tasks import Task, TaskSet
from gem.trajectory import Trajectory
from gem_eval import __version__
from gem_eval.client import Message, Reply
from gem_eval.episode import play
from gem_eval.numbers import read_summary
from gem_eval.players import Tools
from gem_eval.runner import KIND, Limits, holds_run, side_by_side, write_metrics
from gem_eval.server import ContextOverflowError, ServerError
from gem_eval.tables import FORMATS, of_summary
from gem_eval.tasks import Part, Play
from gem_train.folders import alone
from gem_train.record import EpisodeRecord, Recorder, read_run


@dataclass
class Changes:
    """How a record differs from the one that it was made from; all are numbers of episodes."""

    episodes: int = 0
    """Valid ones of the earlier record, which the others are among."""
    gained: int = 0
    """Succeed now and did not."""
    lost: int = 0
    """Succeeded and do not now."""
    returns: int = 0
    """Have another return."""
    void: int = 0
    """Void now: the environment failed, or needs a reply that is not recorded."""
    shown: int = 0
    """The environment says something else before a reply than what the model replied to."""

    def add(self, old: Trajectory, new: Trajectory) -> None:
        """Count a valid episode and what it is now."""
        self.episodes += 1
        self.void += not new.valid
        if not new.valid:
            return
        self.gained += new.success > old.success
        self.lost += new.success < old.success
        self.returns += new.total_reward != old.total_reward
        pairs = zip(new.turns, old.turns, strict=False)
        self.shown += not all(same(a.observation, b.observation) for a, b in pairs)

    def __str__(self) -> str:
        lines = [
            f"{self.episodes} episodes: success changed in {self.gained + self.lost} "
            f"({self.gained} gained, {self.lost} lost), return in {self.returns}"
        ]
        if self.void:
            lines.append(
                f"{self.void} are void now: their environment failed, or it goes on where no "
                "reply is recorded; --resume with the model plays them again"
            )
        if self.shown:
            lines.append(
                f"in {self.shown} the environment says something else than what the model "
                "replied to: a model that sees it may reply otherwise"
            )
        return "\n".join(lines)


def regrade(folder: Path, out: Path, limits: Limits | None = None) -> Changes:
    """Write a new record of an evaluation, scored again; the old one stays as it is.

    A void episode stays void. An episode ends where its environment says so now, or where the
    recorded budget ended it. One that goes on after the last recorded reply is void (`engine`).

    Args:
        folder: The record of an evaluation.
        out: Folder of the new record, which must hold none.
        limits: `concurrency`, `retries`, `step_timeout_s` and `executor` count.

    Raises:
        ConfigurationError: The folder holds no evaluation, `out` holds a record, or an environment
            or parameter is not known any more.
        RecordError: A record cannot be read or written.
    """
    limits = limits or Limits()
    run = read_run(folder)
    if run.meta.get("kind") != KIND:
        raise ConfigurationError(f"{folder} holds no evaluation")
    changes = Changes()
    with alone(out):
        if holds_run(out):
            raise ConfigurationError(f"{out} holds a run already; --out names another folder")
        recorder = Recorder(out)
        versions = {"gem-core": version.__version__, "gem-eval": __version__}
        origin = {"folder": folder.name, "versions": run.meta.get("versions", {})}
        recorder.start({**run.meta, "versions": versions, "regraded": origin})

        async def one(record: EpisodeRecord) -> None:
            old = record.trajectory
            new, calls = await _again(record, limits) if old.valid else (old, None)
            if old.valid:
                changes.add(old, new)
            notes = record.notes if calls is None else {**record.notes, "calls": calls}
            recorder.episodes(record.iteration, [new], split=record.split, notes=[notes])

        asyncio.run(side_by_side(run.episodes(), limits.concurrency, one))
        write_metrics(recorder, run.meta.get("parts", []))
    return changes


async def _again(record: EpisodeRecord, limits: Limits) -> tuple[Trajectory, list[object]]:
    """Return an episode as it is scored now, and the calls of its turns."""
    old, task = record.trajectory, record.trajectory.task
    part = Part(record.split, TaskSet(task.env_id, 1, task.seed, task.params))
    played = await play(
        Play(part, task, old.group, record.notes.get("sample", 0)),
        _Recorded(record),
        turns=len(old.turns) if old.end == "turn_budget" else None,
        retries=limits.retries,
        step_timeout_s=limits.step_timeout_s,
        executor=limits.executor,
    )
    now = played.trajectory
    turns = [
        replace(
            was,
            observation=turn.observation,
            reward=turn.reward,
            terminated=turn.terminated,
            truncated=turn.truncated,
            info=turn.info,
        )
        for was, turn in zip(old.turns, now.turns, strict=False)
    ]
    new = replace(
        old,
        turns=turns,
        end=now.end,
        final_observation=now.final_observation,
        failure=now.failure,
    )
    return new, list(played.notes)


class _Recorded:
    """Replies what is recorded of one episode."""

    def __init__(self, record: EpisodeRecord) -> None:
        self._old = record.trajectory
        self._calls = record.notes.get("calls", [])

    def prepared(self, task: Task) -> Task:
        return task

    async def reply(self, messages: Sequence[Message], tools: Tools = ()) -> Reply:
        number = sum(message["role"] == "assistant" for message in messages)
        if number < len(self._old.turns):
            turn = self._old.turns[number]
            note = self._calls[number] if number < len(self._calls) else {}
            return Reply(turn.text, turn.stop_reason, note)
        if self._old.end == "token_budget":
            raise ContextOverflowError("as recorded")
        raise ServerError(f"no reply is recorded after turn {number}, where the episode goes on")


def main(argv: Sequence[str]) -> int:
    """Run `gem eval regrade`; return 0."""
    parser = argparse.ArgumentParser(
        prog="gem eval regrade",
        description="Score a record again with today's environments and graders, without a model.",
    )
    add = parser.add_argument
    add("folder", type=Path, metavar="FOLDER", help="record of an evaluation; it stays as it is")
    add("--out", type=Path, metavar="DIR", help="folder of the new record (FOLDER-regraded)")
    add("--format", choices=sorted(FORMATS), default="text", help="of the table")
    about = "most episodes at a time (16)"
    add("--concurrency", type=at_least(int, 1), default=16, metavar="N", help=about)
    add("--executor", default="thread", help=f"where environments run: {NAMES} (thread)")
    about = "further attempts of an episode whose environment failed (1)"
    add("--retries", type=at_least(int, 0), default=1, metavar="N", help=about)
    about = "limit of one reset or step of an environment (600)"
    add("--step-timeout-s", type=at_least(float, 0.001), default=600.0, metavar="S", help=about)
    args = parser.parse_args(argv)
    check_name(args.executor)
    folder = args.folder
    out = args.out or folder.with_name(f"{folder.resolve().name}-regraded")
    limits = Limits(
        concurrency=args.concurrency,
        retries=args.retries,
        step_timeout_s=args.step_timeout_s,
        executor=args.executor,
    )
    changes = regrade(folder, out, limits)
    print(FORMATS[args.format](of_summary(read_summary(out))))
    print(f"{changes}\nevery episode: {out}", file=sys.stderr)
    return 0
