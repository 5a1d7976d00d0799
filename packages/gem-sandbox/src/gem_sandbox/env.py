"""Code: programs that are run against tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import gem_sandbox as sandbox
from gem.core import Info, Observation
from gem.envs.datasets import DatasetEnv, DatasetOptions, Grade
from gem.errors import DataError
from gem.grading.formats import FENCED_CODE
from gem.json_lines import parse
from gem.parameters import extending, flag, integer, positive, text
from gem.sources import Row, Source
from gem_sandbox.grading import code as grader

if TYPE_CHECKING:
    from typing_extensions import Unpack

_STDIN = "Write a complete Python program that reads standard input and prints to standard output."
_CALLED = "Write a Python function named `{name}`; the tests call it."
_CHECKED = "Write Python code that defines what the problem asks for; the tests use it."


class CodeEnv(DatasetEnv):
    """Programming problems; 1.0 for a program that passes all tests, else 0.0.

    Tests are in one of the forms that `gem_sandbox.grading.code.grade` takes: mostly a mapping, or
    its JSON, with the lists `inputs` and `outputs`, and perhaps `fn_name`. Above `max_tests`, those
    with the longest inputs are run.
    """

    @extending(
        DatasetEnv,
        "answer_column",
        sample="code",
        answer_format=FENCED_CODE,
        format_error_reward=-0.1,
    )
    def __init__(
        self,
        source: Source,
        *,
        runner: sandbox.Runner | str | None = None,
        tests_column: str = "tests",
        solution_column: str = "solution",
        max_tests: int = 12,
        timeout_s: float = 10.0,
        partial: bool = False,
        **options: Unpack[DatasetOptions],
    ) -> None:
        """Store the parameters; see `DatasetEnv` for those not listed.

        Args:
            source: Rows with a problem and tests.
            runner: What runs the programs; see `gem_sandbox.resolve`. Whether None, the default,
                finds one shows at the first `reset`.
            tests_column: Column with the tests.
            solution_column: Column with a right program, if there is one; only the oracle uses it.
            max_tests: Most tests that are run.
            timeout_s: CPU time of one test in seconds; see `gem_sandbox.Limits`.
            partial: Pay the share of the tests passed.

        Raises:
            ConfigurationError: A value is not allowed.
        """
        super().__init__(source, answer_column=tests_column, **options)  # type: ignore[misc]
        if runner is not None:
            sandbox.resolve(runner)
        self.runner = runner
        self.solution_column = text("solution_column", solution_column)
        self.max_tests = integer("max_tests", max_tests, 1, 10**6)
        self.timeout_s = positive("timeout_s", timeout_s)
        self.partial = flag("partial", partial)

    def reset(self, seed: int | None = None, **options: Any) -> tuple[Observation, Info]:
        """Show a problem; see `SingleTurnEnv.reset`.

        Raises:
            ConfigurationError: There is no runner for the programs.
        """
        # A missing sandbox must show before a model has written anything.
        sandbox.resolve(self.runner)
        return super().reset(seed=seed, **options)

    def _observe(self) -> Observation:
        row = self._row()
        question = self._cell(row, self.question_column, str)
        return self._asked(f"{question.rstrip()}\n\n{_kind(self._tests(row))}")

    def _tests(self, row: Row) -> Any:
        tests = self._cell(row, self.answer_column, str, Mapping, list)
        if isinstance(tests, str):
            try:
                tests = parse(tests, "the cell")
            except DataError as error:
                raise self._fault(self.answer_column, f"not JSON ({error})") from None
        return tests

    def _verify_item(self) -> None:
        tests = self._cell(self._row(), self.answer_column, str, Mapping, list)
        if isinstance(tests, Mapping) or (isinstance(tests, str) and tests.lstrip()[:1] == "{"):
            # Inputs and outputs may be megabytes a row, and some program passes them.
            return
        try:
            grader.verify(self._tests(self._row()))
        except DataError as error:
            raise self._fault(self.answer_column, str(error)) from None

    def _grade(self, answer: str) -> Grade:
        try:
            verdict = grader.grade(
                answer,
                self._tests(self._row()),
                runner=self.runner,
                max_tests=self.max_tests,
                timeout_s=self.timeout_s,
                partial=self.partial,
            )
        except DataError as error:
            raise self._fault(self.answer_column, str(error)) from None
        return Grade(verdict.correct, verdict.score, verdict.reason)

    def _random_answer(self) -> str:
        return f"print({self.action_rng.randrange(1000)})"

    def _recorded_answer(self) -> str:
        solution = self._row().get(self.solution_column)
        if not isinstance(solution, str):
            raise NotImplementedError(
                f"{self.table.name}, row {self.index}: no column {self.solution_column!r} with a "
                f"right program"
            )
        return solution


def _kind(tests: Any) -> str:
    """Return what kind of program passes such tests."""
    first = tests[0] if isinstance(tests, list) and tests else tests
    if isinstance(first, str):
        return _CHECKED
    name = first.get("fn_name") if isinstance(first, Mapping) else None
    return _CALLED.format(name=name) if name else _STDIN
