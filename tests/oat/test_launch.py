"""A RunSpec becomes oat's own kind of command, which oat's parser takes; parity says the truth."""

from __future__ import annotations

import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from commands import EXAMPLES, GPUS, every_recipe, on_gpus, recipe_command
from machines import eight
from mixtures import MIXTURE

from gem.errors import ConfigurationError
from gem.tables import flatten
from gem_oat.data import Batches
from gem_oat.launch import adapter
from gem_oat.settings import Args, parse
from gem_train.experiment.hardware import CPU, Hardware
from gem_train.experiment.runspec import RunSpec
from gem_train.experiment.tasksets import DatasetRow, EvalSampling
from gem_train.launch import Launch
from gem_train.table import Parity

BASE: dict[str, Any] = {
    "name": "guess",
    "seed": 3,
    "env": {"id": "game:GuessTheNumber-v0-easy", "seed": 7, "params": {"hint": "range"}},
    "policy": {
        "model": "somebody/model",
        "prompt_tokens": 100,
        "response_tokens": 300,
        "turn_tokens": 16,
    },
    "algorithm": {"advantage": "rebn", "gamma": 0.9},
    "optimizer": {"lr": 1e-3, "beta2": 0.99},
    "training": {"iterations": 5, "tasks": 8, "group_size": 2, "max_failed_fraction": 0.25},
    "eval": [
        {"name": "same", "id": "game:GuessTheNumber-v0-easy", "every": 4, "temperature": 0},
        {"name": "hard er", "id": "game:GuessTheNumber-v0-hard", "every": 6, "episodes": 9},
    ],
}


def spec(**tables: Any) -> RunSpec:
    merged = {
        name: {**BASE.get(name, {}), **table} if isinstance(table, Mapping) else table
        for name, table in tables.items()
    }
    return RunSpec.from_mapping({**BASE, **merged})


def compiled(tmp_path: Path, *, cpu: bool = True, **tables: Any) -> Launch:
    return adapter.compile(spec(**tables), run_dir=tmp_path, hardware=CPU if cpu else Hardware())


def parsed(launch: Launch) -> Args:
    assert launch.argv[:3] == ["python", "-m", "gem_oat"]
    return parse(launch.argv[3:])


def parity(launch: Launch, name: str) -> Parity:
    [found] = [k for k in launch.parity if k.name == name]
    return found


@pytest.mark.parametrize("env", [BASE["env"], MIXTURE], ids=["one", "several"])
def test_iterations_play_the_tasks_of_the_spec(env: Any, tmp_path: Path) -> None:
    wanted = RunSpec.from_mapping({**BASE, "env": env})
    made = adapter.compile(wanted, run_dir=tmp_path, hardware=CPU)
    tasks = [task for k in range(5) for task in wanted.train_tasks(k)]
    assert list(parsed(made).train_tasks()) == tasks
    batches = Batches(parsed(made).train_tasks(), 8, 1, 0)
    rows = [DatasetRow.decode(row) for batch in batches for row in batch[1]]
    assert [row.task for row in rows] == tasks


def test_oats_parser_takes_the_command(tmp_path: Path) -> None:
    args = parsed(compiled(tmp_path))
    assert args.pretrain == "somebody/model"
    assert (args.iterations, args.episodes, args.minibatches) == (5, 16, 1)
    assert args.train_tasks()[0].seed == 7
    assert dict(args.train_tasks().params) == {"hint": "range"}
    assert args.budget().response_tokens == 300
    assert (args.gamma, args.gem_advantage, args.cliprange) == (0.9, "rebn", 0.2)
    assert (args.learning_rate, args.adam_beta_1, args.adam_beta_2) == (1e-3, 0.9, 0.99)
    assert (args.lr_scheduler, args.lr_warmup_ratio) == ("constant", 0)
    assert (args.gem_seed, args.seed, args.tis_c, args.beta) == (3, 3, None, 0)
    assert parsed(compiled(tmp_path, algorithm={"tis_clip": 2.5})).tis_c == 2.5
    assert args.bf16 is False
    assert args.gem_max_failed_fraction == 0.25
    assert args.gem_record_dir == str(tmp_path)


