"""The rollout hooks: real episodes, a scripted server in SGLang's place."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from gem import Env, register
from gem.core import Step
from gem.errors import ConfigurationError, RolloutError, UnknownEnvError
from gem.tasks import Task
from gem.trajectory import Trajectory
from gem_rl2 import env
from gem_rl2.dataset import line, read
from gem_rl2.rollout import TAG, Rollouts, state_dicts
from gem_train import sampling
from gem_train.experiment.tasksets import DatasetRow, EvalSampling


class Scripted(Env):
    """Rewards 0.25 a turn; `"end"` ends it with reward 1, `"crash"` raises, `"wait"` blocks."""

    gate: threading.Event
    busy: list[str]
    """What has begun to wait."""

    def reset(self, seed: int | None = None, **options: Any) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        return f"start {seed}", {}

    def step(self, action: str) -> Step:
        if action == "crash":
            raise OSError("sandbox gone")
        if action == "wait":
            self.busy.append(action)
            self.gate.wait(60)
        done = action == "end"
        return f"you said {action}", 1.0 if done else 0.25, done, False, {"success": done}


register("test:ScriptedForRl2-v0", Scripted)


def row(
    number: int = 0,
    *,
    sampling: EvalSampling | None = None,
    name: str | None = None,
    env: str = "test:ScriptedForRl2-v0",
) -> DatasetRow:
    return DatasetRow(Task(env, 7), sampling, number, evaluation=name)


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sampling, "FIRST_DELAY_S", 0.01)
    # No two tests share what their environments wait for and note.
    monkeypatch.setattr(Scripted, "gate", threading.Event(), raising=False)
    monkeypatch.setattr(Scripted, "busy", [], raising=False)
    yield
    Scripted.gate.set()


def rollouts(world: Any, *overrides: str) -> Rollouts:
    given = ["+gem.advantage=rebn", "+gem.prompt_tokens=100", *overrides]
    return Rollouts(world.settings(*given), world.keys(*given))


def play(r: Rollouts, server: Any, tokenizer: Any, which: DatasetRow | None = None) -> Trajectory:
    params = {"temperature": 1.0}
    [trajectory], _ = asyncio.run(r.play(which or row(), tokenizer, server.url, params))
    return trajectory


def test_an_episode_is_one_row_of_exactly_the_sampled_tokens(
    world: Any, server: Any, tokenizer: Any
) -> None:
    s = server(["a", "bc", "end"])
    trajectory = play(rollouts(world), s, tokenizer)
    [made] = state_dicts(trajectory, 5)
    ids, mask = made["states"], made["action_mask"]
    assert {len(values) for values in made.values()} == {len(ids)}
    text = tokenizer.decode(ids)
    assert text.count("assistant\n") == 3
    sampled = [i for i, m in zip(ids, mask, strict=True) if m]
    assert tokenizer.decode(sampled) == "a<|im_end|>bc<|im_end|>end<|im_end|>"
    assert [r["input_ids"] for r in s.requests][-1] == ids[: -len(tokenizer.encode("end")) - 1]
    assert [p != 0 for p in made["logps"]] == [bool(m) for m in mask]
    rewards = made["rewards"]
    assert [r for r in rewards[TAG + 1 :] if r] == [0.25, 0.25, 1.0]
    assert rewards[TAG] == 5.0 and not mask[TAG]
    assert rewards[-1] == 1.0  # on the last token of its turn


def test_no_end_of_turn_is_doubled(world: Any, server: Any, tokenizer: Any) -> None:
    """SGLang's ids end with the closing token that the template would write once more."""
    [made] = state_dicts(play(rollouts(world), server(["a", "end"]), tokenizer), 0)
    assert "<|im_end|><|im_end|>" not in tokenizer.decode(made["states"])
    [cut] = state_dicts(
        play(rollouts(world, "+gem.turn_tokens=1"), server(["a", "end"]), tokenizer), 0
    )
    assert "<|im_end|><|im_end|>" not in tokenizer.decode(cut["states"])
    assert "a<|im_end|>\n<|im_start|>user" in tokenizer.decode(cut["states"])


def test_a_context_that_begins_anew_makes_a_row_of_every_turn(
    world: Any, server: Any, tokenizer: Any
) -> None:
    r = rollouts(world, "+gem.context=window:1")
    made = state_dicts(play(r, server(["a", "bc", "end"]), tokenizer), 3)
    assert len(made) == 3
    assert [each["rewards"][TAG] for each in made] == [3.0] * 3
    assert [each["rewards"][-1] for each in made] == [0.25, 0.25, 1.0]


