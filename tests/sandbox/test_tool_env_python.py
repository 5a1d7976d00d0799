"""The Python tool around an environment: sessions in snapshots, and whatever a policy may write."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

import gem
from gem.errors import ConfigurationError, MissingExtraError
from gem.wrappers import ToolEnv
from gem_sandbox import resolve
from gem_sandbox.tool import PythonTool

GUESS = "game:GuessTheNumber-v0-easy"


def make(runner: str, session: bool = False) -> Any:
    """An environment with the Python tool, in an episode."""
    try:
        resolve(runner)
    except (ConfigurationError, MissingExtraError) as error:
        pytest.skip(str(error))
    python = PythonTool(runner=runner, session=session, timeout_s=30.0)
    made = ToolEnv(gem.make(GUESS), python, max_tool_uses=99)
    made.reset(seed=0)
    return made


SESSIONS = ["bwrap"]


def with_session(runner: str) -> Any:
    """An environment whose programs go on where those before them ended."""
    return make(runner, session=True)


SCRIPT = [
    "<python>x = [1]; print(x)</python>",
    "<python>x.append(len(x) + 1); print(x)</python>",
    "<python>print(x +</python>",
    "<python>x.append(y)</python>",
    "\\boxed{2}",
    "<python>import random; random.seed(x[-1])</python>",
    "<python>x.append(random.random()); print(x)</python>",
]


@pytest.mark.parametrize("runner", SESSIONS)
@pytest.mark.parametrize("at", range(len(SCRIPT) + 1))
def test_an_episode_with_a_session_goes_on_the_same_from_every_snapshot(
    runner: str, at: int
) -> None:
    env = with_session(runner)
    for action in SCRIPT[:at]:
        env.step(action)
    state = env.snapshot()
    expected = [env.step(action) for action in SCRIPT[at:]]
    env.restore(state)
    copies = [env, with_session(runner), env.spawn(same_state=True)]
    copies += [pickle.loads(pickle.dumps(env))]
    copies[1].step("<python>x = 'of another episode'</python>")
    copies[1].restore(state)
    for copy in copies:
        assert [copy.step(action) for action in SCRIPT[at:]] == expected
        copy.close()


@pytest.mark.parametrize("runner", SESSIONS)
def test_an_episode_begins_with_nothing_from_the_one_before(runner: str) -> None:
    env = with_session(runner)
    assert "variables and imports are kept" in env.reset(seed=0)[0]
    env.step("<python>x = 1</python>")
    untouched = env.spawn(seed=1)
    for begin in (lambda: env.reset(seed=0), lambda: env.step("\\boxed{99}") and env.reset()):
        begin()
        assert "NameError" in env.step("<python>print(x)</python>")[0]
    untouched.reset()
    assert "NameError" in untouched.step("<python>print(x)</python>")[0]
    env.close(), untouched.close()


def test_the_end_of_an_episode_ends_its_session() -> None:
    env = with_session("bwrap")
    [python] = [tool for tool in env.tools if isinstance(tool, PythonTool)]
    env.step("<python>x = 1</python>")
    assert python._open is not None
    env.step("no box")
    assert python._open is None


def test_without_a_session_nothing_is_kept() -> None:
    env = make("subprocess")
    assert "nothing is kept" in env.reset(seed=0)[0]
    env.step("<python>x = 1</python>")
    assert "NameError" in env.step("<python>print(x)</python>")[0]


def test_a_session_where_there_can_be_none_is_refused_at_reset() -> None:
    env = ToolEnv(gem.make(GUESS), {"name": "python", "runner": "subprocess", "session": True})
    with pytest.raises(ConfigurationError, match="SubprocessRunner keeps nothing"):
        env.reset(seed=0)


BAD = {
    "a syntax error": ("<python>print(</python>", "SyntaxError"),
    "NUL bytes": ("<python>x = 1\n\0</python>", "Error"),
    "half a surrogate pair": ("<python>raise ValueError('\ud800')</python>", "ValueError"),
    "half a pair as JSON": (
        '<tool_call>{"name": "python", "arguments": {"code": "1 / 0 #\\ud800"}}</tool_call>',
        "ZeroDivisionError",
    ),
    "ten megabytes": (f"<python>#{'x' * 10**7}\n1 / 0</python>", "ZeroDivisionError"),
    "too much output": ("<python>print('x' * 10**8)</python>", "characters left out"),
    "code that is a number": (
        '<tool_call>{"name": "python", "arguments": {"code": 3}}</tool_call>',
        "must be text",
    ),
    "arguments that are a list": (
        '<tool_call>{"name": "python", "arguments": [3]}</tool_call>',
        "must be a JSON object",
    ),
    "no such tool": ('<tool_call>{"name": "bash", "arguments": {}}</tool_call>', "no tool 'bash'"),
}


@pytest.mark.parametrize("session", [False, True], ids=["alone", "session"])
@pytest.mark.parametrize("runner", ["bwrap", "subprocess"])
def test_nothing_that_a_policy_writes_raises_or_ends_the_episode(
    runner: str, session: bool
) -> None:
    if session and runner == "subprocess":
        pytest.skip("subprocess has no sessions")
    env = make(runner, session=session)
    for name, (action, words) in BAD.items():
        observation, _, terminated, truncated, info = env.step(action)
        assert words in observation, name
        observation.encode()
        assert not (terminated or truncated), name
        assert info["tool_success_counter"] == 0 or name == "too much output", name
        assert "\n2" in env.step("<python>print('1')\nprint('2')</python>")[0], name
        env.tool_success_counter = 0
    assert env.step("\\boxed{2}")[4]["use_tool"] is False
    env.close()


def test_only_what_runs_in_a_session_can_be_played_again() -> None:
    for session in (False, True):
        tool = {"name": "python", "session": session}
        env = gem.make("math:GSM8K", source="sample", tools=[tool])
        assert env.replayable is session
