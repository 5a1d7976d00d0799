"""The commands `info` and `check` of `python -m gem`."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gem import registry
from gem.__main__ import add_param, at_least
from gem.__main__ import parameters as given_parameters
from gem.core import Env
from gem.describing import description, parameters
from gem.envs.datasets import SingleTurnEnv
from gem.errors import ConfigurationError, UnknownParameterError
from gem.foreign import contained
from gem.making import make
from gem.seat import Seat
from gem_check.checker import named
from gem_check.offline import replacements
from gem_check.playing import oracle_policy, play, random_policy
from gem_check.subject import describe
from gem_check.suite import check_many, to_json
from gem_check.transcripts import transcript

_WIDTH = 100
# Most turns played of the example episode.
_MAX_STEPS = 1_200


def info(argv: Sequence[str]) -> int:
    """Print an id's description, parameters, limits and an example episode; return 0.

    Raises:
        GemError: The id or a parameter is unknown.
    """
    about = "describe an environment: parameters, limits, an example episode"
    parser = argparse.ArgumentParser(prog="python -m gem info", description=about)
    parser.add_argument("id", help="environment id")
    add_param(parser.add_argument)
    arguments = parser.parse_args(argv)
    id = arguments.id
    spec = registry.spec(id)
    entry_point = spec.load()
    name = getattr(entry_point, "__name__", repr(entry_point))
    print(f"{id}: {name} of {getattr(entry_point, '__module__', '?')}\n")
    print(description(entry_point) or "no description")
    print("\nparameters")
    for parameter in parameters(entry_point):
        kind = f": {parameter.type}" if parameter.type else ""
        value = f" = {parameter.default}" if parameter.default else ""
        if parameter.name in spec.kwargs:
            value = f" = {spec.kwargs[parameter.name]!r}"
            value += f" (else {parameter.default})" if parameter.default else ""
        print(f"  {parameter.name}{kind}{value}")
        if parameter.meaning:
            print(textwrap.indent(textwrap.fill(parameter.meaning, _WIDTH - 6), " " * 6))
    _example(id, given_parameters(arguments.param))
    return 0


def _example(id: str, given: Mapping[str, Any]) -> None:
    replaced = replacements(id, given)
    used = {**{one.name: one.used for one in replaced}, **given}
    with_what = f" with {', '.join(map(str, replaced))}" if replaced else ""
    try:
        with make(id, **used) as env:
            env.reset(seed=0)
            print(f"\nlimits\n{textwrap.indent(_limits(env), '  ')}")
            for policy in (oracle_policy, random_policy):
                try:
                    episode = play(env, policy, _MAX_STEPS, 0)
                except NotImplementedError:
                    continue
                player = "the oracle" if policy is oracle_policy else "random play"
                print(f"\nexample: seed 0{with_what}, played by {player}\n\n{transcript(episode)}")
                return
            print("\nexample: none, it has neither oracle_action() nor sample_random_action()")
    except BaseException as raised:
        error = contained(raised)
        if given and isinstance(error, ConfigurationError | UnknownParameterError):
            raise
        # `info` must work where the environment's packages or servers are missing.
        print(f"\nexample: none{with_what}: {describe(error)}")


def _limits(env: Env) -> str:
    turns = 1 if isinstance(env.unwrapped, SingleTurnEnv) else getattr(env, "max_turns", None)
    lines = ["turns: no limit declared" if turns is None else f"turns: at most {turns}"]
    if type(env.unwrapped).oracle_action is Env.oracle_action:
        return "\n".join([*lines, "oracle: none"])
    if isinstance(env.unwrapped, Seat):
        return "\n".join([*lines, f"oracle: best known play against {env.unwrapped.opponent}"])
    share = float(env.unwrapped.oracle_success)
    which = "wins every start" if share == 1 else f"wins {share:.2f} of such starts"
    return "\n".join([*lines, f"oracle: {which}"])


def check(argv: Sequence[str]) -> int:
    """Check environments; return the exit status, 1 if one failed or none could run.

    Raises:
        GemError: An id, a parameter or the name of a check is unknown.
    """
    arguments = _parser().parse_args(argv)
    given = given_parameters(arguments.param)
    ids = registry.list_envs() if arguments.all else arguments.ids
    if not ids:
        raise ConfigurationError("check needs at least one id, or --all")
    _ = named(arguments.only, "--only")
    for id in ids:
        _ = registry.spec(id)
        if given:
            make(id, **given).close()
    if arguments.json:
        # An unwritable path fails now, not after all the checks.
        try:
            Path(arguments.json).touch()
        except OSError as error:
            raise ConfigurationError(f"--json: {error}") from error
    outcomes = []
    names = ("episodes", "cpu_s", "max_return", "only")
    options = {name: getattr(arguments, name) for name in names}
    for outcome in check_many(ids, jobs=arguments.jobs, params=given, **options):
        outcomes.append(outcome)
        report = outcome.report
        if report is None:
            print(f"{outcome.env}: not run: {outcome.not_run}")
        elif len(ids) == 1:
            print(report)
        else:
            print("\n".join(filter(None, (report.head, report.table("failed", "warning")))))
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
    return 0 if reports and not failed else 1


def _parser() -> argparse.ArgumentParser:
    about = "check that environments keep their promises"
    parser = argparse.ArgumentParser(prog="python -m gem check", description=about)
    add = parser.add_argument
    add("ids", nargs="*", metavar="id", help="environment ids")
    add("--all", action="store_true", help="check every registered id")
    add("--episodes", type=at_least(int, 1), default=32, help="per policy (default: 32)")
    about = "CPU seconds per policy; slow environments play fewer episodes (default: 0.25)"
    add("--cpu-s", type=at_least(float, 0), default=0.25, metavar="S", help=about)
    about = "most that an episode may pay (default: 1)"
    add("--max-return", type=float, default=1.0, metavar="R", help=about)
    about = "run this check alone; repeatable"
    add("--only", action="append", default=[], metavar="CHECK", help=about)
    add("--jobs", type=at_least(int, 1), default=1, metavar="N", help="processes")
    add("--json", metavar="FILE", help="also write the reports to FILE")
    add_param(add)
    return parser
