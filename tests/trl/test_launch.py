"""The command for a RunSpec: what reaches TRL's configuration, and what is refused."""

from __future__ import annotations

import importlib.util
import json
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import EXAMPLES, GPUS, every_recipe, recipe_command
from machines import eight

from gem.errors import ConfigurationError, UnsupportedVersionError
from gem.tables import flatten
from gem_train.checkpoints import save_state
from gem_train.experiment.hardware import CPU, Hardware
from gem_train.experiment.runspec import RunSpec
from gem_train.launch import Launch, find_adapter
from gem_train.record import Recorder, read_run
from gem_train.recording import begin
from gem_trl import experiment, train
from gem_trl.settings import check_config

SPEC: dict[str, Any] = {
    "name": "test",
    "seed": 3,
    "env": {"id": "game:GuessTheNumber-v0-easy", "params": {"hint": "range"}, "seed": 100},
    "policy": {
        "model": "some/model",
        "prompt_tokens": 96,
        "response_tokens": 200,
        "turn_tokens": 16,
        "turns": 3,
        "system_prompt": "be brief",
        "template_kwargs": {"enable_thinking": False},
        "thinking": "text",
    },
    "sampling": {"temperature": 0.9, "top_p": 0.8, "top_k": 50},
    "algorithm": {
        **{"advantage": "grpo", "gamma": 0.9, "clip": 0.3, "epochs": 2, "minibatches": 4},
        **{"kl_coef": 0.01, "entropy_coef": 0.02},
    },
    "optimizer": {
        **{"lr": 1e-3, "beta1": 0.8, "beta2": 0.99, "eps": 1e-7, "weight_decay": 0.1},
        "grad_clip": 0.5,
    },
    "training": {"iterations": 5, "tasks": 8, "group_size": 4, "max_failed_fraction": 0.25},
}


def spec(**tables: Any) -> RunSpec:
    data = {key: dict(value) if isinstance(value, dict) else value for key, value in SPEC.items()}
    for table, values in tables.items():
        data[table] = {**data.get(table, {}), **values} if isinstance(values, dict) else values
    return RunSpec.from_mapping(data)


def compiled(run: RunSpec, folder: Path, *, cpu: bool = True) -> Launch:
    made = find_adapter("trl").compile(run, run_dir=folder, hardware=CPU if cpu else Hardware())
    for name, text in made.files.items():
        folder.joinpath(name).write_text(text)
    return made


def configured(made: Launch, processes: int = 1) -> tuple[Any, Any]:
    """What the command makes of its arguments: GRPOConfig and settings."""
    assert made.argv[:3] == ["python", "-m", "gem_trl.train"]
    path, _, folder, *rest = made.argv[3:]
    given = train.fields(rest)
    run = RunSpec.read(Path(path))
    args = experiment.grpo_config(run, Path(folder), processes, given)
    settings = experiment.gem_settings(run, Path(folder))
    check_config(args, settings)
    return args, settings


def test_every_setting_reaches_trl(tmp_path: Path) -> None:
    args, settings = configured(compiled(spec(), tmp_path))
    assert (args.seed, args.temperature, args.top_p, args.top_k) == (3, 0.9, 0.8, 50)
    assert (args.epsilon, args.beta, args.entropy_coef) == (0.3, 0.01, 0.02)
    assert (args.learning_rate, args.adam_beta1, args.adam_beta2) == (1e-3, 0.8, 0.99)
    assert (args.adam_epsilon, args.weight_decay, args.max_grad_norm) == (1e-7, 0.1, 0.5)
    assert (args.num_generations, args.num_iterations) == (4, 2)
    assert args.max_completion_length == 16
    assert not args.bf16 and not args.use_bias_correction_kl and not args.shuffle_dataset
    assert (args.loss_type, args.lr_scheduler_type, args.optim) == (
        *("dapo", "constant", "adamw_torch"),
    )
    assert (settings.advantage, settings.gamma, settings.group_size) == ("grpo", 0.9, 4)
    assert (settings.turns, settings.system_prompt) == (3, "be brief")
    assert (settings.template_kwargs, settings.thinking) == ({"enable_thinking": False}, "text")
    assert settings.max_failed_fraction == 0.25
    assert settings.record_dir == str(tmp_path)
    budget = settings.limits(settings.prompt_tokens, settings.response_tokens, 16)
    assert budget == spec().budget


