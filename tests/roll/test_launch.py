"""RunSpecs as ROLL's configuration and command; a checkout is needed only to have ROLL read it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import GPUS, every_recipe, recipe_command
from mixtures import MIXTURE

from gem.errors import ConfigurationError, MissingExtraError
from gem.tables import flatten
from gem_roll.launch import BASE, adapter
from gem_roll.settings import GemSettings
from gem_train.entries import OPTIMIZER_WEIGHTS
from gem_train.experiment.hardware import CPU, Hardware
from gem_train.experiment.runspec import RunSpec
from gem_train.launch import Launch

EVALS = [
    {"id": "game:GuessTheNumber-v0", "name": "warm", "episodes": 3, "every": 2},
    {"id": "game:Mastermind-v0", "name": "cold", "episodes": 2, "every": 4, "temperature": 0.0},
]
SPEC: dict[str, Any] = {
    "name": "a name: with signs",
    "seed": 5,
    "env": {"id": "game:GuessTheNumber-v0-easy", "params": {"prompt": "short"}, "seed": 50},
    "policy": {
        "model": "m", "prompt_tokens": 40, "response_tokens": 100, "turn_tokens": 8,
        "system_prompt": "Be <brief>: 'yes'", "template_kwargs": {"enable_thinking": False},
        "thinking": "text",
    },
    "sampling": {"temperature": 0.5, "top_p": 0.75, "top_k": 7},
    "algorithm": {
        "advantage": "rebn", "gamma": 0.875, "lam": 0.75, "clip": 0.125, "entropy_coef": 0.0625,
        "epochs": 3, "minibatches": 2,
    },
    "optimizer": {"lr": 1e-5, "beta1": 0.5, "beta2": 0.75, "weight_decay": 0.25, "grad_clip": 2.0},
    "training": {
        "iterations": 4, "tasks": 4, "group_size": 6, "precision": "fp32",
        "max_failed_fraction": 0.25,
    },
}  # fmt: skip

Compile = Callable[..., Launch]


@pytest.fixture
def compile(fake: Path, tmp_path: Path) -> Compile:
    """Compile the spec with tables changed, without a checkout."""

    def make(*, cpu: bool = False, **tables: Any) -> Launch:
        changed = {
            name: {**SPEC.get(name, {}), **table} if isinstance(table, dict) else table
            for name, table in tables.items()
        }
        spec = RunSpec.from_mapping({**SPEC, **changed})
        return adapter.compile(spec, run_dir=tmp_path / "run", hardware=CPU if cpu else Hardware())

    return make


def config(launch: Launch) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(launch.files["roll.yaml"])
    return found


def test_the_command_is_rolls_own_launcher(compile: Compile, fake: Path) -> None:
    launch = compile()
    folder = fake / "examples"
    assert launch.argv[:2] == ["python", str(folder / "start_agentic_pipeline.py")]
    options = dict(zip(launch.argv[2::2], launch.argv[3::2], strict=True))
    # Hydra wants a folder relative to the script.
    assert (folder / options["--config_path"]).resolve() == (fake / "run").resolve()
    assert options["--config_name"] == "roll"
    assert str(fake) in launch.env["PYTHONPATH"].split(os.pathsep)


@pytest.mark.usefixtures("fake")
@every_recipe
def test_every_recipe_is_a_configuration(recipe: Path, machine: str, tmp_path: Path) -> None:
    """Which ROLL reads, of which one is compared where there is a checkout (below)."""
    found = config(recipe_command("roll", recipe, machine, tmp_path))
    assert (found["max_steps"], found["num_gpus_per_node"]) == (2, GPUS[machine])


@pytest.mark.parametrize("env", [SPEC["env"], MIXTURE], ids=["one", "several"])
def test_the_tasks_are_those_of_the_spec(env: Any, compile: Compile) -> None:
    wanted = RunSpec.from_mapping({**SPEC, "env": env})
    train = config(compile(env=env))["custom_envs"]["train"]
    settings = GemSettings.of("train", train)
    tasks = [settings.task(i, train["env_type"], train["env_config"]) for i in range(16)]
    assert tasks == [task for k in range(4) for task in wanted.train_tasks(k)]
    assert settings.normalise == "batch"
    found = config(compile(env=env, algorithm={"normalise": "environment"}))
    assert GemSettings.of("train", found["custom_envs"]["train"]).normalise == "environment"


def test_every_setting_is_where_rolls_configuration_wants_it(compile: Compile) -> None:
    found = flatten(config(compile()))
    wanted = {
        "exp_name": SPEC["name"], "seed": 5, "pretrain": "m", "sequence_length": 140,
        "actor_infer.generating_args.max_new_tokens": 8,
        "actor_infer.generating_args.temperature": 0.5,
        "actor_infer.generating_args.top_p": 0.75, "actor_infer.generating_args.top_k": 7,
        "adv_estimator": "reinforce", "gamma": 0.875, "lambd": 0.75, "pg_clip": 0.125,
        "entropy_loss_coef": 0.0625, "ppo_epochs": 3, "loss_agg_mode": "token-mean",
        "use_kl_loss": False, "max_grad_norm": 2.0, "max_steps": 4, "rollout_batch_size": 24,
        "actor_train.training_args.learning_rate": 1e-5,
        "actor_train.training_args.adam_beta1": 0.5, "actor_train.training_args.adam_beta2": 0.75,
        "actor_train.training_args.weight_decay": 0.25, "actor_train.model_args.dtype": "fp32",
        "actor_train.strategy_args.strategy_config.param_dtype": "float32",
        "train_env_manager.num_env_groups": 4, "train_env_manager.group_size": 6,
        "custom_envs.train.env_type": "game:GuessTheNumber-v0-easy",
        "custom_envs.train.env_config.prompt": "short", "custom_envs.train.gem.first_seed": 50,
        "custom_envs.train.gem.advantage": "rebn", "custom_envs.train.gem.prompt_tokens": 40,
        "custom_envs.train.gem.response_tokens": 100,
        "custom_envs.train.gem.system_prompt": "Be <brief>: 'yes'",
        "custom_envs.train.gem.template_kwargs.enable_thinking": False,
        "custom_envs.train.gem.thinking": "text",
        "custom_envs.train.gem.max_failed_fraction": 0.25,
    }  # fmt: skip
    assert {key: found.get(key, "missing") for key in wanted} == wanted
    # Two minibatches of 12 episodes, which no batch of ROLL's divides otherwise.
    rows = found["actor_train.training_args.per_device_train_batch_size"]
    assert rows * found["actor_train.training_args.gradient_accumulation_steps"] == 12
    once = "${actor_train.training_args.per_device_train_batch_size}"
    assert found["actor_train.infer_batch_size"] == once
    assert not any(key.startswith(("critic.", "reference.")) for key in found)


def test_models_are_added_that_the_algorithm_needs(compile: Compile) -> None:
    found = config(compile(algorithm={"advantage": "gae", "kl_coef": 0.5, "value_lr": 0.25}))
    assert (found["adv_estimator"], found["use_kl_loss"], found["kl_loss_coef"]) == (
        "gae",
        True,
        0.5,
    )
    assert found["critic"]["training_args"]["learning_rate"] == 0.25
    assert found["reference"]["device_mapping"] == found["actor_train"]["device_mapping"]


def test_each_evaluation_has_its_tasks_and_temperature(compile: Compile) -> None:
    found = config(compile(eval=EVALS))
    assert (found["eval_steps"], found["val_batch_size"]) == (2, 5)
    manager = found["val_env_manager"]
    assert manager["tags"] == ["eval:warm", "eval:cold"]
    assert manager["num_groups_partition"] == [3, 2]
    warm, cold = (found["custom_envs"][tag] for tag in manager["tags"])
    assert (warm["env_type"], cold["env_type"]) == ("game:GuessTheNumber-v0", "game:Mastermind-v0")
    assert (warm["env_config"], cold["env_config"]) == ({}, {})
    assert (warm["gem"]["temperature"], cold["gem"]["temperature"]) == (1.0, 0.0)
    assert warm["gem"]["first_seed"] == 500_000
    assert "temperature" not in found["custom_envs"]["train"]["gem"]


def test_evaluations_at_the_end_are_said_to_be_missing(compile: Compile) -> None:
    found = {each.name: each for each in compile(eval=EVALS).parity}
    assert found["eval.0.every"].how.endswith("but not at the end")
    assert found["eval.1.every"].status == "emulated"
    ends_between = compile(eval=EVALS, training={"iterations": 5}).parity
    assert {each.name: each for each in ends_between}["eval.0.every"].status == "matched"


def test_parity_names_every_setting_and_what_is_emulated(compile: Compile) -> None:
    found = {each.name: each for each in compile(eval=EVALS).parity}
    assert set(flatten(RunSpec.from_mapping({**SPEC, "eval": EVALS}).to_mapping())) <= set(found)
    assert all(each.how for each in found.values())
    assert found["optimizer.lr"].how == "actor_train.training_args.learning_rate"
    assert found["algorithm.minibatches"].status == "emulated"
    assert found["seed"].status == "emulated"


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"policy": {"context": "concat"}}, r"policy\.context: .*one row an episode"),
        ({"policy": {"thinking": "drop"}}, r"policy\.thinking: .*one row an episode"),
        ({"policy": {"lora_rank": 8}}, r"policy\.lora_rank: all weights"),
        ({"optimizer": {"eps": 1e-6}}, r"optimizer\.eps: ROLL's AdamW has 1e-8"),
        ({"algorithm": {"minibatches": 5}}, r"algorithm\.minibatches: 24 episodes"),
        ({"name": "${oc.env:HOME}"}, "would take '\\${' for a reference"),
    ],
)
def test_what_roll_cannot_do_is_refused_by_name(
    compile: Compile, tables: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        compile(**tables)


def test_a_missing_checkout_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GEM_ROLL_HOME", raising=False)
    with pytest.raises(MissingExtraError, match="GEM_ROLL_HOME"):
        adapter.compile(RunSpec.from_mapping(SPEC), run_dir=tmp_path, hardware=Hardware())


def test_a_machine_without_a_gpu_changes_what_is_of_the_machine(compile: Compile) -> None:
    here, there = compile(), compile(cpu=True)
    before, after = flatten(config(here)), flatten(config(there))
    changed = {key for key in before if before[key] != after.get(key)}
    engine = "actor_infer.strategy_args.strategy_config."
    assert {key for key in changed if not key.startswith(engine)} == {
        "num_gpus_per_node",
        "actor_train.model_args.disable_gradient_checkpointing",
        "actor_infer.device_mapping",
        "train_env_manager.max_env_num_per_worker",
    }
    assert there.env["GEM_CPU"] == "1"
    # The run's own cluster, and paths of sockets that are short enough.
    assert there.env["RAY_ADDRESS"] == "local"
    assert len(there.env["RAY_TMPDIR"]) < 60
    assert "CUDA_VISIBLE_DEVICES" in there.unset


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_weights_move_at_a_small_learning_rate(precision: str, compile: Compile) -> None:
    """ROLL loads the policy in `param_dtype`, by default fp32, and its AdamW changes those weights.

    FSDP's arithmetic has the same key, whose default is bf16: see FSDP2TrainStrategy.initialize and
    setup_fsdp2_configuration.
    """
    torch = pytest.importorskip("torch", reason="makes the step")
    launch = compile(training={"precision": precision})
    tree = config(compile(training={"precision": precision}, algorithm={"advantage": "gae"}))
    strategy = tree["actor_train"]["strategy_args"]["strategy_config"]
    assert tree["critic"]["strategy_args"] == "${actor_train.strategy_args}"
    loaded = getattr(torch, strategy.get("param_dtype", "float32"))
    computed = getattr(torch, strategy.get("param_dtype", "bfloat16"))
    assert (loaded, computed) == (
        torch.float32,
        torch.float32 if precision == "fp32" else torch.bfloat16,
    )
    torch.manual_seed(0)
    start = torch.randn(1000) * 0.02
    moved = {}
    for dtype in (loaded, torch.bfloat16):
        weight = torch.nn.Parameter(start.to(dtype))
        before = weight.detach().clone()
        optimizer = torch.optim.AdamW([weight], lr=1e-6, weight_decay=0)
        for _ in range(5):
            weight.grad = torch.full_like(weight, 1e-3)
            optimizer.step()
        moved[dtype] = float((weight.detach().float() - before.float()).abs().mean())
    assert moved[loaded] == pytest.approx(5e-6, rel=0.01)
    assert moved[torch.bfloat16] < 0.1 * moved[loaded]
    said = {each.name: each.status for each in launch.parity}
    assert said[OPTIMIZER_WEIGHTS] == "matched"


def test_the_base_names_what_a_person_looks_for() -> None:
    text = BASE.read_text()
    assert "gem_roll.pipeline.GemAgenticPipeline" in text
    assert "gem_roll.env_manager.GemEnvManager" in text


READ = """
import sys
from dacite import from_dict
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from roll.pipeline.agentic.agentic_config import AgenticConfig
from gem_roll.settings import check_config
with initialize_config_dir(config_dir=sys.argv[1], version_base=None):
    config = OmegaConf.to_container(compose(config_name="roll"), resolve=True)
