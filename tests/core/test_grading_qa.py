"""Short text answers: exact match and F1 after normalisation."""

from __future__ import annotations

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


@pytest.mark.parametrize("prediction", ["", "  ", "the", "A.", "...", "\u0301"])
def test_an_answer_of_nothing_matches_nothing(prediction: str) -> None:
    for gold in ("the", "", "an", ["", "x"]):
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
    assert grade(text, gold).correct == (normalise(text) == normalise(gold) != "")
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