@pytest.fixture
def bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    """There seems to be a GPU that computes in bf16."""
    monkeypatch.setattr("transformers.training_args.is_torch_bf16_gpu_available", lambda: True)


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM seems to be installed."""
    original = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: name == "vllm" or original(name, *a)
    )


@every_recipe
@pytest.mark.usefixtures("vllm", "bf16")
def test_trl_takes_every_recipe(
    recipe: Path, machine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, gpus = recipe_command("trl", recipe, machine, tmp_path), GPUS[machine]
    # Each of as many processes makes the configuration.
    monkeypatch.setattr("transformers.TrainingArguments.world_size", gpus)
    if gpus > 1:
        assert made.argv[:4] == ["torchrun", "--standalone", "--nproc-per-node", str(gpus)]
        made = replace(made, argv=["python", *made.argv[4:]])
    args, _ = configured(made, processes=gpus)
    assert args.use_vllm == args.bf16


@pytest.mark.usefixtures("bf16")
def test_trl_takes_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its fields are the same for any number of GPUs."""

    class Trainer:
        def __init__(self, args: Any, gem: Any, **others: Any) -> None:
            check_config(args, gem)
            trained.append(args)
            lengths.append((gem.prompt_tokens, gem.response_tokens))

        def train(self) -> None:
            pass

    trained: list[Any] = []
    lengths: list[tuple[int, int]] = []
    monkeypatch.setattr("gem_trl.GemGRPOTrainer", Trainer)
    monkeypatch.setenv("OUT", str(tmp_path))
    runpy.run_path(str(EXAMPLES["trl"]))
    assert trained[0].use_vllm
    # vLLM would make room for the longest text that the model can read, which small GPUs lack.
    assert trained[0].vllm_max_model_length == sum(lengths[0])


@pytest.mark.parametrize("processes", [1, 2, 8])
@pytest.mark.parametrize("rows", [1, 3, 64])
def test_batches_and_steps_are_those_of_the_spec(processes: int, rows: int, tmp_path: Path) -> None:
    """Whatever the number of processes and the size of a forward pass; as one process sees it."""
    made = compiled(spec(), tmp_path)
    made.argv.append(f"per_device_train_batch_size={rows}")
    args, _ = configured(made, processes)
    forward = args.per_device_train_batch_size
    assert forward <= rows
    assert processes * forward * args.steps_per_generation == 32
    assert processes * forward * args.gradient_accumulation_steps == 8  # of 4 minibatches
    assert args.max_steps == 5 * 2 * 4
    assert args.save_steps == 10 * 2 * 4


def test_groups_of_one_pass_trls_check(tmp_path: Path) -> None:
    changed = spec(algorithm={"advantage": "rebn"}, training={"group_size": 1})
    args, settings = configured(compiled(changed, tmp_path))
    assert settings.group_size == 1
    assert args.generation_batch_size % args.num_generations == 0


def test_evaluations_are_made_where_the_spec_wants_them(tmp_path: Path) -> None:
    part = {"name": "other game", "id": "game:Mastermind-v0-easy", "episodes": 9, "every": 4}
    more = {"name": "same", "id": "game:GuessTheNumber-v0", "every": 6, "temperature": 0.0}
    made = compiled(spec(eval=[part, more]), tmp_path)
    args, _ = configured(made)
    assert (args.eval_strategy, args.eval_steps, args.eval_on_start) == ("steps", 2 * 2 * 4, True)
    assert args.num_generations_eval == 1
    emulated = [each.name for each in made.parity if each.status == "emulated"]
    assert {"eval.0.every", "eval.1.every"} <= set(emulated)


