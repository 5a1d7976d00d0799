"""The command line: list environments, play one, check some."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gem.core import Env, Observation
from gem.errors import ConfigurationError, GemError
from gem.registry import list_envs, make

_EXAMPLES = """examples:
  python -m gem list game:
  python -m gem play game:GuessTheNumber-v0-easy --param hint=range
  python -m gem play game:Wordle-v0 --policy oracle
  python -m gem check --all --json report.json
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status: 0 fine, 1 checks failed or no match, 2 misuse."""
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
    checker.add_argument("--json", metavar="FILE", help="also write the reports to FILE")
    _add_param(checker)
    checker.set_defaults(run=_check)

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
    from gem.testing import check_env

    ids = list_envs() if arguments.all else arguments.ids
    if not ids:
        raise ConfigurationError("check needs at least one id, or --all")
    params = _params(arguments.param)
    if arguments.json:
        # Fails now, not after all the checks, where nothing can be written.
        Path(arguments.json).touch()
    reports = []
    for id in ids:
        report = check_env(id, episodes=arguments.episodes, **params)
        print(report, flush=True)
        reports.append(report)
    if arguments.json:
        text = ",\n".join(report.to_json() for report in reports)
        Path(arguments.json).write_text(f"[{text}]\n", encoding="utf-8")
    failed = [report.env for report in reports if not report.passed]
    if failed:
        print(f"{len(failed)} of {len(reports)} failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
