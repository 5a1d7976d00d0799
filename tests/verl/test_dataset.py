"""The dataset: seeded tasks in order, checked before anything expensive starts."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from omegaconf import OmegaConf
from verl.trainer.ppo.utils import create_rl_dataset, create_rl_sampler

from gem.errors import ConfigurationError, UnknownEnvError, UnknownParameterError
from gem.tasks import Task, TaskSet
from gem_train.experiment.tasksets import DatasetRow, EvalSampling, decode_task
from gem_verl.dataset import GemDataset

GAME = "game:GuessTheNumber-v0-easy"
DATA = [
    "data.custom_cls.path=pkg://gem_verl.dataset",
    "data.custom_cls.name=GemDataset",
    "actor_rollout_ref.rollout.name=vllm",
    "actor_rollout_ref.rollout.agent.default_agent_loop=gem",
    "algorithm.adv_estimator=gem_rebn",
]


def tasks(dataset: GemDataset) -> list[Task]:
    return [decode_task(dataset[i]["gem_task"])[0] for i in range(len(dataset))]


def test_rows_are_the_task_sets_tasks_in_order() -> None:
    uri = f"gem:{GAME}?n=3&seed=5&hint=range"
    dataset = GemDataset(uri)
    assert tasks(dataset) == list(TaskSet.parse(uri))
    assert [dataset[i]["index"] for i in range(3)] == [0, 1, 2]


def test_several_uris_follow_each_other() -> None:
    dataset = GemDataset([f"gem:{GAME}?n=2", "gem:game:Mastermind-v0?n=1&seed=9"])
    assert [(t.env_id, t.seed) for t in tasks(dataset)] == [
        (GAME, 0),
        (GAME, 1),
        ("game:Mastermind-v0", 9),
    ]


def test_max_samples_keeps_the_first() -> None:
    assert [t.seed for t in tasks(GemDataset(f"gem:{GAME}?n=9", max_samples=2))] == [0, 1]


def test_validation_names_and_temperatures_follow_the_uri() -> None:
    dataset = GemDataset([f"gem:{GAME}?n=1#name=easy&temperature=0", f"gem:{GAME}?n=1"])
    assert [dataset[i]["data_source"] for i in range(2)] == ["easy", GAME]
    assert [decode_task(dataset[i]["gem_task"])[1] for i in range(2)] == [
        EvalSampling(temperature=0.0),
        None,
    ]


def test_what_a_validation_set_does_not_say_is_as_in_verls_validation(compose: Any) -> None:
    verls = [f"actor_rollout_ref.rollout.val_kwargs.{told}" for told in ("top_p=0.9", "top_k=20")]
    config = compose([*DATA, "data.shuffle=False", *verls])
    own = ("#temperature=0.5", "#temperature=0.5&top_p=1.0", "")
    dataset = GemDataset([f"gem:{GAME}?n=1{text}" for text in own], config=config.data)
    assert [decode_task(dataset[i]["gem_task"])[1] for i in range(3)] == [
        EvalSampling(temperature=0.5, top_p=0.9, top_k=20),
        EvalSampling(temperature=0.5, top_p=1.0, top_k=20),
        None,
    ]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("train.parquet", ConfigurationError),
        (f"gem:{GAME}?n=2#temperature=cold", ConfigurationError),
        (f"gem:{GAME}?n=2#size=3", ConfigurationError),
        ("gem:game:GuessTheNumbr-v0", UnknownEnvError),
        (f"gem:{GAME}?colour=red", UnknownParameterError),
        (f"gem:{GAME}?hint=none", ConfigurationError),
    ],
)
def test_what_cannot_be_played_is_refused_at_once(text: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        GemDataset(text)


def test_a_row_outside_is_an_index_error() -> None:
    with pytest.raises(IndexError):
        GemDataset(f"gem:{GAME}?n=2")[2]


@pytest.mark.parametrize("mode", ["sync", "gem_sync"])
def test_all_seats_need_a_trainer_that_knows_which_rows_belong_together(
    compose: Any, tokenizer: Any, mode: str
) -> None:
    files = 'data.train_files="gem:multi:Nim-v0?n=6&seat=all"'
    config = compose([*DATA, files, "data.shuffle=False", f"trainer.v1.trainer_mode={mode}"])
    OmegaConf.resolve(config)

    def make() -> Any:
        return create_rl_dataset(config.data.train_files, config.data, tokenizer, None)

    if mode == "sync":
        with pytest.raises(ConfigurationError, match="seat=all makes one training row per agent"):
            make()
    else:
        assert len(make()) == 6


def test_verl_makes_the_dataset_and_iterates_it_in_order(compose: Any, tokenizer: Any) -> None:
    config = compose([*DATA, f'data.train_files="gem:{GAME}?n=6&seed=3"', "data.shuffle=False"])
    OmegaConf.resolve(config)
    dataset = create_rl_dataset(config.data.train_files, config.data, tokenizer, None)
    order = list(create_rl_sampler(config.data, dataset))
    assert [tasks(dataset)[i].seed for i in order] == [3, 4, 5, 6, 7, 8]


def test_a_temperature_is_no_setting_of_training_files(compose: Any, tokenizer: Any) -> None:
    files = [f'data.{kind}_files="gem:{GAME}?n=6#temperature=0"' for kind in ("train", "val")]
    config = compose([*DATA, files[0], f'data.val_files="gem:{GAME}?n=6"', "data.shuffle=False"])
    with pytest.raises(ConfigurationError, match=r"^data\.train_files: .*rollout\.temperature"):
        create_rl_dataset(config.data.train_files, config.data, tokenizer, None)
    config = compose([*DATA, files[1], f'data.train_files="gem:{GAME}?n=6"', "data.shuffle=False"])
    assert len(create_rl_dataset(config.data.val_files, config.data, tokenizer, None)) == 6


def test_two_validation_sets_have_two_names(compose: Any, tokenizer: Any) -> None:
    files = [f"gem:{GAME}?n=2#name=same&temperature={t}" for t in (0, 1)]
    config = compose([*DATA, f'data.train_files="gem:{GAME}?n=6"', "data.shuffle=False"])
    config.data.val_files = files
    with pytest.raises(ConfigurationError, match=r"^data\.val_files: two .* called 'same'"):
        create_rl_dataset(config.data.val_files, config.data, tokenizer, None)
    config.data.val_files = [files[0], files[1].replace("same", "sampled")]
    dataset = create_rl_dataset(config.data.val_files, config.data, tokenizer, None)
    rows = [DatasetRow.decode(dataset[i]["gem_task"]) for i in range(4)]
    assert [row.evaluation for row in rows] == ["same", "same", "sampled", "sampled"]
    train = create_rl_dataset(config.data.train_files, config.data, tokenizer, None)
    assert DatasetRow.decode(train[0]["gem_task"]).evaluation is None


@pytest.mark.parametrize("mode", ["sync", "gem_sync"])
def test_verls_own_trainers_validate_on_other_files(
    compose: Any, tokenizer: Any, mode: str
) -> None:
    files = [f'data.{kind}_files="gem:{GAME}?n=6"' for kind in ("train", "val")]
    modes = f"trainer.v1.trainer_mode={mode}"
    config = compose([*DATA, *files, modes, "data.shuffle=False"])
    if mode == "gem_sync":
        assert len(create_rl_dataset(config.data.val_files, config.data, tokenizer, None)) == 6
        return
    with pytest.raises(ConfigurationError, match=r"^data\.val_files: with trainer_mode=sync"):
        create_rl_dataset(config.data.train_files, config.data, tokenizer, None)


def test_shuffling_is_said_aloud(compose: Any, caplog: pytest.LogCaptureFixture) -> None:
    config = compose([*DATA, "data.shuffle=True"])
    with caplog.at_level(logging.WARNING):
        GemDataset(f"gem:{GAME}?n=2", config=config.data)
    assert "data.shuffle=False" in caplog.text


def test_a_run_that_cannot_work_ends_when_the_dataset_is_made(compose: Any) -> None:
    config = compose([*DATA, "trainer.use_v1=False"])
    with pytest.raises(ConfigurationError, match="legacy trainer"):
        GemDataset(f"gem:{GAME}?n=2", config=config.data)
