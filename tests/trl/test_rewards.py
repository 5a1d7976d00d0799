"""TRL's `reward_funcs` beside the environment's rewards."""

from __future__ import annotations

import asyncio
import gc
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from trl.rewards import think_format_reward

from gem.advantage import TurnTable, grpo, rebn
from gem.errors import ConfigurationError, RolloutError
from gem_train.record import EpisodeRecord, read_run
from gem_train.testing.golden import golden_batch
from gem_trl.rewards import RewardFunctions

Make = Callable[..., Any]


def brevity(prompts: Any, completions: list[Any], **_: Any) -> list[float]:
    """The shorter the last message, the better."""
    return [-float(len(messages[-1]["content"])) for messages in completions]


async def odd(completion_ids: list[list[int]], **_: Any) -> list[float | None]:
    """1 for an odd number of tokens; even ones cannot be scored."""
    return [1.0 if len(ids) % 2 else None for ids in completion_ids]


def expected(episode: EpisodeRecord, weights: dict[str, float]) -> list[float]:
    """Return the rewards of an episode of test:Scripted-v0, by other means than the trainer's."""
    turns = episode.trajectory.turns
    rewards = [1.0 if turn.text == "end" else 0.25 for turn in turns]
    tokens = sum(len(turn.context_ids) + len(turn.response_ids) for turn in turns)
    tokens -= len(turns[0].context_ids)
    rewards[-1] -= weights["brevity"] * len(turns[-1].text)
    rewards[-1] += weights["odd"] * (tokens % 2)
    return rewards


@pytest.mark.parametrize("advantage", ["rebn", "grpo"])
def test_advantages_are_those_of_the_summed_rewards(
    make_trainer: Make, tmp_path: Path, advantage: str
) -> None:
    """A training of a real model that samples, by TRL's loop."""
    weights = {"brevity": 0.01, "odd": 2.0}
    trainer = make_trainer(
        reward_funcs=[brevity, odd],
        advantage=advantage,
        gamma=0.9,
        record_dir=str(tmp_path / "run"),
        args={"reward_weights": list(weights.values())},
    )
    trainer.train()
    run = read_run(tmp_path / "run")
    assert run.meta["reward_weights"] == weights
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    for iteration, metrics in enumerate(run.metrics):
        episodes = list(run.episodes("train", {iteration}))
        rewards = [expected(each, weights) for each in episodes]
        assert [e.trajectory.rewards for e in episodes] == [pytest.approx(r) for r in rewards]
        groups = [e.trajectory.group for e in episodes]
        table = TurnTable.build(rewards, groups=groups)
        found = rebn(table, 0.9) if advantage == "rebn" else grpo(table)
        assert [e.advantages for e in episodes] == [pytest.approx(a) for a in table.split(found)]
        # What is shown: the environment's, each function's before its weight, and the sum.
        scores = [-len(e.trajectory.turns[-1].text) for e in episodes]
        scored = [e for e in episodes if e.trajectory.turns[-1].info["score/odd"] is not None]
        assert metrics["rewards/brevity/mean"] == pytest.approx(sum(scores) / 8)
        assert metrics["rewards/odd/unscored"] == 8 - len(scored)
        assert metrics["return_mean"] == pytest.approx(sum(map(sum, rewards)) / 8)
        assert logs[iteration]["rewards/brevity/mean"] == pytest.approx(sum(scores) / 8)
        assert logs[iteration]["reward"] == pytest.approx(sum(map(sum, rewards)) / 8, abs=1e-4)
        for episode in episodes:
            last = episode.trajectory.turns[-1]
            parts = [last.info[f"added/{name}"] for name in weights]
            assert last.reward == pytest.approx(last.info["reward/environment"] + sum(parts))
        assert metrics["grad_norm"] > 0


