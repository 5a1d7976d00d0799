"""What adapters share to make a launch: platforms and Hydra's grammar."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from gem.errors import ConfigurationError
from gem_train import platforms
from gem_train.experiment.hardware import CPU, Hardware
from gem_train.experiment.runspec import RunSpec
from gem_train.hydra import hydra_value
from gem_train.launch import Launch, executor_variable
from gem_train.platforms import Platform

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


def test_a_program_is_told_where_environments_run() -> None:
    elsewhere = Hardware.from_mapping({"executor": "process:8"})
    assert executor_variable(elsewhere) == {"GEM_EXECUTOR": "process:8"}
    assert executor_variable(Hardware()) == {}


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
        ("\\${x}", r"'\\\${x}'"),
        ("\\\\${x}", r"'\\\\\${x}'"),
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
        value = "mine:platform"

        @staticmethod
        def load() -> Any:
            return lambda spec, run_dir, hardware, **known: Platform(
                {"dir": run_dir, "gpus": hardware.gpus, **known}
            )

    found = {("gem.platforms", "cpu.mine"): [Entry]}
    monkeypatch.setattr(
        "gem.plugins.entry_points", lambda group, name: found.get((group, name), [])
    )
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
