"""The cookbook's training with GEM's datums, on a service without a model."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tinker_cookbook", reason="needs gem-tinker[cookbook]")

import chz
import tinker
from tinker_cookbook.rl import train as stock
from tinker_cookbook.utils.misc_utils import split_list

from gem.errors import RolloutError, UnfinishedError, UnsupportedVersionError
from gem_tinker import cookbook, cookbook_train
from gem_train.record import read_run

TASKS = "gem:test:Scripted-v0"


@pytest.fixture(autouse=True)
def alone(service: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No model, no server, no price list."""

    async def probed(config: Any) -> str:
        return "skyrl_jax"

    cookbook._chat.cache_clear()
    monkeypatch.setattr(cookbook, "get_tokenizer", lambda name: tokenizer)
    monkeypatch.setattr(stock, "get_tokenizer", lambda name: tokenizer)
    monkeypatch.setattr(stock, "fetch_model_pricing", lambda name: None)
    monkeypatch.setattr(cookbook_train, "probe", probed)
    monkeypatch.setenv("GEM_RECORD_ROWS", "1")
    service.texts = ("a", "bc", "end")


def run(
    folder: Path, *arguments: str, train: str = f"{TASKS}?n=12", test: str = "", more: str = ""
) -> None:
    """Train; `more` is evaluated on, besides `test`, by a `GemEvaluatorBuilder`."""
    builder = {
        "model_name": "m",
        "train": train,
        "turn_tokens": 12,
        "turns": 3,
        "groups_per_batch": 4,
        "group_size": 2,
        **({"test": test} if test else {}),
    }
    words = ["model_name=m", "recipe_name=r", "learning_rate=1e-3", "max_tokens=12", "gamma=0.9"]
    words += [f"log_path={folder}", "save_every=1", "eval_every=2", "loss_fn=ppo"]
    words += ["dataset_builder=gem_tinker.cookbook:GemDatasetBuilder"]
    words += [f"dataset_builder.{key}={value}" for key, value in builder.items()]
    last = dict(word.partition("=")[::2] for word in [*words, *arguments])
    argv = [f"{key}={value}" for key, value in last.items()]
    config = chz.entrypoint(cookbook_train.Config, argv=argv)
    if more:
        added = cookbook.GemEvaluatorBuilder(
            dataset=config.dataset_builder, tasks=more, name="more"
        )
        config = chz.replace(config, evaluator_builders=[added])
    asyncio.run(cookbook_train.main(config))


def logged(folder: Path) -> list[dict[str, Any]]:
    """The lines of the cookbook's own metrics of its training steps."""
    text = (folder / "metrics.jsonl").read_text(encoding="utf-8")
    return [line for line in map(json.loads, text.splitlines()) if "progress/batch" in line]


def iterations(folder: Path) -> list[int]:
    return [line["iteration"] for line in read_run(folder / "gem").metrics]


@pytest.mark.parametrize("substeps", [1, 3])
def test_each_substep_is_an_update_whose_loss_is_the_mean_over_its_tokens(
    service: Any, tmp_path: Path, substeps: int
) -> None:
    run(tmp_path, f"num_substeps={substeps}", "max_steps=1")
    shown = [row for e in read_run(tmp_path / "gem").episodes() for row in e.rows or []]
    parts = split_list(shown, substeps)
    assert [len(datums) for _, datums, *_ in service.trained] == [len(part) for part in parts]
    for (_, datums, *_), rows in zip(service.trained, parts, strict=True):
        tokens = sum(sum(row.mask) for row in rows)
        for datum, row in zip(datums, rows, strict=True):
            inputs = {name: tensor.to_numpy() for name, tensor in datum.loss_fn_inputs.items()}
            # The cookbook's metrics needed the mask; no server gets it.
            assert set(inputs) == {"target_tokens", "logprobs", "advantages", "weights"}
            # This server takes the mean over the tokens of a datum, then over the datums.
            factor = sum(row.mask) * len(rows) / tokens
            wanted = np.array(row.advantages, np.float32) * np.float32(factor)
            sent = inputs["advantages"][len(row.prompt_ids) - 1 :]
            assert np.allclose(sent, wanted, rtol=1e-6)
            assert sent.any()


def test_advantages_are_normalised_over_the_turns_of_the_whole_batch(tmp_path: Path) -> None:
    run(tmp_path, "max_steps=1", "gamma=0")
    record = list(read_run(tmp_path / "gem").episodes())
    assert len(record) == 8
    found = np.concatenate([episode.advantages for episode in record])
    rewards = np.concatenate([episode.trajectory.rewards for episode in record])
    assert found == pytest.approx((rewards - rewards.mean()) / rewards.std(), abs=1e-5)


