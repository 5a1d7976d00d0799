"""RunSpecs as SkyRL's command, read by SkyRL's own parser and checks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import every_recipe, recipe_command
from machines import eight
from mixtures import MIXTURE

from gem.errors import ConfigurationError
from gem.tables import flatten
from gem_skyrl.launch import adapter
from gem_train.experiment.hardware import CPU, Hardware
from gem_train.experiment.runspec import RunSpec
from gem_train.experiment.tasksets import DatasetRow
from gem_train.launch import Launch

SPEC: dict[str, Any] = {
    "name": "a name",
    "seed": 5,
    "env": {"id": "game:GuessTheNumber-v0-easy", "params": {"prompt": "short"}, "seed": 50},
    "policy": {"model": "m", "prompt_tokens": 40, "response_tokens": 100, "turn_tokens": 8},
    "sampling": {"temperature": 0.5, "top_p": 0.75, "top_k": 7},
    "algorithm": {"advantage": "rebn", "gamma": 0.875, "lam": 0.75, "clip": 0.125, "epochs": 3},
    "optimizer": {"lr": 0.25, "beta1": 0.5, "beta2": 0.75, "weight_decay": 0.5, "grad_clip": 2.0},
    "training": {"iterations": 3, "tasks": 4, "group_size": 6, "precision": "bf16"},
}


def spec(**tables: dict[str, Any]) -> RunSpec:
    changed = {name: {**SPEC.get(name, {}), **table} for name, table in tables.items()}
    return RunSpec.from_mapping({**SPEC, **changed})


def parsed(world: Any, launch: Launch) -> Any:
    assert launch.argv[:3] == ["python", "-m", "skyrl.train.entrypoints.main_base"]
    return world.parse(launch.argv[3:])


def compiled(folder: Path, hardware: Hardware = CPU, **tables: dict[str, Any]) -> Launch:
    return adapter.compile(spec(**tables), run_dir=folder, hardware=hardware)


@pytest.mark.parametrize("cpu", [True, False])
@pytest.mark.parametrize("name", ["rebn", "grpo", "gae"])
def test_skyrl_understands_every_setting(name: str, cpu: bool, world: Any, tmp_path: Path) -> None:
    algorithm = {"advantage": name, "kl_coef": 0.5, "kl_in": "reward", "minibatches": 2}
    machine = CPU if cpu else Hardware()
    config = parsed(world, compiled(tmp_path, machine, algorithm=algorithm))
    trainer, sampling = config.trainer, config.generator.sampling_params
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.75, 7)
    assert trainer.algorithm.temperature == 0.5
    assert (trainer.algorithm.gamma, trainer.algorithm.lambd) == (0.875, 0.75)
    assert (trainer.algorithm.eps_clip_low, trainer.algorithm.eps_clip_high) == (0.125, 0.125)
    assert trainer.algorithm.use_kl_in_reward and not trainer.algorithm.use_kl_loss
    assert trainer.algorithm.kl_loss_coef == 0.5
    optimizer = trainer.policy.optimizer_config
    assert (optimizer.lr, optimizer.adam_betas, optimizer.max_grad_norm) == (0.25, [0.5, 0.75], 2.0)
    assert (optimizer.scheduler, optimizer.weight_decay) == ("constant", 0.5)
    assert trainer.update_epochs_per_batch == 3
    assert (trainer.train_batch_size, trainer.policy_mini_batch_size) == (4, 2)
    assert config.generator.n_samples_per_prompt == 6
    assert bool(trainer.critic.model.path) == (name == "gae")
    assert trainer.placement.colocate_all is not cpu
    assert config.gem["advantage"] == name


@every_recipe
def test_skyrl_takes_every_recipe(
    recipe: Path, machine: str, world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEARCH_URL", "http://127.0.0.1:9/retrieve")
    parsed(world, recipe_command("skyrl", recipe, machine, tmp_path))


@pytest.mark.parametrize("env", [SPEC["env"], MIXTURE], ids=["one", "several"])
def test_the_dataset_is_the_specs_tasks_in_order(env: Any, tmp_path: Path) -> None:
    from gem_skyrl.dataset import TaskDataset

    asked = RunSpec.from_mapping({**SPEC, "env": env})
    launch = adapter.compile(asked, run_dir=tmp_path, hardware=CPU)
    tmp_path.joinpath("train.jsonl").write_text(launch.files["train.jsonl"])
    data = TaskDataset([str(tmp_path / "train.jsonl")])
    wanted = [task for k in range(3) for task in asked.train_tasks(k)]
    assert [row.task for row in data.rows] == wanted
    assert data[1]["env_extras"] == {"gem": data.rows[1].encode()}


def test_evaluations_are_rows_with_names_and_temperatures(world: Any, tmp_path: Path) -> None:
    part = {"id": "game:GuessTheNumber-v0", "episodes": 2}
    evals = [
        {**part, "name": "a", "every": 4, "temperature": 0.0},
        {**part, "name": "b", "every": 6, "temperature": 0.5},
    ]
    asked = RunSpec.from_mapping({**SPEC, "eval": evals})
    launch = adapter.compile(asked, run_dir=tmp_path, hardware=CPU)
    config = parsed(world, launch)
    assert config.trainer.eval_interval == 2 and config.trainer.eval_before_train
    lines = launch.files["eval.jsonl"].splitlines()
    known = [DatasetRow.decode(json.loads(line)["gem"]) for line in lines]
    assert [(r.evaluation, r.sampling and r.sampling.temperature) for r in known] == [
        ("a", 0.0)
    ] * 2 + [("b", 0.5)] * 2
    status = {each.name: each.status for each in launch.parity}
    assert status["eval.0.every"] == "emulated"


def test_every_setting_has_a_parity_row(tmp_path: Path) -> None:
    asked = spec(algorithm={"advantage": "gae"})
    names = [each.name for each in adapter.compile(asked, run_dir=tmp_path, hardware=CPU).parity]
    assert set(flatten(asked.to_mapping())) <= set(names)
    assert len(names) == len(set(names))


@pytest.mark.parametrize(("cpu", "status"), [(True, "matched"), (False, "unmatched")])
def test_full_precision_is_not_claimed_on_a_gpu(
    cpu: bool, status: str, world: Any, tmp_path: Path
) -> None:
    machine = CPU if cpu else Hardware()
    launch = compiled(tmp_path, machine, training={"precision": "fp32"})
    assert {k.name: k.status for k in launch.parity}["training.precision"] == status
    config = parsed(world, launch)
    assert config.generator.inference_engine.model_dtype == "float32"
    assert config.trainer.policy.fsdp_config.mixed_precision.param_dtype == "fp32"


@pytest.mark.parametrize(
    ("algorithm", "name", "limits"),
    [
        ({"clip_high": 0.5}, "regular", (0.125, 0.5)),
        ({"dual_clip": 2.5}, "dual_clip", (0.125, 0.125)),
        ({"ratio": "sequence"}, "gspo", (0.125, 0.125)),
        ({"loss": "cispo", "clip": 0.2, "clip_high": 0.5}, "cispo", (1.0, 0.5)),
    ],
)
def test_the_loss_is_skyrls(
    algorithm: dict[str, Any], name: str, limits: Any, world: Any, tmp_path: Path
) -> None:
    found = parsed(world, compiled(tmp_path, algorithm=algorithm)).trainer.algorithm
    assert found.policy_loss_type == name
    if name == "cispo":
        assert (found.cispo.cispo_eps_clip_low, found.cispo.cispo_eps_clip_high) == limits
    else:
        assert (found.eps_clip_low, found.eps_clip_high) == limits
    if name == "dual_clip":
        assert found.clip_ratio_c == 2.5


def test_skyrls_weights_are_truncated_ratios_of_each_token(world: Any, tmp_path: Path) -> None:
    """What `gem_train.experiment.losses.importance_weights` computes."""
    import torch
    from skyrl.backends.skyrl_train.utils.ppo_utils import PolicyLossRegistry

    plain = {"temperature": 1.0, "top_p": 1.0, "top_k": -1}
    launch = compiled(tmp_path, algorithm={"tis_clip": 2.5}, sampling=plain)
    algorithm = parsed(world, launch).trainer.algorithm
    old = torch.tensor([[-3.0, -1.0, -0.5, -2.0], [-0.1, -4.0, -1.0, -9.0]])
    sampler = torch.tensor([[-1.0, -3.0, -0.5, -2.5], [-0.1, -0.5, -5.0, -1.0]])
    mask = torch.tensor([[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 0.0]])
    advantages = torch.tensor([[1.0, -2.0, 3.0, 0.5], [-1.0, 2.0, 0.25, 7.0]])
    loss = PolicyLossRegistry.get("regular")
    found, _ = loss(old, old, advantages, algorithm, loss_mask=mask, rollout_logprobs=sampler)
    weights = (old - sampler).exp().clamp(max=2.5)
    torch.testing.assert_close(found, -(advantages * weights * mask).sum())


@pytest.mark.parametrize(
    ("sampling", "mode", "same"),
    [
        ({"temperature": 1.0, "top_p": 0.75, "top_k": 7}, None, True),
        ({"temperature": 0.5, "top_p": 1.0, "top_k": -1}, "processed_logprobs", True),
        ({"temperature": 0.5, "top_p": 0.75, "top_k": 7}, None, False),
    ],
)
def test_log_probabilities_are_compared_where_they_are_of_one_distribution(
    sampling: dict[str, Any], mode: str | None, same: bool, world: Any, tmp_path: Path
) -> None:
    from gem_skyrl.settings import comparable

    config = parsed(world, compiled(tmp_path, sampling=sampling))
    engine = dict(config.generator.inference_engine.engine_init_kwargs)
    assert engine.get("logprobs_mode") == mode
    assert comparable(config) is same


@pytest.mark.parametrize(
    ("tables", "key"),
    [
        ({"policy": {"lora_rank": 8}}, "policy.lora_rank"),
        ({"policy": {"context": "concat"}, "algorithm": {"advantage": "gae"}}, "advantage"),
        ({"algorithm": {"loss_aggregation": "turn-mean"}}, "algorithm.loss_aggregation"),
        ({"algorithm": {"minibatches": 3}}, "algorithm.minibatches"),
        ({"algorithm": {"tis_clip": 2.0}}, "algorithm.tis_clip"),
        ({"optimizer": {"eps": 1e-5}}, "optimizer.eps"),
        ({"optimizer": {"min_lr_ratio": 0.1, "schedule": "cosine"}}, "optimizer.min_lr_ratio"),
        ({"training": {"staleness": 1}}, "training.staleness"),
    ],
)
def test_what_skyrl_cannot_do_is_refused(tables: dict[str, Any], key: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=key):
        compiled(tmp_path, **tables)


@pytest.mark.parametrize("name", ["rebn", "gae"])
def test_hardware_reaches_skyrl(name: str, world: Any, tmp_path: Path) -> None:
    native = {"skyrl": {"trainer.max_ckpts_to_keep": 2}}
    machine = eight(native, engine={"tensor_parallel": 2})
    algorithm = {"advantage": name, "kl_coef": 0.5, "kl_in": "reward"}
    launch = compiled(tmp_path, machine, algorithm=algorithm)
    config = parsed(world, launch)
    trainer, engine = config.trainer, config.generator.inference_engine
    place = trainer.placement
    assert place.policy_num_gpus_per_node == place.ref_num_gpus_per_node == 8
    assert (engine.num_engines, engine.tensor_parallel_size) == (4, 2)
    assert engine.gpu_memory_utilization == 0.35
    assert not trainer.flash_attn and not trainer.remove_microbatch_padding
    assert not trainer.gradient_checkpointing
    # 24 episodes, eight ranks: three a rank, and a forward pass of 4,096 tokens holds them.
    assert trainer.micro_train_batch_size_per_gpu == trainer.micro_forward_batch_size_per_gpu == 3
    assert (trainer.ckpt_interval, trainer.max_ckpts_to_keep) == (7, 2)
    assert (trainer.logger, config.gem["executor"]) == ("wandb", "process:8")
    # What a run goes on from is cleared before another one starts.
    assert Path(trainer.ckpt_path).relative_to(tmp_path).name in launch.state
    assert {e.name: e.status for e in launch.parity}["trainer.max_ckpts_to_keep"] == "native"


def test_packed_rows_fill_forward_passes(world: Any, tmp_path: Path) -> None:
    learner = {"attention": "flash_attention_2", "pass_tokens": 4096}
    trainer = parsed(world, compiled(tmp_path, eight(learner=learner))).trainer
    assert trainer.flash_attn and trainer.remove_microbatch_padding
    assert trainer.max_tokens_per_microbatch == 4096


def test_a_row_is_shared_with_flash_attention_only(world: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="divides rows with flash attention only"):
        compiled(tmp_path, eight(learner={"sequence_parallel": 2}))
    learner = {"sequence_parallel": 2, "attention": "flash_attention_2"}
    trainer = parsed(world, compiled(tmp_path, eight(learner=learner))).trainer
    assert trainer.policy.sequence_parallel_size == 2


def test_a_reference_to_another_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="would take '\\${' for a reference"):
        compiled(tmp_path, policy={"system_prompt": "${trainer.seed}"})
