"""A RunSpec becomes the trainer's command, or is refused before anything starts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import fake_trainer
import pytest

from gem.errors import ConfigurationError, UnsupportedVersionError
from gem.tables import flatten
from gem_skyrl import doctor
from gem_skyrl.launch import CONFIG, adapter
from gem_skyrl.settings import Settings
from gem_skyrl.trainer import GemTrainer
from gem_train.entries import OPTIMIZER_WEIGHTS
from gem_train.experiment.hardware import CPU
from gem_train.experiment.runspec import RunSpec


def changed(spec: RunSpec, key: str, value: Any) -> RunSpec:
    data = spec.to_mapping()
    table, _, name = key.partition(".")
    data[table][name] = value
    return RunSpec.from_mapping(data)


def test_every_setting_has_a_parity(spec: RunSpec, tmp_path: Path) -> None:
    made = adapter.compile(spec, run_dir=tmp_path, hardware=CPU)
    names = {each.name for each in made.parity}
    others = {"hardware.device", "hardware.executor", OPTIMIZER_WEIGHTS}
    assert names == {*flatten(spec.to_mapping()), *others}
    config = json.loads(made.files[CONFIG])
    assert (config["gamma"], config["gem"]["advantage"]) == (0.9, "reinforce")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("algorithm.advantage", "gae"),
        ("algorithm.epochs", 2),
        ("algorithm.minibatches", 2),
        ("algorithm.kl_coef", 0.1),
        ("algorithm.entropy_coef", 0.1),
        ("algorithm.tis_clip", 2.0),
        ("algorithm.loss_aggregation", "row-mean-token-sum"),
        ("optimizer.weight_decay", 0.1),
        ("policy.lora_rank", 8),
        ("sampling.top_p", 0.9),
    ],
)
def test_what_the_trainer_cannot_do_is_refused(
    spec: RunSpec, tmp_path: Path, key: str, value: Any
) -> None:
    with pytest.raises(ConfigurationError, match=key):
        adapter.compile(changed(spec, key, value), run_dir=tmp_path, hardware=CPU)


def test_wrong_settings_are_refused_by_name() -> None:
    good = {**fake_trainer.DEFAULTS, "gem": {}}
    assert Settings.read(good).advantage == "rebn"
    for table, message in (
        ({"gem": {"colour": 1}}, r"gem\.colour"),
        ({"gem": {"turns": 0}}, r"gem\.turns"),
        ({"gem": {"advantage": "grpo"}, "samples": 1}, "samples must be at least 2"),
        ({"gamma": 2}, "gamma must be between 0 and 1"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            Settings.read({**good, **table})


def test_a_trainer_that_changed_is_refused(
    config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed_rollout(self: Any, prompts: list[str]) -> None: ...

    monkeypatch.setattr(fake_trainer.Trainer, "rollout", changed_rollout)
    with pytest.raises(UnsupportedVersionError, match=r"rollout.*fake-trainer >=1\.2,<2"):
        GemTrainer(config)


def test_the_doctor_finds_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.doctor.doctor(doctor.CHECKS) == 0, capsys.readouterr().out


def test_a_spec_of_another_group_size_compiles(spec: RunSpec, tmp_path: Path) -> None:
    alone = replace(spec, training=replace(spec.training, group_size=1))
    adapter.compile(alone, run_dir=tmp_path, hardware=CPU)
    grpo = replace(alone, algorithm=replace(alone.algorithm, advantage="grpo"))
    with pytest.raises(ConfigurationError, match="compares the episodes of a task"):
        adapter.compile(grpo, run_dir=tmp_path, hardware=CPU)
