"""The environment checker: the list of checks, and `check_env`, which runs them.

    print(check_env("game:GuessTheNumber-v0-easy"))

A fault of the environment is reported, never raised. A check that OpenEnv's list (policy
`severity-v2`) has too is also reported under OpenEnv's id, level, lane and severity. Checks of its
hub lane that an oracle can decide run here.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

import gem_check.checks as checks
import gem_check.multi as multi
import gem_check.scores as scores
from gem import registry
from gem.core import Env, EnvSpec
from gem.errors import (
    BusyMachineError,
    ConfigurationError,
    GemError,
    MissingExtraError,
    UnreachableError,
)
from gem.foreign import contained
from gem.making import make
from gem.parameters import integer, number, positive
from gem_check.contract import check_contract
from gem_check.guesses import check_guesses
from gem_check.other_process import OtherProcess
from gem_check.subject import Factory, SkipCheck, Subject, describe, lacking, seeds_for
from gem_check.unearned import check_unearned

Status: TypeAlias = Literal["passed", "failed", "skipped"]
Severity: TypeAlias = Literal["fail", "warn", "advisory"]


_REWINDS = ("sample_random_action", "snapshot")
_SLOW = "a step takes seconds"


class Check(NamedTuple):
    """A check and how it is reported."""

    id: str
    """OpenEnv's id if it has such a check, else one that begins with `gem.`"""
    run: Callable[[Subject], str]
    """Returns what it measured; raises `FaultError` or `SkipCheck`."""
    level: int = 2
    """OpenEnv's level: 1 declarations, 2 behaviour at run time, 3 semantics, 4 statistics."""
    severity: Severity = "fail"
    many_steps: bool = False
    """Whether it is skipped if a single step takes seconds."""
    needs: tuple[str, ...] = ("sample_random_action",)
    """Methods of the environment that it calls; `snapshot` includes `restore`."""

    @property
    def name(self) -> str:
        """Short name: that of the function `run`, without `check_`."""
        return self.run.__name__.removeprefix("check_")


CHECKS: tuple[Check, ...] = (
    Check("runtime.startup", checks.check_startup, needs=()),
    Check("runtime.state_contract", check_contract, needs=()),
    Check("gem.success_told", checks.check_success, severity="warn"),
    Check("runtime.observation_schema", checks.check_observations),
    Check("runtime.reward_well_formed", scores.check_rewards),
    Check("runtime.episode_determinism", checks.check_determinism),
    Check("runtime.seed_control", checks.check_variety),
    Check("semantic.verifier_portability", checks.check_processes, 3),
    Check("runtime.episode_isolation", checks.check_threads, many_steps=True),
    Check("gem.vector_isolation", checks.check_vector, many_steps=True),
    Check("gem.fork_equality", checks.check_snapshot),
    Check("gem.pickle", checks.check_pickle, many_steps=True),
    Check("semantic.replayability", checks.check_replay, 3),
    Check(
        "semantic.verifier_determinism", checks.check_grading, 3, many_steps=True, needs=_REWINDS
    ),
    Check("gem.prompt_grader_agreement", scores.check_agreement, 3, needs=_REWINDS),
    Check("semantic.oracle_max", scores.check_oracle, 3, needs=()),
    Check("semantic.floor_gap", scores.check_random, 3),
    Check("semantic.canary_floor", scores.check_degenerate, 3, many_steps=True),
    Check(
        "gem.unearned_return", check_unearned, 3, severity="warn", many_steps=True, needs=_REWINDS
    ),
    Check("gem.blind_answers", check_guesses, 3, many_steps=True, needs=_REWINDS),
    Check("semantic.no_solution_leakage", scores.check_leak, 3, many_steps=True, needs=_REWINDS),
    Check("gem.bad_input", checks.check_bad_input, many_steps=True, needs=_REWINDS),
    Check("gem.global_rng", checks.check_global_rng, many_steps=True, needs=_REWINDS),
    Check("runtime.network_policy", checks.check_network),
    Check("gem.multi_agent", multi.check_agents, needs=()),
    Check("gem.no_hidden_information_leakage", multi.check_secrets, 3, needs=()),
    Check("gem.throughput", scores.check_throughput, severity="advisory", many_steps=True),
)
"""All checks, in the order in which they are reported."""


