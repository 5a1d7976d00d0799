"""Two evaluations task by task: intervals, tests, flips, and the verdict of a gate."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

from gem.errors import ConfigurationError
from gem.tasks import Task
from gem.trajectory import Failure, Trajectory, Turn
from gem_bench.stats import difference_of_success
from gem_eval.cli import main
from gem_eval.comparison import Verdict, compare, judge, sign_test
from gem_train.record import Recorder

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a record: `write(name, {environment: [success of each task, None for void]})`.

    `asked` is the number of tasks of each environment; by default all were played.
    """

    def record(name: str, results: dict[str, Sequence[float | None]], asked: int = 0) -> Path:
        recorder = Recorder(tmp_path / name)
        tasks = [f"gem:{env_id}?n={asked or len(each)}" for env_id, each in results.items()]
        settings = {"tasks": tasks, "samples": 1}
        recorder.start({"kind": "evaluation", "trainer": name, "settings": settings})
        for env_id, successes in results.items():
            for seed, success in enumerate(successes):
                task = Task(env_id, seed)
                if success is None:
                    failure = Failure("engine", "gone", 1)
                    episode = Trajectory(task, end="failed", failure=failure)
                else:
                    info = {"success": bool(success)}
                    turn = Turn("o", [], True, [], None, "a", success, True, False, "stop", info)
                    episode = Trajectory(task, [turn])
                notes = [{"sample": 0, "calls": [{}]}]
                recorder.episodes(0, [episode], split=f"eval:{env_id}", notes=notes)
        return tmp_path / name

    return record


def test_flips_are_listed_and_tested_over_common_tasks_only(write: Write) -> None:
    first = write("a", {"x": [0, 0, 0, 1, 1, None, 0], "only": [1]})
    second = write("b", {"x": [1, 1, 0, 0, 1, 1]})
    found = compare(first, second)
    (part,) = found.parts
    assert (part.gained, part.lost, part.success.n, part.unpaired) == ([0, 1], [3], 5, 2)
    assert part.success.mean == pytest.approx(0.2)
    assert part.p == sign_test(2, 1) == 1.0
    assert found.missing == ["only"]


@pytest.mark.parametrize(("gained", "lost", "p"), [(0, 0, 1), (5, 0, 0.0625), (9, 1, 0.021484375)])
def test_the_sign_test_is_exact(gained: int, lost: int, p: float) -> None:
    assert sign_test(gained, lost) == sign_test(lost, gained) == p


def test_p_values_are_corrected_for_the_number_of_environments(write: Write) -> None:
    zeros, wins = [0.0] * 8, [1.0] * 8
    first = write("a", {"x": zeros, "y": zeros, "z": zeros})
    second = write("b", {"x": wins, "y": [1.0] * 6 + [0.0] * 2, "z": zeros})
    p = [part.p for part in compare(first, second).parts]
    assert p == [3 * sign_test(8, 0), 2 * sign_test(6, 0), 1.0]


@pytest.mark.parametrize(("ours", "theirs"), [(0.5, 0.5), (0.6, 0.5), (0.95, 0.9), (1.0, 1.0)])
def test_the_interval_of_a_difference_covers_it_as_often_as_it_says(
    ours: float, theirs: float
) -> None:
    rng = random.Random(0)
    covered, times = 0, 600
    for _ in range(times):
        luck = [rng.random() for _ in range(60)]
        a, b = (
            {
                i: [float((u if rng.random() < 0.7 else rng.random()) < rate)]
                for i, u in enumerate(luck)
            }
            for rate in (ours, theirs)
        )
        found = difference_of_success(a, b)
        assert found.low is not None and found.high is not None
        covered += found.low <= ours - theirs <= found.high
    assert covered / times >= 0.93


def test_a_planted_difference_of_ten_points_is_found() -> None:
    rng = random.Random(1)
    found = 0
    for _ in range(50):
        b = {i: [float(rng.random() < 0.5)] for i in range(400)}
        a = {i: [max(v[0], float(rng.random() < 0.2))] for i, v in b.items()}
        low = difference_of_success(a, b).low
        found += low is not None and low > 0
    assert found >= 48


