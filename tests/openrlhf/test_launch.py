"""RunSpecs as OpenRLHF's command, read by OpenRLHF's own parser."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from gem.errors import ConfigurationError
from gem.tables import flatten
from gem.training.runspec import RunSpec
from gem.training.tasksets import DatasetRow
from gem_openrlhf.launch import adapter

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
    launch = adapter.compile(asked, run_dir=tmp_path, cpu=cpu)
    assert launch.argv[:3] == ["python", "-m", "openrlhf.cli.train_ppo_ray"]
    args = world.parse(launch.argv[3:])
    check_flags(args, settings_of(launch.files["agent.py"], tmp_path))
    assert args.rollout.temperature == 0.5
    assert args.rollout.top_p == 0.75
    assert args.algo.advantage.gamma == 0.875
    assert args.algo.advantage.lambd == 0.75
    assert args.actor.eps_clip_low_high == (0.125, 0.125)
    assert args.actor.adam.betas == [0.5, 0.75]
    assert (args.actor.adam.lr, args.actor.adam.eps, args.actor.max_norm) == (0.25, 0.125, 2.0)
    assert args.actor.lr_scheduler == "constant"
    assert args.train.max_epochs == 3
    assert (args.rollout.batch_size, args.train.batch_size) == (4, 12)
    assert args.algo.kl.use_loss and args.algo.kl.init_coef == 0.5
    assert args.data.max_len == 140
    assert (args.critic.model_name_or_path is None) == (name != "gae")


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
        cpu=True,
    )
    settings = settings_of(launch.files["agent.py"], tmp_path)
    assert (settings.top_k, settings.turn_tokens, settings.turns, settings.seed) == (7, 8, 3, 5)
    assert settings.system_prompt == 'say "hi"\n'
    assert (settings.template_kwargs, settings.thinking) == ({"enable_thinking": False}, "text")
    assert settings.record_dir == str(tmp_path)
    assert settings.task_order == "file"
    assert settings.max_failed_fraction == 0.25


def test_the_dataset_is_the_specs_tasks_in_order(tmp_path: Path) -> None:
    import json

    asked = spec()
    lines = adapter.compile(asked, run_dir=tmp_path, cpu=True).files["train.jsonl"].splitlines()
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
    launch = adapter.compile(asked, run_dir=tmp_path, cpu=True)
    args = world.parse(launch.argv[3:])
    assert args.eval.steps == 2
    rows = [json.loads(line) for line in launch.files["eval.jsonl"].splitlines()]
    known = [DatasetRow.decode(row["label"]) for row in rows]
    assert [(r.evaluation, r.temperature) for r in known] == [("a", 0.0)] * 2 + [("b", 0.5)] * 2
    status = {each.name: each.status for each in launch.parity}
    assert status["eval.0.every"] == "emulated"


def test_every_setting_has_a_parity_row(tmp_path: Path) -> None:
    asked = spec(algorithm={"advantage": "gae"})
    names = [each.name for each in adapter.compile(asked, run_dir=tmp_path, cpu=True).parity]
    assert set(flatten(asked.to_mapping())) <= set(names)
    assert len(names) == len(set(names))


@pytest.mark.parametrize(("cpu", "status"), [(True, "emulated"), (False, "unmatched")])
def test_full_precision_is_not_claimed(cpu: bool, status: str, tmp_path: Path) -> None:
    asked = spec(training={"precision": "fp32"})
    launch = adapter.compile(asked, run_dir=tmp_path, cpu=cpu)
    assert {k.name: k.status for k in launch.parity}["training.precision"] == status
    assert launch.env.get("GEM_CPU_DTYPE") == ("float32" if cpu else None)


def test_a_forward_pass_is_limited_by_its_logits(tmp_path: Path, world: Any) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 1000000}')
    asked = spec(policy={"model": str(tmp_path)}, training={"tasks": 8})
    args = world.parse(adapter.compile(asked, run_dir=tmp_path, cpu=True).argv[3:])
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
        adapter.compile(spec(**tables), run_dir=tmp_path, cpu=True)
