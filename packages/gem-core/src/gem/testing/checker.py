"""The environment checker: one named check per promise that an environment makes.

    print(check_env("game:GuessTheNumber-v0-easy"))

A fault of the environment is reported, never raised. Checks that mean the same as one of OpenEnv's
list (policy `severity-v2`) are reported under its id, level, lane and severity as well; those of
its hub lane that an oracle lets us decide here are decided here.
"""

from __future__ import annotations

import contextlib
import inspect
import json
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

from gem import registry
from gem.core import Env
from gem.errors import ConfigurationError, GemError, MissingExtraError, UnreachableError
from gem.testing import checks, scores
from gem.testing.elsewhere import OtherProcess
from gem.testing.subject import SkipCheck, Subject, describe, seeds_for

Status: TypeAlias = Literal["passed", "failed", "skipped"]
Severity: TypeAlias = Literal["fail", "warn", "advisory"]
Lane: TypeAlias = Literal["local", "hub"]


class Check(NamedTuple):
    """A check as it is reported."""

    name: str
    id: str
    """OpenEnv's id where it has such a check, else one that begins with `gem.`"""
    run: Callable[[Subject], str]
    """Returns what was measured; raises `FaultError` or `SkipCheck`."""
    level: int = 2
    """1 looks at what is declared, 2 runs it, 3 asks what it means, 4 takes statistics."""
    severity: Severity = "fail"
    lane: Lane = "local"
    many_steps: bool = False
    """Left out where a single step takes seconds."""


CHECKS: tuple[Check, ...] = (
    Check("startup", "runtime.startup", checks.check_startup),
    Check("contract", "runtime.state_contract", checks.check_contract),
    Check("observations", "runtime.observation_schema", checks.check_observations),
    Check("rewards", "runtime.reward_well_formed", scores.check_rewards),
    Check("determinism", "runtime.episode_determinism", checks.check_determinism),
    Check("variety", "runtime.seed_control", checks.check_variety),
    Check("processes", "semantic.verifier_portability", checks.check_processes, 3),
    Check("threads", "runtime.episode_isolation", checks.check_threads, many_steps=True),
    Check("vector", "gem.vector_isolation", checks.check_vector, many_steps=True),
    Check("snapshot", "gem.fork_equality", checks.check_snapshot),
    Check("pickle", "gem.pickle", checks.check_pickle, many_steps=True),
    Check("replay", "semantic.replayability", checks.check_replay, 3),
    Check("grading", "semantic.verifier_determinism", checks.check_grading, 3, many_steps=True),
    Check("agreement", "gem.prompt_grader_agreement", scores.check_agreement, 3),
    Check("oracle", "semantic.oracle_max", scores.check_oracle, 3),
    Check("random", "semantic.floor_gap", scores.check_random, 3),
    Check("degenerate", "semantic.canary_floor", scores.check_degenerate, 3, many_steps=True),
    Check("leak", "semantic.no_solution_leakage", scores.check_leak, 3, many_steps=True),
    Check("bad_input", "gem.bad_input", checks.check_bad_input, many_steps=True),
    Check("global_rng", "gem.global_rng", checks.check_global_rng, many_steps=True),
    Check("network", "runtime.network_policy", checks.check_network),
    Check(
        "throughput",
        "gem.throughput",
        scores.check_throughput,
        severity="advisory",
        many_steps=True,
    ),
)
"""All checks, in the order in which they are reported; without the first, the others make no
sense."""


