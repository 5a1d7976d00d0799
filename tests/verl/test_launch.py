"""The command for verl: every key exists in verl's real configuration and says what was meant."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import EXAMPLES, every_recipe, example, on_gpus, recipe_command
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import assume, given
from hypothesis import strategies as st
from machines import eight
from mixtures import MIXTURE
from omegaconf import OmegaConf
from verl.trainer.ppo.utils import need_reference_policy
from verl.utils.config import omega_conf_to_dataclass, validate_config

from gem.errors import ConfigurationError, UnsupportedVersionError
from gem.tables import flatten
from gem_train.entries import OPTIMIZER_WEIGHTS
from gem_train.experiment.hardware import CPU, Hardware
from gem_train.experiment.losses import Correction, importance_weights, kept
from gem_train.experiment.runspec import RunSpec
from gem_train.experiment.tasksets import EvalSampling, decode_task
from gem_train.hydra import hydra_value
from gem_train.launch import Launch, find_adapter
from gem_verl.dataset import GemDataset
from gem_verl.settings import Settings, check_config

SPEC: dict[str, Any] = {
    "name": "test",
    "seed": 3,
    "env": {"id": "game:GuessTheNumber-v0-easy", "params": {"hint": "range"}, "seed": 100},
    "policy": {
        "model": "some/model",
        "prompt_tokens": 96,
        "response_tokens": 200,
        "turn_tokens": 16,
    },
    "algorithm": {"advantage": "rebn", "gamma": 0.9, "clip": 0.3},
    "optimizer": {"lr": 1e-3, "beta2": 0.99, "eps": 1e-7, "weight_decay": 0.1, "grad_clip": 0.5},
    "training": {"iterations": 5, "tasks": 8, "group_size": 4, "max_failed_fraction": 0.25},
}


def spec(**tables: Any) -> RunSpec:
    data = {key: dict(value) if isinstance(value, dict) else value for key, value in SPEC.items()}
    for table, values in tables.items():
        data[table] = {**data.get(table, {}), **values} if isinstance(values, dict) else values
    return RunSpec.from_mapping(data)


GPU = Hardware()
FLASH = replace(GPU, learner=replace(GPU.learner, attention="flash_attention_2"))


def compiled(run: RunSpec, *, cpu: bool = True, hardware: Hardware | None = None) -> Launch:
    return find_adapter("verl").compile(
        run, run_dir=Path("/runs/a b"), hardware=hardware or (CPU if cpu else GPU)
    )


def configured(compose: Any, run: RunSpec, **where: Any) -> Any:
    """verl's configuration of a run."""
    return composed(compose, compiled(run, **where).argv)


def composed(compose: Any, argv: list[str]) -> Any:
    """verl's configuration as its launcher would get it; an unknown key raises."""
    assert argv[:3] == ["python", "-m", "verl.trainer.main_ppo"]
    config = compose([arg for arg in argv[3:] if not arg.startswith("hydra.")])
    OmegaConf.resolve(config)
    return config


FORMS = {
    "plain": spec(),
    "gae": spec(algorithm={"advantage": "gae", "lam": 0.95}),
    "kl": spec(algorithm={"kl_coef": 0.01}),
    "bf16": spec(training={"precision": "bf16"}),
    "correction": spec(algorithm={"tis_clip": 2.5}),
    "concat": spec(policy={"context": "concat", "turns": 4}),
    "minibatches": spec(algorithm={"minibatches": 2, "epochs": 2}),
    "eval": spec(
        eval=[
            {"name": "a", "id": "game:Mastermind-v0", "episodes": 4, "every": 4, "temperature": 0},
            {"name": "b", "id": "game:GuessTheNumber-v0", "episodes": 2, "every": 6},
        ]
    ),
}


def in_bf16(run: RunSpec) -> RunSpec:
    return replace(run, training=replace(run.training, precision="bf16"))


@pytest.mark.parametrize("cpu", [True, False], ids=["cpu", "gpu"])
@pytest.mark.parametrize("form", FORMS)
def test_every_key_exists_in_verls_configuration(compose: Any, form: str, cpu: bool) -> None:
    run, hardware = FORMS[form], CPU
    if not cpu:
        run, hardware = in_bf16(run), FLASH
    check_config(configured(compose, run, hardware=hardware))


