"""The command line: list and play environments, search, and what packages add."""

from __future__ import annotations

import argparse
import io
import math
import os
import sys
import textwrap
import traceback
import warnings
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from importlib.metadata import entry_points
from typing import Any

from gem.contract import shown, succeeded
from gem.core import Env
from gem.errors import ConfigurationError, GemError
from gem.foreign import ForeignExitError, contained
from gem.making import make
from gem.parts import HUB, SAMPLE, missing, needed
from gem.plugins import entry_point
from gem.registry import list_envs, spec
from gem.specs import imported
from gem.tables import json_or_text

_EXAMPLES = """examples:
  python -m gem list -l game:
  python -m gem info game:Wordle-v0-easy
  python -m gem play game:GuessTheNumber-v0-easy --param hint=range
  python -m gem play game:Wordle-v0 --policy oracle
  python -m gem check --all --json report.json
  python -m gem replay runs/demo/verl --verify
  python -m gem doctor --audit bwrap
  python -m gem judge check spec.toml
  python -m gem serve --port 8000 --ids 'game:*'
"""


COMMANDS = "gem.commands"
"""Entry-point group of further commands: functions that take the arguments after the command's name
and return the exit status. They are imported when they are called."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status: 0 fine, 1 failed or no match, 2 misuse."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        entry = entry_point(COMMANDS, words[0], "command") if words else None
        said = missing("command", words[0]) if words and entry is None else None
    except ConfigurationError as error:
        said = str(error)
    if said:
        print(f"error: {said}", file=sys.stderr)
        return 2
    if entry is not None:
        return guarded(lambda: entry.load()(words[1:]), parses=entry.value.partition(".")[0])
    parser = argparse.ArgumentParser(
        prog="python -m gem",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    add = _command(commands, "list", _list, "print environment ids")
    add(
        "pattern",
        nargs="?",
        default="",
        metavar="PATTERN",
        help="only ids that contain this, or match it where it has * or ?; case does not count",
    )
    add("-l", "--long", action="store_true", help="with a line about each: what it is, parameters")

    add = _command(commands, "play", _play, "play one episode in the terminal")
    add("id", help="environment id")
    add("--seed", type=int, help="seed of the episode (default: a new one)")
    add("--policy", choices=["oracle", "random"], help="let a policy play")
    add("--raw", action="store_true", help="send lines as typed, do not put them into \\boxed{}")
    add_param(add)

    _add_search(commands)

    for name, other in sorted({each.name: each for each in entry_points(group=COMMANDS)}.items()):
        package = other.value.partition(".")[0].replace("_", "-")
        commands.add_parser(name, help=f"of the package {package}", add_help=False)

    arguments = parser.parse_args(words)

    def run() -> int:
        if "param" in arguments:
            arguments.param = parameters(arguments.param)
        run = arguments.run
        status: int = (imported(run) if isinstance(run, str) else run)(arguments)
        return status

    return guarded(run)


def guarded(run: Callable[[], int], parses: str | None = None) -> int:
    """Run a command; return its exit status, or 2 after the message of an error, 130 after Ctrl-C.

    Warnings are printed without their place, and a closed pipe is no error. What an environment or
    a tool raises to end the program, such as `SystemExit`, is an error, with status 1.

    Args:
        run: The command.
        parses: The package that parses arguments in `run`: its parser may end the program, as
            argparse does after `--help`.
    """
    show_any_text()
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            status = _contained(run, parses)
        sys.stdout.flush()
    except ForeignExitError as error:
        print(f"error: an environment or a tool raised {error}", file=sys.stderr)
        return 1
    except (GemError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            # The reader of the pipe (head, for instance) closed it. Without this, Python would
            # fail again when it flushes stdout at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    return status


def _contained(run: Callable[[], int], parses: str | None) -> int:
    """Run a command whose environments must not choose the exit status."""
    try:
        return run()
    except (KeyboardInterrupt, Exception):
        raise
    except BaseException as error:
        if isinstance(error, SystemExit) and _is_parsers(error, parses):
            raise
        raise contained(error) from error


def _is_parsers(error: SystemExit, package: str | None) -> bool:
    """Whether the parser of a package's command ended the program.

    An environment may call argparse, too: below this file, all code that was running is the
    package's or argparse's.
    """
    running = [frame.f_globals for frame, _ in traceback.walk_tb(error.__traceback__)]
    names = {str(each["__name__"]).partition(".")[0] for each in running if each is not globals()}
    return names == {"argparse", package}


def show_any_text() -> None:
    """Let the standard streams print what they cannot encode as escapes, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    # Without the source line that Python would add, which means nothing to a user.
    print(f"warning: {message}", file=sys.stderr)


def _command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], int] | str, help: str
) -> Any:
    """Add a command; return the function that adds its arguments.

    Args:
        commands: What `add_subparsers` returned.
        name: The command.
        run: Called with the parsed arguments, returns the exit status; as `module:function` it is
            imported when the command runs, as the other commands do not need it.
        help: What the command does.
    """
    added = commands.add_parser(name, help=help)
    added.set_defaults(run=run)
    return added.add_argument