@dataclass(frozen=True)
class CheckResult:
    """The outcome of one check."""

    name: str
    status: Status
    detail: str = ""
    """What the check measured, or what failed and where."""
    check: Check = field(default=CHECKS[0], repr=False, compare=False)

    @property
    def shown(self) -> str:
        """The status for people: a failure of a check of lower severity is a warning."""
        advice = self.status == "failed" and self.check.severity != "fail"
        return "warning" if advice else self.status

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready mapping with OpenEnv's fields."""
        return {
            "check_id": self.check.id,
            "name": self.name,
            "level": self.check.level,
            "lane": "local",
            "severity": self.check.severity,
            "verdict": {"passed": "pass", "failed": "fail", "skipped": "skip"}[self.status],
            "detail": self.detail,
        }


@dataclass(frozen=True)
class CheckReport:
    """The outcomes of all checks of one environment; `str()` makes a table."""

    env: str
    results: list[CheckResult] = field(default_factory=list)
    replaced: tuple[str, ...] = ()
    """Parameters that differ from the id's, such as `source='sample' instead of ...`."""

    @property
    def passed(self) -> bool:
        """Whether no check of severity `fail` failed."""
        return not self.failures

    @property
    def failures(self) -> list[CheckResult]:
        """The failed checks of severity `fail`."""
        return [r for r in self.results if r.shown == "failed"]

    @property
    def warnings(self) -> list[CheckResult]:
        """The failed checks of lower severity."""
        return [r for r in self.results if r.shown == "warning"]

    def to_dict(self) -> dict[str, Any]:
        """Return `{"target", "verdict", "replaced", "results": [...]}`, ready for JSON."""
        return {
            "target": self.env,
            "verdict": "pass" if self.passed else "fail",
            "replaced": list(self.replaced),
            "results": [result.to_dict() for result in self.results],
        }

    def to_json(self) -> str:
        """Return `to_dict` as JSON."""
        return json.dumps(self.to_dict())

    @property
    def head(self) -> str:
        """One line: the id, its replaced parameters, whether it passed, what was too slow."""
        failed, warned = len(self.failures), len(self.warnings)
        verdict = f"{failed} of {len(self.results)} checks failed" if failed else "ok"
        if warned:
            verdict += f", {warned} warning{'s' if warned > 1 else ''}"
        if left_out := sum(result.detail == _SLOW for result in self.results):
            verdict += f", {left_out} checks skipped because {_SLOW}"
        replaced = f" (with {', '.join(self.replaced)})" if self.replaced else ""
        return f"{self.env}{replaced}: {verdict}"

    def table(self, *shown: str) -> str:
        """Return the results whose `shown` is one of these, or all, one line per fault."""
        rows = [r for r in self.results if not shown or r.shown in shown]
        indent = "\n" + " " * 24
        return "\n".join(
            f"  {r.name:<12} {r.shown:<8} {indent.join(r.detail.splitlines())}".rstrip()
            for r in rows
        )

    def __str__(self) -> str:
        return f"{self.head}\n{self.table()}"


def named(names: Collection[str], parameter: str = "only") -> list[Check]:
    """Return the checks of these names, all of them if `names` is empty.

    Args:
        names: Names of checks.
        parameter: The caller's name for `names`, for the error message.

    Raises:
        ConfigurationError: A name is not that of a check.
    """
    known = [check.name for check in CHECKS]
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise ConfigurationError(
            f"{parameter} must name checks ({', '.join(known)}), "
            f"got {', '.join(map(repr, unknown))}"
        )
    return [check for check in CHECKS if not names or check.name in names]


