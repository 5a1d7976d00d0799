"""What grading an answer costs: bounded by counting, whatever the answer holds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gem.grading.formats import BOXED
from gem_math import notation, values
from gem_math.grading import grade
from gem_math.tree import MAX_WORK

GOLDS = ["5", "x+1", "\\{1,2\\}", "[0,1)", "\\sqrt{2}", "1,2,3,4,5,6", "y=2x+1",
         "x^2+C", "k\\pi, k\\in\\mathbb{Z}", "\\{1\\}\\cup\\{2\\}", "\\sqrt{k/m}"]  # fmt: skip
NESTED = [
    ("1\\pm(1", ")"), ("\\{\\pm", "\\}"), ("{\\pm1,", "}"), ("\\frac{1\\pm1}{", "}"),
    ("2^{\\pm", "}"),
    ("(\\pm1,", ")"), ("\\{(\\pm", ",1)\\}"), ("[\\pm", ",1]"), ("|\\pm", "|"), ("-(\\mp", ")"),
]  # fmt: skip
DEPTHS = [2, 9, 18, 36]


class Counts:
    """How often the reader took a token and the comparison evaluated a node."""

    def __init__(self) -> None:
        self.tokens = self.visits = 0


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counts]:
    counted = Counts()
    advance = notation._Reader.advance

    def advanced(reader: Any) -> None:
        counted.tokens += 1
        advance(reader)

    monkeypatch.setattr(notation._Reader, "advance", advanced)
    for name in ("_exact", "_in_field", "_in_floats"):
        evaluate = getattr(values, name)

        def evaluated(*arguments: Any, evaluate: Any = evaluate) -> Any:
            counted.visits += 1
            return evaluate(*arguments)

        monkeypatch.setattr(values, name, evaluated)
    for gold in GOLDS:
        grade("1", gold)
    counted.tokens = counted.visits = 0
    yield counted


@pytest.mark.parametrize(("opener", "closer"), NESTED)
@pytest.mark.parametrize("depth", DEPTHS)
def test_nested_signs_are_read_in_a_bounded_number_of_tokens(
    opener: str, closer: str, depth: int, counts: Counts
) -> None:
    nest = opener * depth + "1" + closer * depth
    for answer in (nest, ",".join([nest] * 8)):
        for gold in GOLDS:
            counts.tokens = 0
            assert not grade(answer, gold).correct
            assert counts.tokens <= notation._MAX_TOKENS + 1


def test_a_sign_in_brackets_is_read_twice_however_deep(counts: Counts) -> None:
    tokens = []
    for depth in (6, 12):
        counts.tokens = 0
        grade("1" + "\\pm(1" * depth + ")" * depth, "5")
        tokens.append(counts.tokens)
    assert tokens[1] <= 2 * tokens[0]


@pytest.mark.parametrize(
    "piece",
    ["x+", "x^{10^9}+", "1000!+", "1/97+", "\\{1,2\\},", "(1,2),", "1,", "1=", "\\sin(x)+", "x=1,",
     "\\sqrt[3]{9^{999}}+", "x^2y=1,", "e^x,", "\\sqrt{2}=", "2^{2^{9}}x+",
     "C+x+", "\\{1,2\\}\\cup", "\\binom{n}{9}+", "k\\pi,", "x/x+", "\\tan^{-1}x+",
     "0.333...,", "\\sqrt{k/m}+"],
)  # fmt: skip
def test_a_comparison_evaluates_a_bounded_number_of_nodes(piece: str, counts: Counts) -> None:
    for size in (500, 2000, 4000):
        answer = piece * (size // len(piece)) + "7"
        for gold in [*GOLDS, answer[: size // 2] + "8"]:
            counts.visits = 0
            assert not grade(answer, gold).correct
            # One that was begun is finished.
            assert counts.visits <= 2 * MAX_WORK


@pytest.mark.parametrize("answer", ["\\binom{10^{2000}}{1000}", "\\binom{9^{99}}{900}+1", "9999!"])
def test_no_binomial_or_factorial_is_computed_that_would_be_huge(
    answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def computed(*arguments: int) -> int:
        raise AssertionError(f"{arguments} was computed")

    monkeypatch.setattr(math, "comb", computed)
    monkeypatch.setattr(math, "factorial", computed)
    assert grade(answer, "5")[:2] == (False, "too complex")


@given(st.integers(1, 10**60), st.integers(2, 20))
def test_the_integer_root_is_the_largest_whose_power_is_not_above(number: int, degree: int) -> None:
    root = values._integer_root(number, degree)
    assert root**degree <= number < (root + 1) ** degree


@pytest.mark.parametrize(
    ("prediction", "gold"),
    [
        ("(1\\pm\\sqrt5)/2", "\\frac{1+\\sqrt5}{2},\\frac{1-\\sqrt5}{2}"),
        ("(1,\\pm 2)", "(1,2),(1,-2)"),
        ("(\\pm 1,\\mp 2)", "(1,-2),(-1,2)"),
        ("[\\pm 3]", "3,-3"),
        ("{\\pm 1, \\pm 2}", "\\{1,-1,2,-2\\}"),
        ("\\{\\pm 1, \\pm 2\\}", "1,-1,2,-2"),
    ],
)
def test_one_sign_holds_for_an_item_and_in_a_set_for_a_member(prediction: str, gold: str) -> None:
    assert grade(prediction, gold).correct
    assert not grade(prediction, gold.replace("-", "", 1)).correct


def naive_box(reply: str) -> str | None:
    """The content of the last box, character by character."""
    start = max(reply.rfind("\\boxed{") + 7, reply.rfind("\\fbox{") + 6)
    if "\\boxed{" not in reply and "\\fbox{" not in reply:
        return None
    depth, i = 1, start
    while i < len(reply):
        if reply[i] == "\\":
            i += 2
            continue
        depth += {"{": 1, "}": -1}.get(reply[i], 0)
        if not depth:
            return reply[start:i].strip()
        i += 1
    return None


@given(
    st.lists(
        st.sampled_from(["\\boxed{", "\\fbox{", "{", "}", "\\", "\\\\", "\\{", "\\}", "a", "}}"]),
        max_size=20,
    ).map("".join)
)
def test_the_last_box_is_found_as_character_by_character(reply: str) -> None:
    # Boxes side by side are one answer, see test_formats.py.
    assume("}\\boxed{" not in reply and "}\\fbox{" not in reply)
    # Of an empty box the answer is the one around or before it.
    assume(naive_box(reply) != "")
    assert BOXED.extract(reply) == naive_box(reply)
