"""The command for a RunSpec: what reaches a direct run, and what is refused."""

from __future__ import annotations

import argparse
import runpy
from pathlib import Path
from typing import Any

import pytest
from commands import EXAMPLES, every_recipe, recipe_command
from machines import eight
from mixtures import MIXTURE

from gem.errors import ConfigurationError, UnsupportedVersionError
from gem.tables import flatten
from gem_tinker import launch
from gem_tinker.settings import Config, read
from gem_train.experiment.hardware import CPU, Hardware
from gem_train.experiment.runspec import RunSpec
from gem_train.experiment.tasksets import EvalSampling
from gem_train.launch import Launch, find_adapter

SPEC: dict[str, Any] = {
    "name": "test",
    "seed": 3,
    "env": {"id": "game:GuessTheNumber-v0-easy", "params": {"hint": "range"}, "seed": 100},
    "policy": {
        "model": "some/model",
        "prompt_tokens": 96,
        "response_tokens": 200,
        "turn_tokens": 16,
        "lora_rank": 8,
    },
    "algorithm": {"advantage": "grpo", "gamma": 0.9, "clip": 0.3, "epochs": 2},
    "optimizer": {"lr": 1e-3, "beta2": 0.99, "eps": 1e-7, "weight_decay": 0.1, "grad_clip": 0.5},
    "training": {"iterations": 5, "tasks": 8, "group_size": 4, "max_failed_fraction": 0.25},
}


def spec(**tables: Any) -> RunSpec:
    data = {key: dict(value) if isinstance(value, dict) else value for key, value in SPEC.items()}
    for table, values in tables.items():
        data[table] = {**data.get(table, {}), **values} if isinstance(values, dict) else values
    return RunSpec.from_mapping(data)


def compiled(run: RunSpec, *, cpu: bool = False) -> Launch:
    return find_adapter("tinker").compile(
        run, run_dir=Path("/runs/a b"), hardware=CPU if cpu else Hardware()
    )


def config(made: Launch) -> Config:
    """What the direct run makes of its command line."""
    start = made.argv.index("gem_tinker.train")
    assert made.argv[start - 2 : start] == ["python", "-m"]
    return read(made.argv[start + 1 :])


def test_what_the_chat_template_is_told_reaches_the_run() -> None:
    told = {"enable_thinking": False, "effort": "it's low"}
    run = config(compiled(spec(policy={"template_kwargs": told, "thinking": "drop"})))
    assert (run.template_kwargs, run.thinking) == (told, "drop")


def test_every_setting_reaches_the_run() -> None:
    run = config(
        compiled(spec(policy={"turns": 3, "system_prompt": "be brief", "context": "concat"}))
    )
    assert (run.model, run.lora_rank, run.seed, run.lora_seed) == ("some/model", 8, 3, 3)
    assert (run.turns, run.system_prompt, run.context) == (3, "be brief", "concat")
    assert (run.advantage, run.gamma, run.clip, run.epochs) == ("grpo", 0.9, 0.3, 2)
    assert (run.lr, run.beta2, run.eps, run.weight_decay, run.grad_clip) == (
        *(1e-3, 0.99, 1e-7, 0.1, 0.5),
    )
    assert run.record_dir == "/runs/a b"
    assert run.max_failed_fraction == 0.25
    limits = run.limits(run.prompt_tokens, run.response_tokens)
    assert limits == spec(policy={"turns": 3}).budget


@every_recipe
def test_a_direct_run_takes_every_recipe(recipe: Path, machine: str, tmp_path: Path) -> None:
    assert config(recipe_command("tinker", recipe, machine, tmp_path)).iterations == 2


def test_a_direct_run_takes_the_example() -> None:
    example = runpy.run_path(str(EXAMPLES["tinker"]))
    asked = argparse.Namespace(model="some/model", iterations=3, cpu=False)
    assert example["settings"](asked).iterations == 3


@pytest.mark.parametrize("env", [SPEC["env"], MIXTURE], ids=["one", "several"])
def test_iterations_play_the_tasks_of_the_spec(env: Any) -> None:
    wanted = RunSpec.from_mapping({**SPEC, "env": env})
    run = config(compiled(wanted))
    tasks = run.train_tasks()
    for iteration in range(5):
        assert tasks[iteration * 8 : (iteration + 1) * 8] == wanted.train_tasks(iteration)


def test_evaluations_keep_name_tasks_and_temperature() -> None:
    part = {"name": "other game", "id": "game:Mastermind-v0-easy", "episodes": 9, "every": 4}
    more = {"name": "same", "id": "game:GuessTheNumber-v0", "every": 6, "temperature": 0.0}
    made = compiled(spec(eval=[part, more]))
    run = config(made)
    assert run.eval_every == 2
    first, second = run.sources()
    assert (first.name, len(first.tasks), first.sampling) == ("other game", 9, EvalSampling())
    assert (second.name, second.sampling) == ("same", EvalSampling(temperature=0.0))
    assert {k.status for k in made.parity if k.name.endswith(".every")} == {"emulated"}


