"""`gem eval`: what it plays and records, what it says of wrong servers and settings."""

from __future__ import annotations

import asyncio
import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from chat_server import Answer, Stub, refused, said
from full_disk import full_disk

import gem
from gem.__main__ import guarded
from gem.__main__ import main as gem_main
from gem.core import Env
from gem.errors import ConfigurationError
from gem.tasks import Task
from gem.trajectory import Failure, Trajectory, Turn
from gem_eval.cli import default_folder, main
from gem_eval.client import Reply
from gem_eval.numbers import read_summary
from gem_eval.progress import Progress
from gem_eval.spending import Prices, Spending
from gem_train.record import EPISODES, read_episodes, read_run

GUESS = "game:GuessTheNumber-v0-easy"
Run = Callable[..., int]


class Crashing(Env):
    """Raises in every third episode."""

    def reset(self, seed: int | None = None, **options: Any) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        return "say something", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self.episode_key[0] % 3 == 0:
            raise RuntimeError("the board is gone")
        return "", 1.0, True, False, {}

    def sample_random_action(self) -> str:
        return "x"


@pytest.fixture
def crashing(monkeypatch: pytest.MonkeyPatch) -> str:
    gem.list_envs()  # fills the registry
    monkeypatch.setattr("gem.registry._registry", dict(gem.registry._registry))
    gem.register("test:Crashing", Crashing)
    return "test:Crashing"


@pytest.fixture
def evaluate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command as `gem eval` does, in a folder `run`; return its exit status."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)

    def run(*words: object, model: str = "openai:m") -> int:
        return guarded(lambda: main([*map(str, words), "--model", model, "--out", "run"]))

    return run


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between attempts, which are not made."""
    made: list[float] = []
    sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        made.append(seconds)
        await sleep(0)

    monkeypatch.setattr("gem_eval.server.sleep", note)
    return made


def ask(server: Stub, *words: object) -> list[object]:
    return [GUESS, "--url", server.url, "--episodes", 6, *words]


def episodes(folder: Path) -> dict[tuple[str, int, int], Any]:
    """The valid episodes of a record by key; each is there once."""
    found: dict[tuple[str, int, int], Any] = {}
    for record in read_episodes(folder / EPISODES):
        key = (record.split, record.trajectory.task.seed, record.notes["sample"])
        assert key not in found
        if record.trajectory.valid:
            found[key] = record.trajectory
    return found


def broken_off() -> Answer:
    """A reply that the server's own upstream broke off, as routers tell it."""
    error = {"code": 502, "message": "provider disconnected"}
    choice = {"message": {"content": "\\boxed{"}, "finish_reason": "stop", "error": error}
    return Answer(json.dumps({"choices": [choice]}))


def first_then(answer: Answer, first: int = 1) -> Callable[[int, Any], Answer | None]:
    return lambda number, body: answer if number <= first else None


# What is played


