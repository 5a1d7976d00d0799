"""Whatever a row's gold is, the oracle wins, or the row is refused before it is shown."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gem
from gem.errors import DataError
from gem.grading.formats import FORMATS

pytest.importorskip("gem_math", reason="has ids of math problems")

PARTS = (
    *("\\boxed{", "\\text{", "\\textbf{", "\\frac{1}{2}", "\\{", "\\}", "{", "}", "\\", "$", "$$"),
    *("\\(", "\\)", "**", "*", "`", "```", "```python\n", "~~~", "<answer>", "</answer>"),
    *("<think>", "</think>", '"', "'", "“", "”", ".", "..", ",", ";", ":", "-", "+", "=", "?"),
    *("the ", "A", "an ", "B)", "(C)", " or ", "not ", "x", "5", "-3", "1,000", "2.50", "50%"),
    *("3/4", "9:45", "½", "true", "no", " ", "\n", "\t", "\u200b", "\u00ad", "\u202e", "é", "東京"),
    *("\ud800", "\x00", "🙂", "_", "^", "&", "#", "|", "[", "]", "(", ")", "<", ">", "/"),
)
GOLDS = st.one_of(
    st.lists(st.sampled_from(PARTS), max_size=5).map("".join),
    st.text(max_size=8),
    st.integers(),
    st.floats(),
    st.booleans(),
    st.none(),
)
FAMILIES = {
    "qa:HotpotQA": {"question_column": "question"},
    "logic:RuleTaker-d1": {},
    "math:GSM8K": {},
}


@pytest.mark.parametrize("id", FAMILIES)
@given(gold=GOLDS, more=st.lists(GOLDS, max_size=2), form=st.sampled_from(sorted(FORMATS)))
@settings(max_examples=200, deadline=None)
def test_a_gold_can_be_won_or_is_an_error_of_the_data(
    id: str, gold: Any, more: list[Any], form: str
) -> None:
    if more:
        gold = [gold, *more]
    row = {"question": "Which?", "problem": "Which?", "answer": gold}
    env = gem.make(id, source=[row], answer_format=form, **FAMILIES[id])  # type: ignore[arg-type]
    try:
        env.reset(seed=0)
    except DataError:
        return
    reply = env.oracle_action()
    _, reward, terminated, _, info = env.step(reply)
    assert (reward, terminated) == (1.0, True), (reply, info)