def test_the_environment_still_says_what_succeeded(make_trainer: Make, tmp_path: Path) -> None:
    trainer = make_trainer(
        script=lambda turn, seed: "end" if seed % 2 else "on",
        reward_funcs=lambda episodes, **_: [-9.0 if e.success else 9.0 for e in episodes],
        record_dir=str(tmp_path / "run"),
        args={"max_steps": 1},
    )
    trainer.train()
    [metrics] = read_run(tmp_path / "run").metrics
    assert metrics["success_rate"] == 0.5


def test_functions_get_messages_columns_and_valid_episodes_only(make_trainer: Make) -> None:
    calls: list[dict[str, Any]] = []

    def watch(**kwargs: Any) -> list[None]:
        calls.append(kwargs)
        return [None] * len(kwargs["prompts"])

    trainer = make_trainer(
        "gem:test:Scripted-v0?n=64&doomed=1",
        script=lambda turn, seed: "on" if turn == 0 else "end",
        reward_funcs=[watch, think_format_reward],
        columns={"answer": [str(seed) for seed in range(64)]},
        system_prompt="Play.",
        group_size=1,
        retries=0,
        max_failed_fraction=0.5,
        args={"max_steps": 1},
    )
    trainer.train()
    [given] = calls
    assert [each.task.seed for each in given["episodes"]] == list(range(1, 8))
    assert given["answer"] == [str(seed) for seed in range(1, 8)]
    assert given["prompts"][0] == [
        {"role": "system", "content": "Play."},
        {"role": "user", "content": "start 1"},
    ]
    assert given["completions"][0] == [
        {"role": "assistant", "content": "on"},
        {"role": "user", "content": "you said on"},
        {"role": "assistant", "content": "end"},
    ]
    row = given["episodes"][0].training_rows()[0]
    assert given["completion_ids"][0] == row.response_ids
    assert given["trainer_state"] is trainer.state
    # One of TRL's own, which reads messages.
    assert trainer.state.log_history[0]["rewards/think_format_reward/mean"] == 0.0


def test_metrics_that_a_function_logs_are_trls(make_trainer: Make) -> None:
    def logs(episodes: list[Any], log_metric: Any, **_: Any) -> list[float]:
        log_metric("seen", len(episodes))
        return [0.0] * len(episodes)

    trainer = make_trainer(script=lambda *_: "end", reward_funcs=logs, args={"max_steps": 1})
    trainer.train()
    assert trainer.state.log_history[0]["seen"] == 8


def test_equal_groups_are_judged_by_the_summed_rewards(make_trainer: Make, tmp_path: Path) -> None:
    """Dynamic sampling: the environment's rewards are all alike, the function's are not."""
    turns: list[int] = []

    def differ(episodes: list[Any], answer: list[int], **_: Any) -> list[float]:
        assert answer == [e.task.seed for e in episodes]
        turns.extend(answer)
        return [float(i % 2) for i in range(len(episodes))]

    trainer = make_trainer(
        script=lambda *_: "end",
        advantage="grpo",
        extra_batches=1,
        reward_funcs=differ,
        columns={"answer": [*range(64)]},
        record_dir=str(tmp_path / "run"),
        args={"max_steps": 1},
    )
    trainer.train()
    [metrics] = read_run(tmp_path / "run").metrics
    assert (metrics["equal_groups"], metrics["trained_groups"]) == (0, 4)
    assert turns == [0, 0, 1, 1, 2, 2, 3, 3]
    found = [a for e in read_run(tmp_path / "run").episodes() for a in e.advantages]
    assert found == pytest.approx([-1.0, 1.0] * 4, abs=1e-4)


def score(*functions: Any) -> list[dict[str, Any]]:
    """Score the valid golden episodes; return the infos of their last turns."""
    batch = [episode for episode in golden_batch() if episode.valid]
    scored = RewardFunctions(functions).score(batch, Plain())  # type: ignore[arg-type]
    return [episode.turns[-1].info for episode in scored]


