"""The table `gem` of SkyRL's configuration, and settings of SkyRL that cannot work with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gem.errors import ConfigurationError

GOOD = (
    "trainer.logger=console",
    "trainer.train_batch_size=4",
    "trainer.policy_mini_batch_size=4",
    "trainer.critic_mini_batch_size=4",
    "generator.n_samples_per_prompt=2",
)


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
        (("trainer.algorithm.zero_variance_filter=true",), r"zero_variance_filter: .* got True"),
        (("trainer.algorithm.dynamic_sampling.type=filter",), r"dynamic_sampling\.type"),
        (("trainer.algorithm.advantage_batch_normalize=true",), "advantage_batch_normalize"),
        *(
            ((f"generator.{given}",), f"generator.{given.partition('=')[0].split('.n')[0]}")
            for given in (
                "max_turns=3",
                "chat_template_kwargs={enable_thinking: false}",
                "chat_template.name_or_path=qwen3_with_thinking",
                "eval_n_samples_per_prompt=2",
                "zero_reward_on_non_stop=true",
                "apply_overlong_filtering=true",
                "sampling_params.max_generate_length=64",
                "sampling_params.stop=['</answer>']",
                "sampling_params.repetition_penalty=1.1",
                "sampling_params.additional_kwargs={min_tokens: 2}",
            )
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
    kl = "trainer.algorithm.use_kl_loss=false"
    with pytest.raises(ConfigurationError, match=said):
        world.parse([*GOOD, kl, *words])


def test_evaluations_are_sampled_as_skyrl_says(world: Any) -> None:
    from gem_skyrl.settings import evaluated_with

    kl, own = "trainer.algorithm.use_kl_loss=false", "generator.eval_sampling_params"
    assert evaluated_with(world.parse([*GOOD, kl]))["temperature"] == 0.0
    found = evaluated_with(world.parse([*GOOD, kl, f"{own}.temperature=0.5", f"{own}.top_k=3"]))
    assert found == {"temperature": 0.5, "top_p": 1.0, "top_k": 3, "min_p": 0.0}


def test_a_key_that_skyrl_does_not_have_is_refused(world: Any) -> None:
    with pytest.raises(ValueError, match="oops"):
        world.parse([*GOOD, "trainer.oops=1"])


def test_the_switch_itself_is_no_setting(world: Any) -> None:
    switch = "trainer.override_entrypoint=gem_skyrl.entrypoint"
    assert world.parse([switch, *GOOD, "gem.advantage=grpo"]).gem == {"advantage": "grpo"}


@pytest.mark.parametrize(("tasks", "better"), [(10, 8), (3, 4), (0, 4)])
def test_a_dataset_with_a_smaller_last_batch_is_refused(
    tasks: int, better: int, world: Any
) -> None:
    from gem_skyrl.settings import check_tasks

    config = world.parse(GOOD)
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