def check_env(
    env: str | Callable[[], Env],
    *,
    episodes: int = 32,
    max_steps: int = 200,
    cpu_s: float = 1.0,
    max_return: float = 1.0,
    only: Collection[str] = (),
    other: OtherProcess | None = None,
    **params: Any,
) -> CheckReport:
    """Check an environment.

    Args:
        env: A registered id, or a function that makes the environment. No parameter is replaced.
            The check `processes` is skipped if another process cannot import the function.
        episodes: Episodes per policy in the checks that compare success rates.
        max_steps: Most turns played of an episode.
        cpu_s: CPU seconds per policy in these checks; when they are used up, no further episode is
            played once there are four.
        max_return: Highest return that an episode may pay.
        only: Names of the checks to run beside `startup`; all of them if empty.
        other: The process that plays the same episodes, if many environments share one.
        **params: Parameters passed to the id's entry point or the function.

    Raises:
        GemError: The id or a parameter is wrong, or something that the environment needs is
            missing.
    """
    chosen = named(only)
    _require_limits(episodes, max_steps, cpu_s, max_return)
    factory: Callable[..., Env]
    if isinstance(env, str):
        name, factory = env, partial(_make, registry.spec(env), **params)
    else:
        name, factory = (
            getattr(env, "__name__", repr(env)),
            partial(EnvSpec("", env).load(), **params),
        )
    subject = Subject(Factory(factory), episodes, max_steps, cpu_s, max_return)
    others = [check for check in CHECKS[1:] if check in chosen]
    with contextlib.ExitStack() as stack:
        stack.callback(subject.factory.close)
        subject, began, runnable = _start(subject)
        asked = runnable and "sample_random_action" not in subject.missing
        if asked and any(check.run is checks.check_processes for check in others):
            if other is None:
                other = stack.enter_context(OtherProcess())
            # The other process plays while the first checks run here.
            other.ask(subject)
            subject = replace(subject, other=other)
        return CheckReport(name, [began, *(_run(check, subject, runnable) for check in others)])


def _require_limits(episodes: int, max_steps: int, cpu_s: float, max_return: float) -> None:
    integer("episodes", episodes, 1, 10**9)
    integer("max_steps", max_steps, 1, 10**9)
    positive("max_return", max_return)
    if number("cpu_s", cpu_s) < 0:
        raise ConfigurationError(f"cpu_s must be a number of seconds, 0 or more, got {cpu_s!r}")


def _start(subject: Subject) -> tuple[Subject, CheckResult, bool]:
    """Run `startup`; return the completed subject, the result, and whether other checks can run.

    Raises:
        GemError: The constructor refuses its parameters, or something that it needs is missing.
    """
    check = CHECKS[0]
    try:
        subject.factory().close()
    except GemError:
        raise
    except BaseException as error:
        detail = describe(contained(error))
        return subject, CheckResult(check.name, "failed", detail, check), False
    try:
        subject = replace(subject, missing=lacking(subject.factory))
        detail = check.run(subject)
        if "sample_random_action" not in subject.missing:
            seeds = seeds_for(subject.factory)
            episodes = 2 if len(seeds) == 1 else subject.episodes
            subject = replace(subject, seeds=seeds, episodes=episodes)
    except (MissingExtraError, UnreachableError):
        raise
    except BaseException as error:
        detail = describe(contained(error))
        return subject, CheckResult(check.name, "failed", detail, check), False
    return subject, CheckResult(check.name, "passed", detail, check), True


def _make(spec: EnvSpec, /, **params: Any) -> Env:
    # In another process an id that user code registered is unknown, or registered differently.
    if spec.id not in registry.list_envs(spec.id) or registry.spec(spec.id) != spec:
        registry.register(spec.id, spec.entry_point, **spec.kwargs)
    return make(spec.id, **params)


def _run(check: Check, subject: Subject, runnable: bool) -> CheckResult:
    try:
        # The contract check runs even if the environment cannot be played: it names all faults.
        if not runnable and check.run is not check_contract:
            raise SkipCheck("needs an environment that can be played (startup)")
        for name, why in subject.missing.items():
            if name in check.needs:
                raise SkipCheck(f"needs {name}(): {why}")
        if check.many_steps and len(subject.seeds) == 1:
            raise SkipCheck(_SLOW)
        return CheckResult(check.name, "passed", check.run(subject), check)
    except (SkipCheck, BusyMachineError) as skip:
        return CheckResult(check.name, "skipped", str(skip), check)
    except BaseException as error:
        return CheckResult(check.name, "failed", describe(contained(error)), check)
    finally:
        subject.factory.close()
