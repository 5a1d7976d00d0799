"""Short text answers: exact match and F1 after normalisation."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gem.errors import DataError
from gem.grading.qa import f1, grade, normalise


@pytest.mark.parametrize(
    ("prediction", "gold"),
    [
        ("Paris", "paris"),
        ("The  Beatles", "beatles"),
        ("an apple.", "Apple"),
        ("U.S.A.", "USA"),
        ("Beyoncé", "Beyonce"),
        ("São Paulo", "sao paulo"),
        ("Škoda", "Skoda"),
        ("ﬁnal", "final"),
        ("“Yesterday”", "Yesterday"),
        ("Straße", "strasse"),
        ("1945–1950", "1945 1950"),
        ("東京", "東京"),
        ("yes", ["no", "Yes"]),
        ("Paris", "\ufeffPa\u200bris"),
    ],
)
def test_case_accents_punctuation_and_articles_do_not_matter(prediction: str, gold: Any) -> None:
    verdict = grade(prediction, gold)
    assert (verdict.correct, verdict.reason, verdict.score) == (True, "match", 1.0)
    assert verdict.seconds >= 0


@pytest.mark.parametrize(
    ("prediction", "gold"),
    [("Paris", "London"), ("not Paris", "Paris"), ("Paris", ["Rome", "Oslo"]), ("東京", "京都")],
)
def test_another_answer_is_wrong(prediction: str, gold: Any) -> None:
    assert grade(prediction, gold)[:2] == (False, "different")


@pytest.mark.parametrize(
    "text", ["A", "the", "An", "The The", "!!!", "+", "?", "...", "_", "¿", "a an the", "C#", "-"]
)
def test_an_answer_of_which_nothing_would_be_left_keeps_its_text(text: str) -> None:
    for gold in (text, ["B", text]):
        assert grade(text.upper(), gold)[:2] == (True, "match")
        assert f1(text, gold) == 1.0
    assert not grade(text, "B").correct
    assert not grade("B", text).correct


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *[("1.5", "15"), ("2.5", "25"), (".5", "5"), ("1.5", "1/5"), ("1.5", "1:5")],
        *[("-5", "5"), ("−5", "5"), ("–5", "5"), ("'-5'", "5"), ("-$5", "5"), ("$-5", "5")],
        *[("1/2", "12"), ("½", "12"), ("3/4", "34"), ("3:30", "330"), ("9:45", "945")],
        *[
            ("$1.50", "150"),
            ("1,5", "15"),
            ("1.2.3", "123"),
            ("5'10", "510"),
            ("1914-18", "191418"),
        ],
        *[("C#", "C"), ("C++", "C"), ("C++", "C#"), ("A+", "A"), ("O-", "O+"), ("AB-", "AB")],
        *[("007", "7"), ("18+", "18"), ("2½", "21/2"), ("v1.5", "v15"), ("the 3:30", "330")],
    ],
)
def test_marks_that_change_an_answer_are_kept(one: str, other: str) -> None:
    assert grade(one, one).correct
    assert grade(other, other).correct
    assert not grade(one, other).correct
    assert not grade(other, one).correct


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *[("1.50", "1.5"), ("2.0", "2"), ("0.5", ".5"), ("-1.0", "-1"), ("$1.50", "1.5")],
        *[("1,234", "1234"), ("$1,234.50", "1234.5"), ("+5", "5"), ("5%", "5"), ("(-5)", "−5")],
        *[("½", "1/2"), ("1914–1918", "1914-1918"), ("F-16", "F16"), ("COVID-19", "covid19")],
        *[("well-known", "wellknown"), ("No. 5", "no 5"), ("Yahoo!", "yahoo")],
    ],
)
def test_numbers_are_compared_as_numbers_and_other_marks_do_not_count(one: str, other: str) -> None:
    assert grade(one, other).correct
    assert grade(other, one).correct


@given(st.decimals(-(10**6), 10**6, places=3), st.decimals(-(10**6), 10**6, places=3))
@settings(max_examples=100)
def test_two_numbers_are_equal_if_their_values_are(one: Decimal, other: Decimal) -> None:
    for forms in (("{}", "${}"), ("{:,}", "{}"), ("{}", "\\text{{{}}}"), ("**{}**", "{}.")):
        assert grade(forms[0].format(one), forms[1].format(one)).correct
        assert grade(forms[0].format(one), forms[1].format(other)).correct == (one == other)


@pytest.mark.parametrize("prediction", ["", "  ", "\u0301", "\u200b", "\ufeff "])
def test_an_answer_of_nothing_matches_nothing(prediction: str) -> None:
    for gold in ("the", "", ["", "x"]):
        assert grade(prediction, gold)[:2] == (False, "empty")
        assert f1(prediction, gold) == 0.0


def test_no_answer_is_wrong() -> None:
    assert grade(None, "x")[:2] == (False, "no answer")
    assert f1(None, "x") == 0.0


@pytest.mark.parametrize("gold", [None, 5, [], [5], ["a", None], {"a": 1}, b"a"])
def test_a_gold_of_another_type_is_named(gold: Any) -> None:
    with pytest.raises(DataError, match="gold must be a string or a list of strings, got "):
        grade("x", gold)
    with pytest.raises(DataError):
        f1("x", gold)


@given(st.text(), st.text())
@settings(max_examples=100)
def test_any_text_is_graded_and_normalising_twice_changes_nothing(text: str, gold: str) -> None:
    same = normalise(text) == normalise(gold) != ""
    assert grade(text, gold).correct or not same
    assert normalise(normalise(text)) == normalise(text)
    assert 0.0 <= f1(text, gold) <= 1.0


def test_f1_weighs_precision_and_recall_and_takes_the_best_gold() -> None:
    assert f1("the red house", "red house") == 1.0
    # One of two tokens is right, one of three is found: 2 * 1/2 * 1/3 / (1/2 + 1/3).
    assert f1("red car", "big red house") == pytest.approx(0.4)
    assert f1("red car", ["big red house", "car red"]) == 1.0
    # A repeated token counts once where the gold has it once.
    assert f1("red red", "red") == pytest.approx(2 / 3)
    assert f1("blue", "red") == 0.0