@dataclass(frozen=True)
class CheckResult:
    """The outcome of one check."""

    name: str
    status: Status
    detail: str = ""
    """What was measured, or what went wrong and where."""
    check: Check = field(default=CHECKS[0], repr=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready mapping with OpenEnv's fields."""
        return {
            "check_id": self.check.id,
            "name": self.name,
            "level": self.check.level,
            "lane": self.check.lane,
            "severity": self.check.severity,
            "verdict": {"passed": "pass", "failed": "fail", "skipped": "skip"}[self.status],
            "detail": self.detail,
        }


@dataclass(frozen=True)
class CheckReport:
    """The outcomes of all checks of one environment; `str()` makes a table."""

    env: str
    results: list[CheckResult] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether no check failed that is more than advice."""
        return not self.failures

    @property
    def failures(self) -> list[CheckResult]:
        """The results that an environment must not have."""
        return [r for r in self.results if r.status == "failed" and r.check.severity == "fail"]

    def to_dict(self) -> dict[str, Any]:
        """Return `{"target", "verdict", "results": [...]}`, ready for JSON."""
        return {
            "target": self.env,
            "verdict": "pass" if self.passed else "fail",
            "results": [result.to_dict() for result in self.results],
        }

    def to_json(self) -> str:
        """Return `to_dict` as JSON."""
        return json.dumps(self.to_dict())

    @property
    def head(self) -> str:
        """One line: the id and whether it passed."""
        failed = len(self.failures)
        verdict = f"{failed} of {len(self.results)} checks failed" if failed else "ok"
        return f"{self.env}: {verdict}"

    def table(self, status: Status | None = None) -> str:
        """Return a line per result, of one status or of all."""
        rows = [r for r in self.results if status is None or r.status == status]
        return "\n".join(f"  {r.name:<12} {r.status:<8} {r.detail}".rstrip() for r in rows)

    def __str__(self) -> str:
        return f"{self.head}\n{self.table()}"


def named(names: Collection[str]) -> list[Check]:
    """Return the checks of these names, all of them if there are no names.

    Raises:
        ConfigurationError: There is no such check.
    """
    known = [check.name for check in CHECKS]
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise ConfigurationError(
            f"only must name checks ({', '.join(known)}), got {', '.join(map(repr, unknown))}"
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
        env: A registered id, or a function that makes the environment. Only functions that can
            be pickled are checked in another process.
        episodes: Episodes per policy in the checks that compare success rates.
        max_steps: Longest episode that is played.
        cpu_s: CPU seconds per policy in these checks; where they are used up fewer episodes are
            played, at least four.
        max_return: Most that an episode may pay.
        only: Names of the checks to run beside `startup`; all of them if empty.
        other: The process that plays the same episodes, if many environments share one.
        **params: Parameters given to the id or the function.

    Raises:
        GemError: The id or a parameter is wrong, or what the environment needs is missing.
    """
    chosen = named(only)
    factory: Callable[..., Env]
    if isinstance(env, str):
        name, factory = env, partial(_make, registry.spec(env), **params)
    else:
        name, factory = getattr(env, "__name__", repr(env)), partial(env, **params)
    startup, *others = CHECKS
    subject = Subject(factory, episodes, max_steps, cpu_s, max_return)
    try:
        factory().close()
    except GemError:
        raise
    except Exception as error:
        return CheckReport(name, [CheckResult("startup", "failed", describe(error), startup)])
    try:
        began = CheckResult("startup", "passed", startup.run(subject), startup)
    except (MissingExtraError, UnreachableError):
        raise
    except Exception as error:
        return CheckReport(name, [CheckResult("startup", "failed", describe(error), startup)])
    with contextlib.ExitStack() as stack:
        if other is None:
            other = stack.enter_context(OtherProcess())
        subject = replace(subject, seeds=seeds_for(factory), other=other)
        if len(subject.seeds) == 1:
            subject = replace(subject, episodes=2)
        if any(check.run is checks.check_processes for check in chosen):
            # It plays while the first checks run here.
            other.ask(subject)
        results = [_run(check, subject) for check in others if check in chosen]
    return CheckReport(name, [began, *results])


def _make(spec: registry.EnvSpec, /, **params: Any) -> Env:
    # In another process an id that was registered by hand is unknown.
    if spec.id not in registry.list_envs(spec.id):
        registry.register(spec.id, spec.entry_point, **spec.kwargs)
    return registry.make(spec.id, **params)


def _run(check: Check, subject: Subject) -> CheckResult:
    try:
        if check.many_steps and len(subject.seeds) == 1:
            raise SkipCheck("a step takes seconds")
        return CheckResult(check.name, "passed", check.run(subject), check)
    except SkipCheck as skip:
        return CheckResult(check.name, "skipped", str(skip), check)
    except Exception as error:
        return CheckResult(check.name, "failed", describe(error), check)


def offline_parameters(id: str) -> dict[str, Any]:
    """Return the parameters with which an id needs neither a download nor a sandbox.

    Data comes from the bundled sample. Programs are the sample's own and the checker's junk, so
    that they may run without isolation.
    """
    known = inspect.signature(registry.spec(id).load()).parameters
    offline = {"source": "sample", "executor": "subprocess"}
    return {name: value for name, value in offline.items() if name in known}
