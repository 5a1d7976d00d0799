"""`gem eval match`: seats are swapped, every kind of player plays, a record can be continued."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from chat_server import Answer, Stub, said

import gem
from gem.__main__ import guarded
from gem.multi import MultiStep
from gem_eval.cli import main
from gem_eval.match_command import rows, shown
from gem_eval.matches import MATCHES, Result, read_results
from gem_eval.ratings import PRIOR

TICTACTOE = "gem:multi:TicTacToe-v0?n=4"
Run = Callable[..., int]


@pytest.fixture
def match(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run `gem eval match` in a folder `run`; return its exit status."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    return lambda *words: guarded(lambda: main(["match", *map(str, words), "--out", "run"]))


def numbers(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_every_task_is_played_from_both_seats_and_replays(
    match: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert match(TICTACTOE, "random", "oracle", "--format", "json") == 0
    found = read_results(Path("run"))
    assert sorted(each.seed for each in found) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert {tuple(each.seats.values()) for each in found} == {
        ("random", "oracle"),
        ("oracle", "random"),
    }
    for each in found:
        game = gem.make_multi("multi:TicTacToe-v0")
        game.reset(seed=each.seed)
        rewards = dict.fromkeys(game.agents, 0.0)
        for actions in each.actions:
            step = game.step(actions)
            rewards = {agent: rewards[agent] + step.rewards[agent] for agent in rewards}
        assert rewards == each.rewards
        assert not step.observations
    data = numbers(capsys)
    assert [row["seat"] for row in data["pairs"]] == ["x", "o", "both"]
    assert all(row["won"] == 0 for row in data["pairs"])
    assert [each["player"] for each in data["ratings"]] == ["oracle", "random"]


def test_the_advantage_of_the_first_seat_is_visible() -> None:
    results = [
        Result(seed, {"first": one, "second": other}, {"first": 1.0, "second": -1.0})
        for seed in range(20)
        for one, other in (("a", "b"), ("b", "a"))
    ]
    from_first, from_second, both = rows(results, "a", "b")
    assert (from_first.score.mean, from_second.score.mean, both.score.mean) == (1.0, 0.0, 0.5)
    assert (both.won, both.drawn, both.lost, both.score.n) == (20, 0, 20, 20)
    data = json.loads(shown("game", results, ["a", "b"], 0, PRIOR, "json"))
    assert data["first_seat"]["agent"] == "first"
    assert data["first_seat"]["score"]["mean"] == 1.0
    assert data["first_seat"]["score"]["low"] > 0.5
    # Who plays is no matter: swapped seats leave the players equal.
    assert [each["elo"] for each in data["ratings"]] == pytest.approx([0, 0], abs=1e-6)


def test_a_void_match_is_played_again_and_nothing_else(
    match: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from gem.envs.multi.boards import TicTacToe

    step = TicTacToe.step

    def broken(self: TicTacToe, actions: Mapping[str, str]) -> MultiStep:
        if self.episode_key[0] == 2:
            raise RuntimeError("the board is gone")
        return step(self, actions)

    with monkeypatch.context() as patch:
        patch.setattr(TicTacToe, "step", broken)
        assert match(TICTACTOE, "random", "oracle") != 0
        assert "the board is gone" in capsys.readouterr().err
        assert match(TICTACTOE, "random", "oracle", "--resume", "--max-failed", 1) == 0
    assert "2 matches failed and do not count" in capsys.readouterr().out
    before = {each.key: each for each in read_results(Path("run"))}
    assert len(before) == 6
    assert match(TICTACTOE, "random", "oracle", "--resume") == 0
    after = {each.key: each for each in read_results(Path("run"))}
    assert len(after) == 8
    assert all(after[key] == each for key, each in before.items())
    lines = Path("run", MATCHES).read_text().splitlines()
    assert sum(not json.loads(line)["failure"] for line in lines) == 8


def test_code_that_calls_exit_ends_no_match_with_status_0(
    match: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def leave(self: Any, match: Any) -> None:
        sys.exit(0)

    with monkeypatch.context() as patched:
        patched.setattr("gem_eval.matches._ByScript.say", leave)
        assert match(TICTACTOE, "random", "oracle") not in (0, None)
    assert "0 of 8 matches" in capsys.readouterr().err
    assert match(TICTACTOE, "random", "oracle", "--resume") == 0


def test_a_record_is_continued_only_with_its_settings(match: Run) -> None:
    assert match(TICTACTOE, "random", "oracle") == 0
    assert match(TICTACTOE, "random", "oracle") != 0
    assert match("gem:multi:TicTacToe-v0?n=5", "random", "oracle", "--resume") != 0


def test_a_record_is_not_continued_with_another_model_or_version(
    match: Run, server: Stub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def serves(root: str) -> None:
        server.models = Answer(json.dumps({"data": [{"id": "m", "root": root}]}))

    words = (TICTACTOE, "random", f"openai:m@{server.url}")
    serves("/checkpoints/100")
    assert match(*words) == 0
    assert match(*words, "--resume") == 0
    serves("/checkpoints/900")
    assert match(*words, "--resume") == 2
    assert "root: '/checkpoints/100' there, '/checkpoints/900' here" in capsys.readouterr().err
    serves("/checkpoints/100")
    monkeypatch.setattr("gem_eval.match_command.__version__", "9.9.9")
    assert match(*words, "--resume") == 2
    assert "versions.gem-eval" in capsys.readouterr().err


def test_a_model_behind_a_server_plays_a_conversation_of_its_own(
    match: Run, server: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    def free(number: int, body: dict[str, Any]) -> Answer:
        text = body["messages"][-1]["content"]
        legal = text.rpartition("Legal moves: ")[2].partition("\n")[0].split(", ")
        return said(rf"I take \boxed{{{legal[0]}}}")

    server.answer = free
    words = (TICTACTOE, f"openai:m@{server.url}", "random", "--format", "json")
    assert match(*words) == 0
    [_, _, both] = numbers(capsys)["pairs"]
    assert both["matches"] == 8
    assert both["illegal"] == 0
    for body in server.requests:
        assert [each["role"] for each in body["messages"]][::2] == ["user"] * (
            len(body["messages"]) // 2 + 1
        )
    [result] = [r for r in read_results(Path("run")) if r.seed == 0 and r.seats["x"] != "random"]
    assert result.calls is not None
    assert list(result.calls) == ["x"]
    assert result.illegal == {"x": 0, "o": 0}


def test_illegal_moves_are_counted_and_lose(
    match: Run, server: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    server.answer = lambda number, body: said("I resign")
    assert match(TICTACTOE, f"openai:m@{server.url}", "random", "--format", "json") == 0
    [_, _, both] = numbers(capsys)["pairs"]
    assert (both["lost"], both["illegal"], both["score"]["mean"]) == (8, 8, 0.0)


def test_a_model_in_this_process_plays_by_tokens(
    match: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="of the extra local")
    tiny = pytest.importorskip("gem_cpu.tiny_model", reason="a model is used").ensure()
    words = ("gem:multi:TicTacToe-v0?n=2&on_illegal=random", f"hf:{tiny}", "random")
    assert match(*words, "--max-tokens", 8, "--format", "json") == 0
    [_, _, both] = numbers(capsys)["pairs"]
    assert both["matches"] == 4
    assert both["forfeits"] == 0
    calls = [r.calls for r in read_results(Path("run"))]
    assert all(each and sum(map(len, each.values())) >= 3 for each in calls)


def test_who_has_no_room_left_forfeits(match: Run, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="of the extra local")
    tiny = pytest.importorskip("gem_cpu.tiny_model", reason="a model is used").ensure()
    words = ("gem:multi:TicTacToe-v0?n=1&on_illegal=random", f"hf:{tiny}", "oracle")
    assert match(*words, "--context-tokens", 20, "--format", "json") == 0
    [_, _, both] = numbers(capsys)["pairs"]
    assert (both["lost"], both["forfeits"]) == (2, 2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((TICTACTOE, "random"), "two or more different players"),
        ((TICTACTOE, "random", "random"), "named twice"),
        ((TICTACTOE, "random", "stockfish"), "opponent must be one of"),
        (("game:Wordle-v0", "random", "oracle"), "no game of several agents"),
        (("gem:multi:Nim-v0?seat=first", "random", "oracle"), "leave out seat"),
        (("tau:RetailSeats-v2", "random", "oracle"), "has no oracle"),
        ((TICTACTOE, "random", "oracle", "--temperature", 1), "--temperature would have no effect"),
    ],
)
def test_what_cannot_be_played_is_said(
    match: Run, words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert match(*words) == 2
    assert message in capsys.readouterr().err


def test_who_got_more_has_won_and_rounding_is_no_win() -> None:
    seats = {"row": "a", "column": "b"}
    assert Result(0, seats, {"row": 0.1 + 0.2, "column": 0.3}).points("row") == 0.5
    assert Result(0, seats, {"row": 0.6, "column": 0.3}).points("column") == 0.0
    forfeited = Result(0, seats, {"row": 0.6, "column": 0.3}, forfeit="row")
    assert forfeited.points("row") == 0.0
    assert forfeited.points("column") == 1.0


def test_a_scripted_player_draws_the_same_in_every_run(match: Run, tmp_path: Path) -> None:
    assert match(TICTACTOE, "random", "oracle", "--concurrency", 1) == 0
    first = {each.key: each.actions for each in read_results(Path("run"))}
    Path("run").rename("earlier")
    assert match(TICTACTOE, "random", "oracle", "--concurrency", 8) == 0
    assert {each.key: each.actions for each in read_results(Path("run"))} == first