def accepted(config: Any, model: Path) -> bool:
    """Let this package and verl itself examine a configuration; either raises what it refuses."""
    check_config(config)
    # verl reads the model's configuration, which is not downloaded.
    config.actor_rollout_ref.model.path = str(model)
    validate_config(config, need_reference_policy(config), bool(config.critic.enable))
    for part in ("actor_rollout_ref.rollout", "actor_rollout_ref.model"):
        omega_conf_to_dataclass(OmegaConf.select(config, part))
    return True


@pytest.mark.nightly
@every_recipe
def test_verl_takes_every_recipe(
    recipe: Path, machine: str, compose: Any, model: Path, tmp_path: Path
) -> None:
    command = recipe_command("verl", recipe, machine, tmp_path).argv
    assert accepted(composed(compose, command), model)


@on_gpus
def test_verl_takes_the_example(gpus: int, compose: Any, model: Path, tmp_path: Path) -> None:
    command = example(EXAMPLES["verl"], "verl.trainer.main_ppo", gpus, tmp_path)
    config = composed(compose, command)
    assert config.trainer.n_gpus_per_node == gpus
    assert accepted(config, model)


def test_a_wrong_key_would_be_noticed(compose: Any) -> None:
    with pytest.raises(Exception, match="train_batch_sizes"):
        compose(["data.train_batch_sizes=1"])


@pytest.mark.parametrize("form", FORMS)
def test_every_setting_has_its_parity(form: str) -> None:
    run = FORMS[form]
    names = [each.name for each in compiled(run).parity]
    assert len(names) == len(set(names))
    assert set(flatten(run.to_mapping())) <= set(names)
    assert all(each.how for each in compiled(run).parity)


def test_a_greedy_fp32_run_is_matched_in_everything() -> None:
    parity = compiled(spec(sampling={"top_k": 1})).parity
    assert [each for each in parity if each.status != "matched"] == []


def test_what_verl_does_differently_is_said() -> None:
    def departures(run: RunSpec) -> dict[str, str]:
        return {k.name: k.status for k in compiled(run).parity if k.status != "matched"}

    assert departures(FORMS["plain"]) == {"seed": "emulated"}
    assert departures(FORMS["gae"])["critic's initial head"] == "unmatched"
    assert "algorithm.kl_coef" not in departures(FORMS["kl"])
    assert departures(FORMS["bf16"])["training.precision"] == "emulated"
    assert set(departures(FORMS["eval"])) == {"seed", "eval.0.every", "eval.1.every"}


def test_the_learning_problem_arrives(compose: Any) -> None:
    config = configured(compose, spec(sampling={"top_k": 1}))
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    assert config.algorithm.adv_estimator == "gem_rebn"
    assert (config.algorithm.gamma, config.algorithm.lam) == (0.9, 1.0)
    assert (actor.clip_ratio_low, actor.clip_ratio_high) == (0.3, 0.3)
    optim = actor.optim
    assert (optim.lr, optim.weight_decay, optim.clip_grad) == (1e-3, 0.1, 0.5)
    assert list(optim.betas) == [0.9, 0.99]
    assert optim.override_optimizer_config.eps == 1e-7
    assert (rollout.n, rollout.temperature, rollout.top_p, rollout.top_k) == (4, 1.0, 1.0, 1)
    assert (config.data.train_batch_size, actor.ppo_mini_batch_size) == (8, 8)
    assert config.trainer.total_training_steps == 5
    assert config.gem.turn_tokens == 16
    assert config.gem.max_failed_fraction == 0.25
    assert config.gem.record_dir == "/runs/a b"


def test_a_correction_is_verls_of_tokens_truncated_from_above(compose: Any) -> None:
    found = configured(compose, FORMS["correction"]).algorithm.rollout_correction
    assert (found.rollout_is, found.rollout_is_threshold) == ("token", 2.5)
    assert not (found.rollout_is_batch_normalize or found.bypass_mode or found.rollout_rs)
    assert configured(compose, spec()).algorithm.rollout_correction.rollout_is is None


