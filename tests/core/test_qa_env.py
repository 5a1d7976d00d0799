"""Question answering and RuleTaker."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import gem
from gem.envs.qa import QaEnv
from gem.errors import DataError
from gem.sources import load

ROW = {"problem": "What is the capital of Brazil?", "answer": ["Brasília", "Brasilia DF"]}
DEPTHS = (0, 1, 2, 3, 5)


def graded(answer: Any, reply: str) -> Any:
    env = QaEnv([{"problem": "?", "answer": answer}])
    env.reset()
    return env.step(reply)


@pytest.mark.parametrize("reply", ["brasilia", "The BRASÍLIA!", "Brasilia DF"])
def test_any_recorded_answer_matches_without_case_accents_and_articles(reply: str) -> None:
    assert graded(ROW["answer"], f"<think>Rio?</think><answer>{reply}</answer>")[1] == 1.0


@pytest.mark.parametrize("reply", ["Rio", "", "the", "Brasília, Brazil"])
def test_other_answers_do_not_match(reply: str) -> None:
    _, reward, terminated, _, info = graded(ROW["answer"], f"<answer>{reply}</answer>")
    assert (reward, terminated, info["correct"], info["format_error"]) == (0.0, True, False, False)


def test_the_last_tag_counts() -> None:
    assert graded("b", "<answer>a</answer> no, <answer>b</answer>")[1] == 1.0
    assert graded("b", "<answer>b</answer> no, <answer>a</answer>")[1] == 0.0


@pytest.mark.parametrize("gold", [[], "", [" "], None, "\u200b", "\u0301"])
def test_a_row_without_an_answer_is_an_error_of_the_data(gold: Any) -> None:
    with pytest.raises(DataError, match="row 0, column 'answer': "):
        graded(gold, "<answer></answer>")


@pytest.mark.parametrize(
    ("gold", "reply"),
    [
        (4, "4"),
        (4.0, "4"),
        (-0.25, "-0.25"),
        (np.int64(1969), "1969"),
        (np.float32(0.5), "0.5"),
        ([4, "four"], "Four"),
        (10**30, "1" + "0" * 30),
        (True, "true"),
    ],
)
def test_a_number_is_an_answer_and_a_whole_one_has_no_fraction(gold: Any, reply: str) -> None:
    assert graded(gold, f"<answer>{reply}</answer>")[1] == 1.0
    assert graded(gold, "<answer>17</answer>")[1] == 0.0


def test_the_oracle_says_a_number_as_it_is_graded() -> None:
    env = QaEnv([{"problem": "?", "answer": 4.0}])
    env.reset()
    assert env.answer == 4.0
    assert env.step(env.oracle_action())[1] == 1.0


@pytest.mark.parametrize("gold", ["A", "An", "the", "The The", "!!!", "+", "?", ["B", "A"]])
def test_the_oracle_wins_with_an_answer_of_articles_or_punctuation(gold: Any) -> None:
    env = QaEnv([{"problem": "?", "answer": gold}])
    for recorded in gold if isinstance(gold, list) else [gold]:
        env.reset()
        assert env.step(f"<answer>{recorded}</answer>")[1] == 1.0
    env.reset()
    assert env.step(env.oracle_action())[1] == 1.0


@pytest.mark.parametrize("gold", ["a</answer><answer>", ["a</answer> <answer>"] * 2])
def test_an_answer_that_no_reply_can_give_is_an_error_of_the_data(gold: Any) -> None:
    rows = [{"problem": "?", "answer": "a"}] * 3 + [{"problem": "?", "answer": gold}]
    with pytest.raises(DataError, match="row 3, column 'answer': nobody can give .* 'answer_tag'"):
        QaEnv(rows).reset(idx=0)
    # In another form it can be given.
    env = QaEnv(rows, answer_format="boxed")
    env.reset(idx=3)
    assert env.step(env.oracle_action())[1] == 1.0


@pytest.mark.parametrize("gold", [{}, float("nan"), ["a", None], [[1]], 3j])
def test_a_row_that_cannot_be_graded_is_refused_when_the_data_is_loaded(gold: Any) -> None:
    rows = [{"problem": "?", "answer": "a"}] * 20 + [{"problem": "?", "answer": gold}]
    for _ in range(2):
        env = QaEnv(rows)
        with pytest.raises(DataError, match="row 20, column 'answer': .*is no answer"):
            env.reset(idx=0)


def test_rows_are_verified_once_and_later_ones_when_they_are_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [{"problem": "?", "answer": "a"}] * 30 + [{"problem": "?", "answer": None}]
    verified = []
    verify = QaEnv._verify_item

    def counting(env: QaEnv) -> None:
        verified.append(env.index)
        verify(env)

    monkeypatch.setattr("gem.envs.datasets.VERIFIED_ROWS", 30)
    monkeypatch.setattr(QaEnv, "_verify_item", counting)
    for _ in range(3):
        QaEnv(rows).reset(idx=5)
    assert verified == [*range(30), 5, 5, 5]
    with pytest.raises(DataError, match="row 30, column 'answer': None is no answer"):
        QaEnv(rows).reset(idx=30)


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_model_that_follows_the_prompt_of_ruletaker_scores(depth: int) -> None:
    env = gem.make(f"logic:RuleTaker-d{depth}", source="sample")
    observation, _ = env.reset(idx=0)
    assert "\\boxed{}" in observation
    assert "<answer>" not in observation
    assert env.step("So it is \\boxed{True}")[1] == 1.0
    env.reset(idx=0)
    assert env.step("So it is \\boxed{false}")[1] == 0.0
    env.reset(idx=0)
    assert env.step("<answer>True</answer>")[4]["format_error"]


def follows(text: str) -> dict[tuple[str, str], int]:
    """Return what follows from facts and rules in English, with the layer in which it appears."""
    found = dict.fromkeys(re.findall(r"(\w+) is (\w+)\.", text), 0)
    rules = re.findall(r"If someone is ([\w ]+) then they are (\w+)\.", text)
    for layer in range(1, 20):
        known = set(found)
        for who in {person for person, _ in known}:
            for conditions, then in rules:
                if all((who, condition) in known for condition in conditions.split(" and ")):
                    found.setdefault((who, then), layer)
    return found


@pytest.mark.parametrize("depth", DEPTHS)
def test_sampled_statements_are_true_exactly_if_they_follow(depth: int) -> None:
    table = load(f"sample:ruletaker-d{depth}")
    deepest = 0
    truths = []
    for index in range(len(table)):
        row = table.row(index)
        text, statement = row["question"].split("\nStatement: ")
        who, negated, what = re.match(r"(\w+) is (not )?(\w+)\.", statement).groups()  # type: ignore[union-attr]
        known = follows(text.split("Facts and rules: ")[1])
        holds = (who, what) in known
        assert row["answer"] == str(holds != bool(negated))
        assert row["depth"] == known.get((who, what), -1) <= depth
        deepest = max(deepest, row["depth"])
        truths.append(row["answer"])
    assert deepest == depth
    assert truths.count("True") == truths.count("False")