@pytest.fixture
def eight_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """oat's parser counts the GPUs."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)


@every_recipe
@pytest.mark.usefixtures("eight_gpus")
def test_oats_parser_takes_every_recipe(recipe: Path, machine: str, tmp_path: Path) -> None:
    args = parsed(recipe_command("oat", recipe, machine, tmp_path))
    assert (args.gpus, args.iterations) == (GPUS[machine], 2)


@on_gpus
@pytest.mark.usefixtures("eight_gpus")
def test_oats_parser_takes_the_example(gpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr("gem_oat.main", lambda argv: started.append(argv) or 0)
    monkeypatch.setattr("sys.argv", ["train_oat.py", f"--gpus={gpus}"])
    with pytest.raises(SystemExit):
        runpy.run_path(str(EXAMPLES["oat"]), run_name="__main__")
    assert parse(started[0]).learners == gpus


def test_evaluations_keep_their_names_and_temperatures(tmp_path: Path) -> None:
    launch = compiled(tmp_path)
    args = parsed(launch)
    same, hard = args.sources()
    assert (same.name, same.sampling, len(same.tasks)) == (
        "same",
        EvalSampling(temperature=0.0),
        64,
    )
    assert (hard.name, hard.sampling, len(hard.tasks)) == ("hard er", EvalSampling(), 9)
    assert args.eval_steps == 2
    assert parity(launch, "eval.0.every").status == "emulated"


def test_every_setting_has_a_row_of_parity(tmp_path: Path) -> None:
    launch = compiled(tmp_path)
    names = [k.name for k in launch.parity]
    assert set(flatten(spec().to_mapping())) <= set(names)
    assert len(names) == len(set(names))
    assert parity(launch, "algorithm.gamma").status == "matched"
    assert parity(launch, "seed").status == "emulated"


def test_everything_else_reaches_oat(tmp_path: Path) -> None:
    args = parsed(
        compiled(
            tmp_path,
            policy={
                "context": "window:2",
                "turns": 3,
                "system_prompt": "--be brief",
                "template_kwargs": {"enable_thinking": False, "effort": 'it\'s "low"'},
                "thinking": "drop",
            },
            algorithm={
                "advantage": "gae",
                "lam": 0.7,
                "kl_coef": 0.02,
                "clip": 0.3,
                "value_clip": 0.4,
                "value_lr": 2e-3,
                "epochs": 2,
                "minibatches": 4,
                "loss_aggregation": "row-mean-token-sum",
            },
            sampling={"temperature": 0.8, "top_p": 0.9, "top_k": 5},
            optimizer={"weight_decay": 0.1, "grad_clip": 0.5},
            training={"precision": "bf16"},
        )
    )
    assert (args.gem_context, args.gem_turns, args.gem_system_prompt) == (
        "window:2",
        3,
        "--be brief",
    )
    assert args.gem.template_kwargs == {"enable_thinking": False, "effort": 'it\'s "low"'}
    assert args.gem.thinking == "drop"
    assert (args.critic_type, args.gem_advantage, args.lam) == ("ppo", "gae", 0.7)
    assert (args.beta, args.cliprange, args.cliprange_value) == (0.02, 0.3, 0.4)
    assert (args.critic_learning_rate, args.num_ppo_epochs, args.minibatches) == (2e-3, 2, 4)
    assert args.gem_loss_aggregation == "row-mean-token-sum"
    assert (args.temperature, args.top_p, args.top_k) == (0.8, 0.9, 5)
    assert (args.l2, args.max_norm, args.bf16) == (0.1, 0.5, True)


@pytest.mark.parametrize(
    ("tables", "name"),
    [
        ({"optimizer": {"weight_decay": 0.1}}, "optimizer.weight_decay"),
        ({"algorithm": {"advantage": "gae"}}, "critic's initial head"),
        ({"training": {"precision": "bf16"}}, "training.precision"),
    ],
)
def test_departures_are_admitted(tables: dict[str, Any], name: str, tmp_path: Path) -> None:
    assert parity(compiled(tmp_path, **tables), name).status != "matched"


@pytest.mark.parametrize(
    ("tables", "name"),
    [
        ({"algorithm": {"minibatches": 3}}, "algorithm.minibatches"),
        ({"algorithm": {"tis_clip": 2}, "sampling": {"top_k": 9}}, "algorithm.tis_clip: oat's"),
        ({"algorithm": {"entropy_coef": 0.1}}, "algorithm.entropy_coef"),
        ({"optimizer": {"eps": 1e-6}}, "optimizer.eps"),
        ({"policy": {"lora_rank": 8}}, "policy.lora_rank"),
        ({"eval": [BASE["eval"][0], BASE["eval"][0]]}, "eval: two evaluations"),
    ],
)
def test_what_oat_cannot_do_is_refused(tables: dict[str, Any], name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=name):
        compiled(tmp_path, **tables)


def test_a_run_without_a_gpu_gets_the_shims_and_one_with_a_gpu_does_not(tmp_path: Path) -> None:
    without, with_gpu = compiled(tmp_path), compiled(tmp_path, cpu=False)
    assert without.env["GEM_CPU"] == "1"
    assert "startup" in without.env["PYTHONPATH"]
    assert "CUDA_VISIBLE_DEVICES" in without.unset
    assert not {"GEM_CPU", "PYTHONPATH"} & set(with_gpu.env)
    assert "--vllm_sleep" in with_gpu.argv


@pytest.mark.usefixtures("eight_gpus")
def test_hardware_reaches_oat(tmp_path: Path) -> None:
    machine = eight({"oat": {"max_save_num": 2}})
    launch = adapter.compile(spec(), run_dir=tmp_path, hardware=machine)
    args = parsed(launch)
    assert (args.gpus, args.learners, args.vllm_gpu_ratio) == (8, 8, 0.35)
    assert (args.save_steps, args.gem_resume, args.max_save_num) == (7, True, 2)
    assert launch.state == ["oat/checkpoints"]
    assert (args.gradient_checkpointing, args.adam_offload, args.flash_attn) == (False, True, False)
    assert (args.gem_forward_tokens, args.enable_prefix_caching) == (4096, True)
    assert args.use_wb


@pytest.mark.parametrize(
    ("machine", "key"),
    [
        ({"engine": {"tensor_parallel": 2}}, "engine.tensor_parallel"),
        ({"learner": {"sequence_parallel": 2}}, "learner.sequence_parallel"),
        ({"learner": {"tensor_parallel": 2}}, "learner.tensor_parallel"),
    ],
)
def test_hardware_that_oat_has_not_is_refused(
    machine: dict[str, Any], key: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=rf"hardware\.{key}"):
        adapter.compile(spec(), run_dir=tmp_path, hardware=eight(**machine))