def test_rows_never_exceed_what_rl2_takes(world: Any, server: Any, tokenizer: Any) -> None:
    r = rollouts(world, "actor.max_length_per_device=160", "+gem.turn_tokens=30")
    trajectory = play(r, server(["abcdefghij"]), tokenizer)
    assert trajectory.end == "token_budget"
    assert all(len(made["states"]) <= 160 for made in state_dicts(trajectory, 0))


def test_a_row_may_have_a_sampling_of_its_own(world: Any, server: Any, tokenizer: Any) -> None:
    s = server(["end"])
    play(rollouts(world), s, tokenizer, row(sampling=EvalSampling(temperature=0.0, top_p=0.9)))
    play(rollouts(world), s, tokenizer)
    params = [r["sampling_params"] for r in s.requests]
    assert [p["temperature"] for p in params] == [0.0, 1.0]
    assert params[0]["top_p"] == 0.9 and "top_p" not in params[1]


def test_a_failed_episode_has_no_rows_and_is_counted(
    world: Any, server: Any, tokenizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    r = rollouts(world, "+gem.retries=2", "+gem.max_failed_fraction=0.5")
    s = server(["a", "crash"])
    with caplog.at_level(logging.WARNING):
        trajectory = play(r, s, tokenizer)
    assert len(s.requests) == 6  # two turns, three attempts
    assert "sandbox gone" in caplog.text
    assert not trajectory.valid
    assert state_dicts(trajectory, 0) == []
    assert [packed.unpack() for packed in r.take()] == [trajectory]
    assert r.take() == []


def test_a_prompt_longer_than_its_limit_is_a_failure(
    world: Any, server: Any, tokenizer: Any
) -> None:
    r = rollouts(world, "+gem.max_failed_fraction=0.5")
    failure = play(_shorter(r), server(["end"]), tokenizer).failure
    assert failure is not None and failure.cause == "budget"


def _shorter(r: Rollouts) -> Rollouts:
    from dataclasses import replace

    r._budget = replace(r._budget, prompt_tokens=5)
    return r


def test_an_environment_that_hangs_is_a_failure(world: Any, server: Any, tokenizer: Any) -> None:
    keys = ("+gem.retries=0", "+gem.step_timeout_s=0.05", "+gem.max_failed_fraction=0.5")
    failure = play(rollouts(world, *keys), server(["wait"]), tokenizer).failure
    assert failure is not None and "time limit of 0.05 s" in failure.message


def test_the_failure_that_is_one_too_many_stops_the_run(
    world: Any, server: Any, tokenizer: Any
) -> None:
    """Eight episodes make a batch; a quarter of them may fail."""
    r = rollouts(world, "+gem.retries=0", "+gem.max_failed_fraction=0.25")
    for _ in range(2):
        play(r, server(["crash"]), tokenizer)
    with pytest.raises(RolloutError, match="3 of 8 episodes of this batch failed.*sandbox gone"):
        play(r, server(["crash"]), tokenizer)


def test_with_rl2s_own_estimator_the_first_failure_stops_the_run(
    world: Any, server: Any, tokenizer: Any
) -> None:
    settings = world.settings("+gem.prompt_tokens=100", "+gem.max_failed_fraction=1.0")
    r = Rollouts(settings, world.keys())
    with pytest.raises(RolloutError, match="sandbox gone.*one of reward 0"):
        play(r, server(["crash"]), tokenizer)


def test_a_turn_of_an_evaluation_has_a_limit_of_its_own(
    world: Any, server: Any, tokenizer: Any
) -> None:
    limits = {"rollout.test_sampling_params": 60, world.PARAMS: 20}
    r = rollouts(world, *(f"{key}.max_new_tokens={limits[key]}" for key in limits))
    s = server(["end"])
    play(r, s, tokenizer, row(name="same"))
    play(r, s, tokenizer)
    assert [r["sampling_params"]["max_new_tokens"] for r in s.requests] == [60, 20]


def test_evaluation_episodes_are_kept_apart(world: Any, server: Any, tokenizer: Any) -> None:
    r = rollouts(world)
    play(r, server(["end"]), tokenizer, row(name="same"))
    play(r, server(["crash"]), tokenizer, row(name="same"))
    assert r.take() == []
    assert [t.valid for t in r.evaluated["same"]] == [True, False]


async def busy(number: int) -> None:
    """Wait until so many are in their environment."""
    for _ in range(6000):
        if len(Scripted.busy) >= number:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{len(Scripted.busy)} are busy, not {number}")


def test_slow_environments_hold_nothing_up(world: Any, server: Any, tokenizer: Any) -> None:
    """Eight wait in their environment at once while another is sampled to its end."""
    r = rollouts(world)
    slow, quick = server(["wait", "end"]), server(["a", "b", "end"])

    async def all_of_them() -> list[Any]:
        waiting = [asyncio.create_task(r.play(row(i), tokenizer, slow.url, {})) for i in range(8)]
        await busy(4)
        [trajectory], _ = await r.play(row(9), tokenizer, quick.url, {})
        assert len(trajectory.turns) == 3
        assert not all(task.done() for task in waiting)
        Scripted.gate.set()
        return list(await asyncio.gather(*waiting))

    assert len(asyncio.run(all_of_them())) == 8
    assert len(Scripted.busy) >= 4


def test_the_number_of_episodes_at_once_can_be_limited(
    world: Any, server: Any, tokenizer: Any
) -> None:
    r = rollouts(world, "+gem.episodes_at_once=2")
    s = server(["wait"])

    async def some() -> int:
        tasks = [asyncio.create_task(r.play(row(i), tokenizer, s.url, {})) for i in range(5)]
        await busy(2)
        await asyncio.sleep(0.2)
        found = len(Scripted.busy)
        for task in tasks:
            task.cancel()
        return found

    assert asyncio.run(some()) == 2


def test_rows_that_cannot_be_played_are_refused(world: Any, server: Any, tokenizer: Any) -> None:
    s = server(["end"])
    with pytest.raises(UnknownEnvError, match="Nope"):
        play(rollouts(world), s, tokenizer, row(env="test:Nope-v0"))
    with pytest.raises(ConfigurationError, match="not a task of a GEM dataset"):
        read({"extra_info": {"gem": "42"}})
    with pytest.raises(ConfigurationError, match="unknown context 'cat'"):
        play(rollouts(world, "+gem.context=cat"), s, tokenizer)


def test_the_env_file_alone_does_nothing() -> None:
    with pytest.raises(ConfigurationError, match=r"\+gem.advantage=rebn"):
        asyncio.run(env.generate(None, None, "", None))


class Group:
    """What RL2 makes of episodes: its own objects, around our hook."""

    def __init__(self, world: Any, r: Rollouts, server: Any, tokenizer: Any) -> None:
        self.world, self.rollouts, self.server, self.tokenizer = world, r, server, tokenizer
        self.data = line(row(4))

    def play(self, train: bool = True) -> tuple[list[Any], dict[str, list[float]]]:
        from types import SimpleNamespace

        params = {"temperature": 1.0, "max_new_tokens": 50}
        me = SimpleNamespace(
            tokenizer=self.tokenizer,
            router_url=self.server.url,
            train_sampling_params=params,
            test_sampling_params={**params, "temperature": 0.0},
        )
        answer: Any = asyncio.run(self.rollouts.rollout(me, self.data, train))
        return answer


def test_rl2_gets_the_rows_and_metrics_of_an_episode(
    world: Any, server: Any, tokenizer: Any
) -> None:
    r = rollouts(world)
    rows, metrics = Group(world, r, server(["a", "end"]), tokenizer).play()
    assert len(rows) == 1
    assert rows[0]["action_mask"].sum() == r.take()[0].sampled_tokens
    assert metrics["n_turns"] == [2.0]
    assert metrics["scores"] == [1.25]
    assert metrics["gem/success"] == [1.0]
    assert metrics["gem/failed"] == [0.0]
    assert metrics["response_length"] == [float(len(tokenizer.encode(t)) + 1) for t in ("a", "end")]


def test_rl2_gets_no_reward_of_a_failed_episode(world: Any, server: Any, tokenizer: Any) -> None:
    r = rollouts(world, "+gem.max_failed_fraction=0.5", "+gem.retries=0")
    rows, metrics = Group(world, r, server(["crash"]), tokenizer).play()
    assert rows == []
    assert metrics["gem/failed"] == [1.0]
    returns = metrics["scores"]
    assert [r for r in returns if not math.isnan(r)] == []
    _, good = Group(world, r, server(["end"]), tokenizer).play()
    assert set(metrics) == set(good)  # RL2 takes the keys of the first episode
