"""Mathematical answers: labelled pairs, properties, bad input, limits."""

from __future__ import annotations

import asyncio
import decimal
import fractions
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gem.errors import DataError, MissingExtraError
from gem.grading import Verdict
from gem.workers.pool import _Worker
from gem_math import fallback
from gem_math import grading as grader
from gem_math.grading import agrade, grade

needs_math = pytest.mark.skipif(
    importlib.util.find_spec("math_verify") is None, reason="needs the extra math"
)

PAIRS = [
    json.loads(line)
    for line in (Path(__file__).parent / "data" / "math_pairs.jsonl").read_text().splitlines()
]
# Readable to math-verify only.
SYMBOLIC = r"\int_0^1 x\,dx"
# math-verify does not come back from this one, and nothing in it looks costly.
HANGS = r"\int_0^1 x^{x^{x}} dx"


@pytest.fixture
def without_math_verify(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fallback, "ask", lambda *_: (False, "unreadable"))


@pytest.fixture
def without_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    def shared(target: str) -> None:
        raise AssertionError(f"{target} was called")

    monkeypatch.setattr(grader, "shared", shared)


def test_there_are_labelled_pairs_of_every_kind() -> None:
    kinds = {
        kind: [pair for pair in PAIRS if pair["kind"] == kind] for kind in ("equal", "unequal")
    }
    pathological = {pair["prediction"] for pair in PAIRS if pair["kind"] == "pathological"}
    assert len(PAIRS) >= 400
    assert all(len(pairs) >= 200 for pairs in kinds.values())
    assert len(pathological) == 22
    assert all(pair["equal"] == (pair["kind"] == "equal") for pair in PAIRS)


@pytest.mark.parametrize("kind", ["equal", "unequal", "unevaluated", "pathological"])
def test_labelled_pairs_are_graded_as_labelled_without_math_verify(
    kind: str, without_math_verify: None
) -> None:
    wrong = [
        (pair["prediction"][:80], pair["gold"], verdict.reason)
        for pair in PAIRS
        if pair["kind"] == kind
        and (verdict := grade(pair["prediction"], pair["gold"])).correct != pair["equal"]
    ]
    assert wrong == []


def test_a_right_value_that_is_left_to_be_worked_out_has_a_reason_of_its_own() -> None:
    for pair in PAIRS:
        if pair["kind"] == "unevaluated":
            assert grade(pair["prediction"], pair["gold"]).reason == "unevaluated", pair


def test_every_answer_equals_itself() -> None:
    for pair in PAIRS:
        assert grade(pair["gold"], pair["gold"]).correct


def test_no_empty_answer_is_right() -> None:
    for pair in PAIRS:
        for nothing in ("", "  ", "$$", "\\,", "."):
            assert grade(nothing, pair["gold"])[:2] == (False, "empty")


@pytest.mark.parametrize(
    ("prediction", "gold", "reason"),
    [
        ("x + y", "x + y", "exact"),
        ("$x+y$", "x + y", "exact"),
        ("007", "7", "number"),
        ("7.50", "7.5", "number"),
        ("B.", "(b)", "text"),
        ("2/4", "1/2", "value"),
        ("8", "7", "different"),
        ("cat", "act", "different"),
        (None, "7", "no answer"),
        (7, "7", "no answer"),
        ("seven", "7", "unreadable"),
        ("(" * 50 + "7" + ")" * 50, "8", "too complex"),
        ("x" * 10_000, "8", "too complex"),
    ],
)
def test_the_reason_names_the_layer_that_decided(prediction: Any, gold: Any, reason: str) -> None:
    verdict = grade(prediction, gold)
    assert verdict.reason == reason
    assert verdict.correct == (reason in ("exact", "number", "text", "value"))
    assert verdict.score == float(verdict.correct)
    assert verdict.seconds >= 0


# Properties


def spellings(value: Fraction) -> list[str]:
    n, d = value.numerator, value.denominator
    written = [
        f"{n}/{d}",
        f"x = {n}/{d}",
        f"\\left({n} \\div {d}\\right)",
        f"{100 * value}\\%",
        f"\\frac{{{n}}}{{{d}}}\\text{{ cm}}",
    ]
    if d > 1:
        # A fraction that is an integer is a division to be carried out.
        written += [f"\\frac{{{3 * n}}}{{{3 * d}}}", f"{n}e3/{d}000"]
    else:
        written += [str(n), f"{n:,}", f"{n}.0", f"\\${n}"]
    if n > d > 1:
        written.append(f"{n // d}\\frac{{{n % d}}}{{{d}}}")
    return written


