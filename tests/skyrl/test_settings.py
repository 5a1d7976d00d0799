"""The table `gem` of SkyRL's configuration, and settings of SkyRL that cannot work with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gem.errors import ConfigurationError


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("gem.colour=red",), r"gem\.colour"),
        (("gem.advantage=ppo",), "unknown estimator 'ppo'"),
        (("gem.turn_tokens=few",), "gem.turn_tokens must be of type int"),
        (("gem.advantage=grpo", "generator.n_samples_per_prompt=1"), "n_samples_per_prompt must"),
        (("gem.advantage=gae",), "needs a critic: set trainer.critic.model.path"),
        (("trainer.critic.model.path=m",), "needs no critic: leave out"),
        (
            (
                "gem.advantage=gae",
                "trainer.critic.model.path=m",
                "generator.step_wise_trajectories=true",
            ),
            "a turn without tokens has a row of its own",
        ),
        (("gem.context=concat",), "gem.context=concat .* set generator.step_wise_trajectories"),
        (("gem.thinking=drop",), "gem.thinking=drop .* set generator.step_wise_trajectories"),
        (("generator.eval_n_samples_per_prompt=2",), "write #samples=<n> behind the URI"),
        (("trainer.fully_async.simulate_training=true",), "GEM extends SkyRL's real trainers only"),
        (("generator.vision_language_generator=true",), "with text only"),
        (
            (
                "trainer.algorithm.enable_sample_support_replay=true",
                "generator.inference_engine.enable_return_sample_support_set=true",
                "generator.sampling_params.top_k=20",
            ),
            "enable_sample_support_replay: GEM does not ask the engine",
        ),
        (
            (
                "trainer.train_batch_size=3",
                "trainer.policy_mini_batch_size=3",
                "generator.n_samples_per_prompt=3",
                "trainer.placement.policy_num_gpus_per_node=2",
                "trainer.placement.colocate_all=false",
            ),
            "do not divide among 2 ranks",
        ),
    ],
)
def test_what_cannot_work_is_refused_by_name(words: tuple[str, ...], said: str, world: Any) -> None:
    with pytest.raises(ConfigurationError, match=said):
        world.parse([*world.GOOD, *words])


@pytest.mark.parametrize("kind", ["sampling_params", "eval_sampling_params"])
def test_log_probabilities_cannot_be_left_out(kind: str, world: Any) -> None:
    key = f"generator.{kind}.logprobs"
    with pytest.raises(ConfigurationError, match=f"{key}: .*; leave it out, got None"):
        world.parse([*world.GOOD, f"{key}=null"])


@pytest.mark.filterwarnings("ignore:trainer.strategy='fsdp2'")
@pytest.mark.parametrize(
    "word",
    [
        "trainer.strategy=fsdp2",
        "trainer.num_logger_eval_samples=0",
        "trainer.num_logger_train_samples=4",
        "data.dataloader.num_workers=0",
        "data.dataloader.num_workers=null",
        "generator.sampling_params.logprobs=0",
    ],
)
def test_what_means_the_same_is_accepted(word: str, world: Any) -> None:
    world.parse([*world.GOOD, word])


def test_batches_divide_among_the_ranks_of_every_model(world: Any) -> None:
    """Two ranks of the policy and four of the reference model."""
    words = [
        *world.GOOD,
        "trainer.placement.colocate_all=false",
        "trainer.placement.policy_num_gpus_per_node=4",
        "trainer.placement.ref_num_gpus_per_node=4",
        "trainer.policy.sequence_parallel_size=2",
        "trainer.train_batch_size=6",
        "trainer.policy_mini_batch_size=6",
        "generator.n_samples_per_prompt=1",
    ]
    world.parse(words)
    words.append("trainer.algorithm.use_kl_in_reward=true")
    with pytest.raises(ConfigurationError, match="do not divide among 4 ranks"):
        world.parse(words)
    world.parse([*words, "trainer.ref.sequence_parallel_size=2"])


def test_penalised_log_probabilities_are_not_compared(world: Any) -> None:
    from gem_skyrl.settings import comparable

    mode = "generator.inference_engine.engine_init_kwargs.logprobs_mode=processed_logprobs"
    penalty = "generator.sampling_params.additional_kwargs={repetition_penalty: 1.1}"
    assert comparable(world.parse([*world.GOOD, mode]))
    assert comparable(world.parse([*world.GOOD, penalty]))
    assert not comparable(world.parse([*world.GOOD, mode, penalty]))


def test_evaluations_are_sampled_as_skyrl_says(world: Any) -> None:
    from gem_skyrl.settings import evaluated_with

    own = "generator.eval_sampling_params"
    assert evaluated_with(world.parse(world.GOOD))["temperature"] == 0.0
    found = evaluated_with(world.parse([*world.GOOD, f"{own}.temperature=0.5", f"{own}.top_k=3"]))
    assert found == {"temperature": 0.5, "top_p": 1.0, "top_k": 3, "min_p": 0.0}


def test_a_key_that_skyrl_does_not_have_is_refused(world: Any) -> None:
    with pytest.raises(ValueError, match="oops"):
        world.parse([*world.GOOD, "trainer.oops=1"])


def test_the_switch_itself_is_no_setting(world: Any) -> None:
    switch = "trainer.override_entrypoint=gem_skyrl.entrypoint"
    assert world.parse([switch, *world.GOOD, "gem.advantage=grpo"]).gem == {"advantage": "grpo"}


@pytest.mark.parametrize(("tasks", "better"), [(10, 8), (3, 4), (0, 4)])
def test_a_dataset_with_a_smaller_last_batch_is_refused(
    tasks: int, better: int, world: Any
) -> None:
    from gem_skyrl.settings import check_tasks

    config = world.parse(world.GOOD)
    check_tasks(config, 8)
    with pytest.raises(ConfigurationError, match=f"{tasks} tasks are no .*; make {better} of them"):
        check_tasks(config, tasks)


def test_a_file_that_is_no_dataset_is_named(tmp_path: Path) -> None:
    from gem_skyrl.dataset import TaskDataset

    with pytest.raises(ConfigurationError, match=r"nowhere\.jsonl"):
        TaskDataset([str(tmp_path / "nowhere.jsonl")])
    other = tmp_path / "other.jsonl"
    other.write_text('{"prompt": "Hello"}\n')
    with pytest.raises(
        ConfigurationError, match=r"not a row of `python -m gem_skyrl.make_dataset`"
    ):
        TaskDataset([str(other)])


def test_the_tasks_of_several_files_are_groups_of_their_own(tmp_path: Path) -> None:
    from gem_skyrl.dataset import TaskDataset, line, read
    from gem_train.experiment.tasksets import dataset_text

    files = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for seed, file in enumerate(files):
        uri = f"gem:game:GuessTheNumber-v0?n=2&seed={10 * seed}"
        file.write_text(dataset_text(line, [uri], evaluation=False))
    data = TaskDataset([str(file) for file in files])
    rows = [read(data[i]["env_extras"]) for i in range(4)]
    assert [row.number for row in rows] == [row.number for row in data.rows] == [0, 1, 2, 3]
    assert [row.task.seed for row in rows] == [0, 1, 10, 11]
    # SkyRL shows it beside an example.
    assert data[2]["prompt"][0]["content"] == "game:GuessTheNumber-v0, seed 10"


@pytest.mark.parametrize("uri", ["game:X", "gem:game:Guess-v0?n=3", "gem:game:Sudoku-v0?oops=1"])
def test_what_cannot_be_played_is_not_written(
    uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from gem_skyrl.make_dataset import main

    assert main([str(tmp_path / "train.jsonl"), uri]) == 2
    assert capsys.readouterr().err
    assert not (tmp_path / "train.jsonl").exists()
