"""The environment checker: one named check per promise that an environment makes.

    print(check_env("game:GuessTheNumber-v0-easy"))

A fault of the environment is reported, never raised.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Literal, TypeAlias

from gem import registry
from gem.core import Env
from gem.errors import GemError
from gem.testing.checks import CHECKS, SkipCheck, Subject, describe

Status: TypeAlias = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True)
class CheckResult:
    """The outcome of one check."""

    name: str
    status: Status
    detail: str = ""
    """What was measured, or what went wrong and where."""


@dataclass(frozen=True)
class CheckReport:
    """The outcomes of all checks of one environment; `str()` makes a table."""

    env: str
    results: list[CheckResult] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return all(result.status != "failed" for result in self.results)

    def to_json(self) -> str:
        """Return `{"env", "passed", "results": [{"name", "status", "detail"}]}` as JSON."""
        return json.dumps({"env": self.env, "passed": self.passed, **asdict(self)})

    def __str__(self) -> str:
        failed = sum(result.status == "failed" for result in self.results)
        head = f"{self.env}: {f'{failed} of {len(self.results)} checks failed' if failed else 'ok'}"
        rows = [f"  {r.name:<12} {r.status:<8} {r.detail}".rstrip() for r in self.results]
        return "\n".join([head, *rows])


def check_env(
    env: str | Callable[[], Env],
    *,
    episodes: int = 32,
    max_steps: int = 200,
    **params: Any,
) -> CheckReport:
    """Check an environment.

    Args:
        env: A registered id, or a function that makes the environment. Only functions that can
            be pickled are checked in another process.
        episodes: Episodes per policy in the checks that compare success rates.
        max_steps: Longest episode that is played.
        **params: Parameters given to the id or the function.

    Raises:
        GemError: The id or a parameter is wrong.
    """
    factory: Callable[..., Env]
    if isinstance(env, str):
        name, factory = env, partial(_make, registry.spec(env), **params)
    else:
        name, factory = getattr(env, "__name__", repr(env)), partial(env, **params)
    try:
        factory().close()
    except GemError:
        raise
    except Exception as error:
        return CheckReport(name, [CheckResult("make", "failed", describe(error))])
    subject = Subject(factory, episodes, max_steps)
    return CheckReport(name, [_run(check, subject) for check in CHECKS])


def _make(spec: registry.EnvSpec, /, **params: Any) -> Env:
    # In another process an id that was registered by hand is unknown.
    if spec.id not in registry.list_envs(spec.id):
        registry.register(spec.id, spec.entry_point, **spec.kwargs)
    return registry.make(spec.id, **params)


def _run(check: Callable[[Subject], str], subject: Subject) -> CheckResult:
    name = check.__name__.removeprefix("check_")
    try:
        return CheckResult(name, "passed", check(subject))
    except SkipCheck as skip:
        return CheckResult(name, "skipped", str(skip))
    except Exception as error:
        return CheckResult(name, "failed", describe(error))