class Plain:
    """Stands in for a tokenizer, whose text these functions do not read."""

    def decode(self, ids: Any) -> str:
        return ""


async def waits(episodes: list[Any], **_: Any) -> list[float]:
    await asyncio.sleep(0)
    return [2.0] * len(episodes)


def runs_a_loop(episodes: list[Any], **_: Any) -> list[float]:
    return asyncio.run(waits(episodes))


def test_functions_may_wait_run_a_loop_and_be_in_one() -> None:
    async def notebook() -> list[dict[str, Any]]:
        return score(waits)

    assert all(info["score/waits"] == 2.0 for info in asyncio.run(notebook()))
    for info in score(waits, runs_a_loop):
        assert (info["score/waits"], info["score/runs_a_loop"]) == (2.0, 2.0)


def test_one_that_fails_leaves_no_coroutine_behind(recwarn: pytest.WarningsRecorder) -> None:
    async def fails(**_: Any) -> list[float]:
        raise KeyError("judge")

    with pytest.raises(RolloutError, match="'raises' failed: KeyError: 'judge'"):
        score(waits, raises)
    with pytest.raises(RolloutError, match="'fails' failed: KeyError: 'judge'"):
        score(fails, waits)
    gc.collect()
    assert not [each for each in recwarn if "never awaited" in str(each.message)]


def raises(**_: Any) -> list[float]:
    raise KeyError("judge")


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (raises, "'raises' failed: KeyError: 'judge'"),
        (
            lambda prompts, **_: [math.nan] * len(prompts),
            "returned nan for the episode of Task.*test:Scripted",
        ),
        (
            lambda prompts, **_: [math.inf] * len(prompts),
            "returned inf for the episode of Task.*test:Scripted",
        ),
        (lambda prompts, **_: [1.0], "'<lambda>' returned 1 numbers for 8 episodes"),
        (lambda prompts, **_: ["good"] * len(prompts), "could not convert string to float"),
    ],
)
def test_a_function_that_fails_stops_the_run(make_trainer: Make, function: Any, said: str) -> None:
    trainer = make_trainer(script=lambda *_: "end", reward_funcs=[function])
    with pytest.raises(RolloutError, match=said):
        trainer.train()


def test_evaluations_have_the_same_reward(make_trainer: Make, tmp_path: Path) -> None:
    trainer = make_trainer(
        evals=["gem:test:Scripted-v0?n=3&seed=70#name=warm"],
        script=lambda *_: "end",
        reward_funcs=lambda prompts, **_: [0.5] * len(prompts),
        record_dir=str(tmp_path / "run"),
        args={"per_device_eval_batch_size": 3},
    )
    trainer.evaluate()
    assert trainer.state.log_history[0]["eval_rewards/<lambda>/mean"] == 0.5
    [metrics] = read_run(tmp_path / "run").metrics
    assert (metrics["return_mean"], metrics["success_rate"]) == (1.5, 1.0)


def test_what_is_no_function_or_has_no_name_of_its_own_is_refused() -> None:
    from torch.nn import Linear

    with pytest.raises(ConfigurationError, match="'org/judge' is a reward model"):
        RewardFunctions(["org/judge"])
    with pytest.raises(ConfigurationError, match="Linear is a reward model"):
        RewardFunctions(Linear(1, 1))
    with pytest.raises(ConfigurationError, match="reward_funcs: 3 is not a function"):
        RewardFunctions([3])  # type: ignore[list-item]
    with pytest.raises(ConfigurationError, match="two functions have the name 'brevity'"):
        RewardFunctions([brevity, partial(brevity, prompts=None)])


@pytest.mark.parametrize("weights", [[1.0], [1.0, math.nan], [1.0, 2.0, 3.0]])
def test_weights_are_one_for_each_function(weights: list[float]) -> None:
    with pytest.raises(ConfigurationError, match="one finite number for each of the 2 reward_func"):
        RewardFunctions([brevity, odd], weights)
