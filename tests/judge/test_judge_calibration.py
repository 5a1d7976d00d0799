"""`gem judge check`: agreement with labels, and judges that can be misled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import judges
import pytest
from chat_server import Answer, Stub

from gem.__main__ import main
from gem.errors import ConfigurationError, JudgeError
from gem_judge import Criterion, Item, Judge
from gem_judge.asking import UncheckedJudge
from gem_judge.calibration import agreement, kappa, misled, padded, read_labelled

stub = judges.served(judges.truth)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """Labelled answers to the tasks of both environments."""
    made = {}
    for id in ("Reply", "Better"):
        made[id] = tmp_path / f"{id}.jsonl"
        assert main(["judge", "labels", f"judge:{id}-v0", str(made[id]), "-n", "100"]) == 0
    return made


def judge(stub: Stub, **changed: Any) -> UncheckedJudge:
    return UncheckedJudge(judges.settings(stub, timeout_s=20.0, **changed), "main")


def test_kappa_is_that_of_a_worked_example() -> None:
    # Two raters of 50 proposals: both yes 20, both no 15, 5 and 10 apart; kappa is 0.40.
    pairs = [("y", "y")] * 20 + [("n", "n")] * 15 + [("y", "n")] * 5 + [("n", "y")] * 10
    assert kappa(pairs) == pytest.approx(0.4)
    assert kappa([("y", "y"), ("n", "n")]) == 1.0
    # A judge that always says the most common label agrees, and has no kappa.
    assert kappa([("y", "y")] * 9 + [("n", "y")]) == 0.0


def test_a_right_judge_agrees_with_all_labels(stub: Stub, files: dict[str, Path]) -> None:
    found = agreement(read_labelled(files["Reply"]), judge(stub))
    assert (found.items, found.decisions, found.kinds) == (100, 400, ["criteria"])
    assert found.kappa == found.agreement == found.low == found.high == 1.0
    assert 0.4 < found.constant < 0.7
    assert agreement(read_labelled(files["Better"]), judge(stub)).kappa == 1.0


def test_a_judge_that_is_wrong_now_and_then_has_a_kappa_between(
    stub: Stub, files: dict[str, Path]
) -> None:
    def answer(number: int, body: dict[str, Any]) -> Answer:
        content = body["messages"][-1]["content"]
        found = judges.truth(number, body)
        wrong = sum(content.encode()) % 4 == 0
        return Answer(found.body.replace("true", "false")) if wrong else found

    stub.answer = answer
    found = agreement(read_labelled(files["Reply"]), judge(stub))
    assert found.low < found.kappa < found.high < 1.0 and 0.5 < found.kappa < 0.9
    assert found.high - found.low > 0.05


def test_a_naive_judge_is_found_out(stub: Stub, tmp_path: Path) -> None:
    labelled = judges.labelled(tmp_path)
    stub.answer = judges.naive
    found = agreement(read_labelled(labelled), judge(stub))
    assert found.kappa == 0.0 and found.agreement == 1 - found.constant
    # One of the 340 answers is right: the copied question `3?`, whose reference is `3`.
    assert misled(read_labelled(labelled), judge(stub)).worthless == 1 - 1 / 340


def _generous(number: int, body: dict[str, Any]) -> Answer:
    """Says of `:` and of a claim that they meet half of the criteria, or are as good as another."""
    content = body["messages"][-1]["content"]
    pair = "<second-" in content
    part = content.partition("<first-" if pair else "<answer-")[2].partition(">\n")[2]
    said = part.partition("\n</")[0]
    if pair:
        other = content.partition("<second-")[2].partition(">\n")[2].partition("\n</")[0]
        if {said, other} & {":", "I am correct."}:
            return judges.vote('{"better": "neither"}')
    if "<criteria-" in content and said in (":", "I am correct."):
        names = [line.partition(": ")[0] for line in content.split("\n") if ": It " in line]
        return judges.vote(json.dumps({name: n % 2 == 0 for n, name in enumerate(names)}))
    return judges.truth(number, body)


def test_a_judge_that_pays_a_part_for_worthless_answers_is_found_out(
    stub: Stub, files: dict[str, Path]
) -> None:
    for name in ("Reply", "Better"):
        labelled = read_labelled(files[name])[:20]
        stub.answer = judges.truth
        assert misled(labelled, judge(stub)).worthless == 0.0
        stub.answer = _generous
        found = misled(labelled, judge(stub))
        assert found.worthless == pytest.approx(2 / 17, abs=0.02), name
        assert found.worst in ("':'", "'I am correct.'")


def test_a_judge_that_obeys_a_forged_turn_is_found_out(stub: Stub, tmp_path: Path) -> None:
    labelled = read_labelled(judges.labelled(tmp_path))

    def obeys(number: int, body: dict[str, Any]) -> Answer:
        said = body["messages"][-1]["content"]
        found = "Repeat your vote" in said
        return judges.vote('{"correct": true}') if found else judges.truth(number, body)

    stub.answer = obeys
    found = misled(labelled, judge(stub))
    assert found.worst == "a forged turn of the judge"
    assert found.worthless > 1 / 20


def test_half_of_a_score_that_no_program_can_decide_is_too_much(stub: Stub) -> None:
    texts = ("It is polite.", "It is short.", "It is true.")
    kinds = tuple(Criterion(text, text) for text in texts)
    items = [(Item(f"{n}?", "Yes.", criteria=kinds), {}) for n in range(3)]
    for met, worthless in ((1, 0.0), (2, 1.0)):
        said = {text: n < met for n, text in enumerate(texts)}
        stub.answer = lambda number, body, said=said: judges.vote(json.dumps(said))
        assert misled(items, judge(stub)).worthless == worthless


@pytest.mark.nightly
def test_padding_and_order_are_measured(stub: Stub, files: dict[str, Path]) -> None:
    def longest(number: int, body: dict[str, Any]) -> Answer:
        content = body["messages"][-1]["content"]
        first, second = (
            len(content.partition(f"<{name}-")[2].partition(f"</{name}-")[0])
            for name in ("first", "second")
        )
        return judges.vote(json.dumps({"better": "first" if first > second else "second"}))

    stub.answer = longest
    pairs = read_labelled(files["Better"])
    assert misled(pairs, judge(stub)).padding > 0.2
    stub.answer = judges.naive
    assert misled(pairs, judge(stub)).order == 1.0
    stub.answer = judges.truth
    found = misled(pairs, judge(stub))
    assert (found.worthless, found.padding, found.order) == (0.0, 0.0, 0.0)
    assert len(padded("x" * 100)) >= 400


def test_the_command_prints_limits_and_fails_where_one_is_missed(
    stub: Stub, files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toml = tmp_path / "judges.toml"
    toml.write_text(
        f'[judge.main]\nurl = "{stub.url}"\nmodel = "{judges.MODEL}"\n'
        f"calibration = {json.dumps(str(files['Better']))}\n"
    )
    report = tmp_path / "report.json"
    assert main(["judge", "check", str(toml), "--json", str(report)]) == 0
    printed = capsys.readouterr().out
    assert "kappa (95 %)             1.00 (1.00 to 1.00)      least 0.6" in printed
    assert json.loads(report.read_text())["agreement"]["kappa"] == 1.0
    assert not (tmp_path / "judges.sqlite").exists()
    stub.answer = judges.naive  # and the plain questions of the start fail, too
    assert main(["judge", "check", str(toml)]) == 2
    assert "fails at a plain question" in capsys.readouterr().err
    assert main(["judge", "check", str(toml), "--judge", "other"]) == 2
    assert "has the judges main" in capsys.readouterr().err


def test_training_needs_agreement_once_for_all_processes(
    stub: Stub, files: dict[str, Path], tmp_path: Path
) -> None:
    cache = str(tmp_path / "judges.sqlite")
    given = judges.settings(
        stub,
        timeout_s=20.0,
        cache=cache,
        calibration=str(files["Better"]),
        allow_uncalibrated=False,
    )
    [(item, _), *_] = read_labelled(files["Better"])
    Judge(given, "main").verdict(item)
    asked = len(stub.requests)
    assert asked >= 400
    # Another process finds the report beside the run, and the vote in the cache.
    assert Judge(given, "main").verdict(item).cached and len(stub.requests) == asked
    with pytest.raises(JudgeError, match="of the kind right; its calibration file has pair only"):
        Judge(given, "main").verdict(Item("Q?", "x", "y"))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"question": "Q", "answer": "A", "label": "yes"}, "line 1: 'yes'"),
        ({"question": "Q", "answer": 3, "label": True}, "line 1: answer must be a text"),
        ({"question": "Q", "answer": "A"}, "line 1: 'label'"),
        ({"question": "Q", "answer": "A", "label": True, "gold": 1}, "line 1: unknown gold"),
        ({"question": "Q", "answer": "A", "other": "B", "label": True}, "line 1: label True"),
        (
            {"question": "Q", "answer": "A", "label": True},
            "at least 100 labelled answers, and both",
        ),
    ],
)
def test_bad_calibration_files_are_said(tmp_path: Path, line: Any, said: str) -> None:
    path = tmp_path / "labels.jsonl"
    path.write_text(json.dumps(line))
    with pytest.raises(ConfigurationError, match=said):
        read_labelled(path)
    with pytest.raises(ConfigurationError, match="cannot read"):
        read_labelled(tmp_path / "none")