def _add_search(commands: Any) -> None:
    searcher = commands.add_parser("search", help="build, try or serve a search index")
    actions = searcher.add_subparsers(dest="action", required=True, metavar="ACTION")

    add = _command(
        actions, "build", "gem.tools.search_cli:build", "index a JSON lines file of passages"
    )
    add("corpus", metavar="FILE", help="lines with 'title' and 'text'")
    add("out", metavar="FOLDER", help="where the index is written")
    add("--skip-broken", action="store_true", help="leave out lines that are no passages")

    index = "folder, JSON lines file, or sample"
    add = _command(actions, "query", "gem.tools.search_cli:query", "print what an index finds")
    add("index", metavar="INDEX", help=index)
    add("query", metavar="QUERY")
    add("--topk", type=at_least(int, 1), default=3)

    add = _command(actions, "serve", "gem.tools.search_cli:serve", "answer search tools over HTTP")
    add("index", metavar="INDEX", help=index)
    add("--host", default="127.0.0.1", help="default: this machine only")
    add("--port", type=int, default=8000)


def add_param(add: Callable[..., Any]) -> None:
    """Add `--param`; `parameters` reads its values."""
    add(
        "--param",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="environment parameter; VALUE is JSON (3, true, null) or else text; repeatable",
    )


def at_least(kind: type[float], least: float) -> Callable[[str], float]:
    """Return a function that parses a finite number from `least` on; `int` is a kind, too."""

    def number(text: str) -> float:
        parsed = kind(text)
        if not least <= parsed < math.inf:
            raise argparse.ArgumentTypeError(f"must be {least} or more, got {text}")
        return parsed

    return number


def parameters(pairs: Sequence[str]) -> dict[str, Any]:
    """Return the parameters of `--param NAME=VALUE`.

    Raises:
        ConfigurationError: An argument is something else.
    """
    params: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise ConfigurationError(f"--param needs NAME=VALUE, got {pair!r}")
        params[name] = json_or_text(value)
    return params


def _list(arguments: argparse.Namespace) -> int:
    pattern = arguments.pattern.casefold()
    wild = pattern if set("*?[") & set(pattern) else f"*{pattern}*"
    ids = [id for id in list_envs() if fnmatch(id.casefold(), wild)]
    if not ids:
        print(f"no environment id contains or matches {arguments.pattern!r}", file=sys.stderr)
        return 1
    if not arguments.long:
        # Another program reads ids alone.
        mark = _needed if sys.stdout.isatty() else lambda id: ""
        print("\n".join(id + mark(id) for id in ids))
        return 0
    width = max(map(len, ids))
    for id in ids:
        print(f"{id:<{width}}  {_line(id)}{_needed(id)}")
    return 0


def _needed(id: str) -> str:
    """Return what has to be installed for an id, as the end of its line."""
    extra = needed(id, spec(id).kwargs.get("source"))
    if not extra:
        return ""
    instead = f" or --param {SAMPLE}" if extra == HUB[0] else ""
    return f"  (needs 'gem-core[{extra}]'{instead})"


def _line(id: str) -> str:
    """Return what `list -l` says of an id: the summary of its class, and the id's parameters."""
    # Imported here: a list without `-l` does not need it.
    from gem.describing import summary

    env = spec(id)
    try:
        told = summary(env.load()) or "no description"
    except (ImportError, AttributeError) as error:
        told = f"cannot be imported: {error}"
    given = ", ".join(f"{name}={value!r}" for name, value in env.kwargs.items())
    return textwrap.shorten(f"{told} {given}", 160, placeholder=" ...")


def _play(arguments: argparse.Namespace) -> int:
    with make(arguments.id, **arguments.param) as env:
        observation, _ = env.reset(seed=arguments.seed)
        seed, _ = env.episode_key
        print(f"{arguments.id}, seed {seed}\n\n{shown(observation)}")
        next_action = _policy(arguments, env)
        total, turns = 0.0, 0
        while True:
            action = next_action()
            if action is None:
                print(f"\nstopped after {turns} turn(s), return {total:g}")
                return 0
            observation, reward, terminated, truncated, info = env.step(action)
            total, turns = total + reward, turns + 1
            print(f"\n{shown(observation)}\n[reward {reward:g}]")
            if terminated or truncated:
                won = succeeded(reward, terminated, info)
                result = "won" if won else "out of turns" if truncated else "lost"
                print(f"{result} after {turns} turn(s), return {total:g}")
                return 0


def _policy(arguments: argparse.Namespace, env: Env) -> Callable[[], str | None]:
    """Return a function that returns the next action, or None at the end of the input."""

    def ask() -> str | None:
        try:
            line = input("\n> ")
        except EOFError:
            return None
        action = line if arguments.raw or "\\boxed{" in line else f"\\boxed{{{line}}}"
        if not sys.stdin.isatty():
            # Input from a pipe is not echoed: print the action.
            print(action)
        return action

    if arguments.policy is None:
        return ask
    name = {"oracle": "oracle_action", "random": "sample_random_action"}[arguments.policy]

    def take() -> str:
        try:
            action: str = getattr(env, name)()
        except NotImplementedError:
            raise ConfigurationError(
                f"{arguments.id} has no {name}(), which --policy {arguments.policy} needs; "
                "without --policy you play"
            ) from None
        print(f"\n> {action}")
        return action

    return take


if __name__ == "__main__":
    sys.exit(main())