def test_parity_has_every_setting(tmp_path: Path) -> None:
    made = compiled(spec(), tmp_path)
    known = {each.name: each for each in made.parity}
    assert set(flatten(spec().to_mapping())) <= set(known)
    emulated = {name for name, each in known.items() if each.status == "emulated"}
    assert emulated == {
        *("seed", "optimizer.weight_decay", "algorithm.minibatches", "algorithm.entropy_coef"),
    }
    assert "off" in known["vllm_importance_sampling_correction"].how


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"algorithm": {"advantage": "gae"}}, r"algorithm\.advantage: .* no critic"),
        ({"policy": {"context": "concat"}}, r"policy\.context: .* one row per episode"),
        ({"policy": {"thinking": "drop"}}, r"policy\.thinking: .* one row per episode"),
        (
            {"algorithm": {"loss_aggregation": "turn-mean"}},
            r"algorithm\.loss_aggregation: TRL has token-mean, ",
        ),
        (
            {"policy": {"lora_rank": 8, "lora_init": "a"}, "algorithm": {"kl_coef": 0.1}},
            r"algorithm\.kl_coef: with an adapter to begin with",
        ),
        ({"algorithm": {"tis_clip": 2.0}}, r"algorithm\.tis_clip: .* its own model does"),
        ({"training": {"group_size": 1}}, r"training\.group_size: grpo compares"),
        ({"algorithm": {"minibatches": 5}}, r"algorithm\.minibatches: 32 episodes"),
        (
            {
                "training": {"tasks": 1, "group_size": 1},
                "algorithm": {"advantage": "rebn", "minibatches": 1},
            },
            r"training\.tasks: TRL refuses a batch of one",
        ),
    ],
)
def test_what_trl_cannot_do_is_refused_by_name(
    tables: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        compiled(spec(**tables), tmp_path)
    with pytest.raises(ConfigurationError, match=said):
        train.train(spec(**tables), tmp_path, {})


def test_adapters_need_peft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "find_spec", lambda name: None)
    with pytest.raises(
        ConfigurationError, match=r"policy\.lora_rank: .*pip install 'gem-trl\[peft"
    ):
        compiled(spec(policy={"lora_rank": 8}), tmp_path)


@pytest.mark.parametrize(("init", "status"), [(None, "unmatched"), ("a", "matched")])
def test_a_random_adapter_is_another_one_than_the_reference_s(
    init: str | None, status: str, tmp_path: Path
) -> None:
    policy = {"lora_rank": 8, **({"lora_init": init} if init else {})}
    made = compiled(spec(policy=policy, algorithm={"kl_coef": 0.0}), tmp_path)
    found = {each.name: each.status for each in made.parity if "lora" in each.name}
    assert found == {
        **dict.fromkeys(("policy.lora_rank", "policy.lora_alpha"), "matched"),
        "policy.lora_init": status,
    }


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"learning_rate": 1.0}, "GRPOConfig: the experiment decides learning_rate"),
        ({"use_vlm": True}, "use_vlm"),
        ({"eval_strategy": "often"}, "GRPOConfig: often is not a valid"),
    ],
)
def test_wrong_fields_are_refused(given: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=said):
        experiment.grpo_config(spec(), tmp_path, 1, {"use_cpu": True, **given})


