"""The experience maker on OpenRLHF's own objects; that numbers are right is conformance L0."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from gem.advantage import reinforce
from gem.errors import ConfigurationError, RolloutError, UnfinishedError
from gem.trajectory import Trajectory, turn_table
from gem_openrlhf.advantage import read_rows
from gem_openrlhf.rollout import FAILED
from gem_train.experiment.estimate import Shaping
from gem_train.record import read_run
from gem_train.testing.golden import golden_batch


@pytest.fixture
def made(world: Any, tmp_path: Path) -> Any:
    def make(*flags: str, samples: int = 2, **settings: Any) -> Any:
        given = {"advantage": "rebn", "max_failed_fraction": 0.5} | settings
        return world.maker(world.agent_file(tmp_path, **given), *flags, samples=samples)

    return make


def at_turns(world: Any, done: Sequence[Any], batch: Sequence[Trajectory]) -> list[list[float]]:
    """The advantage of each turn that has a token, as found on its first token."""
    out = []
    for trajectory, row in zip(batch, world.by_episode(done, "advantages"), strict=True):
        if not trajectory.valid:
            out.append([])
            continue
        tokens = trajectory.training_rows()[0]
        first = len(tokens.prompt_ids) - 1
        out.append([row[first + s.start] for s in tokens.spans if s.end > s.start])
    return out


def test_labels_are_the_datasets_again(world: Any, made: Any) -> None:
    maker, batch = made(), golden_batch()
    done = maker.compute_advantages_and_returns(world.experiences(maker, batch))
    seeds = [label for experience in done for label in experience.labels]
    assert all(isinstance(label, str) for label in seeds)
    assert len(seeds) == len(batch)


def test_a_batch_may_be_put_together_in_any_way(world: Any, made: Any) -> None:
    """Dynamic batching mixes episodes of different tasks; groups are told by number."""
    maker, batch = made(advantage="grpo"), golden_batch()
    expected = at_turns(
        world, maker.compute_advantages_and_returns(world.experiences(maker, batch)), batch
    )
    mixed = world.experiences(maker, batch, rows=1)
    found = maker.compute_advantages_and_returns([mixed[i] for i in (5, 2, 7, 0, 1, 6, 3, 4)])
    assert at_turns(world, found, batch) == expected


def test_what_is_made_goes_through_openrlhfs_buffer(world: Any, made: Any) -> None:
    from openrlhf.trainer.ppo_utils.experience import (
        balance_experiences,
        make_experience_batch,
        split_experience_batch,
    )

    maker = made()
    done = maker.compute_advantages_and_returns(world.experiences(maker, golden_batch()))
    balanced = balance_experiences(done, maker.args)
    items = [item for experience in balanced for item in split_experience_batch(experience)]
    batch = make_experience_batch(items)
    assert batch.advantages.shape == batch.action_mask.shape
    for value in batch.info.values():
        assert torch.tensor(value, dtype=torch.float).shape == (8,)  # what the actor logs


def test_failed_episodes_count_for_nothing(world: Any, made: Any) -> None:
    batch = golden_batch()
    maker = made("--algo.advantage.estimator", "gae", advantage="gae")
    done = maker.compute_advantages_and_returns(world.experiences(maker, batch))
    [experience] = [e for e in done if 7 in e.index]
    place = experience.index.index(7)
    assert not batch[7].valid
    assert not experience.advantages[place].any()
    assert torch.equal(experience.returns[place], experience.values[place])
    valid = [t.total_reward for t in batch if t.valid]
    rewards = torch.cat([e.info["reward"] for e in done])
    assert rewards.mean().item() == pytest.approx(sum(valid) / len(valid))
    assert torch.cat([e.info[FAILED] for e in done]).sum() == 1


def test_too_many_failures_stop_the_run(world: Any, made: Any) -> None:
    maker = made(max_failed_fraction=0.1)
    with pytest.raises(RolloutError, match=r"1 of 8 episodes .* at most a share of 0\.1"):
        maker.compute_advantages_and_returns(world.experiences(maker, golden_batch()))


def test_a_row_that_is_not_what_was_sampled_stops_the_run(world: Any, made: Any) -> None:
    maker = made()
    for name, change in (("sequences", 1), ("action_mask", -1)):
        batch = world.experiences(maker, golden_batch())
        getattr(batch[0], name)[0, -5] += change
        with pytest.raises(RolloutError, match="does not hold the tokens"):
            maker.compute_advantages_and_returns(batch)


def test_a_row_of_another_executor_stops_the_run(world: Any, made: Any) -> None:
    maker = made()
    batch = world.experiences(maker, golden_batch())
    batch[0].labels[0] = "42"
    with pytest.raises(RolloutError, match="without a trajectory"):
        maker.compute_advantages_and_returns(batch)


SHAPINGS: list[dict[str, Any]] = [{}, {"reward_scale": 0.1}, {"reward_clip": 0.2}]


@pytest.mark.parametrize("shaping", SHAPINGS, ids=str)
@pytest.mark.parametrize("coefficient", [0.5, -0.5])
def test_the_penalty_of_cut_episodes_is_of_the_shaped_reward_and_is_the_last_turn_s(
    coefficient: float, shaping: dict[str, Any], world: Any, made: Any
) -> None:
    batch = [t for t in golden_batch() if t.valid][:6]
    flag = ("--reward.stop_properly_penalty_coef", str(coefficient))
    maker = made(*flag, advantage="reinforce", samples=1, **shaping)
    for trajectory in batch:
        trajectory.turns[-1].__dict__["reward"] += 1.0
    prepared = world.experiences(maker, batch)
    cut = [bool(e.truncated[i]) for e in prepared for i in range(len(e.truncated))]
    assert any(cut) and not all(cut)
    done = maker.compute_advantages_and_returns(prepared)
    logged = torch.cat([e.info["reward"] for e in done]).tolist()
    for trajectory, truncated, turns, of_log in zip(
        batch, cut, at_turns(world, done, batch), logged, strict=True
    ):
        rewards = Shaping(**shaping).rewards(trajectory.rewards)
        total = sum(rewards)
        if truncated:
            total = coefficient * total if coefficient > 0 else coefficient
        assert turns[0] == pytest.approx(total)  # gamma is 1: the return of the first turn
        assert turns[-1] == pytest.approx(rewards[-1] + total - sum(rewards))
        assert of_log == pytest.approx(trajectory.total_reward + total - sum(rewards))


@pytest.mark.parametrize("advantage", ["reinforce", None])
@pytest.mark.parametrize("flags", [(), ("--rollout.max_new_tokens", "8")], ids=str)
def test_the_penalty_of_long_episodes_begins_before_the_end_of_the_response(
    flags: tuple[str, ...], advantage: str | None, world: Any, made: Any
) -> None:
    """Whatever a turn may have: OpenRLHF compares it with whole episodes."""
    batch = [t for t in golden_batch() if t.valid][:6]
    free, buffer = 8, 1016  # of the 1024 tokens of a response
    flags = ("--reward.overlong_buffer_len", str(buffer), *flags)
    maker = made(*flags, advantage=advantage, samples=1)
    prepared = world.experiences(maker, batch)
    lengths = torch.cat([e.response_length for e in prepared]).tolist()
    assert min(lengths) <= free < max(lengths)
    done = maker.compute_advantages_and_returns(prepared)
    expected = [
        t.total_reward - max(length - free, 0) / buffer
        for t, length in zip(batch, lengths, strict=True)
    ]
    assert torch.cat([e.info["reward"] for e in done]).tolist() == pytest.approx(expected)
    if advantage is not None:
        found = at_turns(world, done, batch)
        assert [turns[0] for turns in found] == pytest.approx(expected)


def test_kl_in_the_reward_is_summed_over_each_turn(world: Any, made: Any) -> None:
    batch = [t for t in golden_batch() if t.valid][:4]
    maker = made("--algo.kl.init_coef", "0.5", advantage="reinforce", samples=1)
    prepared = world.experiences(maker, batch)
    for experience in prepared:
        experience.kl = 0.25 * experience.action_mask.float()
    for trajectory in batch:  # what is expected, in the environment's own rewards
        for turn in trajectory.turns:
            turn.__dict__["reward"] -= 0.5 * 0.25 * len(turn.response_ids)
    per_turn = reinforce(turn_table(batch), 1.0)
    expected = turn_table(batch).split(per_turn)
    found = at_turns(world, maker.compute_advantages_and_returns(prepared), batch)
    assert [pytest.approx(turns) for turns in expected] == found


def test_the_distance_from_the_engines_logprobs_is_logged(world: Any, made: Any) -> None:
    batch = [t for t in golden_batch() if t.valid][:2]
    maker = made(samples=1)
    prepared = world.experiences(maker, batch)
    known = batch[0].training_rows()[0].logprobs
    assert known is not None
    for experience in prepared:
        for place in range(len(experience.sequences)):
            row = batch[experience.index[place]].training_rows()[0]
            assert row.logprobs is not None
            start = len(row.prompt_ids) - 1
            theirs = torch.tensor(row.logprobs) + 0.5 * torch.tensor(row.mask)
            experience.action_log_probs[place, start : start + len(theirs)] = theirs
    found = maker._agreement(prepared, read_rows(prepared, 1), maker.gem).metrics()
    distances = torch.cat([e.info["gem/logprob_difference"] for e in prepared])
    assert distances.tolist() == pytest.approx([0.5, 0.5])
    assert found["sampler_kl"] == pytest.approx(math.exp(0.5) - 1.5, rel=1e-4)
    assert found["logprob_difference_mean"] == pytest.approx(0.5, rel=1e-4)
    assert found["mismatched_tokens"] == 0


def test_no_distance_is_logged_between_different_distributions(world: Any, made: Any) -> None:
    maker = made("--rollout.temperature", "0.7")
    prepared = world.experiences(maker, golden_batch())
    for experience in prepared:
        experience.rollout_log_probs = None
    done = maker.compute_advantages_and_returns(prepared)
    assert "gem/logprob_difference" not in done[0].info


def test_the_stock_estimators_are_left_alone(world: Any, made: Any) -> None:
    from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker

    batch = [t for t in golden_batch() if t.valid][:6]
    flags = ("--algo.advantage.estimator", "group_norm")
    maker = made(*flags, advantage=None)
    found = maker.compute_advantages_and_returns(world.experiences(maker, batch))
    stock = RemoteExperienceMaker.compute_advantages_and_returns(
        maker, world.experiences(maker, batch)
    )
    assert world.by_episode(found, "advantages") == world.by_episode(stock, "advantages")


def test_other_executors_are_left_alone(world: Any) -> None:
    maker = world.maker(None)
    assert maker.gem is None
    batch = world.experiences(maker, [t for t in golden_batch() if t.valid][:6])
    done = maker.compute_advantages_and_returns(batch)
    assert done[0].labels[0].trajectory.valid  # nobody took it out


def test_a_batch_is_recorded_when_its_losses_are_known(
    world: Any, made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gem_openrlhf.logs import GemTensorboardLogger

    monkeypatch.setenv("GEM_RECORD_ROWS", "1")
    board = ("--logger.tensorboard_dir", str(tmp_path / "board"))
    maker = made(*board, record_dir=str(tmp_path / "record"))
    batch = golden_batch()
    tracker = GemTensorboardLogger(maker.args)
    maker.compute_advantages_and_returns(world.experiences(maker, batch))
    tracker.log_train(1, {"policy_loss": 0.5, "actor_grad_norm": 2.0, "other": 1.0})
    tracker.log_train(2, {"policy_loss": 0.5})  # no batch of ours: nothing to write
    tracker.close()
    maker.args.gem_iterations = 2  # as `gem_openrlhf.dataset` counts them
    with pytest.raises(UnfinishedError, match="recorded only 1 of 2 iterations"):
        GemTensorboardLogger(maker.args).close()
    run = read_run(tmp_path / "record")
    [line] = run.metrics
    assert (line["iteration"], line["loss"], line["grad_norm"]) == (0, 0.5, 2.0)
    assert line["failed_episodes"] == 1.0
    episodes = list(run.episodes())
    assert [e.trajectory.valid for e in episodes] == [t.valid for t in batch]
    assert [e.trajectory.group for e in episodes] == [0, 0, 1, 1, 2, 2, 3, 3]
    for episode in episodes[:7]:
        assert episode.rows is not None and episode.advantages is not None
        [shown] = episode.rows
        [tokens] = episode.trajectory.training_rows()
        assert (shown.prompt_ids, shown.response_ids) == (tokens.prompt_ids, tokens.response_ids)
        assert shown.mask == tokens.mask
        assert shown.advantages == pytest.approx(tokens.spread(episode.advantages))


def recorded_losses(world: Any, made: Any, tmp_path: Path, *flags: str) -> list[Any]:
    """Record two iterations, and return their losses and learning rates."""
    from gem_openrlhf.logs import GemTensorboardLogger

    board = ("--logger.tensorboard_dir", str(tmp_path / "board"))
    maker = made(*board, *flags, record_dir=str(tmp_path / "record"))
    tracker = GemTensorboardLogger(maker.args)
    for step in (1, 2):
        maker.compute_advantages_and_returns(world.experiences(maker, golden_batch()))
        logged = {"policy_loss": 0.5, "entropy_loss": 2.0, "kl": 0.25, "actor_lr": 0.1 / step}
        tracker.log_train(step, logged)
    lines = read_run(tmp_path / "record").metrics
    return [(line.get("loss"), line.get("lr_next")) for line in lines]


def test_the_loss_has_the_entropy_bonus_and_the_rate_is_called_the_next_one_s(
    world: Any, made: Any, tmp_path: Path
) -> None:
    """OpenRLHF logs the policy's loss alone, and the rate of the next iteration."""
    found = recorded_losses(world, made, tmp_path, "--actor.entropy_coef", "0.1")
    assert found == [(pytest.approx(0.3), 0.1), (pytest.approx(0.3), 0.05)]


