"""A failure is blamed on whoever failed, at the boundary where it happens."""

from __future__ import annotations

import asyncio
import contextvars
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import pytest

from gem.blame import CAUSES, boundary, cause_of, reached
from gem.core import Env
from gem.errors import ConfigurationError, UnreachableError
from gem.executors.held import EnvFailedError, env_failure
from gem.tools import Tool, ToolCall, ToolResult
from gem.wrappers import wrap
from gem_math.env import MathEnv
from gem_sandbox import Limits, Result, Runner
from gem_sandbox.grading.code import grade


def caught(function: Callable[[], Any]) -> Exception:
    with pytest.raises(Exception) as error:
        function()
    found: Any = error.value
    assert isinstance(found, Exception)
    return found


def test_the_innermost_boundary_counts() -> None:
    def fail() -> NoReturn:
        with boundary("grader"), boundary("sandbox"):
            raise OSError("gone")

    assert cause_of(caught(fail)) == "sandbox"


def test_an_exception_raised_from_another_has_its_cause() -> None:
    def fail() -> NoReturn:
        with boundary("tool"):
            try:
                with boundary("sandbox"):
                    raise OSError("gone")
            except OSError as error:
                raise RuntimeError("the tool is out of order") from error

    error = caught(fail)
    assert cause_of(error) == "sandbox"
    assert env_failure(error).failure(2).cause == "sandbox"


def test_what_no_boundary_has_seen_is_the_environments() -> None:
    error = OSError("gone")
    assert cause_of(error) is None
    assert env_failure(error).cause == "environment"


@dataclass(frozen=True)
class FrozenError(Exception):
    code: int


def test_exceptions_pass_a_boundary_unchanged_and_keep_their_cause() -> None:
    def fail() -> NoReturn:
        with boundary("tool"):
            raise FrozenError(3)

    error = caught(fail)
    assert error == FrozenError(3)
    assert cause_of(error) == "tool"
    copy = pickle.loads(pickle.dumps(EnvFailedError("gone", "tool")))
    assert (str(copy), copy.cause) == ("gone", "tool")


def test_a_context_tells_which_boundary_it_is_in() -> None:
    context = contextvars.copy_context()

    def go() -> None:
        assert reached(context) is None
        with boundary("grader"):
            with boundary("sandbox"):
                assert reached(context) == "sandbox"
            assert reached(context) == "grader"
        assert reached(context) is None

    context.run(go)


def test_every_cause_is_explained_and_the_policy_is_none() -> None:
    assert "policy" not in CAUSES
    assert all(len(text) > 20 for text in CAUSES.values())


class Gone(Runner):
    """A sandbox that cannot start anything."""

    def run(self, code: str, stdin: str = "", limits: Limits | None = None) -> Result:
        raise UnreachableError("no more processes")


class Echo(Env):
    def reset(self, seed: int | None = None, **options: Any) -> Any:
        super().reset(seed)
        return "Say something.", {}

    def step(self, action: str) -> Any:
        return action, 0.0, False, False, {}


class Broken(Tool):
    """Fails with an error of its own."""

    tool_type = "broken"

    def __init__(self, error: Exception) -> None:
        self.error = error

    def instruction(self) -> str:
        return "Say call."

    def parse(self, text: str) -> ToolCall | None:
        return ToolCall("broken", {}, None) if text == "call" else None

    def execute(self, call: ToolCall) -> ToolResult:
        raise self.error


def played(env: Env, action: str) -> Callable[[], Any]:
    def go() -> Any:
        with env:
            env.reset(seed=0)
            return env.step(action)

    return go


def test_a_sandbox_that_is_gone_under_the_python_tool_is_blamed() -> None:
    env = wrap(Echo(), [{"name": "tool_env", "tools": [{"name": "python", "runner": Gone()}]}])
    assert cause_of(caught(played(env, "<python>print(1)</python>"))) == "sandbox"
    [tool] = env.tools  # type: ignore[attr-defined]
    call = tool.parse("<python>print(1)</python>")
    assert cause_of(caught(lambda: asyncio.run(tool.aexecute(call)))) == "sandbox"


@pytest.mark.parametrize("error", [UnreachableError("no answer"), KeyError("no such field")])
def test_a_tool_that_fails_is_blamed(error: Exception) -> None:
    env = wrap(Echo(), [{"name": "tool_env", "tools": [Broken(error)]}])
    assert cause_of(caught(played(env, "call"))) == "tool"


def test_wrong_configuration_of_a_tool_is_nobodys_failure() -> None:
    env = wrap(Echo(), [{"name": "tool_env", "tools": [Broken(ConfigurationError("no key"))]}])
    with pytest.raises(ConfigurationError, match="no key"):
        env_failure(caught(played(env, "call")))


def test_a_grader_that_fails_is_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Any, answer: str) -> NoReturn:
        raise UnreachableError("cannot start a worker")

    monkeypatch.setattr(MathEnv, "_grade", fail)
    env = MathEnv([{"problem": "2 + 3?", "answer": "5"}])
    assert cause_of(caught(played(env, r"\boxed{5}"))) == "grader"


def test_the_sandbox_under_a_grader_is_blamed_for_its_own_failures() -> None:
    tests = [{"input": "", "output": "1"}]
    assert cause_of(caught(lambda: grade("print(1)", tests, runner=Gone()))) == "sandbox"