def test_without_a_gpu_the_run_gets_a_server_of_its_own() -> None:
    made = compiled(spec(), cpu=True)
    assert made.argv[:3] == ["python", "-m", "gem_cpu.tinker_server"]
    options = made.argv[3 : made.argv.index("--")]
    pairs = dict(zip(options[::2], options[1::2], strict=True))
    assert pairs["--model"] == "some/model"
    assert pairs["--max-rank"] == "8"
    assert pairs["--sequences"] == "32"
    assert int(pairs["--bucket"]) >= 296
    assert {"TINKER_BASE_URL", "TINKER_API_KEY"} <= set(made.unset)
    assert config(made).logprob_tolerance is not None


@pytest.mark.parametrize("cpu", [False, True])
def test_parity_speaks_of_every_setting(cpu: bool) -> None:
    run = spec(eval=[{"name": "same", "id": "game:GuessTheNumber-v0"}])
    parity = {each.name: each for each in compiled(run, cpu=cpu).parity}
    assert set(flatten(run.to_mapping())) <= set(parity)
    assert all(each.how for each in parity.values())
    assert parity["seed"].status == "emulated"
    assert parity["policy.lora_init"].status == "unmatched"
    assert parity["optimizer.grad_clip"].status == ("matched" if cpu else "emulated")


ADAM = {"beta1", "beta2", "eps", "weight_decay", "grad_clip"}


@pytest.mark.parametrize(
    ("server", "status", "ignored"),
    [
        (None, "emulated", ADAM),
        ("hosted", "unmatched", set()),
        ("skyrl_train", "unmatched", ADAM),
        ("skyrl_jax", "unmatched", {"grad_clip"}),
    ],
)
def test_parity_says_what_a_server_ignores_of_the_optimiser(
    server: str | None, status: str, ignored: set[str]
) -> None:
    hardware = Hardware(native={"tinker": {"server": server} if server else {}})
    made = find_adapter("tinker").compile(spec(), run_dir=Path("/runs/x"), hardware=hardware)
    assert config(made).server == (server or "auto")
    optimizer = [each for each in made.parity if each.name.startswith("optimizer.")]
    found = {each.name: each.status for each in optimizer if each.status != "matched"}
    assert found == {f"optimizer.{name}": status for name in ignored}


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"policy": {"lora_rank": 0}}, "policy.lora_rank: .* never all weights"),
        ({"policy": {"lora_alpha": 16.0}}, "policy.lora_alpha"),
        ({"policy": {"lora_init": "some/folder"}}, "policy.lora_init"),
        ({"algorithm": {"advantage": "gae"}}, "algorithm.advantage: .* value head"),
        ({"algorithm": {"kl_coef": 0.1}}, "algorithm.kl_coef"),
        ({"algorithm": {"entropy_coef": 0.1}}, "algorithm.entropy_coef"),
        ({"algorithm": {"tis_clip": 2.0}}, "algorithm.tis_clip: .* no such weight"),
        ({"sampling": {"temperature": 0.8}}, "sampling.temperature"),
        ({"eval": [{"name": "a", "id": "x"}, {"name": "a", "id": "y"}]}, "two evaluations"),
    ],
)
def test_what_a_server_cannot_do_is_refused_by_name(tables: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        compiled(spec(**tables))


def test_greedy_decoding_is_matched() -> None:
    made = compiled(spec(sampling={"top_k": 1}), cpu=True)
    assert config(made).top_k == 1
    assert {k.name: k.status for k in made.parity}["seed"] == "matched"


def test_an_unsupported_sdk_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gem_train.doctor.version", lambda name: "0.25.0")
    with pytest.raises(UnsupportedVersionError, match=r"tinker 0\.25\.0 .* >=0\.38,<0\.40"):
        launch.adapter.compile(spec(), run_dir=Path("/x"), hardware=Hardware())


def test_hardware_is_the_servers_but_for_the_checkpoints() -> None:
    machine = eight({"tinker": {"sample_retries": 5}})
    made = find_adapter("tinker").compile(spec(), run_dir=Path("/runs/x"), hardware=machine)
    config = read(made.argv[3:])
    assert (config.save_every, config.sample_retries) == (7, 5)
    status = {each.name: each.status for each in made.parity}
    assert status["hardware.checkpoint_every"] == "matched"
    assert status["hardware.gpus_per_node"] == status["hardware.learner.offload"] == "unmatched"
    assert status["sample_retries"] == "native"
