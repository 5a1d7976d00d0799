"""Answers have to be worked out: which operations are left, and which notations are none."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gem_math import forms, notation
from gem_math.cleaning import clean
from gem_math.forms import unevaluated
from gem_math.grading import grade
from gem_math.tree import Node, size


def left(answer: str, gold: str) -> str | None:
    return unevaluated(notation.read(clean(answer)), notation.read(clean(gold)))


@pytest.mark.parametrize(
    ("answer", "gold", "operation"),
    [
        ("(16-3-4)*2", "18", "product"),
        ("16-3-4", "9", "sum"),
        ("2^{10}", "1024", "power"),
        ("\\binom{16}{15}", "16", "factorial"),
        ("4!", "24", "factorial"),
        ("\\gcd(1313,1001)", "13", "common divisor or multiple"),
        ("\\sqrt{5625}", "75", "root"),
        ("\\sqrt{-4}", "2i", "root of a negative number"),
        ("\\sqrt{7+4\\sqrt3}", "2+\\sqrt3", "root of a sum"),
        ("\\sin 30^\\circ", "0.5", "trigonometric function"),
        ("\\arctan 1", "\\frac{\\pi}{4}", "inverse trigonometric function"),
        ("\\log_2 8", "3", "logarithm"),
        ("\\lfloor 2.5\\rfloor", "2", "rounding"),
        ("|-3|", "3", "absolute value"),
        ("\\max(3,5)", "5", "maximum"),
        ("\\frac{\\frac12}{3}", "\\frac16", "quotient"),
        ("\\sin^2 x+\\cos^2 x", "1", "variables"),
        ("e^{i\\pi/3}", "\\frac12+\\frac{\\sqrt3}{2}i", "trigonometric function"),
    ],
)
def test_the_operation_that_is_left_is_named(answer: str, gold: str, operation: str) -> None:
    assert left(answer, gold) == operation
    assert unevaluated(clean(answer), clean(gold)) == operation
    assert left(gold, answer) is None


@pytest.mark.parametrize(
    ("answer", "gold", "operation"),
    [
        ("\\int_0^1 x\\,dx", "\\frac12", "integral"),
        ("\\sum_{k=1}^{3} k", "6", "sum over a range"),
        ("\\prod_{k=1}^{3} k", "6", "product over a range"),
        ("\\lim_{x\\to 0} x", "0", "limit"),
        ("\\frac{d}{dx} x^2", "2x", "derivative"),
        ("7^{100} \\pmod{13}", "9", "remainder"),
        ("7 \\mod 5", "2", "remainder"),
        ("\\left|\\begin{vmatrix} 1&2\\\\3&4 \\end{vmatrix}\\right|", "2", "determinant"),
        ("?? 2 \\times 3", "6", "product"),
        ("?? 2 + 3", "5", "sum"),
        ("?? \\sqrt{16}", "4", "root"),
        ("?? 5!", "120", "factorial"),
        ("?? 12 \\div 3", "4", "quotient"),
        ("?? 2^{10}", "1024", "power"),
    ],
)
def test_a_text_that_cannot_be_read_is_searched_for_operations(
    answer: str, gold: str, operation: str
) -> None:
    for expected in (clean(gold), notation.read(clean(gold))):
        assert unevaluated(clean(answer), expected) == operation
    assert unevaluated(clean(answer), "so: " + clean(answer)) is None


def test_powers_side_by_side_are_a_product() -> None:
    # The gold cannot be read; math-verify reads it.
    assert unevaluated("2^6 * 3^5", "2^6 3^5") is None
    assert unevaluated("2^6 3^5", "15552") == "power"


@pytest.mark.parametrize(
    "text",
    ["?? 2^{100}", "?? x^2", "?? x^2+1-3y", "?? 1+2t", "?? 3 \\times 10^8", "?? \\sqrt{8}",
     "?? 2x+3", "?? 3+4i", "?? -5", "?? \\frac{1}{2}+\\frac{x}{3}", "?? a \\ne 0",
     "?? 2-\\sqrt{3}", "?? x \\in [1,2]"],
)  # fmt: skip
def test_a_form_in_a_text_is_no_operation(text: str) -> None:
    assert unevaluated(clean(text), "5") is None


NUMBERS = st.integers(2, 60)


@st.composite
def formulas(draw: st.DrawFn, depth: int = 2) -> tuple[str, Fraction]:
    """A formula of at least one operation, and its value."""
    operands = []
    for _ in range(2):
        if depth and draw(st.booleans()):
            text, value = draw(formulas(depth - 1))
            operands.append((f"({text})", value))
        else:
            number = draw(NUMBERS)
            operands.append((str(number), Fraction(number)))
    (a, x), (b, y) = operands
    sign = draw(st.sampled_from(["+", "-", "\\cdot ", "*", "\\times "]))
    value = x + y if sign == "+" else x - y if sign == "-" else x * y
    return f"{a}{sign}{b}", value


@given(formulas())
@settings(max_examples=150)
def test_a_formula_of_numbers_is_not_its_value_but_the_value_is(
    formula: tuple[str, Fraction],
) -> None:
    text, value = formula
    assert grade(text, str(value))[:2] == (False, "unevaluated")
    assert grade(str(value), text).correct
    assert grade(f"{text}={value}", str(value)).correct


@given(st.integers(1, 999), st.integers(2, 999), st.integers(2, 60))
@settings(max_examples=100)
def test_a_fraction_mixed_number_decimal_or_surd_is_worked_out(a: int, b: int, c: int) -> None:
    assume(a % b)
    value = Fraction(a, b)
    surd = f"\\frac{{{a}\\sqrt{{{c * c + 1}}}}}{{{b}}}"
    for answer, gold in (
        (f"\\frac{{{a * c}}}{{{b * c}}}", str(value)),
        (f"{c}\\frac{{{a % b}}}{{{b}}}", str(c + Fraction(a % b, b))),
        (f"{a}\\pi/{b}", f"\\frac{{{value.numerator}\\pi}}{{{value.denominator}}}"),
        (surd, f"\\frac{{{value.numerator}}}{{{value.denominator}}}\\sqrt{{{c * c + 1}}}"),
        (f"{a}+\\sqrt{{{c * c + 1}}}", f"\\sqrt{{{c * c + 1}}}+{a}"),
        (f"{a}{c:03}\\times 10^{{{c}}}", f"{a}{c:03}{'0' * c}"),
    ):
        assert grade(answer, gold).correct, (answer, gold)


def test_finding_operations_visits_every_node_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    visits = 0
    visit = forms._Survey.visit

    def visited(survey: forms._Survey, node: Node) -> forms._Part:
        nonlocal visits
        visits += 1
        return visit(survey, node)

    monkeypatch.setattr(forms._Survey, "visit", visited)
    for piece in ("x^2+1-", "\\sqrt{999999}+", "1/97+", "(1+\\sqrt{2})*", "x=1+1,", "-(1+", "1+1="):
        closer = ")" if piece.endswith("(1+") else ""
        times = 9 if closer else 50
        node = notation.read(clean(f"{piece * times}1{closer * times}"))
        visits = 0
        unevaluated(node, notation.read("5"))
        assert 0 < visits <= 4 * size(node)


@pytest.mark.parametrize(
    ("prediction", "gold", "right"),
    [
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", True),
        (r"\frac{1}{2}}", "0.5", True),
        (r"\frac{1}{2}}}", "0.5", False),
        (r"\{1,2\}", "(1,2)", False),
        (r"\{1,2\}", r"\{2,1\}", True),
    ],
)
def test_one_brace_too_many_at_the_end_is_left_out(prediction: str, gold: str, right: bool) -> None:
    assert grade(prediction, gold).correct is right


@pytest.mark.parametrize(
    ("prediction", "gold", "right"),
    [
        ("=45", "45", True),
        ("=40+5", "45", False),
        ("= 45 = 44", "45", False),
        ("==45", "45", False),
        ("x: 3, y: 7", "x=3, y=7", True),
        (r"\{x: 3, y: 7\}", "x=3, y=7", True),
        ("x: 7, y: 3", "x=3, y=7", False),
        ("x: 1+2, y: 7", "x=3, y=7", False),
        # Ratios, not names with values.
        ("x: 3", "3", False),
        ("2: 3, 4: 5", "3, 5", False),
        (r"\left(\begin{array}{cc} a & b \\ c & d \end{array}\right)",
         r"\begin{pmatrix} a & b \\ c & d \end{pmatrix}", True),
        (r"\left[\begin{array}{c} 1+1 \\ 2 \end{array}\right]", "(2,2)", False),
        (r"\left(\begin{array}{c|c} 1 & 2 \end{array}\right)", "(1,2)", False),
        (r"\left|\begin{array}{cc} 1 & 2 \\ 3 & 4 \end{array}\right|", "-2", False),
    ],
)  # fmt: skip
def test_an_equals_sign_in_front_colons_and_arrays(prediction: str, gold: str, right: bool) -> None:
    assert grade(prediction, gold).correct is right


@pytest.mark.parametrize(
    ("prediction", "gold", "right"),
    [
        ("1又1/2", r"\frac32", True),
        (r"2又\frac{1}{3}", r"\frac73", True),
        ("1又200", "1200", False),
        ("12元", "12", True),
        ("12万元", "12", False),
        ("12个半", "12", False),
        ("第5名", "5", False),
        ("5千米", r"5\text{ km}", True),
        ("5千米", r"5\text{ kg}", False),
        ("x=1或x=2", "1, 2", True),
        ("5または6", "6", False),
        ("x>1且x<3", "(1,3)", True),
    ],
)
def test_chinese_and_japanese_words_that_are_notation(
    prediction: str, gold: str, right: bool
) -> None:
    assert grade(prediction, gold).correct is right


@pytest.mark.parametrize(
    ("prediction", "gold", "right"),
    [
        ("true", "Yes", True),
        ("No.", "False", True),
        ("no", "true", False),
        ("DNE", r"\text{does not exist}", True),
        ("undefined", "does not exist", True),
        ("DNE", "0", False),
        ("no", "does not exist", False),
    ],
)
def test_words_that_say_the_same_are_equal(prediction: str, gold: str, right: bool) -> None:
    assert grade(prediction, gold).correct is right


@pytest.mark.parametrize(
    ("prediction", "gold", "right"),
    [
        ("1 < x < 2", "(1, 2)", True),
        ("1 < x < 2", r"x>1 \land x<2", True),
        (r"1 \leqq x < 2", "x>=1 and x<2", True),
        ("1 < x < 2", "1, 2", False),
        ("1 < x < 2", "x = 1, x = 2", False),
        ("1, 2", "1 < x < 2", False),
        ("1 < x < 2", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", False),
        # A letter beside variables is one too; beside numbers it may be hours.
        (r"\frac23 h R^2", r"\frac{2}{3} R^2 h", True),
        (r"\frac23 R^2", r"\frac{2}{3} R^2 h", False),
        ("2n+3", "2n + 3 m", False),
        (r"\frac{8h}{5}", r"\frac{8}{5} h", True),
        (r"\frac{8h+h}{5}", r"\frac{9}{5} h", False),
        ("5", "5 h", True),
        # A group of digits does not begin with 0.
        ("0,001", "1", False),
        (r"0{,}125", "125", False),
        ("0 125", "125", False),
        ("10,001", "10001", True),
        ("2,5", "2{,}5", True),
        ("5,2", "2{,}5", False),
        (r"k_{\max}(n) = 2n", "2n", True),
        (r"k_{\max}(n) = 2n", r"k_{\min}(n) = 2n", False),
        ("φ+γ", r"\gamma+\varphi", True),
        ("φ", r"\psi", False),
    ],
)
def test_inequalities_letters_and_groups_of_digits(prediction: str, gold: str, right: bool) -> None:
    assert grade(prediction, gold).correct is right


@pytest.mark.parametrize(
    ("prediction", "gold", "right"),
    [
        (r"60^\circ", r"\frac{\pi}{3}", True),
        (r"\frac{\pi}{3}", r"60^\circ", True),
        (r"\frac{\pi}{3}", "60 degrees", True),
        (r"45^\circ", r"\frac{\pi}{3}", False),
        (r"60", r"\frac{\pi}{3}", False),
        (r"90^\circ-30^\circ", r"\frac{\pi}{3}", False),
        (r"\frac{\pi}{6}+\frac{\pi}{6}", r"60^\circ", False),
        (r"60^\circ", r"60\pi", False),
    ],
)
def test_degrees_are_radians_where_the_other_side_has_pi(
    prediction: str, gold: str, right: bool
) -> None:
    assert grade(prediction, gold).correct is right


@pytest.mark.parametrize(
    ("prediction", "right"),
    [
        ("The answer is **5**.", True),
        ("**Answer:** 5", True),
        ("**Answer:** **5**", True),
        ("The answer is **not 5**.", False),
        ("答案为 5", True),
        ("最终答案：5", True),
        ("答案不是 5", False),
        ("答案是5或6", False),
        ("4、5", False),
    ],
)
def test_an_answer_behind_what_introduces_it(prediction: str, right: bool) -> None:
    assert grade(prediction, "5").correct is right


@pytest.mark.parametrize(
    ("prediction", "gold", "right"),
    [
        # The fraction of a mixed number lies between 0 and 1.
        (r"0\frac{42}{1}", "42", False),
        (r"x=0\dfrac{42}{1}", "42", False),
        (r"41\frac{2}{2}", "42", False),
        (r"1\frac{3}{2}", r"\frac52", False),
        ("1 3/2", "2.5", False),
        (r"42\frac{0}{7}", "42", False),
        (r"0\frac{1}{2}", "0.5", False),
        (r"\frac52", r"1\frac{3}{2}", True),
        (r"2\frac{1}{2}", r"\frac52", True),
        (r"-2\frac{2}{4}", "-2.5", True),
        # A currency or degree sign between two numbers does not hide the first.
        (r"0\$42", "42", False),
        ("0€42", "42", False),
        (r"\$0\$42", r"\$42", False),
        (r"0^\circ42", "42", False),
        (r"7^{\circ} 42", "42", False),
        # Nor does a letter, a unit or a base.
        ("42 h 7 min", "42", False),
        (r"42\mathrm{h}7", "42", False),
        ("42 e 7", "42", False),
        (r"2\pi s 7", r"2\pi", False),
        ("(1,3) h 7", "(1,3)", False),
        ("42_27", "42", False),
        ("42_{7}", "42_7", True),
        ("42 h", "42", True),
        (r"\$42", "42", True),
        (r"42^\circ", "42", True),
        (r"30^\circ, 42^\circ", "30, 42", True),
        # Characters that only math-verify could know: it drops some, and what stands behind others.
        ("42 ≅ 7", "42", False),
        ("7 ≡ 42", "42", False),
        ("⊕42", "42", False),
        ("3万5千", "35", False),
        ("x ≡ 3", "x ≡ 3", True),
        # A matrix of one entry is not a number.
        (r"x=\begin{pmatrix}42\end{pmatrix}", "42", False),
        (r"\begin{pmatrix}42\end{pmatrix}", r"\begin{bmatrix}42\end{bmatrix}", True),
    ],
)
def test_numbers_that_stand_side_by_side_are_not_one(
    prediction: str, gold: str, right: bool
) -> None:
    assert grade(prediction, gold).correct is right


@pytest.mark.parametrize(
    ("prediction", "gold", "right"),
    [
        ("x=3, y=5", "(3,5)", True),
        ("y=5, x=3", "(3,5)", True),
        ("y=3, x=5", "(3,5)", False),
        ("y=5 and x=3", "(3,5)", True),
        ("c=3, b=2, a=1", "(1,2,3)", True),
        ("(y,x)=(3,5)", "(3,5)", False),
        ("(y,x)=(5,3)", "(3,5)", True),
        ("y=5, x=3", "(x,y)=(3,5)", True),
        ("3, 5", "x=3, y=5", True),
        ("5, 3", "x=3, y=5", False),
        ("7, 2", "a=2, b=7", False),
        ("y=5, x=3", "x=3, y=5", True),
        # Other names, and lists without names, say no order.
        ("m=2, b=-1", "(2,-1)", True),
        ("(m,b)=(2,-1)", "(2,-1)", True),
        ("x_1=3, x_2=2", "2, 3", True),
        ("5, 3", "x=3, x=5", True),
        ("x=5, y=3", "3, 5", True),
    ],
)
def test_names_say_the_order_of_values(prediction: str, gold: str, right: bool) -> None:
    assert grade(prediction, gold).correct is right


@pytest.mark.parametrize(
    ("prediction", "gold", "right"),
    [
        ("y>3", "x>3", False),
        ("3<x", "x>3", True),
        ("y>3", r"(3,\infty)", True),
        (r"(3,\infty)", "x>3", True),
        ("y>3", r"x\in(3,\infty)", False),
        ("y<1 or y>5", "x<1 or x>5", False),
        (r"(-\infty,1)\cup(5,\infty)", "x<1 or x>5", True),
        ("y>1 and x<5", "1<x<5", False),
        ("|y|>2", "|x|>2", False),
        ("x>2 or x<-2", "|x|>2", True),
    ],
)
def test_two_inequalities_are_of_the_same_symbol(prediction: str, gold: str, right: bool) -> None:
    assert grade(prediction, gold).correct is right