def test_the_cookbook_s_metrics_and_ours_are_of_the_same_batch(tmp_path: Path) -> None:
    run(tmp_path, test=f"{TASKS}?n=3&seed=50")
    lines = logged(tmp_path)
    assert [line["progress/batch"] for line in lines] == iterations(tmp_path) == [0, 1, 2]
    for line in lines:
        assert line["gem/return_mean"] == pytest.approx(line["env/all/reward/total"])
        assert line["optim/kl_sample_train_v1"] == 0
    assert ["test/env/all/reward/total" in line for line in lines] == [True, False, True]


def test_a_run_that_was_interrupted_goes_on_and_records_no_batch_twice(
    service: Any, tmp_path: Path
) -> None:
    service.train_errors = [None, None, tinker.TinkerError("gone")]
    with pytest.raises(tinker.TinkerError, match="gone"):
        run(tmp_path, "save_every=0", "rolling_save_every=1", "num_substeps=1")
    assert iterations(tmp_path) == [0, 1]
    checkpoints = tmp_path / "checkpoints.jsonl"
    first = checkpoints.read_text(encoding="utf-8").splitlines()[0]
    checkpoints.write_text(first + "\n", encoding="utf-8")
    assert json.loads(first)["batch"] == 1
    run(tmp_path)
    assert iterations(tmp_path) == [0, 1, 2]
    assert [line["progress/batch"] for line in logged(tmp_path)] == [0, 1, 2]
    run(tmp_path)
    assert iterations(tmp_path) == [0, 1, 2]


def test_failed_episodes_are_left_out_and_counted(tmp_path: Path) -> None:
    doomed = f"{TASKS}?n=8&doomed=1"
    run(tmp_path, "max_failed_fraction=0.25", train=doomed, test=f"{TASKS}?n=4&doomed=1")
    first, second = read_run(tmp_path / "gem").metrics
    # The two episodes of a group; those of the test set are counted in no batch.
    assert (first["episodes"], first["failed_episodes"], first["failed_environment"]) == (6, 2, 2)
    assert (second["episodes"], second["failed_episodes"]) == (8, 0)


@pytest.mark.parametrize("limit", [0.1, 1.0])
def test_too_many_failed_episodes_stop_the_run(service: Any, tmp_path: Path, limit: float) -> None:
    with pytest.raises(RolloutError, match=r"of 8 episodes .*sandbox gone"):
        run(tmp_path, f"max_failed_fraction={limit}", train=f"{TASKS}?n=8&doomed=99")
    assert service.trained == []
    assert iterations(tmp_path) == []


@pytest.mark.parametrize("how", ["test", "more"])
def test_too_many_failed_episodes_of_an_evaluation_stop_the_run(
    service: Any, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[int] = []
    leave_out = cookbook.LeaveOut.leave_out

    def counted(self: Any, *failures: Any) -> None:
        attempts.extend(failure.attempts for failure in failures)
        leave_out(self, *failures)

    monkeypatch.setattr(cookbook.LeaveOut, "leave_out", counted)
    doomed = f"{TASKS}?n=4&doomed=2"
    with pytest.raises(RolloutError, match=r"of 4 episodes .*sandbox gone"):
        run(tmp_path, "retries=0", "max_failed_fraction=0.25", **{how: doomed})
    assert attempts == [1, 1]
    assert service.trained == []


def test_episodes_that_the_cookbook_loses_are_failed_ones() -> None:
    strategy = cookbook.LeaveOut(episodes=8, limit=0.25)
    assert strategy.end_batch(8) == []
    assert [failure.cause for failure in strategy.end_batch(6)] == ["engine", "engine"]
    with pytest.raises(RolloutError, match="the cookbook lost the episode"):
        strategy.end_batch(5)


def test_the_adapter_is_that_of_a_direct_run(service: Any, tmp_path: Path) -> None:
    run(tmp_path, "max_steps=1", "lora_rank=4")
    [(model, options)] = service.clients
    assert (model, options["rank"], options["train_unembed"]) == ("m", 4, False)


def test_afterwards_the_cookbook_is_what_it_was(service: Any, tmp_path: Path) -> None:
    before = stock.prepare_minibatch, stock.do_train_step_and_get_sampling_client
    service.train_errors = [tinker.TinkerError("gone")]
    with pytest.raises(tinker.TinkerError):
        run(tmp_path)
    assert (stock.prepare_minibatch, stock.do_train_step_and_get_sampling_client) == before


def test_a_run_that_ends_early_ends_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def early(config: Any) -> None: ...

    monkeypatch.setattr(stock, "main", early)
    with pytest.raises(UnfinishedError, match="only 0 of 3 iterations"):
        run(tmp_path)


def test_a_cookbook_with_another_function_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stock, "prepare_minibatch", lambda groups: None)
    with pytest.raises(UnsupportedVersionError, match="prepare_minibatch"):
        run(tmp_path)
