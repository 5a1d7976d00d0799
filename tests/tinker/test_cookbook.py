"""The cookbook style: environments, what a dataset holds, which configurations are refused."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Awaitable
from typing import Any

import pytest

pytest.importorskip("tinker_cookbook", reason="needs gem-tinker[cookbook]")

import chz
from tinker_cookbook.completers import TokensWithLogprobs
from tinker_cookbook.exceptions import AllTrajectoriesFailedError
from tinker_cookbook.rl import train as stock
from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.rollouts import do_group_rollout

from gem.errors import ConfigurationError, RolloutError
from gem.executors.held import EnvFailedError
from gem.tasks import Task
from gem_tinker import cookbook, cookbook_train
from gem_tinker.cookbook import GemDatasetBuilder, GemGroupBuilder, LeaveOut, Played

DATASET = GemDatasetBuilder(
    model_name="m",
    train="gem:test:Scripted-v0?n=16",
    turn_tokens=12,
    response_tokens=200,
    prompt_tokens=100,
    turns=3,
)


@pytest.fixture(autouse=True)
def known_tokenizer(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cookbook._chat.cache_clear()
    monkeypatch.setattr(cookbook, "get_tokenizer", lambda name: tokenizer)


class Policy:
    """Answers with texts in turn."""

    def __init__(self, tokenizer: Any, *texts: str) -> None:
        self.tokenizer = tokenizer
        self.texts = list(texts)
        self.prompts: list[list[int]] = []

    def __call__(self, model_input: Any, stop: Any, *, max_tokens: Any = None) -> Awaitable[Any]:
        text = self.texts[len(self.prompts) % len(self.texts)]
        self.prompts.append(model_input.to_ints())
        ids = [*self.tokenizer.encode(text), self.tokenizer.eos_token_id]
        assert stop == [self.tokenizer.eos_token_id]

        async def answer() -> TokensWithLogprobs:
            return TokensWithLogprobs(ids, [-0.5 - k for k in range(len(ids))], "stop")

        return answer()


def group(size: int = 1, **params: Any) -> GemGroupBuilder:
    dataset = chz.replace(DATASET, group_size=size)
    return GemGroupBuilder(Task("test:Scripted-v0", 0, params), dataset)


def played(builder: GemGroupBuilder, policy: Any, strategy: Any = None) -> Any:
    return asyncio.run(do_group_rollout(builder, policy, strategy=strategy))


def test_the_cookbook_makes_one_datum_of_an_episode(tokenizer: Any) -> None:
    [trajectory] = played(group(), Policy(tokenizer, "a", "bc", "end")).trajectories_G
    assert [t.reward for t in trajectory.transitions] == [0.25, 0.25, 1.0]
    assert len(trajectory_to_data(trajectory, 1.0)) == 1


def test_a_played_episode_knows_tokens_rewards_and_logprobs(tokenizer: Any) -> None:
    policy = Policy(tokenizer, "a", "bc", "end")
    [trajectory] = played(group(), policy, LeaveOut()).trajectories_G
    assert isinstance(trajectory, Played)
    [row] = trajectory.episode.training_rows()
    assert trajectory.episode.rewards == [0.25, 0.25, 1.0]
    first = row.prompt_ids + row.response_ids
    assert first[: len(policy.prompts[-1])] == policy.prompts[-1]
    assert row.logprobs is not None
    sampled = [p for p, mask in zip(row.logprobs, row.mask, strict=True) if mask]
    assert sampled == [-0.5, -1.5, -0.5, -1.5, -2.5, -0.5, -1.5, -2.5, -3.5]


def test_a_failed_episode_is_tried_again_then_left_out(tokenizer: Any) -> None:
    found = played(group(2), Policy(tokenizer, "crash", "end", "crash"), LeaveOut(retries=1))
    assert len(found.trajectories_G) + len(found.rollout_errors) == 2
    assert found.trajectories_G
    for error in found.rollout_errors:
        assert "sandbox gone" in error.error_message


def test_an_environment_that_failed_is_closed(
    tokenizer: Any, scripted_env: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = threading.Semaphore(0)
    monkeypatch.setattr(scripted_env, "close", lambda self: closed.release())
    with pytest.raises(EnvFailedError, match="sandbox gone"):
        played(group(), Policy(tokenizer, "a", "crash"))
    assert closed.acquire(timeout=20)


def test_a_group_without_survivors_says_so(tokenizer: Any) -> None:
    with pytest.raises(AllTrajectoriesFailedError, match="sandbox gone"):
        played(group(2), Policy(tokenizer, "crash"), LeaveOut())


def test_a_policy_that_fails_is_not_taken_for_a_broken_environment(tokenizer: Any) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise OSError("server gone")

    with pytest.raises(OSError, match="server gone"):
        played(group(), broken, LeaveOut())


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), 5.0])
def test_what_is_no_log_probability_never_reaches_training(tokenizer: Any, value: float) -> None:
    policy = Policy(tokenizer, "a", "bc", "end")

    async def broken(*args: Any, **kwargs: Any) -> Any:
        sampled = await policy(*args, **kwargs)
        return TokensWithLogprobs(sampled.tokens, [value, *sampled.logprobs[1:]], "stop")

    with pytest.raises(RolloutError, match="log-probability"):
        played(group(), broken, LeaveOut())


def test_a_turn_that_is_longer_than_agreed_is_refused(tokenizer: Any) -> None:
    with pytest.raises(RolloutError, match="13 tokens of 12"):
        played(group(), Policy(tokenizer, "a" * 12))


def test_an_episode_ends_where_a_whole_turn_no_longer_fits(tokenizer: Any) -> None:
    dataset = chz.replace(DATASET, response_tokens=60, turns=9, group_size=1)
    tight = GemGroupBuilder(Task("test:Scripted-v0", 0), dataset)
    [trajectory] = played(tight, Policy(tokenizer, "abc"), LeaveOut()).trajectories_G
    assert trajectory.episode.end == "token_budget"
    assert 1 <= len(trajectory.transitions) < 9


def test_groups_can_be_sent_to_other_processes() -> None:
    assert pickle.loads(pickle.dumps(group(3, doomed=1))) == group(3, doomed=1)


def test_batches_are_consecutive_tasks() -> None:
    builder = GemDatasetBuilder(
        model_name="m",
        train="gem:test:Scripted-v0?n=5&seed=7",
        test="gem:test:Scripted-v0?n=3&seed=70",
        turn_tokens=12,
        groups_per_batch=2,
        group_size=4,
    )
    train, test = asyncio.run(builder())
    assert len(train) == 2
    assert [g.task.seed for k in range(2) for g in train.get_batch(k)] == [7, 8, 9, 10]
    assert {g.dataset.group_size for g in train.get_batch(0)} == {4}
    assert test is not None
    assert [(g.task.seed, g.dataset.group_size) for g in test.get_batch(0)] == [
        (70, 1),
        (71, 1),
        (72, 1),
    ]


def test_an_evaluator_plays_its_own_tasks_and_leaves_failed_ones_out(tokenizer: Any) -> None:
    dataset = GemDatasetBuilder(
        model_name="m", train="gem:test:Scripted-v0?n=16", turn_tokens=12, turns=2
    )
    tasks = "gem:test:Scripted-v0?n=4&seed=0&doomed=1"
    evaluator = dataset.evaluator(tasks, "letters", limit=0.3)
    found = asyncio.run(evaluator.eval_token_completer(Policy(tokenizer, "end")))
    assert found["letters/env/all/total_episodes"] == 3
    assert found["letters/env/all/reward/total"] == 1.0


def test_an_evaluation_of_which_too_much_fails_stops(tokenizer: Any) -> None:
    dataset = GemDatasetBuilder(
        model_name="m", train="gem:test:Scripted-v0?n=16", turn_tokens=12, turns=2
    )
    tasks = "gem:test:Scripted-v0?n=4&seed=0&doomed=1"
    evaluator = cookbook.GemEvaluatorBuilder(dataset=dataset, tasks=tasks, name="letters")()
    with pytest.raises(RolloutError, match="1 of 4 episodes"):
        asyncio.run(evaluator.eval_token_completer(Policy(tokenizer, "end")))


ARGUMENTS = [
    *("model_name=m", "recipe_name=r", "learning_rate=1e-3", "max_tokens=12", "log_path=/tmp/x"),
    "dataset_builder=gem_tinker.cookbook:GemDatasetBuilder",
    *("dataset_builder.model_name=m", "dataset_builder.turn_tokens=12"),
    "dataset_builder.train=gem:test:Scripted-v0?n=16",
]


def test_the_dataset_is_found_by_its_path_in_the_stock_launcher() -> None:
    config = chz.entrypoint(stock.Config, argv=ARGUMENTS, allow_hyphens=True)
    assert isinstance(config.dataset_builder, GemDatasetBuilder)


def test_our_launcher_takes_the_stock_keys_and_its_own() -> None:
    config = chz.entrypoint(cookbook_train.Config, argv=[*ARGUMENTS, "gamma=0.5"])
    assert config.gamma == 0.5
    assert cookbook_train.check(config).turn_tokens == 12


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("max_tokens=13", "max_tokens"),
        ("advantage=gae", "no value head"),
        ("kl_penalty_coef=0.1", "kl_penalty_coef"),
        ("remove_constant_reward_groups=True", "statistics"),
        ("loss_fn=stable_reinforce", "loss_fn must be one of"),
        ("rollout_error_tolerance=True", "max_failed_fraction"),
        ("temperature=0.5", "temperature"),
        ("server=vllm", "server"),
    ],
)
def test_configurations_that_would_train_something_else_are_refused(
    argument: str, message: str
) -> None:
    key = argument.partition("=")[0]
    argv = [word for word in ARGUMENTS if word.partition("=")[0] != key] + [argument]
    with pytest.raises(ConfigurationError, match=message):
        cookbook_train.check(chz.entrypoint(cookbook_train.Config, argv=argv))


def test_termination_policies_of_the_cookbook_are_refused() -> None:
    from tinker_cookbook.rl.rollout_limits import TerminationRewardPolicy

    config = chz.entrypoint(cookbook_train.Config, argv=ARGUMENTS)
    changed = chz.replace(config, termination=TerminationRewardPolicy())
    with pytest.raises(ConfigurationError, match="termination: it would change"):
        cookbook_train.check(changed)


def test_streaming_minibatches_and_asynchronous_training_are_refused() -> None:
    config = chz.entrypoint(cookbook_train.Config, argv=ARGUMENTS)
    streaming = stock.StreamMinibatchConfig(groups_per_batch=4, num_minibatches=2)
    with pytest.raises(ConfigurationError, match="parts of a batch"):
        cookbook_train.check(chz.replace(config, stream_minibatch_config=streaming))
    later = stock.AsyncConfig(max_steps_off_policy=1, groups_per_batch=4)
    with pytest.raises(ConfigurationError, match="mixed versions"):
        cookbook_train.check(chz.replace(config, async_config=later))
