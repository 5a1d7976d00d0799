"""The executor: real episodes, a scripted engine in place of vLLM."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm import SamplingParams

from gem import Env, register
from gem.core import Step
from gem.errors import ConfigurationError, RolloutError, UnknownEnvError
from gem.tasks import Task
from gem_openrlhf import worker
from gem_openrlhf.rollout import FAILED, GemAgentExecutor
from gem_openrlhf.settings import Settings
from gem_train.experiment.tasksets import DatasetRow, EvalSampling

MAX_LEN = 500


class Scripted(Env):
    """Rewards 0.25 a turn; `"end"` ends it with reward 1, `"crash"` raises, `"wait"` blocks."""

    gate: threading.Event

    def reset(self, seed: int | None = None, **options: Any) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        return f"start {seed}", {}

    def step(self, action: str) -> Step:
        if action == "crash":
            raise OSError("sandbox gone")
        if action == "wait":
            self.gate.wait(60)
        done = action == "end"
        return f"you said {action}", 1.0 if done else 0.25, done, False, {"success": done}


register("test:Scripted-v0", Scripted)
ROW = DatasetRow(Task("test:Scripted-v0", 7))


@pytest.fixture(autouse=True)
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """What the environments of one test wait for; no two tests share it."""
    event = threading.Event()
    monkeypatch.setattr(Scripted, "gate", event, raising=False)
    yield event
    event.set()


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker hook ran in this process."""
    monkeypatch.setitem(worker._state, "installed", True)


def executor(**settings: Any) -> GemAgentExecutor:
    class AgentExecutor(GemAgentExecutor):
        pass

    AgentExecutor.settings = Settings(**({"prompt_tokens": 100} | settings))
    return AgentExecutor()


def play(
    agent: GemAgentExecutor,
    engine: Any,
    *,
    row: DatasetRow = ROW,
    images: Any = None,
    max_length: int = MAX_LEN,
    **params: Any,
) -> dict[str, Any]:
    async def one() -> dict[str, Any]:
        return await agent.execute(
            prompt="a name",
            label=row.encode(),
            sampling_params=SamplingParams(**({"temperature": 1.0, "max_tokens": 200} | params)),
            max_length=max_length,
            hf_tokenizer=engine.tokenizer,
            llm_engine=engine,
            images=images,
        )

    return asyncio.run(one())


def test_an_episode_is_one_row_of_exactly_the_sampled_tokens(engine: Any, tokenizer: Any) -> None:
    e = engine(["a", "bc", "end"])
    row = play(executor(), e)
    ids, ranges = row["observation_tokens"], row["action_ranges"]
    said = [tokenizer.decode(ids[a:b]) for a, b in ranges]
    assert said == ["a<|im_end|>", "bc<|im_end|>", "end<|im_end|>"]
    assert [prompt for prompt, _ in e.requests] == [ids[:a] for a, _ in ranges]
    assert ids[-1] == tokenizer.eos_token_id
    assert row["reward"] == 1.5
    assert row["scores"] == 1.0
    assert row["extra_logs"]["gem/turns"] == 3.0
    assert row["prompt"] == "a name"


def test_logprobs_lie_on_the_sampled_tokens_if_openrlhf_asks(engine: Any) -> None:
    row = play(executor(), engine(["a", "end"]), logprobs=1)
    known = row["rollout_log_probs"]
    assert len(known) == len(row["observation_tokens"])
    sampled = {i for a, b in row["action_ranges"] for i in range(a, b)}
    assert {i for i, p in enumerate(known) if p} == sampled
    assert play(executor(), engine(["end"]))["rollout_log_probs"] is None


