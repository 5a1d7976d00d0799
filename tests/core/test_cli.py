"""The command line, as a person uses it."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gem
from gem.__main__ import main
from gem.record import Recorder
from gem.tasks import Task
from gem.testing.playing import oracle_policy, play, recorded
from gem.trajectory import Failure, Trajectory

EASY = "game:GuessTheNumber-v0-easy"


def run(*argv: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    status = main(argv)
    out, err = capsys.readouterr()
    return status, out, err


def test_list_prints_ids_one_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run("list", "game:Wordle", capsys=capsys)
    assert status == 0
    assert out.splitlines() == gem.list_envs("game:Wordle")
    status, out, err = run("list", "nothing:", capsys=capsys)
    assert (status, out) == (1, "")
    assert "'nothing:'" in err


def test_play_boxes_bare_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    env = gem.make(EASY)
    env.reset(seed=3)
    target = env.target  # type: ignore[attr-defined]
    wrong = target % 10 + 1
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{wrong}\n\\boxed{{{target}}}\n"))
    status, out, _ = run("play", EASY, "--seed", "3", "--param", "hint=range", capsys=capsys)
    assert status == 0
    assert f"you guessed {wrong}, " in out
    assert "It is between" in out
    assert out.rstrip().endswith("won after 2 turn(s), return 1")


def test_play_sends_raw_lines_when_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("7\n"))
    _, out, _ = run("play", EASY, "--raw", capsys=capsys)
    assert "did not provide a valid guess" in out
    assert out.rstrip().endswith("lost after 1 turn(s), return -0.1")


def test_the_end_of_input_ends_the_game_politely(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    status, out, err = run("play", EASY, capsys=capsys)
    assert (status, err) == (0, "")
    assert "stopped after 0 turn(s)" in out


@pytest.mark.parametrize("policy", ["oracle", "random"])
def test_policies_play_by_themselves_and_repeatably(
    policy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("play", "game:Wordle-v0", "--seed", "2", "--policy", policy)
    first, second = run(*arguments, capsys=capsys), run(*arguments, capsys=capsys)
    assert first == second
    assert first[0] == 0
    assert ("won after" in first[1]) == (policy == "oracle")


def test_an_unseeded_game_tells_its_seed(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run("play", EASY, "--policy", "random", capsys=capsys)
    seed = out.splitlines()[0].rpartition(" ")[2]
    _, again, _ = run("play", EASY, "--policy", "random", "--seed", seed, capsys=capsys)
    assert again == out


def test_one_check_is_a_table_many_are_a_line_each(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "report.json"
    fast = ("--episodes", "4", "--only", "oracle", "--only", "contract")
    status, out, err = run("check", EASY, *fast, capsys=capsys)
    assert (status, err) == (0, "")
    assert out.splitlines()[0] == f"{EASY}: ok"
    assert [line.split()[:2] for line in out.splitlines()[1:]] == [
        ["startup", "passed"],
        ["contract", "passed"],
        ["oracle", "passed"],
    ]
    arguments = ("check", EASY, "game:Wordle-v0", *fast, "--json", str(file))
    status, out, err = run(*arguments, capsys=capsys)
    assert (status, err) == (0, "")
    assert out.splitlines() == [
        f"{EASY}: ok",
        "game:Wordle-v0: ok",
        "2 ok, 0 failed, 0 not run",
    ]
    document = json.loads(file.read_text())
    assert document["verdict"] == "pass"
    assert [r["target"] for r in document["reports"]] == [EASY, "game:Wordle-v0"]


def test_a_failed_check_is_the_exit_status(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    # Two numbers and two turns: random play always wins.
    file = tmp_path / "report.json"
    arguments = ("--param", "max_number=2", "--param", "max_turns=2", "--json", str(file))
    ids = (EASY, "game:GuessTheNumber-v0")
    status, out, err = run("check", *ids, "--episodes", "4", *arguments, capsys=capsys)
    assert status == 1
    # Of those that fail the failures are shown, and nothing else.
    rows = [line.split()[:2] for line in out.splitlines() if line.startswith("  ")]
    assert set(map(tuple, rows)) == {("random", "failed")}
    assert "random play already wins 1.00" in out
    assert f"2 of 2 failed: {', '.join(ids)}" in err
    assert json.loads(file.read_text())["verdict"] == "fail"


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """The record of a run: a won episode, one cut by a budget, one that infrastructure ended."""
    won = recorded(play(gem.make(EASY), oracle_policy, 20, 3), Task(EASY, 3))
    wordle = "game:Wordle-v0"
    cut = recorded(play(gem.make(wordle), oracle_policy, 1, 5), Task(wordle, 5))
    lost = Trajectory(Task(EASY, 4), end="failed", failure=Failure("infra", "server gone", 2))
    Recorder(tmp_path).episodes(0, [won, cut, lost])
    return tmp_path


def edit(folder: Path, number: int, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "episodes.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    change(lines[number])
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def test_replay_shows_an_episode(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run("replay", str(run_folder), capsys=capsys)
    assert (status, err) == (0, "")
    assert out.startswith(f"episode 0: {EASY}, seed 3\n")
    assert "> \\boxed{5}" in out
    assert "terminated after" in out
    _, out, _ = run("replay", str(run_folder), "--episode", "2", capsys=capsys)
    assert "failed after 0 turn(s), return 0: server gone" in out
    status, _, err = run("replay", str(run_folder), "--episode", "3", capsys=capsys)
    assert status == 2
    assert "has 3 episodes, there is no 3" in err


def test_replay_survives_what_no_terminal_can_show(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = recorded(play(gem.make(EASY), lambda env, seen: "\ud800\x00", 1, 3), Task(EASY, 3))
    Recorder(tmp_path).episodes(0, [said])
    status, out, _ = run("replay", str(tmp_path), capsys=capsys)
    assert status == 0
    assert "> \\ud800" in out
    assert run("replay", str(tmp_path), "--verify", capsys=capsys)[0] == 0


def test_replay_verifies_a_record(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run("replay", str(run_folder), "--verify", capsys=capsys)
    assert (status, err) == (0, "")
    assert out == "2 of 2 episodes are the same again, 1 failed ones not compared\n"
    file = str(run_folder / "episodes.jsonl")
    _, out, _ = run("replay", file, "--verify", "--episode", "1", capsys=capsys)
    assert out == "1 of 1 episodes are the same again\n"


def test_replay_names_the_first_difference(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def otherwise(line: dict[str, Any]) -> None:
        # As an older version without fingerprints, and with another hint, would have left it.
        del line["fingerprint"]
        turn = line["trajectory"]["turns"][1]
        turn["observation"] = turn["observation"].replace("target", "TARGET")

    edit(run_folder, 0, otherwise)
    status, out, _ = run("replay", str(run_folder), "--verify", capsys=capsys)
    assert status == 1
    first, expected, found, last = out.splitlines()
    assert first == f"episode 0, {EASY}, seed 3: turn 1, observation"
    assert "expected" in expected
    assert "TARGET" in expected
    assert "found" in found
    assert "target" in found
    assert last.startswith("0 of 1 episodes")
    arguments = ("replay", str(run_folder), "--verify", "--keep-going")
    assert "1 of 2 episodes" in run(*arguments, capsys=capsys)[1]


def test_replay_notices_that_a_record_was_changed(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def improve(line: dict[str, Any]) -> None:
        line["trajectory"]["turns"][-1]["reward"] = 2.0

    edit(run_folder, 1, improve)
    status, out, _ = run("replay", str(run_folder), "--verify", capsys=capsys)
    assert status == 1
    assert "episode 1, game:Wordle-v0, seed 5: the record was changed" in out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("play", "game:GuessTheNumber"), "did you mean game:GuessTheNumber-v0"),
        (("play", EASY, "--param", "hint=loud"), "hint must be"),
        (("play", EASY, "--param", "hints=range"), "no parameter 'hints'"),
        (("play", EASY, "--param", "hint"), "NAME=VALUE, got 'hint'"),
        (("check",), "at least one id, or --all"),
        (("check", EASY, "--only", "luck"), "only must name checks"),
        (("replay", "/nonexistent"), "/nonexistent does not exist"),
        (("replay", "."), "episodes.jsonl does not exist"),
        (("check", EASY, "--json", "/nonexistent/report.json"), "/nonexistent/report.json"),
    ],
)
def test_misuse_is_explained_without_a_traceback(
    argv: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = run(*argv, capsys=capsys)
    assert status == 2
    assert err.startswith("error: ")
    assert message in err


def test_the_module_runs_and_survives_a_reader_that_stops() -> None:
    listing = subprocess.run(
        [sys.executable, "-m", "gem", "list", "game:"], capture_output=True, text=True, check=True
    )
    assert listing.stdout.split() == gem.list_envs("game:")
    process = subprocess.Popen(
        [sys.executable, "-m", "gem", "list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    with process.stderr:
        assert process.stderr.read() == b""
    assert process.wait(timeout=60) == 0