@pytest.mark.parametrize(
    "asked",
    [
        {"tis_clip": 1.5, "tis_level": "sequence"},
        {"tis_clip": 1.5, "tis_floor": 0.5, "tis_outside": "zero"},
        {"tis_clip": 1.5, "tis_floor": 0.5, "tis_outside": "zero", "tis_level": "sequence"},
        {"reject_low": 0.5, "reject_high": 1.25},
        {"reject_low": 0.5, "reject_high": 1.25, "reject_level": "sequence", "tis_clip": 2.0},
        {"reject_low": 0.5, "reject_high": 1.25, "reject_level": "mean"},
    ],
    ids=str,
)
def test_verls_corrections_are_the_references(asked: dict[str, Any], compose: Any) -> None:
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask

    config = configured(compose, spec(algorithm=asked)).algorithm.rollout_correction
    torch.manual_seed(0)
    old = -1 - torch.rand(6, 5, dtype=torch.float64)
    sampler = old + 0.4 * torch.randn(6, 5, dtype=torch.float64)
    mask = torch.ones(6, 5)
    mask[1, 2:] = mask[2, :2] = 0
    names = ("rollout_is", "rollout_is_threshold", "rollout_rs", "rollout_rs_threshold")
    given = {name: config[name] for name in names}
    found, left, _ = compute_rollout_correction_and_rejection_mask(old, sampler, mask, **given)
    how = Correction(**asked)

    def row_sum(values: torch.Tensor) -> torch.Tensor:
        return (values * mask).sum(-1, keepdim=True).expand_as(values)

    stays = kept(old, sampler, how, row_sum) & mask.bool()
    assert torch.equal(left.bool(), stays)
    assert 0 < stays.sum() < mask.sum() or not how.rejects
    assert (found is None) == (not how.weighs)
    if found is not None:
        weights = importance_weights(old, sampler, how, row_sum) * mask
        torch.testing.assert_close(found.batch["rollout_is_weights"] * stays, weights)


def test_verls_weights_are_truncated_ratios_of_each_token(compose: Any) -> None:
    """What `gem_train.experiment.losses.importance_weights` computes."""
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights

    config = configured(compose, FORMS["correction"])
    asked = config.algorithm.rollout_correction
    old = torch.tensor([[-3.0, -1.0, -0.5, -2.0], [-0.1, -4.0, -1.0, -9.0]])
    sampler = torch.tensor([[-1.0, -3.0, -0.5, -2.5], [-0.1, -0.5, -5.0, -1.0]])
    mask = torch.tensor([[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 0.0]])
    weights, _ = compute_rollout_correction_weights(
        old - sampler, mask, asked.rollout_is, asked.rollout_is_threshold
    )
    expected = (old - sampler).exp().clamp(max=2.5)
    torch.testing.assert_close(weights, expected * mask)
    advantages = torch.tensor([[1.0, -2.0, 3.0, 0.5], [-1.0, 2.0, 0.25, 7.0]])
    loss, _ = get_policy_loss_fn("vanilla")(
        old_log_prob=old,
        log_prob=old,
        advantages=advantages,
        response_mask=mask,
        loss_agg_mode="token-mean",
        config=omega_conf_to_dataclass(config.actor_rollout_ref.actor),
        rollout_is_weights=weights,
    )
    torch.testing.assert_close(loss, -(advantages * expected * mask).sum() / mask.sum())


@pytest.mark.parametrize("env", [SPEC["env"], MIXTURE], ids=["one", "several"])
def test_iteration_k_trains_on_the_specs_tasks(env: Any, compose: Any) -> None:
    run = RunSpec.from_mapping({**SPEC, "env": env})
    config = configured(compose, run)
    dataset = GemDataset(config.data.train_files, config=config.data)
    tasks = [decode_task(dataset[i]["gem_task"])[0] for i in range(len(dataset))]
    assert tasks == [task for k in range(5) for task in run.train_tasks(k)]
    assert not config.data.shuffle


def test_evaluations_keep_names_seeds_and_temperatures(compose: Any) -> None:
    config = configured(compose, FORMS["eval"])
    dataset = GemDataset(config.data.val_files, config=config.data)
    rows = [dataset[i] for i in range(len(dataset))]
    assert [row["data_source"] for row in rows] == ["a"] * 4 + ["b"] * 2
    greedy, usual = EvalSampling(temperature=0.0), EvalSampling()
    assert [decode_task(row["gem_task"])[1] for row in rows] == [greedy] * 4 + [usual] * 2
    assert decode_task(rows[0]["gem_task"])[0].seed == 500_000
    assert config.trainer.test_freq == math.gcd(4, 6)
    assert config.trainer.val_before_train


def test_without_evaluations_verl_never_validates(compose: Any) -> None:
    config = configured(compose, spec())
    assert (config.trainer.val_before_train, config.trainer.test_freq) == (False, -1)


