"""Rules of mathematical answers as properties: inverse functions, roots, families and so on."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gem_math import notation
from gem_math.cleaning import clean
from gem_math.compare import same
from gem_math.grading import grade
from gem_math.vocabulary import INVERSES


def equal(a: str, b: str) -> bool:
    """Compare by value alone, whatever is left to work out."""
    return same(notation.read(clean(a)), notation.read(clean(b)))


# Inverse functions

DOMAINS = {
    "sin": (-1, 1), "cos": (-1, 1), "tan": (-9, 9), "sinh": (-9, 9), "cosh": (1, 9),
    "tanh": (-0.9, 0.9), "cot": (0.1, 9), "sec": (1, 9), "csc": (1, 9), "coth": (1.1, 9),
    "sech": (0.1, 1), "csch": (0.1, 9),
}  # fmt: skip
RECIPROCAL = {"cot": "tan", "sec": "cos", "csc": "sin", "coth": "tanh", "sech": "cosh",
              "csch": "sinh"}  # fmt: skip


def inverse_value(name: str, x: float) -> float:
    if name in RECIPROCAL:
        name, x = RECIPROCAL[name], 1 / x
    return float(getattr(math, "a" + name)(x))


@pytest.mark.parametrize("name", sorted(INVERSES))
@given(share=st.integers(1, 99))
@settings(max_examples=15)
def test_the_exponent_minus_one_is_the_inverse_function(name: str, share: int) -> None:
    low, high = DOMAINS[name]
    x = Fraction(low) + (Fraction(high) - Fraction(low)) * Fraction(share, 100)
    x = x.limit_denominator(50)
    value = repr(inverse_value(name, float(x)))
    assume(len(value.lstrip("-0.")) > 13)
    written = f"\\frac{{{x.numerator}}}{{{x.denominator}}}"
    for inverse in (
        f"\\{name}^{{-1}}({written})", f"\\{name}^{{-1}} {written}", f"{name}^-1({x})",
        f"\\operatorname{{arc{name}}}({written})", f"a{name}({x})", f"{name}⁻¹({x})",
    ):  # fmt: skip
        assert equal(inverse, value), inverse
    for power in (f"\\frac{{1}}{{\\{name}({written})}}", f"(\\{name}({written}))^{{-1}}"):
        assert not equal(power, value)
        assert not equal(power, f"\\{name}^{{-1}}({written})")


@pytest.mark.parametrize("exponent", [-3, -2, 2, 3])
def test_any_other_exponent_of_a_function_is_a_power(exponent: int) -> None:
    written = f"\\sin^{{{exponent}}} x"
    assert grade(written, f"(\\sin x)^{{{exponent}}}").correct
    assert not grade(written, "\\arcsin x").correct


@pytest.mark.parametrize(
    ("prediction", "gold", "correct"),
    [
        (r"\ln(2+\sqrt3)", r"\cosh^{-1}(2)", True),
        (r"\cosh^{-1}(2)", r"\ln(2+\sqrt3)", True),
        (r"\frac\pi4", r"\tan^{-1}(1)", True),
        ("f^{-1}(x)=2x", "2x", True),
        ("2x", "f^{-1}(x)=2x", True),
        ("y=2x", "f^{-1}(x)=2x", True),
        ("f(x)=2x", "f^{-1}(x)=2x", False),
        ("f^{-1}(x)=2x", "f'(x)=2x", False),
        (r"F_{\max}=5", "5", True),
        (r"F_{\text{max}} = 5", r"F_{\max} = 5", True),
        (r"F_{\min}=5", r"F_{\max}=5", False),
    ],
)
def test_inverse_functions_and_names(prediction: str, gold: str, correct: bool) -> None:
    assert grade(prediction, gold).correct == correct


# Roots, binomials, decimals that go on

# With an even exponent a variable may be negative; its root is a modulus.
ODD = st.sampled_from([-3, -1, 1, 3])
EXPONENTS = st.tuples(ODD, ODD)


def monomial(coefficient: int, k: int, m: int) -> str:
    parts: tuple[list[str], list[str]] = ([str(coefficient)] * (coefficient != 1), [])
    for name, power in (("k", k), ("m", m)):
        if power:
            parts[power < 0].append(name if abs(power) == 1 else f"{name}^{{{abs(power)}}}")
    above, below = ("".join(part) for part in parts)
    return f"\\frac{{{above or 1}}}{{{below}}}" if below else above or "1"


def spellings_of_a_root(under: tuple[int, int], coefficient: int) -> list[str]:
    """sqrt(c k^a m^b) as one root, as a quotient of roots, and with a power taken out."""
    k, m = under
    above = monomial(coefficient, max(k, 0), max(m, 0))
    below = monomial(1, max(-k, 0), max(-m, 0))
    return [
        f"\\sqrt{{{monomial(coefficient, k, m)}}}",
        f"\\frac{{\\sqrt{{{above}}}}}{{\\sqrt{{{below}}}}}",
        f"{monomial(1, k // 2, m // 2)}\\cdot\\sqrt{{{monomial(coefficient, k % 2, m % 2)}}}",
    ]


@given(EXPONENTS, EXPONENTS, st.sampled_from([2, 3, 5]), st.sampled_from([2, 3, 5]))
@settings(max_examples=60)
def test_roots_of_quotients_are_equal_just_when_their_squares_are(
    a: tuple[int, int], b: tuple[int, int], c: int, d: int
) -> None:
    for mine, other in itertools.product(spellings_of_a_root(a, c), spellings_of_a_root(b, d)):
        assert equal(mine, other) == ((a, c) == (b, d)), (mine, other)


@pytest.mark.parametrize(
    ("prediction", "gold"),
    [
        ("x", r"\sqrt{x^2}"), ("|x|", "x"), (r"\ln x", r"\ln|x|"), (r"2\ln x", r"\ln x^2"),
        (r"a\sqrt b", r"\sqrt{a^2b}"), (r"x\sqrt{xy}", r"|x|\sqrt{xy}"),
    ],
)  # fmt: skip
def test_a_modulus_is_not_left_out(prediction: str, gold: str) -> None:
    assert not grade(prediction, gold).correct


@given(st.integers(0, 6), st.integers(0, 6), st.integers(-2, 3))
@settings(max_examples=40)
def test_a_binomial_is_its_polynomial_and_no_other(k: int, other: int, shift: int) -> None:
    binomial = f"\\binom{{n+{shift}}}{{{k}}}".replace("+-", "-")
    product = "".join(f"(n+{shift - i})" for i in range(other)) or "1"
    polynomial = f"\\frac{{{product}}}{{{math.factorial(other)}}}"
    assert equal(binomial, polynomial) == (k == other)
    assert equal(f"\\binom{{n}}{{n-{k}}}", f"\\binom{{n}}{{{other}}}") == (k == other)


@given(st.integers(0, 99), st.text("0123456789", max_size=3), st.text("0123456789", min_size=1,
       max_size=4))  # fmt: skip
def test_a_decimal_that_goes_on_is_the_fraction_that_it_repeats(
    whole: int, fixed: str, period: str
) -> None:
    scale, nines = 10 ** len(fixed), 10 ** len(period) - 1
    value = Fraction(int(f"{whole}{fixed}"), scale) + Fraction(int(period), nines * scale)
    written = f"{whole}.{fixed}{period * 3}"
    for ellipsis in ("...", "…", r"\ldots", r"\dots"):
        assert equal(written + ellipsis, str(value))
    assert grade(str(value), written + "...").correct
    # A decimal of twelve digits is taken to be rounded.
    if len(written) < 12:
        assert equal(written, str(value)) == (value == Fraction(written))


@pytest.mark.parametrize("mark", ["...", "…", r"\ldots", r"\dots", "'", "''", r"^\prime",
                                  r"^{\prime\prime}", "′", "″", '"'])  # fmt: skip
@pytest.mark.parametrize("value", ["5", "0.12", r"\frac12", "x^2", "(1,2)", r"\sqrt{2}"])
def test_a_mark_behind_a_value_is_not_dropped(value: str, mark: str) -> None:
    assert not grade(value + mark, value, timeout_s=60).correct


def test_primes_are_units_of_a_gold_with_units() -> None:
    assert grade("5'", r"5\text{ feet}").correct
    assert grade("6''", "6 in").correct
    assert not grade("5''", "5 feet").correct
    assert not grade("1, 2, 3, ...", "1, 2, 3").correct
    assert grade("1,2,3,...", r"1, 2, 3, \ldots").correct


# Families, unions, inequalities


@given(st.fractions(-2, 2, max_denominator=6), st.integers(1, 4), st.fractions(-4, 4,
       max_denominator=6), st.integers(-4, 4))  # fmt: skip
def test_families_are_equal_just_when_their_values_are(
    start: Fraction, step: int, other: Fraction, other_step: int
) -> None:
    assume(other_step)
    mine = rf"({start})\pi+{step}k\pi, k\in\mathbb{{Z}}"
    gold = rf"x=({other})\pi+({other_step})n\pi, n \in \mathbb Z"
    values = step == abs(other_step) and ((start - other) / step).denominator == 1
    said = mine.replace(r"k\in\mathbb{Z}", r"\text{ where } k \text{ is an integer}")
    for family in (mine, mine.partition(",")[0], said):
        assert grade(family, gold).correct == values
    assert not grade(f"({start})\\pi", gold).correct


SETS = st.lists(st.lists(st.integers(-9, 9), min_size=1, max_size=4), min_size=2, max_size=3)


@given(SETS)
@settings(max_examples=40)
def test_a_union_of_sets_is_their_elements_but_not_worked_out(sets: list[list[int]]) -> None:
    union = r"\cup".join(rf"\{{{', '.join(map(str, dict.fromkeys(each)))}\}}" for each in sets)
    elements = rf"\{{{', '.join(map(str, set().union(*sets)))}\}}"
    assert grade(elements, union).correct
    assert grade(union, union).correct
    assert grade(union, elements)[:2] == (False, "unevaluated")
    assert not grade(elements.replace("{", "{77, ", 1), union).correct


@given(st.integers(1, 20), st.integers(1, 20))
def test_a_modulus_is_compared_with_its_intervals(a: int, b: int) -> None:
    for sign, gold in (
        ("<", f"(-{b},{b})"), (r"\le", f"[-{b},{b}]"),
        (">", rf"(-\infty,-{b})\cup({b},\infty)"), (r"\ge", rf"x\le-{b} \text{{ or }} x\ge{b}"),
    ):  # fmt: skip
        assert grade(f"|x|{sign}{a}", gold).correct == (a == b)
        assert grade(gold, f"|x|{sign}{a}").correct == (a == b)
    assert grade(rf"x>{a} \land x<{a + b}", f"({a},{a + b})").correct
    assert not grade(rf"x<{a} \text{{ and }} x>{a + b}", f"({a},{a + b})").correct


# Quotients that cancel


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=3), st.integers(-5, 5))
@settings(max_examples=40)
def test_a_quotient_that_cancels_is_not_worked_out(roots: list[int], root: int) -> None:
    def expanded(zeros: list[int]) -> str:
        coefficients = [1]
        for zero in zeros:
            above, below = [*coefficients, 0], [0, *(zero * each for each in coefficients)]
            coefficients = [a - b for a, b in zip(above, below, strict=True)]
        powers = range(len(coefficients) - 1, -1, -1)
        return "+".join(f"({c})x^{{{p}}}" for c, p in zip(coefficients, powers, strict=True))

    gold = expanded(roots)
    quotient = f"\\frac{{{expanded([*roots, root])}}}{{{expanded([root])}}}"
    assert grade(quotient, gold)[:2] == (False, "unevaluated")
    assert grade(gold, quotient).correct
    below = f"\\frac{{{expanded([root])}}}{{{expanded([*roots, root])}}}"
    assert grade(below, f"\\frac{{1}}{{{gold}}}")[:2] == (False, "unevaluated")


@pytest.mark.parametrize(
    ("prediction", "gold"),
    [
        (r"\frac{x^2}{x}", "x"), (r"\frac{x(x+1)}{x}", "x+1"), (r"\frac{12x}{2}", "6x"),
        (r"\frac{a^m}{a^n}", "a^{m-n}"), (r"x^3x^{-1}", "x^2"), (r"\frac{xy}{y}", "x"),
    ],
)  # fmt: skip
def test_a_factor_above_and_below_the_line_is_to_be_cancelled(prediction: str, gold: str) -> None:
    assert grade(prediction, gold)[:2] == (False, "unevaluated")


@pytest.mark.parametrize(
    ("prediction", "gold"),
    [
        (r"\frac{\sin x}{\cos x}", r"\tan x"), (r"\frac1n-\frac1{n+1}", r"\frac{1}{n(n+1)}"),
        (r"\frac{1}{n(n+1)}", r"\frac1n-\frac1{n+1}"), (r"\frac{\sqrt{2m}}m", r"\sqrt{\frac2m}"),
        (r"\frac{1}{e^x}", "e^{-x}"), (r"\frac{x^2+1}{x}", r"x+\frac1x"), ("x^{-1}", r"\frac1x"),
        (r"\frac{3x}{6}", r"\frac x2"), (r"\frac{3\cdot2^n}{2}", r"3\cdot2^{n-1}"),
        (r"\arcsin\frac1x", r"\operatorname{arccsc} x"), (r"\frac{4x^2}{6}", r"\frac{2x^2}{3}"),
        (r"\frac{4x}{2y}", r"\frac{2x}{y}"),
    ],
)  # fmt: skip
def test_other_forms_of_a_quotient_are_forms(prediction: str, gold: str) -> None:
    assert grade(prediction, gold).correct


# Around a value


@pytest.mark.parametrize(
    ("prediction", "gold"),
    [
        ("x^2+c", "x^2+C"), ("x^2+C_1", "x^2+C"), ("3:4", r"\frac34"), (r"\frac34", "3:4"),
        (r"5\text{th}", "5"), ("5^{th}", "5"), ("22nd", "22"), ("11th", "11"), ("5", "5th"),
        (r"2:30\text{ PM}", r"2:30 \text{ p.m.}"), ("9", "9 a.m."), ("2½", "2.5"), ("2½", "5/2"),
        ("The answer is $5$.", "5"), (r"The probability is $\frac12$.", "0.5"), ("Answer: 5", "5"),
        (r"\text{The answer is } 5", "5"), ("**649**", "649"), ("C. 5", "5"), ("C. 5", "C"),
        ("C. the third one", "C"), ("C) the third one", "(C)"), (r"\langle1,2\rangle", "(1,2)"),
        (r"\begin{pmatrix}1\\2\\3\end{pmatrix}", r"\langle 1,2,3\rangle"), ("28.26", "28.26平方"),
        (r"\ln|x|+C", r"\ln x+C"), (r"\frac12\tan^2\frac x2+C", r"\frac1{1+\cos x}+C"),
        ("x1+x2", "x_1+x_2"), (r"\varepsilon_0", r"\epsilon_0"), ("x=y", "y=x"),
        ("x < -a, a < x", r"(-\infty,-a)\cup(a,\infty)"), (r"x\in[1,2]", r"[1,2]"),
        ("42", "\ufeff4\u200b2"), (r"\frac12", "\u2060\\frac{1}{2}\u200b"),
    ],
)  # fmt: skip
def test_these_are_right(prediction: str, gold: str) -> None:
    assert grade(prediction, gold).correct


@pytest.mark.parametrize(
    ("prediction", "gold"),
    [
        ("x^2+c", "x^2+d"), ("a+b+c", "a+b+C"), ("A+B+c", "A+B+C"), ("x^2", "x^2+C"),
        ("x^2+bx+C", "x^2+bx+c"), ("3x+C", "2x+C"), ("3:4", "0.75"), ("4:3", r"\frac34"),
        ("3:4", r"\frac37"), ("6:8", "3:4"), ("5th", r"\frac15"), ("1th", "1"), ("12nd", "12"),
        ("2:30 AM", "2:30 p.m."), ("2½", "21/2"), ("The answer is not $5$", "5"),
        ("The wrong answer is $5$", "5"), ("The answer is $5$ or $6$", "5"), ("The answer is", "5"),
        ("The number without $5$ is $6$", "5"), ("C. 5 or D. 6", "C"), ("C. not this", "C"),
        ("C. D", "C"), ("C. maybe", "C"), (r"\text{(E)}\ \dfrac72", "e"), ("X", "x"),
        (r"\langle1,2\rangle", "(2,1)"), ("x+x", "2x"), ("28.26万", "28.26"), ("5万", "5"),
        (r"y\in[1,2]", r"x\in[1,2]"), (r"\log{x}^3", r"(\log x)^3"), ("x<a", "x>a"),
        ("|x-2|<3", "(-1,5)"), ("|x|<-1", "(1,-1)"),
    ],
)  # fmt: skip
def test_these_are_wrong(prediction: str, gold: str) -> None:
    assert not grade(prediction, gold, timeout_s=60).correct
