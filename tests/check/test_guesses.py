"""The check that answers which solve nothing earn nothing: it accuses holes, and no fair task."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest

from gem.core import Observation
from gem.envs.datasets import Grade, SingleTurnEnv
from gem.envs.reasoning_gym import ReasoningGymEnv
from gem_check import check_env


class Task(SingleTurnEnv):
    """Asks for something about a few numbers drawn for each item."""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__(answer_format="boxed", seed=seed)

    def _size(self) -> int:
        return 1000

    @property
    def numbers(self) -> list[int]:
        rng = random.Random(self.index)
        return [rng.randint(2, 99) for _ in range(4)]

    def _observe(self) -> Observation:
        return self._asked(f"What is the sum of: {', '.join(map(str, self.numbers))}")

    def _recorded_answer(self) -> str:
        return str(sum(self.numbers))

    def _score(self, answer: str) -> float:
        return float(answer.strip() == self._recorded_answer())

    def _grade(self, answer: str) -> Grade:
        try:
            score = self._score(answer)
        except (ValueError, ArithmeticError, SyntaxError):
            score = 0.0
        return Grade(score == 1.0, score, "")

    def _random_answer(self) -> str:
        return str(self.action_rng.randint(8, 400))


class Parity(Task):
    """True or false; also yes or no."""

    def _recorded_answer(self) -> str:
        return str(sum(self.numbers) % 2 == 0)

    def _score(self, answer: str) -> float:
        names = {"True": ("true", "yes", "1"), "False": ("false", "no", "0")}
        return float(answer.strip().lower() in names[self._recorded_answer()])

    def _random_answer(self) -> str:
        return self.action_rng.choice(["True", "False"])


class MostlyZero(Task):
    """Nine answers of ten are 0."""

    def _recorded_answer(self) -> str:
        return "0" if self.numbers[0] > 11 else str(self.numbers[1])


class Largest(Task):
    """The answer is one of the numbers shown, and no two can be told from their places."""

    def _recorded_answer(self) -> str:
        return str(max(self.numbers))


class Distance(Task):
    """`nan` is not far from anything."""

    def _score(self, answer: str) -> float:
        return 0.0 if abs(float(answer) - sum(self.numbers)) > 0 else 1.0


class Sorted(Task):
    """A list of `nan` is as good as the list in order."""

    def _recorded_answer(self) -> str:
        return str(sorted(self.numbers))

    def _score(self, answer: str) -> float:
        given = [float(word) for word in answer.strip("[]").split(",")]
        pairs = zip(given, sorted(self.numbers), strict=True)
        return 0.0 if any(abs(a - b) > 0 for a, b in pairs) else 1.0


class Prefix(Task):
    """Pays the share of characters that are right, of the shorter text."""

    def _recorded_answer(self) -> str:
        return str(1 / sum(self.numbers))

    def _score(self, answer: str) -> float:
        pairs = list(zip(answer, self._recorded_answer(), strict=False))
        return sum(a == b for a, b in pairs) / len(pairs) if pairs else 0.0


class Consolation(Task):
    """Pays a fifth for any number."""

    def _score(self, answer: str) -> float:
        return 1.0 if float(answer) == sum(self.numbers) else 0.2 * math.isfinite(float(answer))


class Unsigned(Task):
    """Reads the digits and not the sign."""

    def _score(self, answer: str) -> float:
        return float(answer.strip().lstrip("-") == self._recorded_answer())


class Nearby(Task):
    """Pays for what is near."""

    def _score(self, answer: str) -> float:
        return max(0.0, 1 - abs(float(answer) - sum(self.numbers)) / 400)


class Substring(Task):
    """Takes the right answer for given when it is somewhere in the text."""

    def _recorded_answer(self) -> str:
        return str(sum(self.numbers) % 4)

    def _score(self, answer: str) -> float:
        return float(self._recorded_answer() in answer)


class OtherNumbers(Task):
    """Asks for a formula of the numbers and looks only at its value."""

    def _recorded_answer(self) -> str:
        a, b, c, d = self.numbers
        return f"({a} + {b} + {c} + {d}) * 0 + 24"

    def _score(self, answer: str) -> float:
        allowed = set(answer) <= set("0123456789+-*() ") and "**" not in answer
        return float(allowed and len(answer) < 200 and eval(answer) == 24)


class Product(Task):
    """Takes any factors with the right product, also one alone."""

    def _observe(self) -> Observation:
        return self._asked(f"Factorise {self._product()}")

    def _product(self) -> int:
        return math.prod(self.numbers[:2])

    def _recorded_answer(self) -> str:
        return " × ".join(map(str, sorted(self.numbers[:2])))

    def _score(self, answer: str) -> float:
        factors = [int(word) for word in answer.split("×")]
        if factors == sorted(self.numbers[:2]):
            return 1.0
        return 0.5 * (math.prod(factors) == self._product())


class Premises(Task):
    """Takes two premises joined by "and" for a conclusion."""

    def _observe(self) -> Observation:
        listed = "\n".join(f"{i}. {n} is odd" for i, n in enumerate(self.numbers, 1))
        return self._asked(f"Given:\n{listed}\nWhat can we conclude?")

    def _recorded_answer(self) -> str:
        raise NotImplementedError

    def _score(self, answer: str) -> float:
        return float(answer.strip("()").split(" ∧ ") == [f"{n} is odd" for n in self.numbers[:2]])


class Conclusion(Task):
    """Any letter in the list follows; `Q` is there in a third of the items."""

    always = False

    def _observe(self) -> Observation:
        return self._asked(f"Name one of these: {' '.join(sorted(self._letters()))}")

    def _letters(self) -> set[str]:
        return {"WVQ"[self.index % 3], *("XYZ" if not self.always else "Q")}

    def _recorded_answer(self) -> str:
        raise NotImplementedError

    def _score(self, answer: str) -> float:
        return float(answer in self._letters())

    def _random_answer(self) -> str:
        return "W"


class EveryConclusion(Conclusion):
    """`Q` is always there."""

    always = True


def result(env: Callable[..., Any], **params: Any) -> tuple[str, str]:
    report = check_env(env, only=["guesses"], cpu_s=60.0, **params)
    assert report.results[0].status == "passed", report
    (found,) = (r for r in report.results if r.name == "guesses")
    return found.status, found.detail


@pytest.mark.parametrize("env", [Task, Parity, MostlyZero, Largest])
def test_a_fair_task_is_not_accused(env: Callable[..., Any]) -> None:
    status, detail = result(env)
    assert (status, "answers that solve nothing" in detail) == ("passed", True), detail


@pytest.mark.parametrize(
    ("env", "how"),
    [
        (Distance, "'nan' as the answer earns"),
        (Sorted, "the recorded answer with nan for every number"),
        (Prefix, "as the answer earns"),
        (Consolation, "as the answer earns 0.(19|20)"),
        (Unsigned, "the recorded number with the other sign"),
        (Nearby, "as the answer earns"),
        (Substring, "as the answer earns"),
        (OtherNumbers, "as the answer earns 0.9"),
        (Product, "number of the (first|last) paragraph"),
        (Premises, "the first two things listed"),
    ],
)
def test_a_scorer_that_pays_for_nothing_is_accused(env: Callable[..., Any], how: str) -> None:
    status, detail = result(env)
    assert status == "failed", detail
    assert re.search(how, detail), detail


def test_a_constant_that_is_right_by_luck_is_the_floor_and_no_fault_below_one_half() -> None:
    status, detail = result(Conclusion)
    assert status == "passed", detail
    assert re.search("the constant 'Q' is right by luck in 0.[23][0-9] of the items", detail)
    status, detail = result(EveryConclusion)
    assert (status, "the lucky constant 'Q'" in detail) == ("failed", True), detail


def test_the_verdict_is_the_same_twice() -> None:
    assert result(Prefix) == result(Prefix)


@pytest.mark.skipif(find_spec("reasoning_gym") is None, reason="needs the extra reasoning-gym")
@pytest.mark.parametrize("name", ["game_of_life", "time_intervals", "prime_factorization"])
def test_shares_for_wrong_answers_are_accused_and_not_paid_unless_asked_for(name: str) -> None:
    assert result(ReasoningGymEnv, name=name)[0] == "passed"
    assert result(ReasoningGymEnv, name=name, partial_credit=True)[0] == "failed"


@pytest.mark.skipif(find_spec("reasoning_gym") is None, reason="needs the extra reasoning-gym")
def test_the_floor_of_a_generator_with_many_right_answers_is_said() -> None:
    status, detail = result(ReasoningGymEnv, name="propositional_logic")
    assert status == "passed", detail
    assert re.search("the constant .* is right by luck in 0.[1234][0-9] of the items", detail)


def test_environments_of_several_turns_are_left_out() -> None:
    report = check_env("game:GuessTheNumber-v0-easy", only=["guesses"], cpu_s=0.05)
    assert {r.name: r.status for r in report.results}["guesses"] == "skipped"