def test_episodes_must_divide_among_the_processes(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="32 episodes .* for 3 processes"):
        experiment.grpo_config(spec(), tmp_path, 3, {})


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_gpu_samples_with_vllm_if_it_is_there(
    precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM would serve fp32 weights in bf16."""
    original = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: name == "vllm" or original(name, *a)
    )
    made = compiled(spec(training={"precision": precision}), tmp_path, cpu=False)
    assert (f"use_vllm={str(precision == 'bf16').lower()}") in made.argv
    assert ("vllm_max_model_length=296" in made.argv) == (precision == "bf16")


def test_on_a_cpu_vllm_samples_where_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = compiled(spec(), tmp_path)
    assert "use_vllm=true" not in made.argv and "GEM_CPU" not in made.env
    original = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: name == "vllm" or original(name, *a)
    )
    made = compiled(spec(), tmp_path)
    assert {"use_vllm=true", "vllm_max_model_length=296"} <= set(made.argv)
    # In the precision of the run, by the shim of gem-cpu.
    assert (made.env["GEM_CPU"], made.env["GEM_CPU_DTYPE"]) == ("1", "float32")


def test_a_correction_is_trls_of_tokens_truncated_from_above(tmp_path: Path) -> None:
    corrected = spec(algorithm={"tis_clip": 2.5})
    args = experiment.grpo_config(corrected, tmp_path, 1, {"use_vllm": True, "use_cpu": True})
    assert args.vllm_importance_sampling_correction
    assert args.vllm_importance_sampling_mode == "token_truncate"
    assert (args.vllm_importance_sampling_clip_min, args.vllm_importance_sampling_clip_max) == (
        None,
        2.5,
    )
    check_config(args, experiment.gem_settings(corrected, tmp_path))


def test_a_run_can_be_resumed_or_overwritten(tmp_path: Path) -> None:
    made = compiled(spec(), tmp_path)
    assert made.state == ["checkpoints"]
    assert made.env["OMP_NUM_THREADS"] == "1" and "CUDA_VISIBLE_DEVICES" in made.unset


def saved(folder: Path, step: int, state: str | None, *ranks: str) -> str:
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    for name in ("model.safetensors", *ranks):
        path.joinpath(name).touch()
    if state is not None:
        path.joinpath("trainer_state.json").write_text(state)
    return str(path)


@pytest.mark.parametrize(
    ("state", "ranks"),
    [
        (None, ["rng_state_0.pth", "rng_state_1.pth"]),
        ('{"global_step": 1', ["rng_state_0.pth", "rng_state_1.pth"]),
        ("", ["rng_state_0.pth", "rng_state_1.pth"]),
        ('{"global_step": 12}', ["rng_state_0.pth"]),
    ],
)
def test_a_half_written_checkpoint_is_left_out_and_named(
    state: str | None, ranks: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = ["rng_state_0.pth", "rng_state_1.pth"]
    assert train.last_checkpoint(tmp_path / "none", 2) is None
    saved(tmp_path, 3, '{"global_step": 3}', *both)
    whole = saved(tmp_path, 9, '{"global_step": 9}', *both)
    assert train.last_checkpoint(tmp_path, 2) == whole
    assert capsys.readouterr().err == ""
    half = saved(tmp_path, 12, state, *ranks)
    assert train.last_checkpoint(tmp_path, 2) == whole
    assert capsys.readouterr().err == f"{half} is half-written and is left out\n"


def test_a_run_does_not_go_on_with_another_number_of_processes(tmp_path: Path) -> None:
    last = saved(tmp_path, 3, '{"global_step": 3}', "rng_state_0.pth", "rng_state_1.pth")
    save_state(tmp_path / train.PROCESSES, {"processes": 2})
    assert train.last_checkpoint(tmp_path, 2) == last
    for processes in (1, 4):
        with pytest.raises(
            ConfigurationError, match=f"2 processes, .* has {processes}: start it with 2"
        ):
            train.last_checkpoint(tmp_path, processes)


def test_with_nothing_to_go_on_from_the_number_of_processes_may_change(tmp_path: Path) -> None:
    saved(tmp_path, 3, None, "rng_state_0.pth")
    save_state(tmp_path / train.PROCESSES, {"processes": 2})
    assert train.last_checkpoint(tmp_path, 4) is None


@pytest.mark.parametrize("text", ["False", "True", "no", "", "0"])
def test_a_boolean_field_takes_true_or_false(text: str, tmp_path: Path) -> None:
    given = train.fields(["use_cpu=true", "tf32=null", "report_to=none", f"use_vllm={text}"])
    with pytest.raises(ConfigurationError, match=r"^GRPOConfig\.use_vllm: choose true or false"):
        experiment.grpo_config(spec(), tmp_path, 1, given)
    given["use_vllm"] = False
    assert not experiment.grpo_config(spec(), tmp_path, 1, given).use_vllm


def test_an_argument_without_a_value_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(spec().to_mapping()))
    assert train.main([str(path), "--record", str(tmp_path), "use_vllm"]) == 2
    assert "use_vllm: write it as use_vllm=value" in capsys.readouterr().err


def test_another_experiment_does_not_go_on_with_the_record_of_this_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, given = tmp_path / "spec.json", spec()
    begin(Recorder(tmp_path), {"trainer": "trl", "spec": given.to_mapping()})
    (tmp_path / "metrics.jsonl").write_text('{"iteration": 0, "split": "train", "time_s": 1}\n')
    path.write_text(json.dumps(replace(given, seed=4).to_mapping()))
    assert train.main([str(path), "--record", str(tmp_path), "use_cpu=true"]) == 2
    assert "spec.seed: 3 there, 4 here" in capsys.readouterr().err


def test_a_run_of_the_command_does_not_go_on_as_another_experiment(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The record that the trainer writes says which experiment it is of."""
    policy = {"model": str(model), "prompt_tokens": 512, "response_tokens": 96}
    training = {"iterations": 1, "tasks": 2, "group_size": 2, "precision": "fp32"}
    plain = {"advantage": "rebn", "epochs": 1, "minibatches": 1, "kl_coef": 0.0}
    given = spec(policy=policy, training=training, algorithm={**plain, "entropy_coef": 0.0})
    path = tmp_path / "spec.json"
    command = [str(path), "--record", str(tmp_path / "run"), "use_cpu=true"]
    path.write_text(json.dumps(given.to_mapping()))
    assert train.main(command) == 0
    assert read_run(tmp_path / "run").meta["spec"]["seed"] == 3
    path.write_text(json.dumps(replace(given, seed=4).to_mapping()))
    assert train.main(command) == 2
    assert "spec.seed: 3 there, 4 here" in capsys.readouterr().err


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(spec(algorithm={"advantage": "gae"}).to_mapping()))
    assert train.main([str(path), "--record", str(tmp_path)]) == 2
    assert "algorithm.advantage: TRL's GRPOTrainer has no critic" in capsys.readouterr().err


