"""The command line, as a person uses it."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest

import gem
import gem.errors
from gem.__main__ import main
from gem.tasks import Task
from gem.trajectory import Failure, Trajectory
from gem_check.playing import oracle_policy, play, recorded
from gem_train.record import Recorder

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


@pytest.mark.parametrize(
    ("pattern", "found"),
    [("wordle-v0-e", ["game:Wordle-v0-easy"]), ("math:*8k*", ["math:GSM8K", "math:Math8K-3to5"])],
)
def test_list_takes_a_part_of_an_id_or_a_pattern(
    pattern: str, found: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("list", pattern, capsys=capsys)[1].splitlines() == found


def test_list_can_say_a_line_about_each(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run("list", "-l", "game:Wordle", capsys=capsys)
    lines = out.splitlines()
    assert [line.split()[0] for line in lines] == gem.list_envs("game:Wordle")
    assert lines[1].endswith(
        "A secret word of common English; a guess may be any string of "
        "letters. word_length=3, max_turns=15"
    )


def test_list_says_what_cannot_be_imported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gem.list_envs()
    monkeypatch.setattr("gem.registry._registry", dict(gem.registry._registry))
    gem.register("gone:Gone-v0", "no_such_module:Env")
    _, out, _ = run("list", "-l", "gone:Gone-v0", capsys=capsys)
    assert out == "gone:Gone-v0  cannot be imported: No module named 'no_such_module'\n"


def test_info_tells_parameters_limits_and_an_episode(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run("info", "game:Wordle-v0-easy", capsys=capsys)
    assert (status, err) == (0, "")
    assert out.startswith("game:Wordle-v0-easy: Wordle of gem.envs.games.wordle\n\nA secret word")
    assert "\n  word_length: int | None = 3 (else 5)\n      Letters of the word, 3 to 7" in out
    assert "\n  require_word: bool = False\n" in out
    assert "\nlimits\n  turns: at most 15\n  oracle: wins every start\n" in out
    assert "\nexample: seed 0, played by the oracle\n\nYou are playing Wordle.\n" in out
    assert out.rstrip().endswith("turns.") and "won]" in out


def test_info_names_what_it_replaced_and_takes_parameters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, out, _ = run("info", "math:GSM8K", capsys=capsys)
    assert "turns: at most 1\n" in out
    assert "seed 0 with source='sample' instead of 'hub:axon-rl/GSM-8k', played by" in out
    _, out, _ = run("info", "game:Wordle-v0", "--param", "max_turns=3", capsys=capsys)
    assert "turns: at most 3\n" in out
    status, _, err = run("info", "game:Wordle-v0", "--param", "size=3", capsys=capsys)
    assert (status, "no parameter 'size'" in err) == (2, True)


class Bare(gem.Env):
    """Has neither an oracle nor random play."""

    def reset(self, seed: int | None = None, **options: Any) -> Any:
        super().reset(seed=seed)
        return "Say something.", {}


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> str:
    gem.list_envs()
    monkeypatch.setattr("gem.registry._registry", dict(gem.registry._registry))
    gem.register("mine:Bare-v0", Bare)
    return "mine:Bare-v0"


def test_info_tells_of_environments_that_cannot_play(
    bare: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, out, _ = run("info", bare, capsys=capsys)
    assert "turns: no limit declared\n  oracle: none\n" in out
    assert "example: none, it has neither oracle_action() nor sample_random_action()" in out

    def fails(self: Bare, seed: int | None = None, **options: Any) -> Any:
        raise OSError("no disk")

    monkeypatch.setattr(Bare, "reset", fails)
    status, out, _ = run("info", bare, capsys=capsys)
    assert (status, out.splitlines()[-1]) == (0, "example: none: OSError: no disk")


@pytest.mark.parametrize(
    ("policy", "method"), [("oracle", "oracle_action"), ("random", "sample_random_action")]
)
def test_a_policy_that_an_environment_lacks_is_an_error_not_a_traceback(
    policy: str, method: str, bare: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = run("play", bare, "--policy", policy, capsys=capsys)
    assert status == 2
    assert err.startswith(f"error: {bare} has no {method}(), which --policy {policy} needs")


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
    # From a pipe nobody sees what was typed.
    assert f"\n> \\boxed{{{wrong}}}\n" in out
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


def test_a_check_that_could_not_run_is_none_that_passed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def lacks(*, seed: int | None = None) -> Any:
        raise gem.errors.MissingExtraError("pip install 'gem-core[math]'")

    gem.list_envs()
    monkeypatch.setattr("gem.registry._registry", dict(gem.registry._registry))
    gem.register("test:Lacks-v0", lacks)
    file = tmp_path / "report.json"
    status, out, err = run("check", "test:Lacks-v0", "--json", str(file), capsys=capsys)
    assert (status, err) == (1, "")
    assert "test:Lacks-v0: not run: MissingExtraError: pip install" in out
    assert json.loads(file.read_text())["verdict"] == "fail"
    fast = ("--episodes", "4", "--only", "contract")
    assert run("check", "test:Lacks-v0", EASY, *fast, capsys=capsys)[0] == 0


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """The record of a run: a won episode, one cut by a budget, one that infrastructure ended."""
    won = recorded(play(gem.make(EASY), oracle_policy, 20, 3), Task(EASY, 3))
    wordle = "game:Wordle-v0"
    cut = recorded(play(gem.make(wordle), oracle_policy, 1, 5), Task(wordle, 5))
    lost = Trajectory(Task(EASY, 4), end="failed", failure=Failure("environment", "server gone", 2))
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
    assert "has 3 episodes, counted from 0; there is no 3" in err


def test_a_record_of_which_nothing_can_be_compared_is_an_error(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run("replay", str(run_folder), "--verify", "--episode", "2", capsys=capsys)
    assert status == 2
    assert out == "0 of 0 episodes are the same again, 1 failed ones not compared\n"
    assert err == f"error: {run_folder / 'episodes.jsonl'}: no episode could be compared\n"


def test_a_record_without_episodes_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    for arguments in ((), ("--verify",)):
        status, out, err = run("replay", str(empty), *arguments, capsys=capsys)
        assert (status, out) == (2, "")
        assert err == f"error: {empty} holds no episode\n"


def test_a_line_that_is_no_episode_is_told_what_it_lacks(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def forget(line: dict[str, Any]) -> None:
        del line["iteration"]

    edit(run_folder, 1, forget)
    status, _, err = run("replay", str(run_folder), "--verify", capsys=capsys)
    assert status == 2
    assert err.endswith("episodes.jsonl, line 2 is damaged: iteration is missing\n")


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
        (("check", EASY, "--only", "luck"), "--only must name checks"),
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


@pytest.mark.filterwarnings("default:a warning")
def test_a_warning_is_a_line_without_source(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def warn(*args: object, **kwargs: object) -> list[str]:
        warnings.warn("a warning of an environment", UserWarning, stacklevel=1)
        return [EASY]

    monkeypatch.setattr("gem.__main__.list_envs", warn)
    status, _, err = run("list", capsys=capsys)
    assert (status, err) == (0, "warning: a warning of an environment\n")


def test_negative_seconds_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["check", EASY, "--cpu-s", "-1"])
    assert ended.value.code == 2
    assert "--cpu-s: must be 0 or more, got -1" in capsys.readouterr().err


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


def test_installed_packages_add_commands_that_get_the_words_after_theirs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = EntryPoint("greet", f"{__name__}:unused", "gem.commands")
    for module in ("gem.__main__", "gem.plugins"):
        monkeypatch.setattr(f"{module}.entry_points", EntryPoints([entry]).select)

    def greet(words: list[str]) -> int:
        if not words:
            raise gem.errors.ConfigurationError("greet needs a name")
        print("hello", *words)
        return 3

    monkeypatch.setattr(EntryPoint, "load", lambda self: greet)
    assert run("greet", "--to", "all", capsys=capsys) == (3, "hello --to all\n", "")
    assert run("greet", capsys=capsys) == (2, "", "error: greet needs a name\n")
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "greet" in capsys.readouterr().out