def test_the_shared_sampling_parameters_stay_as_they_are(engine: Any) -> None:
    e = engine(["a", "end"])
    params = SamplingParams(temperature=0.5, max_tokens=30, min_tokens=1)
    before = repr(params)
    how = EvalSampling(temperature=0.25, top_k=5, min_p=0.1)
    label = DatasetRow(ROW.task, how).encode()
    agent = executor(top_k=3, turn_tokens=9, min_p=0.3, repetition_penalty=1.5)
    asyncio.run(agent.execute("p", label, params, MAX_LEN, e.tokenizer, e))
    assert repr(params) == before
    used = [p for _, p in e.requests]
    asyncio.run(agent.execute("p", ROW.encode(), params, MAX_LEN, e.tokenizer, e))
    names = ("top_k", "temperature", "max_tokens", "min_p", "repetition_penalty", "min_tokens")
    found = [tuple(getattr(p, name) for name in names) for _, p in e.requests]
    assert {*found[: len(used)]} == {(5, 0.25, 9, 0.1, 1.0, 0)}
    assert {*found[len(used) :]} == {(3, 0.5, 9, 0.3, 1.5, 0)}


def test_a_turn_is_limited_by_the_least_of_the_limits(engine: Any) -> None:
    for limits, expected in (
        ({"turn_tokens": 50, "max_tokens": 20}, 20),
        ({"turn_tokens": 20, "max_tokens": 50}, 20),
        ({"max_tokens": None}, MAX_LEN - 100),
    ):
        e = engine(["end"])
        settings = {k: v for k, v in limits.items() if k == "turn_tokens"}
        play(executor(**settings), e, max_tokens=limits["max_tokens"])
        assert e.requests[0][1].max_tokens == expected


def test_a_cut_turn_is_marked_truncated(engine: Any) -> None:
    row = play(executor(turn_tokens=3, turns=1), engine(["abcdefgh"]))
    assert row["truncated"] is True
    assert play(executor(), engine(["end"]))["truncated"] is False


