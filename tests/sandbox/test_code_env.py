"""Code: programs against tests, in the sandbox that was asked for."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

import gem
import gem_sandbox as sandbox
from gem.errors import ConfigurationError, DataError
from gem.sources import load
from gem_sandbox.env import CodeEnv

DOUBLE = {"inputs": ["1\n", "2\n", "10\n"], "outputs": ["2\n", "4\n", "20\n"]}
RIGHT = "import os  # os.system is mentioned only\nimport sys\nprint(2 * int(input()))\nsys.exit(0)"


class Recorder(sandbox.Runner):
    """Says that every program printed its own standard input."""

    def __init__(self) -> None:
        self.runs: list[tuple[str, float]] = []

    def run(
        self,
        code: str,
        stdin: str = "",
        limits: sandbox.Limits = sandbox.Limits(),  # noqa: B008
    ) -> sandbox.Result:
        self.runs.append((stdin, limits.cpu_s))
        return sandbox.Result(stdin, "", 0, 0.0)


def graded(program: str, tests: Any, **parameters: Any) -> Any:
    env = CodeEnv(
        [{"problem": "Double it.", "tests": tests}], **{"runner": "subprocess", **parameters}
    )
    env.reset()
    return env.step(f"Here it is:\n```python\n{program}\n```\n")


@pytest.mark.parametrize("tests", [DOUBLE, json.dumps(DOUBLE)])
def test_a_program_that_passes_all_tests_is_paid(tests: Any) -> None:
    _, reward, terminated, _, info = graded(RIGHT, tests)
    assert (reward, terminated, info["correct"], info["score"]) == (1.0, True, True, 1.0)


@pytest.mark.parametrize("program", ["print(2)", "print(", "import sys; sys.exit(1)"])
def test_a_program_that_fails_any_test_is_not(program: str) -> None:
    _, reward, _, _, info = graded(program, DOUBLE)
    assert (reward, info["correct"], info["format_error"]) == (0.0, False, False)
    assert info["reason"].startswith("test ")


@pytest.mark.parametrize("as_json", [False, True])
def test_a_test_that_no_program_can_pass_is_found_when_the_data_is_loaded(as_json: bool) -> None:
    good = ["assert f(1) == 1"]
    bad = ["assert f(1) == 1", "import pytest\n@pytest.mark.slow\ndef test_f():\n    assert f(1)"]
    tests: list[Any] = [good, good, bad]
    rows = [{"problem": "p", "tests": json.dumps(t) if as_json else t} for t in tests]
    env = CodeEnv(rows, runner="subprocess", eval=True)
    with pytest.raises(DataError, match=r"row 2, column 'tests': no program .* pytest\.mark"):
        env.reset(seed=0)


def test_the_share_of_tests_can_be_paid() -> None:
    _, reward, _, _, info = graded("print(2)", DOUBLE, partial=True)
    assert reward == pytest.approx(1 / 3)
    assert info["correct"] is False


def test_a_slow_program_fails_at_the_limit_of_its_test() -> None:
    tests = {"inputs": [""], "outputs": [""]}
    _, reward, _, _, info = graded("while True: pass", tests, timeout_s=0.3)
    assert (reward, info["reason"]) == (0.0, "test 1 of 1: time limit")


def test_functions_are_called_and_named_in_the_prompt() -> None:
    tests = {"fn_name": "double", "inputs": [[1], [[5]]], "outputs": [2, [5, 5]]}
    env = CodeEnv([{"problem": "Double it.", "tests": tests}], runner="subprocess")
    observation, _ = env.reset()
    assert "a Python function named `double`" in observation
    assert env.step("```python\ndef double(x):\n    return x * 2\n```")[1] == 1.0
    env = CodeEnv([{"problem": "Double it.", "tests": DOUBLE}], runner="subprocess")
    assert "reads standard input" in env.reset()[0]
    env = CodeEnv([{"problem": "Define f.", "tests": ["assert f(1) == 2"]}], runner="subprocess")
    assert "defines what the problem asks for" in env.reset()[0]
    assert env.step("```python\nf = lambda x: x + 1\n```")[1] == 1.0


def test_the_tests_with_the_longest_inputs_are_run_under_the_given_limit() -> None:
    runner = Recorder()
    inputs = ["x" * (i % 10) + "\n" for i in range(20)]
    graded("pass", {"inputs": inputs, "outputs": inputs}, runner=runner, max_tests=3)
    assert sorted(len(stdin) for stdin, _ in runner.runs) == [9, 10, 10]
    assert {limit for _, limit in runner.runs} == {10.0}


def test_without_an_isolating_runner_nothing_runs_unasked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")
    env = gem.make("code:CodeContest", source="sample")
    with pytest.raises(ConfigurationError, match="runner='subprocess'"):
        env.reset(seed=0)
    with pytest.raises(ConfigurationError, match="runner"):
        gem.make("code:CodeContest", source="sample", runner="docker!").reset(seed=0)


def test_no_program_costs_a_tenth() -> None:
    env = gem.make("code:Taco8k", source="sample", runner="subprocess")
    env.reset(seed=0)
    assert env.step("print(1)")[1] == -0.1


@pytest.mark.parametrize(
    ("tests", "message"),
    [
        ("{", "not JSON"),
        ({"inputs": ["1"]}, "must have 'inputs' and 'outputs'"),
        ({"inputs": ["1"], "outputs": []}, "same length"),
        (7, "int, expected str or Mapping or list"),
    ],
)
def test_broken_tests_are_an_error_of_the_data(tests: Any, message: str) -> None:
    with pytest.raises(DataError, match=f"row 0, column 'tests': .*{message}"):
        graded("pass", tests)


@pytest.mark.parametrize("index", range(12))
def test_sampled_solutions_pass_and_others_do_not(index: int) -> None:
    assert len(load("sample:code")) == 12
    env = gem.make("code:PrimeIntellect15k", source="sample", runner="subprocess")
    env.reset(idx=index)
    assert env.step(env.oracle_action())[1] == 1.0
    env.reset(idx=index)
    assert env.step(env.sample_random_action())[1] == 0.0


def test_a_row_without_a_solution_has_no_oracle() -> None:
    env = CodeEnv([{"problem": "?", "tests": DOUBLE}], runner="subprocess")
    env.reset()
    with pytest.raises(NotImplementedError, match="no column 'solution'"):
        env.oracle_action()


def test_an_runner_travels_with_the_environment() -> None:
    env = CodeEnv([{"problem": "?", "tests": DOUBLE}], runner=sandbox.SubprocessRunner())
    env.reset(seed=1)
    copy = pickle.loads(pickle.dumps(env))
    assert copy.step(f"```python\n{RIGHT}\n```")[1] == 1.0


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"max_tests": 0}, "max_tests must be an integer from 1"),
        ({"timeout_s": 0}, "timeout_s must be a number above 0, got 0"),
        ({"partial": "yes"}, "partial must be True or False"),
    ],
)
def test_impossible_parameters_are_refused_at_construction(
    parameters: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        CodeEnv("sample", **parameters)
