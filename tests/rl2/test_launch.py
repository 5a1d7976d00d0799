"""RunSpecs as RL2's command, read by Hydra with RL2's own configuration files."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from commands import EXAMPLES, GPUS, every_recipe, example, on_gpus, recipe_command
from machines import eight
from mixtures import MIXTURE
from omegaconf import OmegaConf

from gem.errors import ConfigurationError
from gem.tables import flatten
from gem_rl2.dataset import read
from gem_rl2.launch import adapter
from gem_rl2.settings import Keys, Settings, budget, check
from gem_train.experiment.hardware import CPU, Hardware
from gem_train.experiment.runspec import RunSpec

SPEC: dict[str, Any] = {
    "name": "a name",
    "seed": 5,
    "env": {"id": "game:GuessTheNumber-v0-easy", "params": {"prompt": "short"}, "seed": 50},
    "policy": {"model": "m", "prompt_tokens": 40, "response_tokens": 100, "turn_tokens": 8},
    "sampling": {"temperature": 0.5, "top_p": 0.75, "top_k": 7},
    "algorithm": {"advantage": "rebn", "gamma": 0.875, "lam": 0.75, "clip": 0.125},
    "optimizer": {"lr": 0.25, "beta1": 0.5, "beta2": 0.75, "eps": 0.125, "grad_clip": 2.0},
    "training": {
        "iterations": 3,
        "tasks": 4,
        "group_size": 6,
        "precision": "fp32",
        "max_failed_fraction": 0.25,
    },
}


def spec(**tables: dict[str, Any]) -> RunSpec:
    changed = {name: {**SPEC.get(name, {}), **table} for name, table in tables.items()}
    return RunSpec.from_mapping({**SPEC, **changed})


def configured(argv: list[str], world: Any) -> Any:
    from hydra import compose, initialize_config_dir

    folder = world.RL2.folder / "trainer" / "config"
    overrides = [word for word in argv if "=" in word and not word.startswith("hydra.")]
    with initialize_config_dir(config_dir=str(folder), version_base=None):
        found = compose(config_name="ppo", overrides=overrides)
    OmegaConf.resolve(found)
    return OmegaConf.to_container(found)


@pytest.mark.parametrize("cpu", [True, False])
@pytest.mark.parametrize("name", ["rebn", "grpo", "gae"])
def test_rl2_understands_every_key(name: str, cpu: bool, world: Any, tmp_path: Path) -> None:
    asked = spec(algorithm={"advantage": name, "kl_coef": 0.5, "minibatches": 2, "epochs": 3})
    launch = adapter.compile(asked, run_dir=tmp_path, hardware=CPU if cpu else Hardware())
    assert launch.argv[0] == "torchrun"
    assert launch.argv[launch.argv.index("-m") + 1] == "RL2.trainer.ppo"
    config = configured(launch.argv, world)
    keys = Keys.read(config)
    settings = Settings.from_mapping(config["gem"])
    check(settings, keys)
    limits = budget(settings, keys)
    assert (limits.prompt_tokens, limits.response_tokens, limits.turn_tokens) == (40, 100, 8)
    assert (keys.tasks, keys.group_size, keys.minibatches, settings.epochs) == (4, 6, 6, 3)
    assert (keys.gamma, keys.lam, keys.kl_coef, keys.kl_type) == (0.875, 0.75, 0.5, "loss")
    assert settings.max_failed_fraction == 0.25
    assert not keys.dynamic_filtering
    actor = config["actor"]
    if name == "gae":
        assert config["critic"]["max_grad_norm"] == 4.0
    # The second is that of the metric, wherever the penalty is.
    assert (actor["kl"]["loss_estimator"], actor["kl"]["reward_estimator"]) == ("k3", "k3")
    assert (actor["clip"], actor["avg_level"], actor["max_grad_norm"]) == (0.125, "token", 2.0)
    assert actor["temperature"] == 0.5
    assert (actor["lr"], actor["weight_decay"]) == (0.25, 0.0)
    assert settings.adam == {"adam_beta1": 0.5, "adam_beta2": 0.75, "adam_eps": 0.125}
    sampling = config["rollout"]["train_sampling_params"]
    assert (sampling["temperature"], sampling["top_p"], sampling["top_k"]) == (0.5, 0.75, 7)
    server = config["rollout"]["server_args"]
    assert (server["dtype"], server["random_seed"]) == ("float32", 5)
    assert (server.get("device") == "cpu") == cpu


def accepted(config: Any, gpus: int) -> bool:
    """Let this package, and RL2's and SGLang's own rules, examine a configuration."""
    from sglang.srt.server_args import ServerArgs

    keys = Keys.read(config)
    check(Settings.from_mapping(config["gem"]), keys)
    server = config["rollout"]["server_args"]
    assert set(server) <= {field.name for field in fields(ServerArgs)}
    assert gpus % server["tp_size"] == 0
    return True


@every_recipe
def test_rl2_takes_every_recipe(
    recipe: Path, machine: str, world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The first prompt, which a row holds, says what tools there are.
    monkeypatch.setenv("SEARCH_URL", "http://127.0.0.1:9/retrieve")
    launch = recipe_command("rl2", recipe, machine, tmp_path)
    assert accepted(configured(launch.argv, world), GPUS[machine])


@on_gpus
def test_rl2_takes_the_example(gpus: int, world: Any, tmp_path: Path) -> None:
    command = example(EXAMPLES["rl2"], "torchrun", gpus, tmp_path)
    assert command[:4] == ["torchrun", "--standalone", "--nproc-per-node", str(gpus)]
    assert accepted(configured(command, world), gpus)


def test_a_correction_is_rl2s_where_that_is_the_same(world: Any, tmp_path: Path) -> None:
    for clip, wanted in ((2.5, 2.5), (None, 0.0)):
        asked = spec(algorithm={"tis_clip": clip}, sampling={"top_p": 1.0, "top_k": -1})
        launch = adapter.compile(asked, run_dir=tmp_path, hardware=CPU)
        assert configured(launch.argv, world)["actor"]["tis_coef"] == wanted


def test_a_text_with_quotes_survives_hydra(world: Any, tmp_path: Path) -> None:
    said = "say \"hi\", it's {easy}: [1, 2] = a\\b \\' ${name} $HOME\n\\"
    launch = adapter.compile(spec(policy={"system_prompt": said}), run_dir=tmp_path, hardware=CPU)
    assert configured(launch.argv, world)["gem"]["system_prompt"] == said


def test_what_the_chat_template_is_told_survives_hydra(world: Any, tmp_path: Path) -> None:
    told = {"enable_thinking": False, "effort": "it's low", "tools": ["a", {"b": None}]}
    policy = {"template_kwargs": told, "thinking": "drop"}
    launch = adapter.compile(spec(policy=policy), run_dir=tmp_path, hardware=CPU)
    gem = configured(launch.argv, world)["gem"]
    assert (gem["template_kwargs"], gem["thinking"]) == (told, "drop")


@pytest.mark.parametrize("env", [SPEC["env"], MIXTURE], ids=["one", "several"])
def test_the_rows_are_the_specs_tasks_in_order(env: Any, tmp_path: Path) -> None:
    asked = RunSpec.from_mapping({**SPEC, "env": env})
    lines = adapter.compile(asked, run_dir=tmp_path, hardware=CPU).files["train.jsonl"].splitlines()
    tasks = [read(json.loads(line)).task for line in lines]
    assert tasks == [task for k in range(3) for task in asked.train_tasks(k)]


def test_evaluations_are_rows_with_names_and_temperatures(world: Any, tmp_path: Path) -> None:
    part = {"id": "game:GuessTheNumber-v0", "episodes": 2}
    evals = [
        {**part, "name": "a", "every": 4, "temperature": 0.0},
        {**part, "name": "b", "every": 6, "temperature": 0.5},
    ]
    asked = RunSpec.from_mapping({**SPEC, "eval": evals})
    launch = adapter.compile(asked, run_dir=tmp_path, hardware=CPU)
    assert configured(launch.argv, world)["trainer"]["test_freq"] == 2
    rows = [read(json.loads(line)) for line in launch.files["eval.jsonl"].splitlines()]
    known = [(row.evaluation, row.sampling and row.sampling.temperature) for row in rows]
    assert known == [("a", 0.0)] * 2 + [("b", 0.5)] * 2
    parity = {each.name: each for each in launch.parity}
    assert parity["eval.0.every"].status == "emulated"
    assert parity["eval.0.every"].how.endswith("every 2 iterations, but not at the end")


def test_one_evaluation_that_divides_the_run_is_matched(tmp_path: Path) -> None:
    part = {"id": "game:GuessTheNumber-v0", "episodes": 2, "name": "a", "every": 3}
    asked = RunSpec.from_mapping({**SPEC, "eval": [part]})
    launch = adapter.compile(asked, run_dir=tmp_path, hardware=CPU)
    assert "+gem.evaluate_from=0" in launch.argv
    assert {each.name: each.status for each in launch.parity}["eval.0.every"] == "matched"


def test_without_evaluation_none_is_made(world: Any, tmp_path: Path) -> None:
    launch = adapter.compile(spec(), run_dir=tmp_path, hardware=CPU)
    assert configured(launch.argv, world)["trainer"]["test_freq"] is None


def test_every_setting_has_a_parity_row(tmp_path: Path) -> None:
    asked = spec(algorithm={"advantage": "gae"})
    names = [each.name for each in adapter.compile(asked, run_dir=tmp_path, hardware=CPU).parity]
    assert set(flatten(asked.to_mapping())) <= set(names)
    assert len(names) == len(set(names))


def test_precision_is_claimed_as_far_as_it_holds(tmp_path: Path) -> None:
    for cpu in (True, False):
        launch = adapter.compile(spec(), run_dir=tmp_path, hardware=CPU if cpu else Hardware())
        status = {k.name: k.status for k in launch.parity}["training.precision"]
        assert status == ("emulated" if cpu else "unmatched")
        assert launch.env.get("GEM_CPU_DTYPE") == ("float32" if cpu else None)


def test_a_forward_pass_is_limited_by_its_logits(world: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 1000000}')
    asked = spec(policy={"model": str(tmp_path)})
    config = configured(adapter.compile(asked, run_dir=tmp_path, hardware=CPU).argv, world)
    assert config["actor"]["max_length_per_device"] == 268
    config = configured(adapter.compile(spec(), run_dir=tmp_path, hardware=CPU).argv, world)
    assert config["actor"]["max_length_per_device"] == 2048


@pytest.mark.parametrize(
    ("tables", "key"),
    [
        ({"algorithm": {"loss_aggregation": "row-mean-token-sum"}}, "algorithm.loss_aggregation"),
        ({"algorithm": {"clip_high": 0.3}}, "algorithm.clip_high"),
        ({"algorithm": {"ratio": "sequence"}}, "algorithm.ratio"),
        ({"algorithm": {"minibatches": 5}}, "algorithm.minibatches"),
        (
            {"algorithm": {"minibatches": 2}, "policy": {"context": "concat"}},
            "divides rows, not episodes",
        ),
        ({"policy": {"lora_rank": 8}}, "policy.lora_rank"),
        ({"algorithm": {"tis_clip": 2}}, "algorithm.tis_clip"),
        (
            {"algorithm": {"tis_clip": 2, "epochs": 2}, "sampling": {"top_p": 1.0, "top_k": -1}},
            "algorithm.tis_clip: .* one optimiser step",
        ),
    ],
)
def test_what_rl2_cannot_do_is_refused(tables: dict[str, Any], key: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=key):
        adapter.compile(spec(**tables), run_dir=tmp_path, hardware=CPU)


@pytest.mark.parametrize("name", ["rebn", "gae"])
def test_hardware_reaches_rl2(name: str, world: Any, tmp_path: Path) -> None:
    machine = eight(
        {"rl2": {"actor.ddp_size": 2}},
        engine={"tensor_parallel": 2},
        learner={"tensor_parallel": 2, "sequence_parallel": 2, "checkpointing": True},
    )
    asked = spec(algorithm={"advantage": name})
    launch = adapter.compile(asked, run_dir=tmp_path, hardware=machine)
    assert launch.argv[:4] == ["torchrun", "--standalone", "--nproc-per-node", "8"]
    config = configured(launch.argv, world)
    keys = Keys.read(config)
    check(Settings.from_mapping(config["gem"]), keys)
    for part in ("actor", "critic") if name == "gae" else ("actor",):
        assert (config[part]["tp_size"], config[part]["sp_size"]) == (2, 2)
        # Not more than a batch, and at least an episode on four GPUs.
        assert config[part]["max_length_per_device"] == min(4096, 24 * 140)
    assert keys.longest >= 140
    server = config["rollout"]["server_args"]
    assert (server["tp_size"], server["mem_fraction_static"]) == (2, 0.35)
    assert (config["trainer"]["save_freq"], config["trainer"]["use_wandb"]) == (7, True)
    assert (config["trainer"]["load_ckpt_from"], launch.state) == ("latest", ["model"])
    assert config["actor"]["offload_optimizer"] and config["actor"]["ddp_size"] == 2
    assert "WANDB_MODE" not in launch.env