@pytest.mark.parametrize("model", ["oracle", "random", "noop"])
@pytest.mark.parametrize(
    "words",
    [
        ("--temperature", "0"),
        ("--param", "box=docker"),
        ("--system", "Play."),
        ("--url", "http://x/v1"),
        ("--key-env", "KEY"),
        ("--price", "in=1,out=1"),
        ("--max-tokens-total", "9"),
    ],
)
def test_an_option_of_models_that_has_no_effect_is_refused(
    model: str, words: tuple[str, str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    given = [GUESS, "--model", model, "--episodes", "1", "--out", str(tmp_path / "run"), *words]
    assert guarded(lambda: main(given)) == 2
    assert f"asks no model: {words[0]} would have no effect" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_the_oracle_wins_everywhere_and_its_record_replays(
    evaluate: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate("suite:smoke", "--format", "json", model="oracle") == 0
    data = json.loads(capsys.readouterr().out)
    assert [part["success"]["mean"] for part in data["environments"]] == [1.0] * 6
    assert data["overall"]["success"]["high"] == 1.0
    assert 0.85 < data["overall"]["success"]["low"] < 0.95
    assert gem_main(["replay", "run", "--verify"]) == 0
    assert "96 of 96 episodes" in capsys.readouterr().out


def test_a_model_is_asked_with_the_conversation_and_what_was_set(
    evaluate: Run, server: Stub
) -> None:
    words = ("--temperature", 0.5, "--max-tokens", 7, "--param", "min_p=0.1", "--system", "Play.")
    assert evaluate(*ask(server, *words)) == 0
    fields = {k: v for k, v in server.requests[0].items() if k != "messages"}
    assert fields == {"model": "m", "temperature": 0.5, "max_tokens": 7, "min_p": 0.1}
    longest = max((request["messages"] for request in server.requests), key=len)
    assert [m["role"] for m in longest[:4]] == ["system", "user", "assistant", "user"]
    assert longest[2]["content"].startswith("\\boxed{")


def test_numbers_and_episodes_do_not_depend_on_concurrency_or_executor(
    server: Stub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = []
    for concurrency, executor in (("1", "thread"), ("8", "thread"), ("8", "process:1")):
        out = tmp_path / f"{concurrency}-{executor[0]}"
        words = [*map(str, ask(server)), "--model", "openai:m", "--out", str(out)]
        words += ["--concurrency", concurrency, "--executor", executor, "--format", "json"]
        assert main(words) == 0
        found.append((json.loads(capsys.readouterr().out), episodes(out)))
    assert found[0] == found[1] == found[2]


def test_calls_are_made_side_by_side_up_to_the_concurrency(evaluate: Run, server: Stub) -> None:
    server.answer = lambda number, body: time.sleep(0.2)
    assert evaluate(*ask(server, "--concurrency", 3)) == 0
    assert server.most_running == 3


def test_samples_give_pass_at_k_and_pass_all_k(evaluate: Run, server: Stub, tmp_path: Path) -> None:
    assert evaluate(*ask(server, "--samples", 3)) == 0
    part = read_summary(tmp_path / "run").parts[0]
    assert (part.tasks, part.episodes, sorted(part.pass_at)) == (6, 18, [2, 3])
    # The rule answers all samples of a task alike.
    assert part.success is not None
    assert part.pass_at[3].mean == part.pass_all[3].mean == pytest.approx(part.success.mean)


@pytest.mark.parametrize(
    "reply",
    [
        said("\\boxed{5}", reasoning_content="perhaps \\boxed{1}"),
        said("\\boxed{5}", reasoning="perhaps \\boxed{1}"),
        said("<think>perhaps \\boxed{1}</think>\n\n\\boxed{5}"),
    ],
    ids=["reasoning_content", "reasoning", "in the text"],
)
def test_reasoning_is_recorded_and_nobody_else_sees_it(
    evaluate: Run, server: Stub, tmp_path: Path, reply: Answer
) -> None:
    server.answer = lambda number, body: reply
    assert evaluate(*ask(server)) == 0
    for record in read_episodes(tmp_path / "run" / EPISODES):
        assert {turn.text for turn in record.trajectory.turns} == {"\\boxed{5}"}
        assert record.notes["calls"][0]["reasoning"] == "perhaps \\boxed{1}"
    assert "perhaps" not in json.dumps(server.requests)


def test_saying_nothing_is_a_floor(evaluate: Run, tmp_path: Path) -> None:
    assert evaluate(GUESS, "--episodes", 4, model="noop") == 0
    part = read_summary(tmp_path / "run").parts[0]
    assert part.success is not None
    assert (part.success.mean, part.format_errors) == (0.0, 1.0)


def test_an_evaluation_ends_when_it_has_cost_what_it_may(
    evaluate: Run, server: Stub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A call has 10 tokens in and 5 out: it costs 3.
    words = ask(server, "--concurrency", 1, "--price", "in=100000,out=400000")
    assert evaluate(*words, "--max-cost", 12) == 1
    assert "is spent, --max-cost allows 12" in capsys.readouterr().err
    assert 0 < len(episodes(tmp_path / "run")) < 6
    asked = len(server.requests)
    assert evaluate(*words, "--max-cost", 12, "--resume") == 1
    assert len(server.requests) == asked
    assert evaluate(*words, "--max-cost", 1000, "--resume") == 0
    assert f"cost: {3 * len(server.requests):g}" in capsys.readouterr().err


class Flaky(Env):
    """Raises in the second turn of every other episode."""

    begun = 0

    def reset(self, seed: int | None = None, **options: Any) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        Flaky.begun += 1
        self.turn = 0
        return "say something", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.turn += 1
        if self.turn == 2 and Flaky.begun % 2:
            raise RuntimeError("the board is gone")
        return "", 1.0, self.turn == 2, False, {}


def test_attempts_that_began_anew_cost_too(
    evaluate: Run,
    server: Stub,
    tmp_path: Path,
    crashing: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    gem.register("test:Flaky", Flaky)
    monkeypatch.setattr(Flaky, "begun", 0)
    words = ("test:Flaky", "--url", server.url, "--episodes", 3, "--concurrency", 1)
    words += ("--price", "in=100000,out=400000")
    assert evaluate(*words) == 0
    # Of each call: 10 tokens in and 5 out, 3 in all. Two turns, and the first and lost one before.
    assert len(server.requests) == 3 * 4
    assert f"cost: {3 * len(server.requests)}" in capsys.readouterr().err
    assert evaluate(*words, "--resume") == 0
    assert f"cost: {3 * len(server.requests)}" in capsys.readouterr().err
    assert read_summary(tmp_path / "run").parts[0].prompt_tokens == 2 * 10


def test_episodes_that_were_played_again_have_cost_too(
    evaluate: Run, server: Stub, crashing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (crashing, "--url", server.url, "--episodes", 3, "--max-failed", 1)
    words += ("--price", "in=100000,out=400000")
    assert evaluate(*words) == 0
    # The void episode is played again by each.
    for played in range(1, 4):
        assert f"cost: {3 * len(server.requests)}\n" in capsys.readouterr().err
        assert len(server.requests) == 2 + 2 * played
        assert evaluate(*words, "--resume") == 0


def test_an_evaluation_ends_when_it_has_had_its_tokens(
    evaluate: Run, server: Stub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ask(server, "--concurrency", 1)
    assert evaluate(*words, "--max-tokens-total", 60) == 1
    assert "tokens are spent, --max-tokens-total allows 60" in capsys.readouterr().err
    # A call has 15.
    turns = [len(each.turns) for each in episodes(tmp_path / "run").values()]
    assert sum(turns) * 15 >= 60 > sum(turns[:-1]) * 15
    asked = len(server.requests)
    assert evaluate(*words, "--max-tokens-total", 60, "--resume") == 1
    assert len(server.requests) == asked
    assert evaluate(*words, "--max-tokens-total", 10_000, "--resume") == 0
    assert len(episodes(tmp_path / "run")) == 6


def test_a_limit_needs_a_server_that_counts_tokens(
    evaluate: Run, server: Stub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    silent = {"choices": [{"message": {"content": "\\boxed{5}"}, "finish_reason": "stop"}]}
    server.answer = lambda number, body: Answer(json.dumps(silent))
    assert evaluate(*ask(server, "--concurrency", 1, "--max-tokens-total", 60)) == 2
    assert "--max-tokens-total cannot be kept" in capsys.readouterr().err
    assert len(episodes(tmp_path / "run")) == 1


def test_a_cost_that_nobody_counted_is_unknown(
    evaluate: Run, server: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    silent = {"choices": [{"message": {"content": "<answer>1</answer>"}}]}
    server.answer = lambda number, body: Answer(json.dumps(silent))
    assert evaluate(*ask(server, "--price", "in=1,out=1")) == 0
    assert "cost: unknown (no tokens were counted)" in capsys.readouterr().err
    spending = Spending(Prices(0.0, 1_000_000.0))
    spending.add([{"prompt_tokens": 7, "reply_tokens": 2}, {"prompt_tokens": 7}])
    assert spending.shown() == "2, and 1 calls without a count"


def test_an_option_of_models_in_this_process_is_refused_for_a_server(
    evaluate: Run, server: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(*ask(server, "--dtype", "bfloat16")) == 2
    assert "--dtype is of models in this process" in capsys.readouterr().err
    assert server.requests == []


def test_the_progress_line_says_what_is_known() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    now, terminal = [100.0], Terminal()
    spending = Spending(Prices(0.0, 1_000_000.0))
    progress = Progress(10, spending, terminal, lambda: now[0])
    info = {"success": True}
    turn = Turn("o", [], True, [], None, "a", 1.0, True, False, "stop", info)
    won, void = (
        Trajectory(Task("x", 0), [turn]),
        Trajectory(Task("x", 0), end="failed", failure=Failure("engine", "gone", 1)),
    )
    for each in (won, void):  # the void one is played again
        spending.add([{"prompt_tokens": 7, "reply_tokens": 50}])
        progress.earlier(each)
    assert progress.line() == "1/10 episodes  success 1.000  failed 0  cost 100"
    for each, seconds in ((void, 0.5), (won, 0.6), (Trajectory(Task("x", 1)), 0.9)):
        now[0] += seconds
        spending.add([{"prompt_tokens": 7, "reply_tokens": 10}])
        progress.played(each)
    line = "3/10 episodes  success 1.000  failed 1  18 tokens/s  4 s left  cost 120"
    assert terminal.getvalue() == f"\r{line}\x1b[K"
    progress.end()
    assert terminal.getvalue().endswith("\r\x1b[K")


@pytest.mark.parametrize("price", ["", "in=1", "in=1,out=x", "in=1,out=2,tax=3", "in=-1,out=2"])
def test_prices_that_are_none_are_refused(evaluate: Run, server: Stub, price: str) -> None:
    assert evaluate(*ask(server, "--price", price)) == 2
    assert evaluate(*ask(server, "--max-cost", 1)) == 2
    assert server.requests == []


# What goes wrong


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (refused(401, "Incorrect API key provided: sk-secret"), "401: Incorrect API key"),
        (refused(404, "The model `m` does not exist."), "404: The model `m`"),
        (refused(400, "Unsupported value: 'temperature'"), "--param"),
        (Answer("", 302, {"Location": "http://127.0.0.1:1/"}), "302"),
    ],
    ids=["401", "404", "400", "302"],
)
def test_a_refused_request_ends_the_evaluation_with_the_servers_words(
    evaluate: Run,
    server: Stub,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    answer: Answer,
    says: str,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    server.answer = lambda number, body: answer
    assert evaluate(*ask(server, "--concurrency", 1)) == 2
    said_so = capsys.readouterr().err
    assert says in said_so
    assert "sk-secret" not in said_so
    assert len(server.requests) == 1
    assert server.keys == ["Bearer sk-secret"]


def test_a_key_is_in_no_file(
    evaluate: Run, server: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINE", "sk-secret")
    server.answer = first_then(refused(500, "sk-secret is tired"))
    assert evaluate(*ask(server, "--key-env", "MINE")) == 0
    assert all("sk-secret" not in path.read_text() for path in (tmp_path / "run").iterdir())


@pytest.mark.parametrize("key", ["sk-secret\n", "sk-\xe9secret"])
def test_a_key_that_no_request_can_have_is_refused_and_not_shown(
    evaluate: Run,
    server: Stub,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    key: str,
) -> None:
    monkeypatch.setenv("MINE", key)
    assert evaluate(*ask(server, "--key-env", "MINE")) == 2
    assert "secret" not in (said_so := capsys.readouterr().err)
    assert "line break or another character" in said_so


@pytest.mark.parametrize(
    ("answer", "least", "most"),
    [
        (refused(429, "slow down", Retry_After="7"), 7, 7),
        (
            refused(
                503,
                "loading",
                Retry_After=format_datetime(datetime.now(timezone.utc) + timedelta(days=1)),
            ),
            600,
            600,
        ),
        (refused(429, "slow down", Retry_After="soon"), 0, 0.5),
        (refused(500, "oops"), 0, 0.5),
        (Answer("{not json"), 0, 0.5),
        (Answer('{"choices": []}'), 0, 0.5),
        (Answer('{"error": {"message": "upstream"}}'), 0, 0.5),
        (Answer('{"choices": [{"message"', cut=True), 0, 0.5),
        (Answer("<html>gateway</html>", 502), 0, 0.5),
        (said("\\boxed{", "error"), 0, 0.5),
        (said("\\boxed{", "abort"), 0, 0.5),
        (broken_off(), 0, 0.5),
    ],
    ids=[
        *("429", "503 date", "429 soon", "500", "no json", "no choices", "error", "cut off"),
        *("502", "finished by an error", "aborted", "error of the choice"),
    ],
)
def test_what_passes_is_asked_again_after_a_pause(
    evaluate: Run,
    server: Stub,
    tmp_path: Path,
    pauses: list[float],
    answer: Answer,
    least: float,
    most: float,
) -> None:
    server.answer = first_then(answer)
    assert evaluate(*ask(server, "--concurrency", 1)) == 0
    assert len(pauses) == 1
    assert least <= pauses[0] <= most
    assert len(episodes(tmp_path / "run")) == 6
    first = next(read_episodes(tmp_path / "run" / EPISODES))
    assert first.notes["calls"][0]["retries"] == 1


def test_an_attempt_has_a_time_limit(evaluate: Run, server: Stub, pauses: list[float]) -> None:
    server.answer = lambda number, body: time.sleep(6) if number == 1 else None
    assert evaluate(*ask(server, "--timeout-s", 2)) == 0
    assert len(pauses) == 1


def test_without_a_server_the_evaluation_does_not_begin(
    evaluate: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(GUESS, "--url", "http://127.0.0.1:9/v1") == 2
    assert "no server answers at http://127.0.0.1:9/v1" in capsys.readouterr().err
    assert not (tmp_path / "run" / EPISODES).exists()


def test_a_server_that_dies_fails_the_run_and_is_no_zero(
    evaluate: Run,
    server: Stub,
    tmp_path: Path,
    pauses: list[float],
    capsys: pytest.CaptureFixture[str],
) -> None:
    server.answer = lambda number, body: None if number <= 5 else refused(500, "out of memory")
    assert evaluate(*ask(server, "--concurrency", 1)) == 1
    assert "engine" in (said_so := capsys.readouterr().err)
    assert "out of memory" in said_so
    before = episodes(tmp_path / "run")
    records = list(read_episodes(tmp_path / "run" / EPISODES))
    assert sum(len(record.notes["calls"]) for record in records) == 5
    server.answer = lambda number, body: None
    assert evaluate(*ask(server, "--resume")) == 0
    after = episodes(tmp_path / "run")
    assert len(after) == 6
    assert before.items() <= after.items()
    assert read_summary(tmp_path / "run").parts[0].failed == {}


def test_a_context_that_overflows_ends_the_episode_and_the_table_says_so(
    evaluate: Run, server: Stub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = refused(400, "This model's maximum context length is 20 tokens. However, ...")

    def answer(number: int, body: dict[str, Any]) -> Answer:
        return long if len(body["messages"]) > 3 else said("\\boxed{11}")

    server.answer = answer
    assert evaluate(*ask(server)) == 0
    played = episodes(tmp_path / "run").values()
    assert {(each.end, len(each.turns), each.success) for each in played} == {
        ("token_budget", 2, False)
    }
    assert "the context overflowed in 6 episodes" in capsys.readouterr().out


def test_a_first_prompt_that_is_too_long_is_no_zero(
    evaluate: Run, server: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    server.answer = lambda number, body: refused(400, "context_length_exceeded")
    assert evaluate(*ask(server)) == 1
    assert "budget: the first prompt is too long" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", None])
def test_an_empty_reply_is_played_and_counted(
    evaluate: Run, server: Stub, tmp_path: Path, text: str | None
) -> None:
    server.answer = lambda number, body: said(text, "length", reasoning="hm")
    assert evaluate(*ask(server)) == 0
    part = read_summary(tmp_path / "run").parts[0]
    assert part.success is not None
    assert (part.success.mean, part.format_errors) == (0.0, 1.0)
    assert part.empty_replies == part.cut_replies == len(server.requests)


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (said(None, refusal="I will not guess."), "I will not guess."),
        (said("I am", "content_filter"), "I am"),
    ],
    ids=["refusal", "content filter"],
)
def test_a_refusal_is_played_and_counted(
    evaluate: Run,
    server: Stub,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    reply: Answer,
    text: str,
) -> None:
    server.answer = lambda number, body: reply
    assert evaluate(*ask(server)) == 0
    turns = [turn for each in episodes(tmp_path / "run").values() for turn in each.turns]
    assert {turn.text for turn in turns} == {text}
    part = read_summary(tmp_path / "run").parts[0]
    assert (part.filtered_replies, part.empty_replies) == (len(turns), 0)
    assert f"{len(turns)} replies were refusals or" in capsys.readouterr().out


def test_a_full_disk_ends_the_evaluation_and_loses_no_episode(
    evaluate: Run, server: Stub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ask(server, "--concurrency", 1)
    assert evaluate(*words) == 0
    whole = episodes(tmp_path / "run")
    room = (tmp_path / "run" / EPISODES).stat().st_size // 2
    (tmp_path / "run").rename(tmp_path / "whole")
    with full_disk(tmp_path / "run" / EPISODES, room):
        assert evaluate(*words) == 2
    assert f"cannot write run/{EPISODES}" in capsys.readouterr().err
    before = episodes(tmp_path / "run")
    assert 0 < len(before) < 6
    asked = len(server.requests)
    assert evaluate(*words, "--resume") == 0
    assert episodes(tmp_path / "run") == whole
    played = sum(len(each.turns) for key, each in whole.items() if key not in before)
    assert len(server.requests) - asked == played


def test_an_environment_that_raises_is_tried_again_then_counted_apart(
    evaluate: Run, crashing: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (crashing, "--episodes", 9)
    assert evaluate(*words, "--max-failed", 0.2, model="random") == 1
    assert "the board is gone" in capsys.readouterr().err
    assert evaluate(*words, "--max-failed", 0.5, "--resume", model="random") == 0
    part = read_summary(tmp_path / "run").parts[0]
    assert part.success is not None
    assert (part.success.mean, part.episodes, part.failed) == (1.0, 6, {"environment": 3})
    assert part.bounds == pytest.approx((6 / 9, 1.0))
    assert "success is between 0.667 and 1.000" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("game:Nothing",), "game:Nothing"),
        ((GUESS, f"gem:{GUESS}?n=4"), "twice"),
        (("suite:none",), "known: smoke"),
        ((GUESS, "--samples", "2"), "--episodes"),
        ((GUESS, "--executor", "cloud"), "unknown executor"),
        ((f"gem:{GUESS}?hint=nonsense",), "hint"),
    ],
)
def test_a_wrong_setting_is_refused(
    evaluate: Run, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], says: str
) -> None:
    assert evaluate(*words, model="random") == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ("--url", "localhost:8000"),
        ("--url", "http://me:secret@localhost:8000/v1"),
        ("--url", "http://localhost/v1", "--param", "messages=[]"),
        (),
    ],
)
def test_a_model_that_cannot_be_asked_is_refused(evaluate: Run, words: tuple[str, ...]) -> None:
    assert evaluate(GUESS, *words) == 2


def test_tasks_are_checked_before_the_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str]:
        status = guarded(lambda: main([*words, "--model", "random"]))
        return status, capsys.readouterr().err

    assert run("game:Wordle-v0", "--episodes", "1")[0] == 0
    status, said = run("game:Wordel-v0", "--episodes", "1")
    assert (status, "did you mean game:Wordle-v0" in said) == (2, True)
    status, said = run("game:Wordle-v0", "--episodes", "1")
    assert (status, "holds a run already; --resume" in said) == (2, True)


def test_other_tasks_of_a_model_go_to_another_folder() -> None:
    tasks = [
        *("suite:smoke", "game:Wordle-v0", "gem:game:Wordle-v0?n=2", "gem:game:Wordle-v0?n=3"),
        *("gem:game:Wordle-v0?n=2&seed=1", "gem:game:Wordle-v0?n=2&seed=1&x=" + "y" * 200),
        "gem:game:Wordle-v0?n=2&seed=1&x=" + "y" * 201,
    ]
    folders = [default_folder("openai:Qwen/Qwen3-4B", [each]) for each in tasks]
    folders.append(default_folder("openai:Qwen/Qwen3-4B", tasks[:2]))
    folders.append(default_folder("random", tasks[:1]))
    assert len(set(folders)) == len(folders)
    assert all(re.fullmatch(r"evals/[\w.+-]{1,95}", str(each)) for each in folders)
    assert folders[-1] == Path("evals/random-suite-smoke")


@pytest.mark.parametrize("option", ["--episodes", "--seed"])
def test_an_option_without_effect_is_refused(
    evaluate: Run, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = f"gem:{GUESS}?n=2&seed=5"
    assert evaluate(tasks, option, 4, model="random") == 2
    assert f"{option} 4 has no effect: all of these tasks say their" in capsys.readouterr().err
    # It is of use for one of them.
    assert evaluate(tasks, "game:Wordle-v0-easy", option, 4, model="noop") == 0


def test_a_gate_names_the_change_that_it_wants(
    evaluate: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(GUESS, "--episodes", 4, model="oracle") == 0
    capsys.readouterr()
    guarded(lambda: main(["gate", "run", "--against", "run"]))
    assert "wanted 0" in capsys.readouterr().out


def test_code_that_calls_exit_ends_no_evaluation_with_status_0(
    evaluate: Run,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    replied: list[int] = []

    async def leave(self: Any, messages: Any, tools: Any = ()) -> Any:
        replied.append(1)
        if len(replied) > 3:
            sys.exit(0)
        return Reply("")

    with monkeypatch.context() as patched:
        patched.setattr("gem_eval.players.SilentPlayer.reply", leave)
        assert evaluate(GUESS, "--episodes", 6, "--concurrency", 1, model="noop") == 1
    said = capsys.readouterr()
    assert "of 6 episodes, because code that runs in it called sys.exit(0)" in said.err
    assert "--resume plays what is missing" in said.err
    assert said.out == ""
    assert evaluate(GUESS, "--episodes", 6, "--resume", model="noop") == 0
    assert len(episodes(tmp_path / "run")) == 6


@pytest.mark.parametrize("status", [0, 3, None])
def test_an_environment_that_calls_exit_ends_no_evaluation_with_status_0(
    evaluate: Run, monkeypatch: pytest.MonkeyPatch, crashing: str, status: int | None
) -> None:
    monkeypatch.setattr(Crashing, "step", lambda self, action: sys.exit(status))
    try:
        ended: object = evaluate(crashing, "--episodes", 6, model="random")
    except SystemExit as error:
        ended = error.code
    assert ended not in (0, None)


# Going on


def test_a_record_is_only_continued_if_asked_for_and_with_the_same_settings(
    evaluate: Run, server: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(*ask(server)) == 0
    asked = len(server.requests)
    assert evaluate(*ask(server)) == 2
    assert "--resume" in capsys.readouterr().err
    assert evaluate(*ask(server, "--temperature", 0.5, "--resume")) == 2
    assert "settings.sampling.temperature: nothing there, 0.5 here" in capsys.readouterr().err
    assert evaluate(*ask(server, "--resume", "--concurrency", 2)) == 0
    assert len(server.requests) == asked


def test_a_record_is_not_continued_with_another_checkpoint_of_the_same_name(
    evaluate: Run, server: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    def serves(root: str) -> None:
        server.models = Answer(json.dumps({"data": [{"id": "m", "root": root}]}))

    serves("/checkpoints/100")
    assert evaluate(*ask(server)) == 0
    asked = len(server.requests)
    serves("/checkpoints/900")
    assert evaluate(GUESS, "--url", server.url, "--episodes", 9, "--resume") == 2
    said = "model.root: '/checkpoints/100' there, '/checkpoints/900' here"
    assert said in capsys.readouterr().err
    assert len(server.requests) == asked


def test_a_record_is_not_continued_with_another_judge(
    evaluate: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def judge(model: str, template: str = "Grade.", **other: object) -> None:
        Path("template.txt").write_text(template)
        table = {"url": "http://127.0.0.1:9/v1", "model": model, "allow_uncalibrated": True}
        table |= {"template": "template.txt", **other}
        Path("judges.json").write_text(json.dumps({"judge": {"main": table}}))

    def play(n: int, *words: object) -> int:
        return evaluate("judge:QA-v0?judge=main", *words, "--episodes", n, model="noop")

    monkeypatch.setenv("GEM_JUDGES", str(tmp_path / "judges.json"))
    judge("strict")
    assert play(2) == 0
    judge("lenient")
    assert play(4, "--resume") == 2
    assert "judge.main.model: 'strict' there, 'lenient' here" in capsys.readouterr().err
    judge("strict", "Grade well.")
    assert play(4, "--resume") == 2
    assert "judge.main.identity" in capsys.readouterr().err
    judge("strict", timeout_s=5.0, url="http://127.0.0.1:10/v1")
    assert play(4, GUESS, "--resume") == 0


def test_an_evaluation_without_judges_is_extended_by_one(
    evaluate: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = {"url": "http://127.0.0.1:9/v1", "model": "m", "allow_uncalibrated": True}
    (tmp_path / "judges.json").write_text(json.dumps({"judge": {"main": table}}))
    monkeypatch.setenv("GEM_JUDGES", str(tmp_path / "judges.json"))
    assert evaluate(GUESS, "--episodes", 2, model="noop") == 0
    both = (GUESS, "judge:QA-v0?judge=main")
    assert evaluate(*both, "--episodes", 2, "--resume", model="noop") == 0
    assert read_run(tmp_path / "run").meta["settings"]["judge"]["main"]["model"] == "m"


def test_two_evaluations_cannot_share_a_folder(evaluate: Run, server: Stub, tmp_path: Path) -> None:
    server.answer = lambda number, body: time.sleep(0.2)
    words = [*map(str, ask(server)), "--model", "openai:m", "--out", "run"]
    other = subprocess.Popen([sys.executable, "-m", "gem_eval", *words], cwd=tmp_path)
    try:
        wait_for(lambda: len(server.requests) > 0)
        assert evaluate(*ask(server, "--resume")) == 2
    finally:
        assert other.wait(60) == 0
    assert len(episodes(tmp_path / "run")) == 6


def test_ctrl_c_leaves_a_record_that_can_be_continued(
    evaluate: Run, server: Stub, tmp_path: Path
) -> None:
    gate = threading.Event()

    def answer(number: int, body: Any) -> None:
        if number > 8:  # the first episodes have at most four turns
            assert gate.wait(60)

    server.answer = answer
    words = [*map(str, ask(server, "--concurrency", 1)), "--model", "openai:m", "--out", "run"]
    other = subprocess.Popen(
        [sys.executable, "-m", "gem_eval", *words], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    wait_for(lambda: (tmp_path / "run" / EPISODES).exists())
    other.send_signal(signal.SIGINT)
    assert "--resume plays the rest" in other.communicate(timeout=60)[1]
    gate.set()
    assert other.returncode == 130
    before = episodes(tmp_path / "run")
    assert 0 < len(before) < 6
    assert evaluate(*ask(server, "--resume")) == 0
    assert before.items() <= episodes(tmp_path / "run").items()


def test_a_record_is_extended_by_samples_tasks_and_environments(
    evaluate: Run, server: Stub, tmp_path: Path
) -> None:
    url = ("--url", server.url)
    assert evaluate(GUESS, *url, "--episodes", 3) == 0
    first, asked = episodes(tmp_path / "run"), len(server.requests)
    more = ("game:Mastermind-v0-easy", GUESS, *url, "--episodes", 5, "--samples", 2)
    assert evaluate(*more, "--resume") == 0
    extended = episodes(tmp_path / "run")
    assert first.items() <= extended.items()
    both = sum(len(each.turns) for each in extended.values())
    assert len(server.requests) == both
    assert both - sum(len(each.turns) for each in first.values()) == len(server.requests) - asked
    (tmp_path / "run").rename(tmp_path / "extended")
    assert evaluate(*more) == 0
    assert episodes(tmp_path / "run") == extended
    ours, theirs = (read_summary(tmp_path / name) for name in ("extended", "run"))
    assert (ours.parts, ours.overall) == (theirs.parts, theirs.overall)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((GUESS, "--episodes", 3, "--samples", 1), "settings.samples: 2 there, 1 here"),
        ((GUESS, "--episodes", 2, "--samples", 3), "settings.tasks.0: 'gem:"),
        ((GUESS, "--episodes", 9, "--samples", 2, "--seed", 1), "settings.tasks.0: 'gem:"),
        (("game:Sudoku-v0-easy", "--episodes", 3, "--samples", 2), "settings.tasks.0: 'gem:"),
    ],
    ids=["fewer samples", "fewer tasks", "other seeds", "another environment"],
)
def test_a_record_is_not_continued_with_less(
    evaluate: Run,
    server: Stub,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: tuple[object, ...],
    says: str,
) -> None:
    url = ("--url", server.url)
    assert evaluate(GUESS, *url, "--episodes", 3, "--samples", 2) == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    assert evaluate(*words, *url, "--resume") == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("  ")]
    assert len(lines) == 1
    assert says in lines[0]
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


FORKS = """
import os, sys
from gem_eval.cli import main
for line in sys.stdin:
    child = os.fork()
    if not child:
        os._exit(main(line.split()))
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.mark.parametrize(
    ("model", "tasks", "kills"), [("openai:m", 20, 20), ("oracle", 400, 8)], ids=["model", "oracle"]
)
def test_killed_at_any_moment_and_continued_it_ends_as_one_that_was_not(
    server: Stub, tmp_path: Path, model: str, tasks: int, kills: int
) -> None:
    server.answer = lambda number, body: time.sleep(0.01)
    url = f"--url {server.url}" if model == "openai:m" else ""
    words = f"{GUESS} game:Mastermind-v0-easy --model {model} {url} --episodes {tasks}"
    words += " --concurrency 4 --resume --out"
    # A process that has imported everything forks one for each evaluation.
    forks = subprocess.Popen(
        [sys.executable, "-c", FORKS],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    assert forks.stdin is not None
    assert forks.stdout is not None
    status = iter(line for line in forks.stdout if line.strip().lstrip("-").isdecimal())
    whole, killed = tmp_path / "whole", tmp_path / "killed"

    def begin(folder: Path) -> int:
        forks.stdin.write(f"{words} {folder}\n")
        return int(next(status))

    def recorded() -> int:
        path = killed / EPISODES
        return path.read_bytes().count(b"\n") if path.exists() else 0

    rng = random.Random(tasks)
    with forks:
        begin(whole)
        assert int(next(status)) == 0
        for kill in range(kills):
            # Nothing more: while it starts. A few more: while it plays and writes.
            most = recorded() + rng.choice([0, 1, 2, tasks // 20])
            child = begin(killed)
            wait_for(lambda: recorded() >= most)
            time.sleep(rng.uniform(0, 0.03))
            os.kill(child, signal.SIGKILL)
            assert int(next(status)) == -signal.SIGKILL, f"it had ended before kill {kill}"
        begin(killed)
        assert int(next(status)) == 0
        forks.stdin.close()
    assert episodes(killed) == episodes(whole)
    ours, theirs = read_summary(killed), read_summary(whole)
    assert (ours.parts, ours.overall) == (theirs.parts, theirs.overall)
    metrics = [
        [{**line, "time_s": 0} for line in read_run(each).metrics] for each in (killed, whole)
    ]
    assert metrics[0] == metrics[1]


def wait_for(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.002)


def test_the_report_prints_what_was_recorded(
    evaluate: Run, server: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(*ask(server)) == 0
    printed = capsys.readouterr().out
    assert main(["report", "run"]) == 0
    assert capsys.readouterr().out == printed
    assert re.search(r"^game:GuessTheNumber-v0-easy +6 +6 +0 ", printed, re.MULTILINE)
    assert main(["report", "run", "--by", "turns"]) == 0
    assert re.search(r"^game:GuessTheNumber-v0-easy, turns \d+ ", capsys.readouterr().out, re.M)
    with pytest.raises(ConfigurationError, match="no episode has 'level'"):
        main(["report", "run", "--by", "level"])
