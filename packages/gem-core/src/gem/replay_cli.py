"""The command `replay`: shows recorded episodes, or replays and compares them."""

from __future__ import annotations

import argparse
from pathlib import Path

from gem.contract import shown
from gem.errors import ConfigurationError
from gem.replay import difference
from gem.training.record import EPISODES, EpisodeRecord, read_episodes


def replay(arguments: argparse.Namespace) -> int:
    """Show or verify recorded episodes; return the exit status, 1 if an episode differs."""
    path = Path(arguments.file)
    path = path / EPISODES if path.is_dir() else path
    if not path.exists():
        raise ConfigurationError(f"{path} does not exist")
    seen = verified = failed = different = 0
    for number, record in enumerate(read_episodes(path)):
        seen += 1
        if arguments.episode is not None and number != arguments.episode:
            continue
        if not arguments.verify:
            _show_episode(number, record)
            if arguments.episode is None:
                return 0
            continue
        if not record.trajectory.valid:
            failed += 1
            continue
        verified += 1
        complaint = _complaint(record)
        if complaint:
            different += 1
            task = record.trajectory.task
            print(f"episode {number}, {task.env_id}, seed {task.seed}: {complaint}")
            if not arguments.keep_going:
                break
    if not seen:
        raise ConfigurationError(f"{path} holds no episode")
    if arguments.episode is not None and not 0 <= arguments.episode < seen:
        raise ConfigurationError(
            f"{path} has {seen} episode{'s' if seen > 1 else ''}, counted from 0; "
            f"there is no {arguments.episode}"
        )
    if arguments.verify:
        skipped = f", {failed} failed ones not compared" if failed else ""
        print(f"{verified - different} of {verified} episodes are the same again{skipped}")
    return 1 if different else 0


def _complaint(record: EpisodeRecord) -> str:
    """Return how a recorded episode differs from its replay, "" if it does not."""
    was, now = record.fingerprint, record.trajectory.fingerprint
    if was is not None and (was.key, was.outcome) != (now.key, now.outcome):
        return f"the record was changed: its fingerprint is {was}, its content's {now}"
    found = difference(record.trajectory)
    if found is None:
        return ""
    old = was is not None and was.version != now.version
    return f"{found}" + (f"\n  recorded by gem-core {was.version}" if was and old else "")


def _show_episode(number: int, record: EpisodeRecord) -> None:
    trajectory = record.trajectory
    task = trajectory.task
    params = "".join(f", {name}={value!r}" for name, value in task.params.items())
    print(f"episode {number}: {task.env_id}, seed {task.seed}{params}")
    for turn in trajectory.turns:
        print(_printable(f"\n{shown(turn.observation)}\n\n> {turn.text}\n[reward {turn.reward:g}]"))
    if trajectory.final_observation is not None:
        print(_printable(f"\n{shown(trajectory.final_observation)}"))
    why = f": {trajectory.failure.message}" if trajectory.failure else ""
    turns, total = len(trajectory.turns), trajectory.total_reward
    print(_printable(f"\n{trajectory.end} after {turns} turn(s), return {total:g}{why}"))
    print(f"fingerprint {trajectory.fingerprint}")


def _printable(text: str) -> str:
    # A policy's text may hold lone surrogates, which cannot be encoded.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
