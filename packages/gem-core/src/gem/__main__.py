"""The command line: list, play and check environments, replay episodes, search passages."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gem.core import Env, Observation
from gem.errors import ConfigurationError, GemError
from gem.registry import list_envs, make, spec

if TYPE_CHECKING:
    from gem.record import EpisodeRecord

_EXAMPLES = """examples:
  python -m gem list game:
  python -m gem play game:GuessTheNumber-v0-easy --param hint=range
  python -m gem play game:Wordle-v0 --policy oracle
  python -m gem check --all --json report.json
  python -m gem replay runs/demo/verl --verify
  python -m gem doctor --audit bwrap
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status: 0 fine, 1 failed or no match, 2 misuse."""
    parser = argparse.ArgumentParser(
        prog="python -m gem",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    lister = commands.add_parser("list", help="print environment ids")
    lister.add_argument("prefix", nargs="?", default="", help="only ids that start with this")
    lister.set_defaults(run=_list)

    player = commands.add_parser("play", help="play one episode in the terminal")
    player.add_argument("id", help="environment id")
    player.add_argument("--seed", type=int, help="seed of the episode (default: a new one)")
    player.add_argument("--policy", choices=["oracle", "random"], help="let a policy play")
    player.add_argument(
        "--raw", action="store_true", help="send lines as typed, do not put them into \\boxed{}"
    )
    _add_param(player)
    player.set_defaults(run=_play)

    checker = commands.add_parser("check", help="check that environments keep their promises")
    checker.add_argument("ids", nargs="*", metavar="id", help="environment ids")
    checker.add_argument("--all", action="store_true", help="check every registered id")
    checker.add_argument("--episodes", type=_positive, default=32, help="per policy (default: 32)")
    checker.add_argument(
        "--cpu-s",
        type=float,
        default=0.25,
        metavar="S",
        help="CPU seconds per policy; slow environments play fewer episodes (default: 0.25)",
    )
    checker.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="CHECK",
        help="run this check alone; repeatable",
    )
    checker.add_argument("--jobs", type=_positive, default=1, metavar="N", help="processes")
    checker.add_argument("--json", metavar="FILE", help="also write the reports to FILE")
    _add_param(checker)
    checker.set_defaults(run=_check)

    replayer = commands.add_parser("replay", help="show recorded episodes, or play them again")
    replayer.add_argument("file", metavar="FILE", help="an episodes.jsonl, or a run's folder")
    replayer.add_argument("--episode", type=int, metavar="N", help="only this one, from 0")
    replayer.add_argument(
        "--verify", action="store_true", help="play the actions again and compare every step"
    )
    replayer.add_argument(
        "--keep-going", action="store_true", help="do not stop at the first difference"
    )
    replayer.set_defaults(run=_replay)

    doctor = commands.add_parser("doctor", help="what programs of a policy can run in here")
    doctor.add_argument(
        "--audit",
        nargs="*",
        metavar="EXECUTOR",
        help="attack these executors (default: all that isolate) and print what came of it",
    )
    doctor.set_defaults(run=_doctor)

    _add_search(commands)

    arguments = parser.parse_args(argv)
    try:
        status: int = arguments.run(arguments)
        sys.stdout.flush()
    except (GemError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            # The reader of our output (head, for instance) has seen enough. Python would
            # complain once more when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    return status


def _add_search(commands: Any) -> None:
    searcher = commands.add_parser("search", help="build, try or serve a search index")
    actions = searcher.add_subparsers(dest="action", required=True, metavar="ACTION")

    builder = actions.add_parser("build", help="index a JSON lines file of passages")
    builder.add_argument("corpus", metavar="FILE", help="lines with 'title' and 'text'")
    builder.add_argument("out", metavar="FOLDER", help="where the index is written")
    builder.add_argument(
        "--skip-broken", action="store_true", help="leave out lines that are no passages"
    )

    asker = actions.add_parser("query", help="print what an index finds")
    asker.add_argument("index", metavar="INDEX", help="folder, JSON lines file, or sample")
    asker.add_argument("query", metavar="QUERY")
    asker.add_argument("--topk", type=_positive, default=3)

    server = actions.add_parser("serve", help="answer search tools over HTTP")
    server.add_argument("index", metavar="INDEX", help="folder, JSON lines file, or sample")
    server.add_argument("--host", default="127.0.0.1", help="default: this machine only")
    server.add_argument("--port", type=int, default=8000)
    searcher.set_defaults(run=_search)


def _add_param(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--param",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="environment parameter; VALUE is JSON (3, true, null) or else text; repeatable",
    )


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def _params(pairs: Sequence[str]) -> dict[str, Any]:
    params: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise ConfigurationError(f"--param needs NAME=VALUE, got {pair!r}")
        try:
            params[name] = json.loads(value)
        except json.JSONDecodeError:
            params[name] = value
    return params


def _list(arguments: argparse.Namespace) -> int:
    ids = list_envs(arguments.prefix)
    if not ids:
        print(f"no environment id starts with {arguments.prefix!r}", file=sys.stderr)
        return 1
    print("\n".join(ids))
    return 0


def _play(arguments: argparse.Namespace) -> int:
    with make(arguments.id, **_params(arguments.param)) as env:
        observation, _ = env.reset(seed=arguments.seed)
        seed, _ = env.episode_key
        print(f"{arguments.id}, seed {seed}\n\n{_shown(observation)}")
        next_action = _policy(arguments, env)
        total, turns = 0.0, 0
        while True:
            action = next_action()
            if action is None:
                print(f"\nstopped after {turns} turn(s), return {total:g}")
                return 0
            observation, reward, terminated, truncated, info = env.step(action)
            total, turns = total + reward, turns + 1
            print(f"\n{_shown(observation)}\n[reward {reward:g}]")
            if terminated or truncated:
                won = bool(info.get("success", info.get("correct", False)))
                result = "won" if won else "out of turns" if truncated else "lost"
                print(f"{result} after {turns} turn(s), return {total:g}")
                return 0


def _policy(arguments: argparse.Namespace, env: Env) -> Callable[[], str | None]:
    """Return what gives the next action, or None when there will be none."""

    def show(action: str) -> str:
        print(f"\n> {action}")
        return action

    def ask() -> str | None:
        try:
            line = input("\n> ")
        except EOFError:
            return None
        return line if arguments.raw or "\\boxed{" in line else f"\\boxed{{{line}}}"

    if arguments.policy == "oracle":
        return lambda: show(env.oracle_action())
    if arguments.policy == "random":
        return lambda: show(env.sample_random_action())
    return ask


def _shown(observation: Observation) -> str:
    if isinstance(observation, str):
        return observation
    return "\n".join(part.get("text", f"[{part.get('type')}]") for part in observation)


def _check(arguments: argparse.Namespace) -> int:
    # Only this command pays for it.
    from gem.testing.suite import check_many, to_json

    ids = list_envs() if arguments.all else arguments.ids
    if not ids:
        raise ConfigurationError("check needs at least one id, or --all")
    params = _params(arguments.param)
    for id in ids:
        _ = spec(id)
        if params:
            make(id, **params).close()
    if arguments.json:
        # Fails now, not after all the checks, where nothing can be written.
        Path(arguments.json).touch()
    outcomes = []
    options = {
        "episodes": arguments.episodes,
        "cpu_s": arguments.cpu_s,
        "only": arguments.only,
    }
    for outcome in check_many(ids, jobs=arguments.jobs, params=params, **options):
        outcomes.append(outcome)
        report = outcome.report
        if report is None:
            print(f"{outcome.env}: not run: {outcome.not_run}", flush=True)
        elif len(ids) == 1:
            print(report, flush=True)
        else:
            print(report.head if report.passed else f"{report.head}\n{report.table('failed')}")
            sys.stdout.flush()
    if arguments.json:
        Path(arguments.json).write_text(to_json(outcomes), encoding="utf-8")
    reports = [outcome.report for outcome in outcomes if outcome.report is not None]
    failed = [report.env for report in reports if not report.passed]
    if len(ids) > 1:
        passed, idle = len(reports) - len(failed), len(outcomes) - len(reports)
        print(f"{passed} ok, {len(failed)} failed, {idle} not run")
    if failed:
        print(f"{len(failed)} of {len(reports)} failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _search(arguments: argparse.Namespace) -> int:
    from gem.tools import search_cli

    status: int = getattr(search_cli, arguments.action)(arguments)
    return status


def _replay(arguments: argparse.Namespace) -> int:
    from gem.record import EPISODES, read_episodes

    path = Path(arguments.file)
    path = path / EPISODES if path.is_dir() else path
    if not path.exists():
        raise ConfigurationError(f"{path} does not exist")
    verified, failed, different = 0, 0, 0
    seen = 0
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
    if arguments.episode is not None and not 0 <= arguments.episode < seen:
        raise ConfigurationError(f"{path} has {seen} episodes, there is no {arguments.episode}")
    if arguments.verify:
        skipped = f", {failed} failed ones not compared" if failed else ""
        print(f"{verified - different} of {verified} episodes are the same again{skipped}")
    return 1 if different else 0


def _doctor(arguments: argparse.Namespace) -> int:
    from gem import doctor
    from gem.sandbox import EXECUTORS

    if arguments.audit is None:
        return 0 if doctor.executors() else 1
    unknown = [name for name in arguments.audit if name not in EXECUTORS]
    if unknown:
        raise ConfigurationError(
            f"--audit takes {', '.join(EXECUTORS)}, there is no {', '.join(unknown)}"
        )
    return 0 if doctor.table(arguments.audit) else 1


def _complaint(record: EpisodeRecord) -> str:
    """Return what is wrong with a recorded episode, "" if it is the same again."""
    from gem.replay import difference

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
        print(
            _printable(f"\n{_shown(turn.observation)}\n\n> {turn.text}\n[reward {turn.reward:g}]")
        )
    if trajectory.final_observation is not None:
        print(_printable(f"\n{_shown(trajectory.final_observation)}"))
    why = f": {trajectory.failure.message}" if trajectory.failure else ""
    turns, total = len(trajectory.turns), trajectory.total_reward
    print(_printable(f"\n{trajectory.end} after {turns} turn(s), return {total:g}{why}"))
    print(f"fingerprint {trajectory.fingerprint}")


def _printable(text: str) -> str:
    # A policy may say what no terminal can show, such as half a surrogate pair.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


if __name__ == "__main__":
    sys.exit(main())
