"""Environments as tasks of inspect-ai, and records of `gem eval` as its logs."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import inspect_ai
import pytest
from chat_server import Stub, by_rule, refused, said
from inspect_ai.log import EvalLog, list_eval_logs, read_eval_log, recompute_metrics
from inspect_ai.model import GenerateConfig, ModelAPI, ModelOutput, ModelUsage, modelapi

import gem
from gem.core import Env
from gem.errors import ConfigurationError
from gem.tasks import Task
from gem.trajectory import Trajectory, Turn
from gem_eval.cli import main
from gem_eval.inspect_log import write_logs
from gem_eval.numbers import read_summary
from gem_train.record import EPISODES, Recorder, read_episodes

GUESS = "game:GuessTheNumber-v0-easy"
SAID: list[Callable[[list[Any]], ModelOutput]] = []
"""What the model replies to a conversation, the last one; else by the rule of the chat server."""


@modelapi(name="rule")
class Rule(ModelAPI):
    """Replies by rule; a call has 15 tokens."""

    async def generate(
        self, input: list[Any], tools: Any, tool_choice: Any, config: GenerateConfig
    ) -> ModelOutput:
        if SAID:
            return SAID[-1](input)
        return reply(f"\\boxed{{{1 + (3 * len(input)) % 10}}}")


def reply(text: str, stop: Any = "stop") -> ModelOutput:
    output = ModelOutput.from_content("rule/m", text, stop_reason=stop)
    output.usage = ModelUsage(input_tokens=10, output_tokens=5, total_tokens=15)
    return output


class Told(Env):
    """Does what it is told: `crash`, `wait`, `hang`, `end`; 0.25 a turn."""

    together = threading.Barrier(4, timeout=30)
    hanging = threading.Event()

    def reset(self, seed: int | None = None, **options: Any) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        return f"seed {self.episode_key[0]}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if action == "crash":
            raise RuntimeError("the board is gone")
        if action == "wait":
            self.together.wait()
        if action == "hang":
            self.hanging.wait(30)
        return "go on", 0.25, action == "end", False, {"success": action == "end"}


gem.register("test:Told", Told)


@pytest.fixture
def told() -> Iterator[Callable[..., None]]:
    """Have the model reply so to a conversation."""
    yield SAID.append
    SAID.clear()


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., EvalLog]:
    """Run `gem_eval/env` as `inspect eval` does; return the log as inspect-ai reads it."""

    def run(id: str = GUESS, *, n: int = 4, args: dict[str, Any] | None = None, **how: Any) -> Any:
        [log] = inspect_ai.eval(
            "gem_eval/env",
            task_args={"id": id, "n": n, **(args or {})},
            model="rule/m",
            log_dir=str(tmp_path / "logs"),
            display="none",
            **how,
        )
        return read_eval_log(log.location)

    return run


@pytest.fixture
def server() -> Iterator[Stub]:
    stub = Stub()
    yield stub
    stub.close()


def scores(log: EvalLog) -> dict[tuple[str, int], tuple[float, float]]:
    """Success and return of each sample and epoch."""
    return {
        (str(each.id), each.epoch): tuple(each.scores[name].value for name in ("success", "return"))
        for each in log.samples or []
        if each.scores
    }


def metrics(log: EvalLog) -> dict[tuple[str, str], float]:
    assert log.results is not None
    return {(s.name, n): m.value for s in log.results.scores for n, m in s.metrics.items()}


# Environments as tasks


def test_an_episode_is_what_gem_eval_makes_of_it(
    run: Callable[..., EvalLog], server: Stub, tmp_path: Path
) -> None:
    words = [GUESS, "--model", "openai:m", "--url", server.url, "--episodes", "8"]
    assert main([*words, "--samples", "2", "--out", str(tmp_path / "run")]) == 0
    log = run(n=8, epochs=2)
    assert log.status == "success"
    ours = {
        (f"{GUESS}/{r.trajectory.task.seed}", r.notes["sample"] + 1): (
            float(r.trajectory.success),
            r.trajectory.total_reward,
        )
        for r in read_episodes(tmp_path / "run" / EPISODES)
    }
    assert len(ours) == 16
    assert scores(log) == ours
    assert len({won for won, _ in ours.values()}) == 2
    success = read_summary(tmp_path / "run").parts[0].success
    assert success is not None
    found = metrics(log)
    assert found["success", "mean"] == pytest.approx(success.mean)
    assert found["success", "low"] == pytest.approx(success.low)
    assert found["success", "high"] == pytest.approx(success.high)


COMMAND = """
from importlib.metadata import entry_points
from inspect_ai.model import ModelAPI, ModelOutput, ModelUsage, modelapi

@modelapi(name="one")
class One(ModelAPI):
    async def generate(self, *_, **__):
        output = ModelOutput.from_content("one/m", "one")
        output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
        return output