@pytest.mark.parametrize(
    "flags",
    [("--algo.kl.use_loss", "--algo.kl.init_coef", "0.1"), ("--actor.aux_loss_coef", "0.01")],
    ids=str,
)
def test_a_loss_without_one_of_its_parts_is_not_recorded(
    flags: tuple[str, ...], world: Any, made: Any, tmp_path: Path
) -> None:
    assert recorded_losses(world, made, tmp_path, *flags) == [(None, 0.1), (None, 0.05)]


DYNAMIC = ("--train.dynamic_batch_enable", "--vllm.num_engines", "1")
REFUSED = [
    ((), {"advantage": "gae"}, "--algo.advantage.estimator=gae"),
    ((), {"record_dir": "x"}, "--logger.tensorboard_dir"),
    ((*DYNAMIC, "--train.batch_size", "128"), {}, "choose a divisor of 8"),
    ((*DYNAMIC, "--train.batch_size", "3"), {}, "choose a divisor of 8"),
    (
        (*DYNAMIC, "--train.batch_size", "1", "--actor.num_gpus_per_node", "2"),
        {},
        "choose a multiple of 2",
    ),
]
"""What the table of test_readers.py does not have."""


@pytest.mark.parametrize(("flags", "settings", "named"), REFUSED)
def test_flags_that_cannot_work_are_refused_at_the_start(
    flags: tuple[str, ...], settings: dict[str, Any], named: str, made: Any
) -> None:
    with pytest.raises(ConfigurationError) as error:
        made(*flags, **settings)
    assert named in str(error.value)


def test_group_advantages_need_groups(made: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"--rollout\.n_samples_per_prompt"):
        made(samples=1, advantage="rloo")


def test_dynamic_filtering_works_where_no_failure_is_let_through(made: Any) -> None:
    assert made("--algo.dynamic_filtering_enable", max_failed_fraction=0.0).gem is not None


@pytest.mark.parametrize(
    ("low", "high", "useful"),
    [(0, 1, True), (-1, 1, True), (0.2, 5, True), (1, 5, False), (-1, 0, False), (-1, 2, False)],
)
def test_a_filter_drops_some_tasks_and_keeps_others(
    low: float, high: float, useful: bool, made: Any
) -> None:
    def filtered() -> Any:
        between = ("--algo.dynamic_filtering_range", str(low), str(high))
        return made("--algo.dynamic_filtering_enable", *between, max_failed_fraction=0.0)

    if useful:
        assert filtered().gem is not None
    else:
        with pytest.raises(ConfigurationError, match="drop all tasks or none"):
            filtered()


def test_batches_that_openrlhf_divides_by_tokens_are_trained_on_whole(made: Any) -> None:
    two = ("--train.batch_size", "2", "--actor.num_gpus_per_node", "2")
    assert made(*DYNAMIC, *two).gem is not None
