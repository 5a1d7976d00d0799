"""What adapters share to make a launch: refusals, departures, platforms, Hydra's grammar."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from gem.errors import ConfigurationError
from gem.experiment.hardware import CPU, Hardware
from gem.experiment.runspec import RunSpec
from gem.training import launch, platforms
from gem.training.launch import (
    ALL_WEIGHTS,
    SEED_PER_TURN,
    Launch,
    Parity,
    all_weights,
    bf16_only,
    copied,
    executor_variable,
    hydra_value,
    namesakes,
    optimizer_weights,
    parity,
    refuse,
    token_mean,
    whole_minibatches,
)
from gem.training.platforms import Platform
from gem.training.settings import Settings

SPEC: dict[str, Any] = {
    "name": "guess",
    "env": {"id": "game:GuessTheNumber-v0-easy"},
    "policy": {"model": "m", "prompt_tokens": 64, "response_tokens": 256, "turn_tokens": 8},
    "algorithm": {"advantage": "rebn", "minibatches": 3},
    "optimizer": {"lr": 1e-3},
    "training": {"iterations": 3, "tasks": 2, "group_size": 4},
}


def spec(**tables: Any) -> RunSpec:
    changed = {
        name: {**SPEC.get(name, {}), **table} if isinstance(table, dict) else table
        for name, table in tables.items()
    }
    return RunSpec.from_mapping({**SPEC, **changed})


def test_a_refusal_names_key_reason_and_value() -> None:
    refuse(spec(), all_weights(spec()), ("policy.model", False, "fine"))
    with pytest.raises(ConfigurationError, match=r"^policy.model: no such thing, got 'm'$"):
        refuse(spec(), ("seed", False, "fine"), ("policy.model", True, "no such thing"))
    with pytest.raises(ConfigurationError, match=r"^algorithm.minibatches: 8 episodes .*, got 3$"):
        refuse(spec(), whole_minibatches(spec()))
    refuse(
        spec(algorithm={"minibatches": 4}), whole_minibatches(spec(algorithm={"minibatches": 4}))
    )
    refuse(spec(), token_mean(spec(), "oat"))
    sums = spec(algorithm={"loss_aggregation": "row-mean-token-sum"})
    with pytest.raises(ConfigurationError, match=r"^algorithm.loss_aggregation: oat has .*-sum'$"):
        refuse(sums, token_mean(sums, "oat"))
    lora = spec(policy={"lora_rank": 8})
    with pytest.raises(ConfigurationError, match=r"^policy.lora_rank: all weights .*, got 8$"):
        refuse(lora, all_weights(lora))


WEIGHTS = optimizer_weights("in the shards")


def departures(*args: Any, **named: Any) -> list[Parity]:
    """What trainers differ in, besides the precision of weights, of which all say something."""
    weights, *found = launch.departures(*args, weights=WEIGHTS, **named)
    assert weights == WEIGHTS
    return found


def test_fp32_weights_are_matched_unless_a_native_setting_changes_them() -> None:
    key = "fsdp.model_dtype"
    for given in ({}, {key: "fp32"}, {key: "torch.float32"}, {"other": "bf16"}):
        assert optimizer_weights("in the shards", given, key) == WEIGHTS
    assert (WEIGHTS.status, WEIGHTS.how) == ("matched", "fp32: in the shards")
    for given in ({key: "bfloat16"}, {f"+{key}": "bf16"}, {key: None}):
        found = optimizer_weights("in the shards", given, key)
        assert (found.name, found.status) == (WEIGHTS.name, "unmatched")
        assert found.how.endswith("updates below its rounding are lost")


def test_departures_are_those_of_the_spec() -> None:
    greedy: dict[str, Any] = {"sampling": {"top_k": 1}}
    [found] = departures(spec())
    assert found == Parity("seed", "emulated", SEED_PER_TURN)
    assert [each.how for each in departures(spec(), "its own")] == ["its own"]
    assert not list(departures(spec(**greedy)))
    both = spec(algorithm={"advantage": "gae", "kl_coef": 0.1}, **greedy)
    assert [k.name for k in departures(both)] == [
        "algorithm.kl_coef",
        "critic's initial head",
    ]
    part = {"id": "game:GuessTheNumber-v0"}
    evals = [{**part, "name": "a", "every": 2}, {**part, "name": "b", "every": 4}]
    run = spec(eval=evals, **greedy)
    assert (run.eval_every, spec().eval_every) == (2, 0)
    [found] = departures(run)
    assert found.name == "eval.1.every" and found.how.endswith("every 2 iterations")
    missed = list(departures(run, missed="not at the end"))
    assert [k.name for k in missed] == ["eval.0.every", "eval.1.every"]
    assert all(k.how.endswith("every 2 iterations, but not at the end") for k in missed)


def test_fp32_of_a_trainer_without_it_is_gem_cpus() -> None:
    [found] = bf16_only(spec(), "it trains in bf16", cpu=True)
    assert (found.name, found.status) == ("training.precision", "emulated")
    [found] = bf16_only(spec(), "it trains in bf16", cpu=False)
    assert (found.status, found.how) == ("unmatched", "it trains in bf16")
    assert not list(bf16_only(spec(training={"precision": "bf16"}), "", cpu=False))


def test_departures_that_several_trainers_share_are_yielded_where_they_apply() -> None:
    given: dict[str, Any] = {
        "bf16": "bf16 weights",
        "undecayed": "biases",
        "values_on_tokens": True,
    }
    greedy: dict[str, Any] = {"sampling": {"top_k": 1}}
    assert list(departures(spec(**greedy), **given)) == []
    run = spec(
        **greedy,
        algorithm={"advantage": "gae"},
        optimizer={"weight_decay": 0.1},
        training={"precision": "bf16"},
    )
    assert {k.name: k.how for k in departures(run, **given)} == {
        "critic's initial head": "a random linear layer, where the reference starts from zero",
        "algorithm.value_clip": "all tokens of a turn are trained towards the turn's target, not "
        "where it begins",
        "optimizer.weight_decay": "biases are left out",
        "training.precision": "bf16 weights (the reference: autocast)",
    }


def test_settings_of_the_same_name_are_found_but_for_seed_and_environment() -> None:
    assert namesakes(Settings, "gem.{}") == {
        "hardware.executor": "gem.executor",
        "policy.turn_tokens": "gem.turn_tokens",
        "policy.turns": "gem.turns",
        "policy.context": "gem.context",
        "policy.system_prompt": "gem.system_prompt",
        "policy.template_kwargs": "gem.template_kwargs",
        "policy.thinking": "gem.thinking",
        "algorithm.normalise": "gem.normalise",
        "training.max_failed_fraction": "gem.max_failed_fraction",
    }
    assert copied(spec(), namesakes(Settings)) == {
        "turn_tokens": 8,
        "context": "chat",
        "thinking": "keep",
        "normalise": "batch",
        "max_failed_fraction": 0.1,
    }
    elsewhere = Hardware.from_mapping({"executor": "process:8"})
    assert copied(spec(), namesakes(Settings), elsewhere)["executor"] == "process:8"
    assert executor_variable(elsewhere) == {"GEM_EXECUTOR": "process:8"}
    assert executor_variable(Hardware()) == {}


def test_copied_settings_have_the_specs_values_and_their_names_are_the_parity() -> None:
    names = {
        "policy.model": "model.path",
        "policy.turns": "+gem.turns",
        "algorithm.clip": ("clip_low", "+clip_high"),
    }
    assert copied(spec(), names) == {"model.path": "m", "clip_low": 0.2, "+clip_high": 0.2}
    assert copied(spec(policy={"turns": 5}), names)["+gem.turns"] == 5
    tables = ("name", "seed", "env", "eval", "policy", "sampling", "algorithm", "optimizer")
    how = {**dict.fromkeys((*tables, "training"), "itself"), **ALL_WEIGHTS, **names}
    found = {each.name: each.how for each in parity(spec(), how)}
    assert found["algorithm.clip"] == "clip_low, clip_high"
    assert found["policy.turns"] == "gem.turns"
    assert found["policy.lora_rank"] == "all weights"
    assert found["algorithm.gamma"] == "itself"


def test_a_table_is_copied_as_one_value_and_its_keys_are_in_the_parity() -> None:
    run = spec(policy={"template_kwargs": {"enable_thinking": False, "a": {"b": [1]}}})
    names = {"policy.template_kwargs": "+gem.template_kwargs"}
    assert copied(run, names) == {"+gem.template_kwargs": run.policy.template_kwargs}
    tables = ("name", "seed", "env", "eval", "policy", "sampling", "algorithm", "optimizer")
    how = {**dict.fromkeys((*tables, "training"), "itself"), **names}
    found = {each.name: each.how for each in parity(run, how)}
    assert found["policy.template_kwargs.enable_thinking"] == "gem.template_kwargs"
    assert found["policy.template_kwargs.a.b.0"] == "gem.template_kwargs"
    assert {k.name: k.how for k in parity(spec(), how)}["policy.template_kwargs"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (1e-3, "0.001"),
        ([0.9, "a b"], "[0.9,'a b']"),
        ("plain/word-1.0", "plain/word-1.0"),
        (Path("/a b"), "'/a b'"),
        ("", "''"),
        ("True", "'True'"),
        ("1", "'1'"),
        ("it's", r"'it\'s'"),
        ("a\\", r"'a\\'"),
        ("a\\b", r"'a\b'"),
        ("${x}", r"'\${x}'"),
        ({}, "{}"),
        ({"a": True, "b_2": {"c": ["x y"]}}, "{a:true,b_2:{c:['x y']}}"),
    ],
)
def test_values_are_written_in_hydras_grammar(value: Any, text: str) -> None:
    assert hydra_value(value) == text


@pytest.mark.parametrize("key", ["it's", "a:b", "é", "", "1", "null", "True"])
def test_keys_that_hydra_would_read_as_others_are_refused(key: str) -> None:
    with pytest.raises(ConfigurationError, match="Hydra cannot read a table with the key"):
        hydra_value({"a": {key: 1}})


def test_a_platform_adds_to_the_trainers_command(tmp_path: Path) -> None:
    machine = Platform(
        {"a": 1}, {"X": "machine"}, unset=["Y"], before=["serve", "--"], state=["server"]
    )
    local = spec(policy={"model": str(tmp_path)})
    made = Launch.of(local, ["train"], machine, {"X": "trainer", "Z": "1"}, state=["checkpoints"])
    assert made.argv == ["serve", "--", "train"]
    assert made.env == {"HF_HUB_OFFLINE": "1", "X": "machine", "Z": "1"}
    assert (made.unset, made.state) == (["Y"], ["checkpoints", "server"])
    assert Launch.from_json(made.to_json()) == made
    assert "HF_HUB_OFFLINE" not in Launch.of(spec(), ["train"], Platform()).env


def test_platforms_are_entry_points(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Entry:
        @staticmethod
        def load() -> Any:
            return lambda spec, run_dir, hardware, **known: Platform(
                {"dir": run_dir, "gpus": hardware.gpus, **known}
            )

    found = {("gem.platforms", "cpu.mine"): [Entry]}
    monkeypatch.setattr(platforms, "entry_points", lambda group, name: found.get((group, name), []))
    gpu = Platform({"mine": True})
    assert platforms.of("mine", spec(), tmp_path, Hardware(), gpu, form="head") is gpu
    made = platforms.of("mine", spec(), tmp_path, CPU, gpu, form="head")
    assert made.settings == {"dir": tmp_path, "gpus": 1, "form": "head"}
    with pytest.raises(ConfigurationError, match="pip install gem-cpu"):
        platforms.of("other", spec(), tmp_path, CPU, gpu)


def test_folders_come_before_those_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "mine")
    assert platforms.python_path("a", Path("b")) == {
        "PYTHONPATH": os.pathsep.join("ab") + os.pathsep + "mine"
    }
    monkeypatch.delenv("PYTHONPATH")
    assert platforms.python_path("a") == {"PYTHONPATH": "a"}


def test_runs_have_sockets_of_their_own(tmp_path: Path) -> None:
    one, other = platforms.socket_folder(tmp_path / "a"), platforms.socket_folder(tmp_path / "b")
    assert one != other and one == platforms.socket_folder(tmp_path / "a")
    assert len(Path(one).name) < 16