[inspect] = entry_points(group="console_scripts", name="inspect")
inspect.load()()
"""
"""inspect-ai's command in a process with a model of its own, and nothing of gem-eval imported."""


def test_the_command_line_of_inspect_finds_the_task(tmp_path: Path) -> None:
    words = ["eval", "gem_eval/env", "-T", f"id=gem:{GUESS}?hint=range", "-T", "n=3"]
    words += ["--model", "one/m", "--log-dir", str(tmp_path), "--display", "none"]
    subprocess.run([sys.executable, "-c", COMMAND, *words], check=True, timeout=300)
    [info] = list_eval_logs(str(tmp_path))
    log = read_eval_log(info)
    assert log.status == "success"
    assert [sample.id for sample in log.samples or []] == [
        f"{GUESS}?hint=range/{seed}" for seed in range(3)
    ]


def test_slow_environments_do_not_wait_for_each_other(
    run: Callable[..., EvalLog], told: Callable[..., None]
) -> None:
    # None goes on before all four are in their first step.
    told(lambda messages: reply("wait" if len(messages) == 1 else "end"))
    log = run("test:Told", n=4)
    assert list(scores(log).values()) == [(1.0, 0.5)] * 4


@pytest.mark.parametrize("on_error", [{"fail_on_error": False}, {"score_on_error": True}])
def test_an_environment_that_fails_is_an_error_and_no_zero(
    run: Callable[..., EvalLog], told: Callable[..., None], on_error: dict[str, Any]
) -> None:
    told(lambda messages: reply("crash" if messages[0].text == "seed 2" else "end"))
    log = run("test:Told", **{"fail_on_error": False, **on_error})
    assert set(scores(log)) == {(f"test:Told/{seed}", 1) for seed in (0, 1, 3)}
    [failed] = [each for each in log.samples or [] if each.error]
    assert "the board is gone" in failed.error.message
    assert metrics(log)["success", "mean"] == 1.0


def test_a_token_limit_ends_the_episode_which_is_scored_as_it_stands(
    run: Callable[..., EvalLog], told: Callable[..., None]
) -> None:
    told(lambda messages: reply("on"))
    log = run("test:Told", n=1, token_limit=40)
    [sample] = log.samples or []
    assert sample.limit is not None and sample.limit.type == "token"
    assert sample.error is None
    assert scores(log) == {("test:Told/0", 1): (0.0, 0.5)}
    assert sample.scores["return"].metadata == {"rewards": [0.25, 0.25], "end": "limit"}


def test_a_context_that_overflows_ends_the_episode_unless_at_once(
    run: Callable[..., EvalLog], told: Callable[..., None]
) -> None:
    told(lambda messages: reply("on" if len(messages) < 5 else "", "model_length"))
    log = run("test:Told", n=1, fail_on_error=False)
    assert log.samples[0].error is not None and scores(log) == {}
    told(lambda messages: reply("on") if len(messages) < 5 else reply("", "model_length"))
    log = run("test:Told", n=1)
    assert scores(log) == {("test:Told/0", 1): (0.0, 0.5)}
    assert log.samples[0].scores["return"].metadata["end"] == "token_budget"


def test_a_time_limit_while_the_environment_works_gives_no_score(
    run: Callable[..., EvalLog], told: Callable[..., None]
) -> None:
    told(lambda messages: reply("hang"))
    try:
        log = run("test:Told", n=1, time_limit=1, fail_on_error=False)
    finally:
        Told.hanging.set()
    assert scores(log) == {}
    assert "while its environment worked" in log.samples[0].error.message


def test_turns_system_message_and_executor_are_arguments(run: Callable[..., EvalLog]) -> None:
    args = {"turns": 1, "system": "Play.", "executor": "process:1"}
    log = run(n=3, args=args)
    assert log.status == "success"
    for sample in log.samples or []:
        assert [m.role for m in sample.messages] == ["system", "user", "assistant"]
    ends = {each.scores["return"].metadata["end"] for each in log.samples or []}
    assert "turn_budget" in ends <= {"turn_budget", "terminated"}


@pytest.mark.parametrize(
    ("id", "args"), [("suite:smoke", {}), ("game:X?", {"executor": "cloud"}), ("gem:", {})]
)
def test_wrong_arguments_are_refused_before_anything_is_played(
    run: Callable[..., EvalLog], id: str, args: dict[str, Any]
) -> None:
    with pytest.raises(Exception, match=r"has no effect|unknown executor|task URI"):
        run(id, args=args)


def test_one_task_has_a_mean_and_no_interval(run: Callable[..., EvalLog]) -> None:
    found = metrics(run(n=1))
    assert math.isnan(found["success", "low"]) and math.isnan(found["return", "high"])


# Records as logs