RATIONALS = st.fractions(-2000, 2000, max_denominator=50)


@given(RATIONALS, RATIONALS)
@settings(max_examples=60)
def test_spellings_of_two_numbers_are_equal_just_when_the_numbers_are(
    a: Fraction, b: Fraction
) -> None:
    for mine in spellings(a):
        assert grade(mine, str(a)).correct, mine
        assert grade(str(a), mine).correct, mine
        # A percentage may stand for the number with the sign left out.
        if b not in (a, 100 * a):
            assert not grade(mine, str(b)).correct, mine


def decorated(value: str) -> list[str]:
    """Ways to write an answer around its value."""
    return [
        f"|AB|={value}", f"\\frac{{NO}}{{BO}} = {value}", f"x={value}\\approx 3.1",
        f"{value}\\approx 3.1", f"x \\approx {value}", f"\\text{{(B) }} {value}",
        f"{value}\\text{{ blue cows}}", f"({value})^\\circ C", f"f^\\prime(2) = {value}",
        f"{value} \\\\", f"[{value}]",
    ]  # fmt: skip


@given(RATIONALS, RATIONALS)
@settings(max_examples=60)
def test_what_stands_around_a_value_never_makes_it_another(a: Fraction, b: Fraction) -> None:
    for mine in decorated(str(a)):
        assert grade(mine, str(a)).correct, mine
        assert grade(str(a), mine).correct, mine
        if a != b:
            assert not grade(mine, str(b)).correct, mine
            assert not grade(str(b), mine).correct, mine


@given(st.tuples(RATIONALS, RATIONALS), st.tuples(RATIONALS, RATIONALS))
@settings(max_examples=40)
def test_a_named_pair_is_the_pair_and_no_other(
    mine: tuple[Fraction, Fraction], other: tuple[Fraction, Fraction]
) -> None:
    named, bare, gold = f"(p,q)=({mine[0]},{mine[1]})", f"({mine[0]}, {mine[1]})", "({}, {})"
    assert grade(named, bare).correct
    assert grade(bare, named).correct
    assert grade(named, gold.format(*other)).correct == (mine == other)


@given(RATIONALS, RATIONALS)
@settings(max_examples=60)
def test_an_inequality_of_minus_x_is_that_of_x_turned_round(a: Fraction, b: Fraction) -> None:
    assert grade(f"-x>{-a}", f"x<{a}").correct
    assert grade(f"-x\\le {-a}", f"x\\ge {a}").correct
    assert not grade(f"-x>{-a}", f"x>{a}").correct
    assert grade(f"-x<{a}", f"x>{b}").correct == (a == -b)


@given(st.integers(-5000, 5000), st.integers(-5000, 5000))
@settings(max_examples=60)
def test_percent_is_a_hundredth_or_the_number_of_a_gold_that_is_no_fraction(a: int, b: int) -> None:
    hundredths = Fraction(a, 100)
    assert grade(f"{a}\\%", str(hundredths)).correct
    assert grade(str(hundredths), f"{a}\\%").correct
    assert grade(f"{a}\\%", f"{b}\\%").correct == (a == b)
    # A gold without the sign may mean percent only if it is not below one.
    assert grade(f"{hundredths}\\%", str(hundredths)).correct == (abs(hundredths) >= 1 or a == 0)
    assert grade(str(hundredths), f"{hundredths}\\%").correct


COEFFICIENTS = st.lists(st.integers(-9, 9), min_size=1, max_size=4)


def expanded(roots: list[int]) -> list[int]:
    coefficients = [1]
    for root in roots:
        shifted = [0, *coefficients]
        coefficients = [a - root * b for a, b in zip(shifted, [*coefficients, 0], strict=True)]
    return coefficients


@given(COEFFICIENTS, st.integers(-1, 1), st.integers(0, 3))
@settings(max_examples=60)
def test_a_product_equals_its_expansion_and_no_other_polynomial(
    roots: list[int], change: int, where: int
) -> None:
    coefficients = expanded(roots)
    coefficients[where % len(coefficients)] += change
    product = "".join(f"(x-({root}))" for root in roots)
    written = "+".join(f"({c})x^{{{power}}}" for power, c in enumerate(coefficients))
    assert grade(product, written).correct == (change == 0)


