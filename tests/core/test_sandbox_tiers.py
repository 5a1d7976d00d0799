"""Monty, the executor that chooses, and containers."""

from __future__ import annotations

import pickle
import sys

import pytest

from gem.errors import ConfigurationError, MissingExtraError
from gem.sandbox import AutoExecutor, DockerExecutor, Executor, Limits, MontyExecutor, Result

ALL = [MontyExecutor, AutoExecutor, DockerExecutor]


def tier(kind: type[Executor]) -> Executor:
    try:
        return kind()
    except (ConfigurationError, MissingExtraError) as error:
        pytest.skip(str(error))


class Recorder(Executor):
    """Answers with what it is given, and remembers its limits."""

    def __init__(self, result: Result) -> None:
        self.result = result
        self.limits: list[Limits] = []

    def run(self, code: str, stdin: str = "", limits: Limits = Limits()) -> Result:  # noqa: B008
        self.limits.append(limits)
        return self.result


def chooser(first: Result, second: Result) -> tuple[AutoExecutor, Recorder, Recorder]:
    auto = AutoExecutor.__new__(AutoExecutor)
    fast, full = Recorder(first), Recorder(second)
    auto.fast, auto.full = fast, full  # type: ignore[assignment]
    return auto, fast, full


@pytest.mark.parametrize("kind", ALL)
def test_a_program_prints_fails_and_is_limited(kind: type[Executor]) -> None:
    executor = tier(kind)
    assert executor.run("print(sum(range(10)))").stdout == "45\n"
    failed = executor.run("print('before')\n1 / 0")
    assert (failed.stdout, failed.exit_code, failed.limit_hit) == ("before\n", 1, None)
    assert failed.stderr.rstrip().endswith("ZeroDivisionError: division by zero")
    assert executor.run("while True: pass", "", Limits(wall_s=1.0)).limit_hit == "time"
    limits = Limits(memory_mb=128, output_bytes=1000)
    assert executor.run("x = [0] * 10**9", "", limits).limit_hit == "memory"
    more = executor.run("print('x' * 5000)", "", limits)
    assert (more.stdout[:1000], more.limit_hit) == ("x" * 1000, "output")


@pytest.mark.parametrize("kind", ALL)
def test_any_text_is_run_as_a_program(kind: type[Executor]) -> None:
    executor = tier(kind)
    for program in ("\0", "\ud800", "(" * 300, "é", "\x1b" * 1000):
        assert executor.run(program).exit_code == 1


@pytest.mark.parametrize("kind", ALL)
def test_an_executor_pickles(kind: type[Executor]) -> None:
    assert pickle.loads(pickle.dumps(tier(kind))).run("print(1)").stdout == "1\n"


@pytest.mark.parametrize(
    ("code", "stdin", "stdout"),
    [
        ("print(1)", "", "1\n"),
        ("import heapq; print(heapq.nsmallest(1, [3, 2]))", "", "[2]\n"),
        ("def f():\n    yield 5\nprint(*f())", "", "5\n"),
        ("print(input())", "given", "given\n"),
        ("print('once'); import heapq", "", "once\n"),
    ],
)
def test_what_monty_lacks_runs_in_the_full_interpreter(code: str, stdin: str, stdout: str) -> None:
    result = tier(AutoExecutor).run(code, stdin)
    assert (result.stdout, result.exit_code) == (stdout, 0)


def test_what_succeeds_or_hits_a_limit_runs_once() -> None:
    for first in (Result("1", "", 0, 0.5), Result("", "", 1, 0.5, "time")):
        auto, fast, full = chooser(first, Result("2", "", 0, 0.5))
        assert auto.run("x") is first
        assert (len(fast.limits), len(full.limits)) == (1, 0)


def test_the_second_run_has_the_time_that_the_first_left() -> None:
    auto, _, full = chooser(Result("", "no", 1, 0.75), Result("2", "", 0, 0.5))
    result = auto.run("x", "", Limits(wall_s=2.0))
    assert (result.stdout, result.seconds) == ("2", 1.25)
    assert full.limits == [Limits(wall_s=1.25)]


def test_a_missing_part_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic_monty", None)
    monkeypatch.setitem(sys.modules, "docker", None)
    for kind, extra in (
        (MontyExecutor, "monty"),
        (AutoExecutor, "monty"),
        (DockerExecutor, "docker"),
    ):
        with pytest.raises(MissingExtraError, match=rf"pip install 'gem-core\[{extra}\]'"):
            kind()


def test_without_bubblewrap_there_is_no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    tier(MontyExecutor)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigurationError, match="apt-get install bubblewrap"):
        AutoExecutor()