def test_runs_that_agree_on_a_few_tasks_are_not_known_to_be_equal() -> None:
    same = {i: [1.0] for i in range(6)}
    found = difference_of_success(same, same)
    assert found.low is not None and found.high is not None
    assert found.low < -0.2 and found.high > 0.2


def test_a_gate_passes_refuses_or_has_no_verdict(write: Write) -> None:
    good, bad = [1.0] * 90 + [0.0] * 10, [1.0] * 50 + [0.0] * 50
    a, b = write("a", {"x": good}), write("b", {"x": bad})
    few = write("few", {"x": [1.0, 1.0, 0.0]})
    void = write("void", {"x": [*bad, *[None] * 20]})
    assert judge(a, least=0.8)[0] is Verdict.PASSED
    assert judge(b, least=0.8)[0] is Verdict.WORSE
    assert judge(few, least=0.8)[0] is Verdict.UNDECIDED
    assert judge(void, least=0.1)[0] is Verdict.UNDECIDED
    assert judge(a, against=b)[0] is Verdict.PASSED
    assert judge(b, against=a, max_drop=0.1)[0] is Verdict.WORSE
    assert judge(a, against=a)[0] is Verdict.UNDECIDED
    assert judge(a, against=a, max_drop=0.05)[0] is Verdict.PASSED
    with pytest.raises(ConfigurationError, match="only one of the two has y"):
        judge(a, against=write("c", {"x": good, "y": good}))
    with pytest.raises(ConfigurationError, match="--min or --against"):
        judge(a)


def test_void_episodes_of_one_environment_alone_leave_no_verdict(write: Write) -> None:
    folder = write("a", {"x": [1.0] * 90, "y": [1.0, None, None]})
    verdict, reason = judge(folder, least=0.1)
    assert verdict is Verdict.UNDECIDED
    assert reason.startswith("2 of 3 episodes of y")
    assert judge(write("none", {"x": [None]}), least=0.1)[0] is Verdict.UNDECIDED


