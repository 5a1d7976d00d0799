"""The command `replay`: shows recorded episodes, or replays and compares them."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from gem.contract import shown
from gem.errors import ConfigurationError
from gem.multi import make_multi
from gem.replay import difference, match_difference
from gem_train.record import EPISODES, EpisodeRecord, read_episodes


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status."""
    about = "show recorded episodes, or play them again"
    parser = argparse.ArgumentParser(prog="python -m gem replay", description=about)
    add = parser.add_argument
    add("file", metavar="FILE", help="an episodes.jsonl, or a run's folder")
    add("--episode", type=int, metavar="N", help="only this one; the first is 0")
    add("--verify", action="store_true", help="play the actions again and compare every step")
    add("--keep-going", action="store_true", help="do not stop at the first difference")
    return replay(parser.parse_args(argv))


def replay(arguments: argparse.Namespace) -> int:
    """Show or verify recorded episodes; return the exit status, 1 if an episode differs."""
    path = Path(arguments.file)
    path = path / EPISODES if path.is_dir() else path
    if not path.exists():
        raise ConfigurationError(f"{path} does not exist")
    seen = verified = failed = different = partial = 0
    for together in _matches(read_episodes(path)):
        first, seen = seen, seen + len(together)
        wanted = range(first, seen) if arguments.episode is None else [arguments.episode]
        if not set(wanted) & set(range(first, seen)):
            continue
        if not arguments.verify:
            _show_episode(wanted[0], together[wanted[0] - first])
            if arguments.episode is None:
                return 0
            continue
        if not all(record.trajectory.valid for record in together):
            failed += len(together)
            continue
        if not _complete(together):
            partial += len(together)
            continue
        verified += len(together)
        complaint = _complaint(together)
        if complaint:
            different += len(together)
            task = together[0].trajectory.task
            print(f"episode {first}, {task.env_id}, seed {task.seed}: {complaint}")
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
        skipped += f", {partial} of matches with unrecorded agents not compared" if partial else ""
        print(f"{verified - different} of {verified} episodes are the same again{skipped}")
        if not verified:
            raise ConfigurationError(f"{path}: no episode could be compared")
    return 1 if different else 0


def _matches(records: Iterable[EpisodeRecord]) -> Iterator[list[EpisodeRecord]]:
    """Yield records, those of the agents of a match together: they follow each other."""
    together: list[EpisodeRecord] = []
    for record in records:
        trajectory = record.trajectory
        same = together and together[0].trajectory.match == trajectory.match is not None
        if together and (not same or trajectory.agent in [r.trajectory.agent for r in together]):
            yield together
            together = []
        together.append(record)
    if together:
        yield together


def _complete(together: list[EpisodeRecord]) -> bool:
    """Whether all agents of a match are recorded, without whom it cannot be played again."""
    task, agents = together[0].trajectory.task, {r.trajectory.agent for r in together}
    if agents == {None}:
        return True
    with make_multi(task.env_id, **task.params) as game:
        return agents == set(game.agents)


def _complaint(together: list[EpisodeRecord]) -> str:
    """Return how a recorded episode, or match, differs from its replay, "" if it does not."""
    for record in together:
        was, now = record.fingerprint, record.trajectory.fingerprint
        if was is not None and (was.key, was.outcome) != (now.key, now.outcome):
            return f"the record was changed: its fingerprint is {was}, its content's {now}"
    agents = {r.trajectory.agent: r.trajectory for r in together if r.trajectory.agent is not None}
    found = match_difference(agents) if agents else difference(together[0].trajectory)
    was, now = together[0].fingerprint, together[0].trajectory.fingerprint
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