@given(st.lists(st.integers(-50, 50), min_size=2, max_size=5), st.randoms())
@settings(max_examples=60)
def test_order_matters_in_tuples_but_not_in_sets(items: list[int], rng: Any) -> None:
    shuffled = rng.sample(items, len(items))
    written, other = (", ".join(map(str, each)) for each in (items, shuffled))
    assert grade(f"\\{{{other}\\}}", f"\\{{{written}\\}}").correct
    assert grade(other, written).correct
    assert grade(f"({other})", f"({written})").correct == (shuffled == items)
    assert not grade(f"({written}, 7)", f"({written})").correct


@given(st.permutations("listen"))
@settings(max_examples=30)
def test_a_word_equals_none_of_its_other_arrangements(letters: list[str]) -> None:
    word = "".join(letters)
    assert grade(word, "listen").correct == (word == "listen")


PIECES = [
    "\\frac", "\\sqrt", "\\pm", "\\cup", "\\text{", "\\left", "\\begin{pmatrix}", "\\infty",
    "\\sin", "\\end{pmatrix}", "\\\\", "&", "{", "}", "(", ")", "[", "]", "|", "^", "_", "!",
    "=", "<", ",", ";", ":", "1", "23", "0", ".", "x", "ab", "e", "i", "%", "$", "°", "²", "½",
    " cm", " million", " and ", "**", "9^9^9", "-", "+", "/", "'", "\0", "\ud800", "日",
    "\\overline{3}", "\\{", "\\}", "\\langle", "\\rangle", "\\ldots", "...", "0.3", "^{-1}", "''",
    "\\tan", "\\binom", "th", "k", ",k\\in\\mathbb{Z}", "|x|", "C. ", "The answer is ", "2:30",
    " pm", "\\cup\\{1\\}", "\\land ", "+C", "个", "x\\in", ":", "\\frac{x}{x}",
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join) | st.text())
@settings(max_examples=200)
def test_any_answer_gets_a_verdict(prediction: str) -> None:
    for gold in ("7", "x+1", "\\{1,2\\}", "[0,1)", "\\text{yes}", "\\sqrt{2}", "y=2x", "50\\%",
                 "x^2+C", "k\\pi,k\\in\\mathbb{Z}", "3:4", "C"):  # fmt: skip
        assert isinstance(grade(prediction, gold), Verdict)


@pytest.mark.parametrize("piece", ["1", "x+", "(", "{", "\\frac{", "1,", "^2", "\ud800", "\0", " "])
def test_a_megabyte_is_graded_at_once(piece: str) -> None:
    prediction = piece * (1_000_000 // len(piece))
    assert not grade(prediction, "x+1").correct
    assert not grade(prediction, "7").correct


# Golds


@pytest.mark.parametrize(
    "gold", [12, 12.0, np.int64(12), np.float32(12), fractions.Fraction(24, 2), decimal.Decimal(12)]
)
def test_a_gold_may_be_a_number(gold: Any) -> None:
    assert grade("12", gold).correct
    assert grade("x = 12", gold).correct
    assert not grade("13", gold).correct


def test_a_computed_float_means_the_number_it_was_rounded_from() -> None:
    assert grade("1/3", 1 / 3).correct
    assert grade("0.3", 0.1 + 0.2).correct
    assert grade("\\sqrt{2}", 2**0.5).correct
    assert not grade("0.333", 1 / 3).correct


def test_a_gold_of_too_many_digits_to_be_written_is_an_error() -> None:
    with pytest.raises(DataError, match="at most some thousand digits"):
        grade("5", 10**10_000)


def test_any_of_several_golds_will_do() -> None:
    assert grade("2", ["1", "two", 2]).correct
    assert not grade("3", ["1", "two", 2]).correct


@pytest.mark.parametrize(
    "gold",
    [None, [], {}, {"a": 1}, b"5", True, float("nan"), float("inf"), 1j, object(), [None], [["5"]]],
)
def test_a_gold_of_another_type_is_named_whatever_the_answer(gold: Any) -> None:
    for prediction in ("5", None, ""):
        with pytest.raises(DataError, match="gold must be a string"):
            grade(prediction, gold)


@pytest.mark.parametrize("gold", ["", "  ", "$$", [""]])
def test_an_empty_gold_is_an_error(gold: Any) -> None:
    with pytest.raises(DataError, match="gold is empty"):
        grade("5", gold)


# math-verify


def test_without_math_verify_what_it_must_decide_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "math_verify" else find(name)
    )
    fallback._check_installed.cache_clear()
    for prediction, gold in (("1/2", SYMBOLIC), (r"\mathbb{R}\setminus\{0\}", "(1,2)")):
        with pytest.raises(MissingExtraError, match=r"pip install 'gem-core\[math\]'"):
            grade(prediction, gold)
    assert grade("1/2", "0.5").correct