def test_a_version_that_is_not_supported_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gem_train.doctor.version", lambda name: "0.29.1")
    with pytest.raises(UnsupportedVersionError, match=r"trl 0\.29\.1 .* >=1\.15,<2"):
        compiled(spec(), tmp_path)


def test_hardware_reaches_trl(tmp_path: Path) -> None:
    run = spec(algorithm={"epochs": 2, "minibatches": 2})
    machine = eight(
        {"trl": {"save_total_limit": 2}}, engine={"tensor_parallel": 2}, learner={"offload": False}
    )
    made = find_adapter("trl").compile(run, run_dir=tmp_path, hardware=machine)
    tmp_path.joinpath("spec.json").write_text(made.files["spec.json"])
    start = ["torchrun", "--standalone", "--nproc-per-node", "8"]
    assert made.argv[:4] == start
    made = replace(made, argv=["python", *made.argv[4:]])
    args, _ = configured(made, processes=8)
    assert (args.vllm_tensor_parallel_size, args.vllm_gpu_memory_utilization) == (2, 0.35)
    assert not args.gradient_checkpointing
    # 32 episodes in two minibatches for eight processes; all of them fit a forward pass.
    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == (2, 1)
    assert (args.save_steps, args.save_total_limit, args.report_to) == (28, 2, ["wandb"])
    assert {each.name for each in made.parity if each.status == "native"} == {"save_total_limit"}