def test_an_evaluation_that_was_cut_off_gets_no_verdict(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = write("cut", {"x": [1.0] * 37}, asked=100)
    whole = write("whole", {"x": [1.0] * 100})
    for verdict, reason in (
        judge(cut, least=0.6),
        judge(cut, against=whole, max_drop=0.5),
        judge(whole, against=cut, max_drop=0.5),
    ):
        assert verdict is Verdict.UNDECIDED
        assert reason.startswith(f"x in {cut}: 37 of 100 episodes played")
    assert main(["report", str(cut)]) == 0
    assert "x: 37 of 100 episodes played" in capsys.readouterr().out
    assert main(["report", str(cut), "--by", "turns"]) == 0
    assert "37 of 100 episodes played" in capsys.readouterr().out
    assert main(["report", str(cut), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["environments"][0]["missing"] == 63
    assert main(["report", str(cut), "--format", "junit"]) == 0
    (suite,) = ElementTree.fromstring(capsys.readouterr().out)
    (error,) = suite.iter("error")
    assert (error.attrib["message"], suite.attrib["errors"]) == ("37 of 100 episodes played", "1")


def test_an_environment_that_did_not_begin_is_missing(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write("cut", {"x": [1.0] * 40})
    run = json.loads((folder / "run.json").read_text())
    run["settings"]["tasks"].append("gem:game:Wordle-v0?n=10")
    (folder / "run.json").write_text(json.dumps(run))
    verdict, reason = judge(folder, least=0.1)
    assert verdict is Verdict.UNDECIDED
    assert "0 of 10 episodes played" in reason
    for form in ("text", "markdown", "json", "junit"):
        assert main(["report", str(folder), "--format", form]) == 0
    assert "0 of 10 episodes played" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("gate", "--min", "0.5", "--max-drop", "0.1"), "--max-drop is of --against"),
        (("report", "--out", "x.html", "--format", "junit"), "--format changes what is printed"),
        (("report", "--max-failed", "0.2"), "--max-failed is of --format junit"),
        (("report", "--episodes", "3"), "--episodes is of the page of --out"),
        (("export", "--format", "atif", "--reasoning"), "--reasoning is of jsonl, parquet"),
    ],
)
def test_an_option_that_would_have_no_effect_is_refused(
    write: Write, words: tuple[str, ...], message: str
) -> None:
    folder = write("a", {"x": [1, 0]})
    with pytest.raises(ConfigurationError, match=message):
        main([words[0], str(folder), *words[1:]])


def test_a_gate_says_how_many_tasks_only_one_evaluation_has(write: Write) -> None:
    few, many = write("few", {"x": [1.0] * 60}), write("many", {"x": [1.0] * 100})
    verdict, reason = judge(many, against=few, max_drop=0.2)
    assert verdict is Verdict.PASSED
    assert reason.endswith("; 40 tasks are in one of the two only")


def test_junit_tells_a_worse_result_from_void_episodes(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = write("a", {"x": [1.0] * 60, "y": [1.0] * 60}), write("b", {"x": [0.0] * 60})
    void = write("c", {"x": [1.0] * 60, "y\x1b": [1.0] * 60 + [None] * 30})

    def found(*words: object) -> tuple[int, dict[str, list[str]], dict[str, str]]:
        status = main([*map(str, words), "--format", "junit"])
        (suite, *_) = ElementTree.fromstring(capsys.readouterr().out)
        counts = {name: suite.attrib[name] for name in ("tests", "failures", "errors")}
        tags = ("failure", "error")
        cases = {
            case.attrib["name"]: [child.tag for child in case if child.tag in tags]
            for case in suite
        }
        return status, cases, counts

    nothing: list[str] = []
    assert found("report", good)[1] == {"x": nothing, "y": nothing}
    assert found("report", void)[1] == {"x": nothing, "y?": ["error"]}
    assert found("report", void, "--max-failed", 0.5)[1] == {"x": nothing, "y?": nothing}
    assert found("gate", good, "--min", 0.8)[:2] == (0, {"x": nothing, "y": nothing, "gate": []})
    counts = {"tests": "2", "failures": "1", "errors": "0"}
    assert found("gate", bad, "--min", 0.8) == (1, {"x": [], "gate": ["failure"]}, counts)
    counts = {"tests": "3", "failures": "0", "errors": "2"}
    assert found("gate", void, "--min", 0.1) == (
        3,
        {"x": nothing, "y?": ["error"], "gate": ["error"]},
        counts,
    )


def test_a_gate_shows_its_table_in_markdown_and_its_numbers_in_json(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = write("a", {"x": [1.0] * 60}), write("b", {"x": [0.0] * 60})
    assert main(["gate", str(b), "--min", "0.5", "--format", "markdown"]) == 1
    printed = capsys.readouterr().out
    assert printed.startswith("**b: worse: success 0.000")
    assert "| x | 60 | 60 |" in printed
    assert main(["gate", str(b), "--against", str(a), "--format", "json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert (data["verdict"], data["parts"][0]["lost"]) == ("worse", list(range(60)))


def test_the_commands_print_and_return_what_they_found(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    a = write("a", {"x": [1.0] * 40, "y": [0.0] * 40})
    b = write("b", {"x": [1.0] * 40, "y": [1.0] * 4 + [0.0] * 36})
    assert main(["compare", str(a), str(b)]) == 0
    printed = capsys.readouterr().out
    assert "y: gained the seeds 0, 1, 2, 3" in printed
    assert main(["compare", str(a), str(b), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["overall"]["mean"] == pytest.approx(0.05)
    assert main(["gate", str(b), "--against", str(a), "--max-drop", "0.2"]) == 0
    assert main(["gate", str(b), "--min", "0.9"]) == 1
    assert "worse: success 0.550" in capsys.readouterr().out