@needs_math
def test_what_the_reader_cannot_read_is_compared_by_math_verify() -> None:
    verdict = grade("1/2", SYMBOLIC, timeout_s=60)
    assert (verdict.correct, verdict.reason) == (True, "symbolic")
    assert grade("1/3", SYMBOLIC, timeout_s=60)[:2] == (False, "different")
    assert grade("1/2", ["7", SYMBOLIC], timeout_s=60).correct


@needs_math
def test_an_answer_is_not_wrong_because_a_worker_was_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    message, killed = _Worker._message, []

    def killed_once(worker: _Worker, *waiting: Any) -> Any:
        found = message(worker, *waiting)
        if found and "taken" in found and not killed:
            killed.append(worker.pid)
            os.kill(worker.pid, signal.SIGKILL)
        elif killed == [worker.pid]:
            # What it may have said meanwhile is lost with it.
            while found is not None and "ready" not in found:
                found = message(worker, *waiting)
        return found

    monkeypatch.setattr(_Worker, "_message", killed_once)
    assert grade("1/2", SYMBOLIC, timeout_s=60)[:2] == (True, "symbolic")
    assert killed


def test_an_answer_that_restates_the_problem_is_no_number(without_workers: None) -> None:
    assert grade(SYMBOLIC, "1/2")[:2] == (False, "unreadable")


@needs_math
def test_after_an_answer_that_hangs_the_next_is_graded_right() -> None:
    assert grade(HANGS, SYMBOLIC, timeout_s=0.3)[:2] == (False, "timeout")
    for _ in range(3):
        assert grade("1/2", SYMBOLIC, timeout_s=60).correct


@pytest.mark.parametrize(
    "prediction",
    ["9**9**9", "9^{9^{9}}", "2^{10^9}", "x^{100000}", "(10**8)!", "9999999999!", "x" * 600,
     "{" * 20 + "x" + "}" * 20 + "\\int"],
)  # fmt: skip
@needs_math
def test_what_would_not_finish_is_refused(prediction: str, without_workers: None) -> None:
    assert grade(prediction, SYMBOLIC)[:2] == (False, "too complex")


@needs_math
def test_answers_are_graded_in_threads_while_one_hangs() -> None:
    verdicts: dict[int, Verdict] = {}

    def work(i: int) -> None:
        # The first is stopped; the others wait for a worker, but not towards their limit.
        prediction, timeout_s = (HANGS, 0.5) if i == 0 else ("0.5", 60)
        verdicts[i] = grade(prediction, SYMBOLIC, timeout_s=timeout_s)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [verdicts[i].correct for i in range(6)] == [False] + 5 * [True]
    assert verdicts[0].reason == "timeout"


@needs_math
def test_answers_are_graded_in_an_event_loop_while_one_hangs() -> None:
    async def main() -> list[Verdict]:
        return await asyncio.gather(
            agrade(HANGS, SYMBOLIC, timeout_s=0.3),
            agrade("0.5", SYMBOLIC, timeout_s=60),
            agrade("2/4", "1/2"),
        )

    assert [verdict.reason for verdict in asyncio.run(main())] == ["timeout", "symbolic", "value"]


def test_grading_numbers_imports_no_third_party_module() -> None:
    code = (
        "import sys; before = set(sys.modules); from gem_math.grading import grade; "
        "assert grade('1/2', '0.5').correct and grade('(x+1)^2', 'x^2+2x+1').correct; "
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}; "
        "print(sorted(new - set(sys.stdlib_module_names) - {'gem', 'gem_math'}))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


@pytest.mark.parametrize("base", [-1, 0, 1])
@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 10**30, 10**30 + 1, -1, -2, -(10**30)])
def test_a_power_of_a_unit_or_zero_has_its_value(base: int, exponent: int) -> None:
    text = f"({base})^{{{exponent}}}"
    if base == 0 and exponent < 0:
        assert not grade("0", text).correct
        return
    value = {0: int(exponent == 0), 1: 1, -1: -1 if exponent % 2 else 1}[base]
    for answer in (-1, 0, 1):
        assert grade(str(answer), text).correct == (answer == value)
