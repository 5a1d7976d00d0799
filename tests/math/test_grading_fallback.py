"""What math-verify is asked where the reader stops, what it is never asked, and that it answers."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gem.workers.pool import Reply
from gem_math import fallback
from gem_math import grading as grader
from gem_math.grading import grade

needs_math_verify = pytest.mark.skipif(
    importlib.util.find_spec("math_verify") is None, reason="needs gem-core[math]"
)


class Believer:
    """In place of the workers: finds every answer right and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def call(self, prediction: str, gold: str, *, timeout_s: float) -> Reply:
        self.asked.append((prediction, gold))
        return Reply(True)


@pytest.fixture
def believer(monkeypatch: pytest.MonkeyPatch) -> Believer:
    pool = Believer()
    monkeypatch.setattr(grader, "shared", lambda target: pool)
    return pool


PYPROJECT = Path(__file__).parents[2] / "packages/gem-math/pyproject.toml"
PUNCTURED = r"\mathbb{R}\setminus\{0\}"

# Readable to math-verify only, and their golds to both.
EQUAL = [
    (PUNCTURED, r"(-\infty,0)\cup(0,\infty)"),
    (r"2\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}2\\4\end{pmatrix}"),
]


@needs_math_verify
@pytest.mark.parametrize(("prediction", "gold"), EQUAL)
def test_math_verify_decides_where_the_reader_cannot_read(prediction: str, gold: str) -> None:
    assert grade(prediction, gold, timeout_s=60)[:2] == (True, "symbolic")


@needs_math_verify
@pytest.mark.parametrize(
    ("prediction", "gold", "reason"),
    [
        (PUNCTURED, r"(-\infty,1)\cup(1,\infty)", "different"),
        (PUNCTURED, "5", "unreadable"),
        (r"5\mid", "5", "unreadable"),
    ],
)
def test_what_math_verify_finds_different_or_cannot_read_is_wrong(
    prediction: str, gold: str, reason: str
) -> None:
    verdict = grade(prediction, gold, timeout_s=60)
    assert not verdict.correct
    assert verdict.reason in (reason, "different")


def test_what_both_can_read_is_not_asked(believer: Believer) -> None:
    for prediction, gold in [("5", "6"), (r"\frac{1}{3}", "0.3"), ("x+1", "x-1"), ("(1,2)", "3")]:
        assert not grade(prediction, gold).correct
    assert believer.asked == []


@pytest.mark.parametrize(
    "prediction",
    [
        r"\sum_{k=1}^{4} k", r"\prod_{k=1}^{4} k", r"\int_0^1 20x\,dx", r"\lim_{x\to 5} 2x",
        r"35 \bmod 25", r"{5 \choose 2}", r"\det\begin{pmatrix}5&0\\0&2\end{pmatrix}",
        r"\frac{\partial}{\partial x} 10x", r"\overline{3 + 7}", r"5! / 12 \mid", r"\overline{2 5}",
        r"\overline{(2)(5)}", r"\overline{\frac{20}{3} \cdot \frac{3}{2}}",
    ],
)  # fmt: skip
def test_what_is_left_to_compute_is_not_asked(prediction: str, believer: Believer) -> None:
    assert not grade(prediction, "10").correct
    assert believer.asked == []


def test_what_the_gold_leaves_to_compute_the_answer_may_leave_too(believer: Believer) -> None:
    gold = r"\sum_{k=1}^{n} \frac{1}{k}"
    assert grade(r"\sum_{j=1}^{n} \frac{1}{j}", gold).correct
    assert len(believer.asked) == 1


def test_a_formula_of_the_question_is_no_answer_to_a_gold_that_only_math_verify_reads(
    believer: Believer,
) -> None:
    gold = r"\int_0^9 4x/9\,dx"
    for prediction in ("(16-3-4)*2", r"\binom{18}{17}", r"\gcd(36, 54)"):
        assert grade(prediction, gold)[:2] == (False, "unevaluated")
    assert believer.asked == []
    assert grade("18", gold).correct


@pytest.mark.parametrize(
    "prediction",
    [
        rf"{PUNCTURED}, (0,1)", rf"(0,1) \text{{ or }} {PUNCTURED}", rf"{PUNCTURED}; (0,1)",
        rf"{PUNCTURED} \lor (0,1)", rf"(0,1) \text{{ and }} {PUNCTURED}",
    ],
)  # fmt: skip
def test_several_answers_for_one_are_not_asked(prediction: str, believer: Believer) -> None:
    assert not grade(prediction, "(0,1)").correct
    assert not grade(prediction, PUNCTURED).correct
    assert believer.asked == []


@pytest.mark.parametrize(
    "prediction",
    [
        r"\overline{3} = 9 = 5", r"x + \overline{z} = 5", r"\overline{5} \equiv 5",
        r"9 \to 5", r"9 \Rightarrow 5",
    ],
)  # fmt: skip
def test_of_a_chain_or_an_equation_math_verify_does_not_take_the_end(
    prediction: str, believer: Believer
) -> None:
    assert not grade(prediction, "5").correct
    assert believer.asked == []


@pytest.mark.parametrize(
    "prediction",
    ["seven", "I think that it is 7", "7 apples, perhaps 8", "Überall 7", "7 ∎ weil es so ist"],
)
def test_prose_is_not_asked(prediction: str, believer: Believer) -> None:
    assert not grade(prediction, "7.5").correct
    assert believer.asked == []


PIECES = [
    "\\overline{", "\\begin{cases}", "\\end{cases}", "\\sum", "\\mid", "\\setminus", "\\int", "}",
    "{", "(", ")", ",", ";", "=", "+", "x", "12", "0", "!", " or ", "\\\\", "&", "\\to", "^", "_",
    "\\frac", "1 000", "word", "\\boxed{", "$", "\n", "\0", "\ud800",
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
@settings(max_examples=300)
def test_a_refusal_is_a_reason_of_the_grader(text: str) -> None:
    for readable in (False, True):
        assert fallback.refusal(text, "(0,1)", readable) in (
            "", "unreadable", "different", "too complex",
        )  # fmt: skip


def test_a_megabyte_of_zeros_is_read_in_one_pass() -> None:
    # Backtracking took ten seconds for ten thousand of them.
    zeros = "0" * 1_000_000
    assert grade(zeros + "7", "7").correct
    assert not grade(zeros + "x", "7").correct
    assert not grade(zeros + "x", "7.5").correct


def test_the_package_names_the_version_of_antlr_itself() -> None:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 and newer")
    needed = tomllib.loads(PYPROJECT.read_text())["project"]["dependencies"]
    # Installers that pass over an extra of math-verify's take the newest antlr else.
    assert any(line.startswith("antlr4-python3-runtime==4.9") for line in needed)
