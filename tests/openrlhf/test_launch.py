"""RunSpecs as OpenRLHF's command, read by OpenRLHF's own parser."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import EXAMPLES, every_recipe, example, on_gpus, recipe_command
from machines import eight
from mixtures import MIXTURE

from gem.errors import ConfigurationError
from gem.tables import flatten
from gem_openrlhf.launch import adapter
from gem_train.experiment.hardware import CPU, Hardware
from gem_train.experiment.losses import Correction, importance_weights
from gem_train.experiment.runspec import RunSpec
from gem_train.experiment.tasksets import DatasetRow

SPEC: dict[str, Any] = {
    "name": "a name",
    "seed": 5,
    "env": {"id": "game:GuessTheNumber-v0-easy", "params": {"prompt": "short"}, "seed": 50},
    "policy": {"model": "m", "prompt_tokens": 40, "response_tokens": 100, "turn_tokens": 8},
    "sampling": {"temperature": 0.5, "top_p": 0.75, "top_k": 7},
    "algorithm": {"advantage": "rebn", "gamma": 0.875, "lam": 0.75, "clip": 0.125, "epochs": 3},
    "optimizer": {"lr": 0.25, "beta1": 0.5, "beta2": 0.75, "eps": 0.125, "grad_clip": 2.0},
    "training": {"iterations": 3, "tasks": 4, "group_size": 6, "precision": "bf16"},
}


def spec(**tables: dict[str, Any]) -> RunSpec:
    changed = {name: {**SPEC.get(name, {}), **table} for name, table in tables.items()}
    return RunSpec.from_mapping({**SPEC, **changed})


def settings_of(source: str, folder: Path) -> Any:
    folder.joinpath("agent.py").write_text(source)
    found = importlib.util.spec_from_file_location("agent", folder / "agent.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module.AgentExecutor.settings


@pytest.mark.parametrize("cpu", [True, False])
@pytest.mark.parametrize("name", ["rebn", "grpo", "gae"])
def test_openrlhf_understands_every_flag(
    name: str, cpu: bool, world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gem_openrlhf.settings import check_flags

    asked = spec(algorithm={"advantage": name, "kl_coef": 0.5, "minibatches": 2})
    launch = adapter.compile(asked, run_dir=tmp_path, hardware=CPU if cpu else Hardware())
    assert launch.argv[:3] == ["python", "-m", "openrlhf.cli.train_ppo_ray"]
    args = world.parse(launch.argv[3:])
    check_flags(args, settings_of(launch.files["agent.py"], tmp_path))
    assert args.rollout.temperature == 0.5
    assert args.rollout.top_p == 0.75
    assert args.algo.advantage.gamma == 0.875
    assert args.algo.advantage.lambd == 0.75
    assert args.actor.eps_clip_low_high == [0.125, 0.125]
    assert args.actor.adam.betas == [0.5, 0.75]
    assert (args.actor.adam.lr, args.actor.adam.eps, args.actor.max_norm) == (0.25, 0.125, 2.0)
    assert args.actor.lr_scheduler == "constant"
    assert args.train.max_epochs == 3
    assert (args.rollout.batch_size, args.train.batch_size) == (4, 12)
    assert args.algo.kl.use_loss and args.algo.kl.init_coef == 0.5
    assert args.data.max_len == 140
    assert (args.critic.model_name_or_path is None) == (name != "gae")


@every_recipe
def test_openrlhf_takes_every_recipe(
    recipe: Path, machine: str, world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gem_openrlhf.settings import check_flags

    # The first prompt, which a row holds, says what tools there are.
    monkeypatch.setenv("SEARCH_URL", "http://127.0.0.1:9/retrieve")
    launch = recipe_command("openrlhf", recipe, machine, tmp_path)
    check_flags(world.parse(launch.argv[3:]), settings_of(launch.files["agent.py"], tmp_path))


@on_gpus
def test_openrlhf_takes_the_example(gpus: int, world: Any, tmp_path: Path) -> None:
    from gem_openrlhf.settings import check_flags

    command = example(EXAMPLES["openrlhf"], "openrlhf.cli.train_ppo_ray", gpus, tmp_path)
    args = world.parse(command[3:])
    check_flags(args, settings_of(tmp_path.joinpath("agent.py").read_text(), tmp_path))
    assert (args.actor.num_gpus_per_node, args.vllm.num_engines) == (gpus, gpus)


def test_a_correction_is_openrlhfs_of_tokens_clipped_from_above(world: Any, tmp_path: Path) -> None:
    def parsed(**algorithm: Any) -> Any:
        launch = adapter.compile(spec(algorithm=algorithm), run_dir=tmp_path, hardware=CPU)
        return world.parse(launch.argv[3:]).algo.advantage

    found = parsed(tis_clip=2.5)
    assert (found.is_correction_level, found.is_correction_mode) == ("token", "clip")
    # OpenRLHF puts a lower bound of 0 before a single threshold.
    assert (found.is_correction_gating, found.is_correction_threshold[-1]) == ("ratio", 2.5)
    assert parsed().is_correction_level == "off"


@pytest.mark.parametrize(
    "settings",
    [
        {"tis_clip": 2.5},
        {"tis_clip": 2.5, "tis_floor": 0.5},
        {"tis_clip": 2.5, "tis_floor": 0.5, "tis_outside": "zero"},
        {"tis_clip": 2.5, "tis_outside": "zero"},
    ],
    ids=str,
)
def test_openrlhfs_weights_are_the_references(
    settings: dict[str, Any], world: Any, tmp_path: Path
) -> None:
    import torch
    from openrlhf.models.loss import PolicyLoss

    launch = adapter.compile(spec(algorithm=settings), run_dir=tmp_path, hardware=CPU)
    asked = world.parse(launch.argv[3:])
    flags = vars(asked.algo.advantage)
    names = [f"is_correction_{name}" for name in ("level", "mode", "gating", "threshold")]
    threshold = [0.0, *flags["is_correction_threshold"]][-2:]  # as its launcher does
    loss = PolicyLoss(**{**{name: flags[name] for name in names}, names[-1]: threshold})
    old = torch.tensor([[-3.0, -1.0, -0.5, -2.0], [-0.1, -4.0, -1.0, -9.0]])
    sampler = torch.tensor([[-1.0, -3.0, -0.5, -2.5], [-0.1, -0.5, -5.0, -1.0]])
    mask = torch.tensor([[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 0.0]])
    advantages = torch.tensor([[1.0, -2.0, 3.0, 0.5], [-1.0, 2.0, 0.25, 7.0]])
    found, *_ = loss(old, old, advantages, action_mask=mask, rollout_log_probs=sampler)
    weights = importance_weights(old, sampler, Correction(**settings), torch.sum)
    torch.testing.assert_close(found, -(advantages * weights * mask).sum() / mask.sum())


def test_the_agent_file_holds_what_has_no_flag(tmp_path: Path) -> None:
    launch = adapter.compile(
        spec(
            policy={
                "turns": 3,
                "system_prompt": 'say "hi"\n',
                "template_kwargs": {"enable_thinking": False},
                "thinking": "text",
            },
            training={"max_failed_fraction": 0.25},
        ),
        run_dir=tmp_path,
        hardware=CPU,
    )
    settings = settings_of(launch.files["agent.py"], tmp_path)
    assert (settings.top_k, settings.turn_tokens, settings.turns, settings.seed) == (7, 8, 3, 5)
    assert settings.system_prompt == 'say "hi"\n'
    assert (settings.template_kwargs, settings.thinking) == ({"enable_thinking": False}, "text")
    assert settings.record_dir == str(tmp_path)
    assert settings.task_order == "file"
    assert settings.max_failed_fraction == 0.25


@pytest.mark.parametrize("env", [SPEC["env"], MIXTURE], ids=["one", "several"])
def test_the_dataset_is_the_specs_tasks_in_order(env: Any, tmp_path: Path) -> None:
    import json

    asked = RunSpec.from_mapping({**SPEC, "env": env})
    lines = adapter.compile(asked, run_dir=tmp_path, hardware=CPU).files["train.jsonl"].splitlines()
    tasks = [DatasetRow.decode(json.loads(line)["label"]).task for line in lines]
    assert tasks == [task for k in range(3) for task in asked.train_tasks(k)]


def test_evaluations_are_rows_with_names_and_temperatures(world: Any, tmp_path: Path) -> None:
    import json

    part = {"id": "game:GuessTheNumber-v0", "episodes": 2}
    evals = [
        {**part, "name": "a", "every": 4, "temperature": 0.0},
        {**part, "name": "b", "every": 6, "temperature": 0.5},
    ]
    asked = RunSpec.from_mapping({**SPEC, "eval": evals})
    launch = adapter.compile(asked, run_dir=tmp_path, hardware=CPU)
    args = world.parse(launch.argv[3:])
    assert args.eval.steps == 2
    rows = [json.loads(line) for line in launch.files["eval.jsonl"].splitlines()]
    known = [DatasetRow.decode(row["label"]) for row in rows]
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


@pytest.mark.parametrize(("cpu", "status"), [(True, "emulated"), (False, "unmatched")])
def test_full_precision_is_not_claimed(cpu: bool, status: str, tmp_path: Path) -> None:
    asked = spec(training={"precision": "fp32"})
    launch = adapter.compile(asked, run_dir=tmp_path, hardware=CPU if cpu else Hardware())
    assert {k.name: k.status for k in launch.parity}["training.precision"] == status
    assert launch.env.get("GEM_CPU_DTYPE") == ("float32" if cpu else None)


def test_a_forward_pass_is_limited_by_its_logits(tmp_path: Path, world: Any) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 1000000}')
    asked = spec(policy={"model": str(tmp_path)}, training={"tasks": 8})
    args = world.parse(adapter.compile(asked, run_dir=tmp_path, hardware=CPU).argv[3:])
    assert args.train.micro_batch_size == 1
    assert args.train.batch_size == 48


@pytest.mark.parametrize(
    ("tables", "key"),
    [
        ({"policy": {"context": "concat"}}, "policy.context"),
        ({"policy": {"thinking": "drop"}}, "policy.thinking"),
        ({"algorithm": {"loss_aggregation": "row-mean-token-sum"}}, "algorithm.loss_aggregation"),
        ({"algorithm": {"minibatches": 5}}, "algorithm.minibatches"),
        ({"policy": {"lora_rank": 8}}, "policy.lora_rank"),
    ],
)
def test_what_openrlhf_cannot_do_is_refused(
    tables: dict[str, Any], key: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=key):
        adapter.compile(spec(**tables), run_dir=tmp_path, hardware=CPU)


@pytest.mark.parametrize("name", ["rebn", "gae"])
def test_hardware_reaches_openrlhf(name: str, world: Any, tmp_path: Path) -> None:
    from gem_openrlhf.settings import check_flags

    machine = eight(
        {"openrlhf": {"ckpt.max_num": 2, "ckpt.save_hf": True}},
        engine={"tensor_parallel": 2},
        learner={"tensor_parallel": 2},
    )
    asked = spec(algorithm={"advantage": name, "kl_coef": 0.5})
    launch = adapter.compile(asked, run_dir=tmp_path, hardware=machine)
    args = world.parse(launch.argv[3:])
    check_flags(args, settings_of(launch.files["agent.py"], tmp_path))
    models = [args.actor, args.ref, *([args.critic] if name == "gae" else [])]
    assert {(model.num_nodes, model.num_gpus_per_node) for model in models} == {(1, 8)}
    assert (args.vllm.num_engines, args.vllm.tensor_parallel_size) == (4, 2)
    assert args.vllm.gpu_memory_utilization == 0.35 and args.vllm.enable_prefix_caching
    assert (args.ds.tensor_parallel_size, args.ds.adam_offload) == (2, True)
    assert args.ds.attn_implementation == "sdpa" and not args.ds.packing_samples
    assert not args.actor.gradient_checkpointing_enable
    # 24 episodes, four ranks: a forward pass of 4,096 tokens holds six of 140.
    assert args.train.micro_batch_size == args.rollout.micro_batch_size == 6
    assert (args.ckpt.save_steps, args.ckpt.max_num, args.ckpt.save_hf) == (7, 2, True)
    # What a run goes on from is cleared before another one starts.
    assert args.ckpt.load_enable
    assert Path(args.ckpt.path).relative_to(tmp_path).name in launch.state
    parity = {each.name: each for each in launch.parity}
    assert parity["hardware.logger"].status == "unmatched"
    assert parity["ckpt.max_num"].status == "native"


def test_packed_rows_fill_forward_passes_as_in_the_example(world: Any, tmp_path: Path) -> None:
    from gem_openrlhf.settings import check_flags

    def parsed(attention: str) -> Any:
        machine = eight(learner={"attention": attention, "pass_tokens": 4096})
        launch = adapter.compile(spec(), run_dir=tmp_path, hardware=machine)
        args = world.parse(launch.argv[3:])
        check_flags(args, settings_of(launch.files["agent.py"], tmp_path))
        return args

    args = parsed("flash_attention_2")
    assert args.ds.packing_samples and args.train.dynamic_batch_enable
    assert args.train.max_tokens_per_gpu == args.rollout.max_tokens_per_gpu == 4096
    args = parsed("sdpa")
    assert not args.ds.packing_samples and not args.train.dynamic_batch_enable


def test_a_row_is_shared_with_flash_attention_only(world: Any, tmp_path: Path) -> None:
    split = eight(learner={"sequence_parallel": 2})
    with pytest.raises(ConfigurationError, match="ring attention is flash attention's"):
        adapter.compile(spec(), run_dir=tmp_path, hardware=split)
    split = eight(learner={"sequence_parallel": 2, "attention": "flash_attention_2"})
    args = world.parse(adapter.compile(spec(), run_dir=tmp_path, hardware=split).argv[3:])
    assert args.ds.ring_attn_size == 2 and args.ds.packing_samples


def test_rows_that_do_not_divide_among_ranks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="24 episodes do not divide among 16 ranks"):
        adapter.compile(spec(), run_dir=tmp_path, hardware=replace(Hardware(), gpus_per_node=16))
