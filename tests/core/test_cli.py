"""The command line, as a person uses it."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

import gem
from gem.__main__ import main

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


def test_check_reports_and_writes_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    arguments = ("check", EASY, "game:Wordle-v0", "--episodes", "4", "--json", str(file))
    status, out, err = run(*arguments, capsys=capsys)
    assert (status, err) == (0, "")
    assert f"{EASY}: ok" in out
    reports = json.loads(file.read_text())
    assert [(r["env"], r["passed"]) for r in reports] == [(EASY, True), ("game:Wordle-v0", True)]


def test_a_failed_check_is_the_exit_status(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    # Two numbers and two turns: random play always wins.
    file = tmp_path / "report.json"
    arguments = ("--param", "max_number=2", "--param", "max_turns=2", "--json", str(file))
    status, out, err = run("check", EASY, "--episodes", "4", *arguments, capsys=capsys)
    assert status == 1
    assert "random play already wins 1.00" in out
    assert f"1 of 1 failed: {EASY}" in err
    assert json.loads(file.read_text())[0]["passed"] is False


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("play", "game:GuessTheNumber"), "did you mean game:GuessTheNumber-v0"),
        (("play", EASY, "--param", "hint=loud"), "hint must be"),
        (("play", EASY, "--param", "hints=range"), "no parameter 'hints'"),
        (("play", EASY, "--param", "hint"), "NAME=VALUE, got 'hint'"),
        (("check",), "at least one id, or --all"),
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