def test_rows_per_turn_make_one_update(compose: Any) -> None:
    config = configured(compose, FORMS["concat"])
    rows = config.actor_rollout_ref.actor.ppo_mini_batch_size * config.actor_rollout_ref.rollout.n
    assert rows == 8 * 4 * 4  # tasks, episodes of each, turns of each


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"algorithm": {"minibatches": 3}}, "algorithm.minibatches"),
        ({"policy": {"lora_rank": 8}}, "policy.lora_rank"),
        ({"policy": {"context": "concat"}}, "policy.turns"),
        (
            {"policy": {"thinking": "drop"}},
            "policy.turns: context 'chat' with thinking 'drop' makes a row per",
        ),
        (
            {"policy": {"context": "concat", "turns": 2}, "algorithm": {"minibatches": 2}},
            "verl divides rows, not episodes",
        ),
        (
            {
                "eval": [
                    {"name": "x", "id": "game:Wordle-v0"},
                    {"name": "x", "id": "game:Wordle-v0"},
                ]
            },
            "called 'x'",
        ),
    ],
)
def test_what_verl_cannot_do_is_refused(tables: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        compiled(spec(**tables))


def test_a_missing_verl_is_said_in_words() -> None:
    """In an environment without verl and all it brings, the adapter still loads and says so."""
    code = """
import sys
for name in ("verl", "torch", "omegaconf", "tensordict", "packaging"):
    sys.modules[name] = None
import gem_train.doctor
def version(name):
    raise gem_train.doctor.PackageNotFoundError(name)
gem_train.doctor.version = version
from gem_train.launch import main
sys.exit(main(["verl", "--run-dir", "x"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps({"spec": spec().to_mapping(), "hardware": {}}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "verl is not installed; install it with: pip install" in done.stderr


def test_an_unsupported_verl_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gem_train.doctor.version", lambda name: "0.8.0")
    with pytest.raises(UnsupportedVersionError, match="0.8.0"):
        compiled(spec())


def test_a_run_without_a_gpu_says_so_in_its_environment() -> None:
    cpu, gpu = compiled(spec()), compiled(spec(), cpu=False)
    assert cpu.env["GEM_CPU"] == "1"
    assert "CUDA_VISIBLE_DEVICES" in cpu.unset
    assert not {"GEM_CPU", "VERL_PLATFORM"} & gpu.env.keys()
    assert gpu.unset == []


@pytest.mark.parametrize("text", ["$x {y} $", 'a "b\\" c\\', "line\nbreak, [x]: {y} = 'z'", "null"])
def test_any_system_prompt_survives_the_launcher(compose: Any, text: str) -> None:
    config = configured(compose, spec(policy={"system_prompt": text}))
    assert config.gem.system_prompt == text


def test_what_the_chat_template_is_told_survives_the_launcher(compose: Any) -> None:
    told = {"enable_thinking": False, "effort": "it's low", "tools": ["a", {"b": None}]}
    run = spec(policy={"template_kwargs": told, "thinking": "drop", "turns": 4})
    settings = Settings.from_config(configured(compose, run))
    assert (settings.template_kwargs, settings.thinking) == (told, "drop")
    parity = {each.name: each for each in compiled(run).parity}
    assert parity["policy.thinking"].how == "gem.thinking"
    assert parity["policy.template_kwargs.enable_thinking"].how == "gem.template_kwargs"


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40))
def test_any_text_survives_the_override_grammar(text: str) -> None:
    assume("${" not in text)
    override = OverridesParser.create().parse_override(f"key={hydra_value(text)}")
    assert override.value() == text


def test_text_that_verl_would_read_as_a_reference_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="reference to another key"):
        compiled(spec(policy={"system_prompt": "cost: ${price}"}))


@pytest.mark.parametrize("form", FORMS)
def test_hardware_reaches_verl(compose: Any, form: str) -> None:
    machine = eight(
        {"verl": {"trainer.max_actor_ckpt_to_keep": 2}},
        engine={"tensor_parallel": 2},
        learner={"sequence_parallel": 4, "attention": "flash_attention_2"},
    )
    config = configured(compose, in_bf16(FORMS[form]), hardware=machine)
    check_config(config)
    assert (config.trainer.nnodes, config.trainer.n_gpus_per_node) == (1, 8)
    assert (config.trainer.save_freq, config.trainer.logger) == (7, ["console", "wandb"])
    assert config.trainer.max_actor_ckpt_to_keep == 2
    model, rollout = config.actor_rollout_ref.model, config.actor_rollout_ref.rollout
    assert (rollout.tensor_model_parallel_size, rollout.gpu_memory_utilization) == (2, 0.35)
    assert model.use_remove_padding and not model.enable_gradient_checkpointing
    assert model.override_config.attn_implementation == "flash_attention_2"
    parts = [(config.actor_rollout_ref.actor, "fsdp_config")]
    parts += [(config.critic, "fsdp")] if form == "gae" else []
    assert config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu == 4096
    if form == "gae":  # verl's V1 trainer takes it for training, too
        assert config.critic.ppo_infer_max_token_len_per_gpu == 4096
    for part, fsdp in parts:
        assert part[fsdp].ulysses_sequence_parallel_size == 4
        assert part[fsdp].optimizer_offload and not part[fsdp].param_offload


def test_a_row_is_shared_and_a_critic_loaded_with_flash_attention_only() -> None:
    split = eight(learner={"sequence_parallel": 2})
    with pytest.raises(ConfigurationError, match=r"sequence_parallel with .*=sdpa: .* are wrong;"):
        compiled(spec(), hardware=split)
    with pytest.raises(ConfigurationError, match=r"=gae: verl loads critics with flash attention"):
        compiled(FORMS["gae"], hardware=GPU)


def test_without_flash_attention_the_choice_is_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The setting is nobody's: it follows from a package that is not there."""
    run = in_bf16(spec())
    machine = Hardware.from_mapping({"gpus_per_node": 2, "learner": {"sequence_parallel": 2}})
    with pytest.raises(ConfigurationError, match="install flash-attn"):
        compiled(run, hardware=machine)
    monkeypatch.setattr("gem_train.passes.find_spec", lambda name: name == "flash_attn")
    assert "=flash_attention_2" in " ".join(compiled(run, hardware=machine).argv)


def test_log_probabilities_are_fused_where_the_kernels_can_compute_them(
    compose: Any, tmp_path: Path
) -> None:
    def fused(model: str) -> bool:
        config = configured(compose, spec(policy={"model": model}))
        return bool(config.actor_rollout_ref.model.use_fused_kernels)

    assert not fused("some/model")
    tied = {"tie_word_embeddings": True}
    for number, (about, expected) in enumerate(
        [
            (tied, True),
            ({"tie_word_embeddings": False}, False),
            ({"model_type": "qwen3"}, False),
            (tied | {"logits_scaling": 1}, True),
            (tied | {"final_logit_softcapping": 30.0}, False),
        ]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        folder.joinpath("config.json").write_text(json.dumps(about))
        assert fused(str(folder)) == expected, about


def test_another_precision_of_the_optimisers_weights_is_unmatched(compose: Any) -> None:
    def weights(native: dict[str, Any]) -> str:
        run = compiled(in_bf16(spec()), hardware=GPU.with_native("verl", native))
        [found] = [k for k in run.parity if k.name == OPTIMIZER_WEIGHTS]
        return found.status

    key = "actor_rollout_ref.actor.fsdp_config.model_dtype"
    # verl's default, which we leave alone.
    assert OmegaConf.select(configured(compose, spec(), cpu=False), key) == "fp32"
    assert (weights({}), weights({key: "bfloat16"})) == ("matched", "unmatched")


def test_hardware_that_fsdp_has_not_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"learner\.tensor_parallel: .* Megatron"):
        compiled(spec(), hardware=eight(learner={"tensor_parallel": 2}))
    with pytest.raises(ConfigurationError, match=r"hardware\.engine\.engines: .* makes 8 engines"):
        compiled(spec(), hardware=eight(engine={"engines": 4}))
    with pytest.raises(ConfigurationError, match=r"native\.verl\.trainer\.nnodes: .* decides it"):
        compiled(spec(), hardware=eight({"verl": {"trainer.nnodes": 2}}))


def test_all_seats_of_a_game_are_trained(compose: Any) -> None:
    game = {"id": "multi:KuhnPoker-v0", "params": {"seat": "all"}}
    run = spec(env=game, algorithm={"advantage": "rae"})
    config = configured(compose, run)
    # Of the 8 tasks, 4 times each, there are the rows of 2 agents.
    assert config.actor_rollout_ref.actor.ppo_mini_batch_size == 16
    assert config.algorithm.adv_estimator == "gem_rae"
    said = {each.name: each for each in compiled(run).parity}["env.params.seat"]
    assert (said.status, said.how.split(",")[0]) == ("matched", "all seats of a match")
    with pytest.raises(ConfigurationError, match="set it to 1 for seat=all"):
        compiled(spec(env=game, algorithm={"minibatches": 2}))