def test_a_record_becomes_logs_that_inspect_reads(server: Stub, tmp_path: Path) -> None:
    def answer(number: int, body: dict[str, Any]) -> Any:
        said_by_rule = by_rule(body["messages"])
        if number == 5:
            return refused(500, "out of memory")
        return said("\\boxed{4}", reasoning="hm") if number == 1 else said_by_rule

    server.answer = answer
    words = [GUESS, "gem:game:Mastermind-v0-easy?n=1", "--model", "openai:m", "--url", server.url]
    words += ["--episodes", "6", "--samples", "2", "--system", "Play.", "--temperature", "0.5"]
    words += ["--concurrency", "1", "--call-retries", "0", "--out", str(tmp_path / "run")]
    assert main(words) == 0
    for _ in range(2):  # the second time replaces the same files
        assert main(["export", str(tmp_path / "run"), "--format", "inspect"]) == 0
    files = write_logs(tmp_path / "run", tmp_path / "run.inspect")
    assert len(list_eval_logs(str(tmp_path / "run.inspect"))) == len(files) == 2

    log = read_eval_log(str(files[0]))
    part = read_summary(tmp_path / "run").parts[0]
    assert log.status == "success" and log.eval.task_display_name == GUESS
    assert log.eval.model_generate_config.temperature == 0.5
    assert len(scores(log)) == part.episodes == 11 and len(log.samples or []) == 12
    assert {each.epoch for each in log.samples or []} == {1, 2}
    [void] = [each for each in log.samples or [] if each.error]
    assert "out of memory" in void.error.message and not void.scores

    assert part.success is not None and part.total is not None
    assert metrics(log)["return", "mean"] == pytest.approx(
        sum(m for m in task_means(log, 1)) / 6, abs=1e-9
    )
    recorded = list(read_episodes(tmp_path / "run" / EPISODES, f"eval:{GUESS}"))
    assert sum(total for _, total in scores(log).values()) == pytest.approx(
        sum(record.trajectory.total_reward for record in recorded)
    )
    first = (log.samples or [])[0]
    turns = recorded[0].trajectory.turns
    assert [m.role for m in first.messages] == ["system", *(["user", "assistant"] * len(turns))]
    assert first.messages[1].text == turns[0].observation
    assert first.messages[2].content[0].reasoning == "hm"
    assert first.messages[2].text == "\\boxed{4}"
    usage = log.stats.model_usage["openai:m"]
    assert (usage.input_tokens, usage.output_tokens) == tuple(
        sum(call.get(name, 0) for record in recorded for call in record.notes["calls"])
        for name in ("prompt_tokens", "reply_tokens")
    )

    # inspect-ai computes the same again, with the interval that it finds by name.
    before = metrics(log)
    recompute_metrics(log)
    assert metrics(log) == before


def test_native_tool_calls_are_calls_in_the_log(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run")
    settings = {"tasks": ["gem:x?n=2&seed=7"], "samples": 1, "tools": "native"}
    recorder.start({"kind": "evaluation", "trainer": "openai:m", "settings": settings})
    turns = [
        Turn(seen, [], True, [], None, said, reward, reward > 0, False, "stop", {})
        for seen, said, reward in (("1 + 1?", "<tool_call>...", 0.0), ("It is 2.", "2 \ud800", 1.0))
    ]
    call = {"id": "c1", "name": "add", "arguments": '{"a": 1}'}
    calls = [{"tool_calls": [call], "content": "Let me add."}, {"reasoning": "\udfff"}]
    notes = {"sample": 0, "calls": calls}
    recorder.episodes(0, [Trajectory(Task("x", 7), turns)], split="eval:x", notes=[notes])
    [file] = write_logs(tmp_path / "run", tmp_path / "logs")
    log = read_eval_log(str(file))
    assert log.status == "started"  # the other task is missing
    [sample] = log.samples or []
    assert [(m.role, m.text) for m in sample.messages] == [
        ("user", "1 + 1?"),
        ("assistant", "Let me add."),
        ("tool", "It is 2."),
        ("assistant", "2 ?"),
    ]
    [made] = sample.messages[1].tool_calls
    assert (made.id, made.function, made.arguments) == ("c1", "add", {"a": 1})
    assert sample.messages[2].tool_call_id == "c1"


@pytest.mark.parametrize("words", [("--only", "success"), ()], ids=["only", "no evaluation"])
def test_what_becomes_no_log_is_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    Recorder(tmp_path / "run").start({"kind": "training"})
    command = ["export", str(tmp_path / "run"), "--format", "inspect", *words]
    with pytest.raises(ConfigurationError, match="--only success|no evaluation"):
        main(command)
    assert not (tmp_path / "run.inspect").exists()


def test_the_benchmark_of_evaluations_measures_inspect() -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "evaluation.py"
    command = [sys.executable, str(script), "measure", "inspect", "2", "2", "none"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=300)
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found) == {"took", "cpu", "others", "memory"}


def task_means(log: EvalLog, index: int) -> list[float]:
    by_task: dict[str, list[float]] = {}
    for (name, _), values in scores(log).items():
        by_task.setdefault(name, []).append(values[index])
    return [sum(values) / len(values) for values in by_task.values()]