config = from_dict(data_class=AgenticConfig, data=config)
for tag, settings in check_config(config).items():
    print(tag, settings.first_seed, settings.temperature, settings.budget(config))
print(config.custom_envs["train"]["gem"]["system_prompt"], config.exp_name)
print(config.enable_old_logprobs_recompute, config.train_env_manager.max_traj_per_env)
"""


@pytest.mark.parametrize("advantage", ["rebn", "gae"])
def test_roll_reads_the_configuration(
    advantage: str, home: Path, imported: Any, compile: Compile, tmp_path: Path
) -> None:
    """ROLL's own classes read the file, and GEM's check of them passes."""
    launch = compile(cpu=True, eval=EVALS, algorithm={"advantage": advantage, "kl_coef": 0.5})
    folder = tmp_path / "run"
    folder.mkdir()
    for name, text in launch.files.items():
        folder.joinpath(name).write_text(text)
    path = os.pathsep.join([str(home), launch.env["PYTHONPATH"]])
    done = subprocess.run(
        [sys.executable, "-c", READ, str(folder)],
        env={**os.environ, **launch.env, "PYTHONPATH": path},
        capture_output=True, text=True, timeout=300, check=False, cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    for line in (
        "train 50 None Budget(turn_tokens=8, response_tokens=100, prompt_tokens=40, turns=None, ",
        "eval:cold 500000 0.0 Budget(turn_tokens=8,",
        "Be <brief>: 'yes' a name: with signs",
        "True 1",
    ):
        assert line in done.stdout, done.stdout[-2000:]