def test_the_trajectory_travels_in_the_label_only_with_the_hook(
    engine: Any, hook: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = play(executor(), engine(["a", "end"]))["label"]
    assert DatasetRow.decode(played.label) == ROW
    assert played.trajectory.rewards == [0.25, 1.0]
    monkeypatch.setitem(worker._state, "installed", False)
    assert DatasetRow.decode(play(executor(), engine(["end"]))["label"]) == ROW


@pytest.mark.parametrize(
    ("key", "settings"),
    [
        ("gem.advantage", {"advantage": "rebn"}),
        ("gem.task_order", {"task_order": "file"}),
        ("gem.record_dir", {"record_dir": "somewhere"}),
    ],
)
def test_settings_that_need_the_hook_are_refused_without_it(
    key: str, settings: dict[str, Any], engine: Any
) -> None:
    agent = executor(**settings)
    with pytest.raises(ConfigurationError, match=f"{key} needs.*RAY_RUNTIME_ENV_HOOK=gem_openrlhf"):
        play(agent, engine(["a"]))


def test_a_failed_episode_is_a_row_that_says_so(
    engine: Any, hook: None, caplog: pytest.LogCaptureFixture
) -> None:
    agent = executor(advantage="rebn", retries=2)
    e = engine(["a", "crash"])
    with caplog.at_level(logging.WARNING):
        row = play(agent, e, logprobs=1)
    assert len(e.requests) == 6  # two turns, three attempts
    assert "sandbox gone" in caplog.text
    assert row["extra_logs"][FAILED] == 1.0
    assert len(row["observation_tokens"]) == len(row["rollout_log_probs"]) == 2
    assert row["action_ranges"] == [(1, 2)]
    assert not row["label"].trajectory.valid
    assert set(row["extra_logs"]) == set(play(agent, engine(["end"]))["extra_logs"])


def test_a_prompt_longer_than_its_limit_is_a_failure(engine: Any, hook: None) -> None:
    row = play(executor(advantage="rebn", prompt_tokens=5), engine(["end"]))
    failure = row["label"].trajectory.failure
    assert failure is not None and failure.cause == "budget"


def test_an_environment_that_hangs_is_a_failure(engine: Any, hook: None) -> None:
    row = play(executor(advantage="rebn", retries=0, step_timeout_s=0.05), engine(["wait"]))
    failure = row["label"].trajectory.failure
    assert failure is not None and "time limit of 0.05 s" in failure.message


@pytest.mark.parametrize("settings", [{}, {"advantage": "rebn", "max_failed_fraction": 0.0}])
def test_a_failure_that_nobody_would_leave_out_stops_the_run(
    settings: dict[str, Any], engine: Any, hook: None
) -> None:
    with pytest.raises(RolloutError, match="sandbox gone"):
        play(executor(retries=0, **settings), engine(["crash"]))


def test_a_failed_evaluation_episode_has_no_reward_and_is_recorded(
    engine: Any, hook: None, tmp_path: Path
) -> None:
    row = DatasetRow(ROW.task, evaluation="same")
    agent = executor(retries=0, record_dir=str(tmp_path))
    assert math.isnan(play(agent, engine(["crash"]), row=row)["reward"])
    assert play(agent, engine(["end"]), row=row)["reward"] == 1.0
    [file] = (tmp_path / "evaluated").iterdir()
    assert [json.loads(line)[0] for line in file.read_text().splitlines()] == ["same"] * 2


def test_turns_have_seeds_of_their_own(engine: Any) -> None:
    def seeds(agent: GemAgentExecutor, times: int, row: DatasetRow = ROW) -> list[int | None]:
        e = engine(["a", "end"])
        for _ in range(times):
            play(agent, e, row=row)
        return [params.seed for _, params in e.requests]

    found = seeds(executor(seed=0), 2)
    assert len(set(found)) == 4
    assert found == seeds(executor(seed=0), 2)
    assert set(found).isdisjoint(seeds(executor(seed=1), 2))
    assert seeds(executor(), 1) == [None, None]
    # Those of another row that holds the task do not depend on which rows were played before.
    agent, other = executor(seed=0), replace(ROW, number=1)
    assert set(found).isdisjoint(seeds(agent, 2, other))
    assert seeds(agent, 2) == found


def test_a_slow_environment_does_not_hold_up_the_engine(engine: Any, gate: threading.Event) -> None:
    """The other episode is sampled to its end while the first waits for its environment."""
    agent = executor()

    async def both() -> list[dict[str, Any]]:
        slow, quick = engine(["wait", "end"]), engine(["a", "b", "end"])
        params = SamplingParams(max_tokens=100)
        tasks = [
            asyncio.create_task(agent.execute("p", ROW.encode(), params, MAX_LEN, e.tokenizer, e))
            for e in (slow, quick)
        ]
        await tasks[1]
        assert not tasks[0].done()
        gate.set()
        return await asyncio.gather(*tasks)

    assert all(row["reward"] > 0 for row in asyncio.run(both()))


def test_an_aborted_request_stops_the_run(engine: Any) -> None:
    class Gone:
        def __init__(self, answer: Any, tokenizer: Any) -> None:
            self.answer, self.tokenizer = answer, tokenizer

        async def generate(self, ids: list[int], params: Any) -> Any:
            return self.answer

    aborted = SimpleNamespace(outputs=[SimpleNamespace(finish_reason="abort", token_ids=[])])
    for answer in (None, aborted):
        with pytest.raises(RolloutError, match="the engine ended a request with"):
            play(executor(), Gone(answer, engine(["a"]).tokenizer))


def test_rows_that_cannot_be_played_are_refused(engine: Any) -> None:
    with pytest.raises(ConfigurationError, match="images come from environments"):
        play(executor(), engine(["a"]), images=["picture.png"])
    with pytest.raises(UnknownEnvError, match="Scriptet"):
        play(executor(), engine(["a"]), row=DatasetRow(Task("test:Scriptet-v0", 0)))
    with pytest.raises(ConfigurationError, match=r"data\.max_len is 100"):
        play(executor(), engine(["a"]), max_length=100)
    with pytest.raises(ConfigurationError, match="not a task of a GEM dataset"):
        e = engine(["a"])
        params = SamplingParams(max_tokens=5)
        asyncio.run(executor().execute("p", "42", params, MAX_LEN, e.tokenizer, e))
