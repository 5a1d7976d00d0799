"""Forms of answers that the tests of other graders label, and what is refused on purpose."""

from __future__ import annotations

import time

import pytest

from gem.grading.formats import BOXED
from gem_math.grading import grade


@pytest.mark.parametrize(
    ("prediction", "gold"),
    [
        ("{1,3}", "(1,3)"),
        ("{1,3}", r"\{3,1\}"),
        (r"{1,2}\cup{3}", r"\{1,2\}\cup\{3\}"),
        ("(3,17,3), (5,1,2), (3,17,3)", "(5,1,2), (3,17,3)"),
        ("(1,2), (1,2), (3,4)", "(3,4), (1,2)"),
        (r"\begin{pmatrix} 1/2 \\ 1 \end{pmatrix}", "[0.5, 1]"),
    ],
)
def test_these_are_equal(prediction: str, gold: str) -> None:
    assert grade(prediction, gold)[:2] == (True, "value")


@pytest.mark.parametrize(
    ("prediction", "gold"),
    [
        ("{1,3}", "(3,1)"),
        ("2, 2, 3", "2, 3"),
        ("(1,2), (3,4)", "(1,2)"),
        (r"\begin{pmatrix} 1/2 \\ 1 \end{pmatrix}", "[0.5, 1)"),
        # Rounded, of a false chain, or with a comma for a point.
        ("0.333", r"\frac{1}{3}"),
        ("1.414", r"\sqrt{2}"),
        ("125.663", r"40\pi"),
        ("x = 5+5+1 = 7 = 11", "11"),
        ("1000,99", "1000.99"),
    ],
)
def test_these_are_not(prediction: str, gold: str) -> None:
    assert not grade(prediction, gold).correct


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        (r"so $y_1 = \boxed{2x}$ and $y_2 = \boxed{3x}$.", "2x, 3x"),
        (r"\(x_{10} = \boxed{1}\) or \(x_{11} = \boxed{2}\)", "1, 2"),
        (r"$\boxed{(3, 3)} \text{ for part (a) and } \boxed{(1, 1)}$", "(3, 3), (1, 1)"),
        (r"\boxed{5} \boxed{6}", "5, 6"),
        (r"$\boxed{5}$ $\boxed{6}$", "5, 6"),
        (r"\boxed{5}/\boxed{6}", "5, 6"),
        (r"\boxed{5}|\boxed{6}", "5, 6"),
        (r"\boxed{5}\lor\boxed{6}", "5, 6"),
        (r"\boxed{5}\\ \boxed{6}", "5, 6"),
        (r"\boxed{5} & \boxed{6}", "5, 6"),
        (r"$\boxed{5}$ **or** $\boxed{6}$", "5, 6"),
        (r"\boxed{5} or else \boxed{6}", "5, 6"),
        (r"\boxed{5}; alternatively \boxed{6}", "5, 6"),
        (r"\boxed{5} maybe \boxed{6}", "5, 6"),
        (r"\boxed{6} \boxed{6}", "6"),
        ("\\boxed{5}\n\n\\boxed{6}", "6"),
        (r"First I thought $\boxed{3}$. Then I found $x = \boxed{4}$.", "4"),
    ],
)
def test_boxes_with_names_between_them_are_one_answer(reply: str, answer: str) -> None:
    assert BOXED.extract(reply) == answer


@pytest.mark.parametrize(
    "joint", [r"\text{", "and ", r"\text{ and ", ", x = ", "$ , ", "**", "|", "or else ", " "]
)
def test_what_joins_boxes_is_found_in_linear_time(joint: str) -> None:
    reply = r"\boxed{1}" + joint * (200_000 // len(joint)) + r"x \boxed{2}"
    began = time.process_time()
    assert BOXED.extract(reply) == "2"
    assert time.process_time() - began < 5
