"""`check_many`: checks many environments; reports those that cannot run on this machine.

for outcome in check_many(gem.list_envs()):
    print(outcome.env, outcome.report or outcome.not_run)
"""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from gem.errors import GemError, MissingExtraError, UnreachableError
from gem.version import __version__
from gem_check.checker import CheckReport, CheckResult, check_env, named
from gem_check.offline import replacements
from gem_check.other_process import OtherProcess
from gem_check.scores import MAX_ORACLE_TOLERANCE, MIN_FLOOR_MARGIN
from gem_check.subject import describe

POLICY_VERSION = "severity-v2"
"""Version of OpenEnv's list from which ids, levels, lanes and severities are taken."""
REPORT_SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Outcome:
    """The outcome of one environment's checks."""

    env: str
    report: CheckReport | None
    """None if the environment could not run here."""
    not_run: str = ""
    """Why it could not run."""
    seconds: float = 0.0
    """Wall-clock time."""


def check_many(
    ids: Sequence[str], *, jobs: int = 1, params: Mapping[str, Any] | None = None, **options: Any
) -> Iterator[Outcome]:
    """Check environments; yield the outcomes in the order of `ids`.

    Built-in dataset ids use their bundled sample, and their programs run without isolation, unless
    `params` has other values; reports name the replaced parameters. All others are checked as
    registered.

    Args:
        ids: Registered ids.
        jobs: Number of processes that check in parallel.
        params: Parameters of all environments.
        **options: See `check_env`.

    Raises:
        ConfigurationError: `only` names an unknown check.
    """
    _ = named(options.get("only", ()))
    check = partial(_check, params=dict(params or {}), options=options)
    if jobs == 1:
        with OtherProcess() as other:
            for id in ids:
                yield check(id, other=other)
        return
    # Fresh interpreters, as forking a process with an environment's threads is unsafe.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=spawn) as pool:
        yield from pool.map(check, ids)


_other_of_this_process = cache(OtherProcess)


def _check(
    id: str, *, params: dict[str, Any], options: dict[str, Any], other: OtherProcess | None = None
) -> Outcome:
    began = time.perf_counter()
    other = other or _other_of_this_process()
    report: CheckReport | None = None
    reason = ""
    try:
        replaced = replacements(id, params)
        given = {**{one.name: one.used for one in replaced}, **params}
        report = check_env(id, other=other, **options, **given)
        report = replace(report, replaced=tuple(map(str, replaced)))
    except (MissingExtraError, UnreachableError) as error:
        reason = describe(error)
    except (GemError, ImportError, AttributeError) as error:
        report = CheckReport(id, [CheckResult("startup", "failed", describe(error))])
    return Outcome(id, report, reason, time.perf_counter() - began)


def to_json(outcomes: Sequence[Outcome]) -> str:
    """Return the outcomes as JSON, with the fields of OpenEnv's reports."""
    reports = [
        {**outcome.report.to_dict(), "seconds": round(outcome.seconds, 2)}
        for outcome in outcomes
        if outcome.report is not None
    ]
    document = {
        "report_schema_version": REPORT_SCHEMA_VERSION,
        "policy_version": POLICY_VERSION,
        "gem_core": __version__,
        "levels_run": [2, 3],
        "bounds": {
            "max_oracle_tolerance": MAX_ORACLE_TOLERANCE,
            "min_floor_margin": MIN_FLOOR_MARGIN,
        },
        "verdict": "pass" if {report["verdict"] for report in reports} == {"pass"} else "fail",
        "reports": reports,
        "not_run": [
            {"target": outcome.env, "reason": outcome.not_run}
            for outcome in outcomes
            if outcome.report is None
        ],
    }
    return json.dumps(document, indent=1) + "\n"
