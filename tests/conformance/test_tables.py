"""No setting is without effect in a trainer: each is in its command, refused, or told.

Every key is compiled with another value than in a plain run, by the adapter of this environment.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from gem.errors import ConfigurationError, MissingExtraError
from gem_train.experiment.agreement import NAMES
from gem_train.experiment.hardware import Hardware
from gem_train.experiment.runspec import RunSpec
from gem_train.launch import ENTRY_POINT_GROUP, Adapter, Launch, find_adapter
from gem_train.passes import Passes
from gem_train.table import Elsewhere, Run, Table, Way, key_of, keys

ADAPTERS = sorted(entry.name for entry in entry_points(group=ENTRY_POINT_GROUP))

SPEC_FILE = "spec.json"
"""The whole RunSpec, in adapters whose trainer is started with it."""

GUESS = {"id": "game:GuessTheNumber-v0-easy", "name": "a", "params": {"max_turns": 4}}
PLAIN: dict[str, Any] = {
    "name": "plain",
    "env": [
        GUESS | {"schedule": [{"iteration": 1, "params": {"max_turns": 3}}]},
        {"id": "game:GuessTheNumber-v0-hard", "name": "b"},
    ],
    "eval": [GUESS | {"every": 2}, GUESS | {"name": "b", "every": 2}],
    "policy": {
        "model": "m",
        "prompt_tokens": 64,
        "response_tokens": 256,
        "turn_tokens": 8,
        "turns": 4,
        "template_kwargs": {"a": 1},
    },
    "algorithm": {"advantage": "rebn"},
    "optimizer": {"lr": 1e-3},
    "training": {"iterations": 4, "tasks": 32, "group_size": 2},
}
NODE: dict[str, Any] = {"learner": {"pass_tokens": 1000}}


def judge_named(model: str) -> dict[str, Any]:
    """The table of a judge with a model of this name."""
    return {
        "one": {"model": model, "url": "http://127.0.0.1:7/v1", "allow_uncalibrated": True},
    }


OTHER: dict[str, Any] = {
    "name": "other",
    "seed": 7,
    "env.id": "game:GuessTheNumber-v0",
    "env.params": {"max_turns": 2},
    "env.seed": 77,
    "env.name": "other",
    "env.weight": 3.0,
    "env.schedule.iteration": 2,
    "env.schedule.success": 0.5,
    "env.schedule.params": {"max_turns": 2},
    "eval.name": "other",
    "eval.id": "game:GuessTheNumber-v0",
    "eval.params": {"max_turns": 2},
    "eval.seed": 77,
    "eval.episodes": 7,
    "eval.every": 4,
    "eval.temperature": 0.0,
    "eval.samples": 3,
    "eval.top_p": 0.7,
    "eval.top_k": 7,
    "eval.min_p": 0.07,
    "policy.model": "other",
    "policy.prompt_tokens": 77,
    "policy.response_tokens": 277,
    "policy.turn_tokens": 7,
    "policy.turns": 3,
    "policy.context": "window:2",
    "policy.system_prompt": "other",
    "policy.template_kwargs": {"a": 2},
    "policy.thinking": "drop",
    "policy.lora_rank": 16,
    "policy.lora_alpha": 7.0,
    "policy.lora_init": "tinker://other",
    "sampling.temperature": 0.7,
    "sampling.top_p": 0.7,
    "sampling.top_k": 7,
    "sampling.min_p": 0.07,
    "sampling.repetition_penalty": 1.7,
    "algorithm.advantage": "grpo",
    "algorithm.gamma": 0.7,
    "algorithm.lam": 0.7,
    "algorithm.normalise": "role",
    "algorithm.clip": 0.7,
    "algorithm.epochs": 2,
    "algorithm.minibatches": 2,
    "algorithm.loss": "cispo",
    "algorithm.clip_high": 0.7,
    "algorithm.dual_clip": 7.0,
    "algorithm.sapo_positive": 7.0,
    "algorithm.sapo_negative": 7.0,
    "algorithm.ratio": "sequence",
    "algorithm.loss_aggregation": "row-mean-token-sum",
    "algorithm.kl_in": "reward",
    "algorithm.kl_estimator": "k1",
    "algorithm.reward_scale": 0.7,
    "algorithm.reward_clip": 0.7,
    "algorithm.group_std": False,
    "algorithm.whiten": True,
    "algorithm.advantage_clip": 0.7,
    "algorithm.kl_coef": 0.7,
    "algorithm.kl_reset": 2,
    "algorithm.entropy_coef": 0.7,
    "algorithm.tis_clip": 7.0,
    "algorithm.tis_floor": 0.07,
    "algorithm.tis_level": "sequence",
    "algorithm.tis_outside": "zero",
    "algorithm.reject_low": 0.07,
    "algorithm.reject_high": 7.0,
    "algorithm.reject_level": "mean",
    "algorithm.value_lr": 0.7,
    "algorithm.value_clip": 0.7,
    "algorithm.critic_warmup": 2,
    "optimizer.lr": 0.7,
    "optimizer.schedule": "cosine",
    "optimizer.warmup": 2,
    "optimizer.min_lr_ratio": 0.1,
    "optimizer.type": None,  # the RunSpec knows no other
    "optimizer.beta1": 0.7,
    "optimizer.beta2": 0.7,
    "optimizer.eps": 0.7,
    "optimizer.weight_decay": 0.7,
    "optimizer.grad_clip": 0.7,
    "training.iterations": 7,
    "training.tasks": 64,
    "training.group_size": 4,
    "training.staleness": 2,
    "training.extra_batches": 2,
    "training.mask_overlong": True,
    "training.precision": "bf16",
    "training.max_failed_fraction": 0.7,
    "training.info_metrics": ["tries", "moves"],
    "judge": judge_named("other"),
    "hardware.device": "cpu",
    "hardware.nodes": 2,
    "hardware.gpus_per_node": 8,
    "hardware.gpu_memory_gb": 7.0,
    "hardware.engine.tensor_parallel": 2,
    "hardware.engine.engines": 2,
    "hardware.engine.memory_share": 0.7,
    "hardware.learner.tensor_parallel": 2,
    "hardware.learner.sequence_parallel": 2,
    "hardware.learner.pass_tokens": 7777,
    "hardware.learner.checkpointing": False,
    "hardware.learner.offload": True,
    "hardware.learner.attention": "flash_attention_2",
    "hardware.executor": "process:7",
    "hardware.checkpoint_every": 7,
    "hardware.logger": "wandb",
}
"""Another value of each key."""

SAPO = {"algorithm.loss": "sapo", "algorithm.loss_aggregation": "row-mean-token-mean"}
BESIDE: dict[str, dict[str, Any]] = {
    "policy.lora_alpha": {"policy.lora_rank": 8},
    "policy.lora_init": {"policy.lora_rank": 8},
    "algorithm.lam": {"algorithm.advantage": "gae"},
    "algorithm.value_lr": {"algorithm.advantage": "gae"},
    "algorithm.value_clip": {"algorithm.advantage": "gae"},
    "algorithm.tis_level": {"algorithm.tis_clip": 2.0},
    "algorithm.tis_outside": {"algorithm.tis_clip": 2.0, "algorithm.tis_floor": 0.5},
    "algorithm.reject_level": {"algorithm.reject_low": 0.5, "algorithm.reject_high": 2.0},
    "algorithm.sapo_positive": SAPO,
    "algorithm.sapo_negative": SAPO,
    "algorithm.critic_warmup": {"algorithm.advantage": "gae"},
    "algorithm.kl_reset": {"algorithm.kl_coef": 0.7},
    "algorithm.kl_in": {"algorithm.kl_coef": 0.7},
    "algorithm.kl_estimator": {"algorithm.kl_coef": 0.7},
    "algorithm.group_std": {"algorithm.advantage": "grpo"},
    "optimizer.min_lr_ratio": {"optimizer.schedule": "cosine"},
    "judge": {
        "env.id": "judge:Reply-v0",
        "env.params": {"judge": "one"},
        "env.schedule.params": {"format_error_reward": 0.1},
        "judge": judge_named("usual"),
    },
    # Most trainers compute in 16 bits there.
    "hardware.learner.attention": {
        "training.precision": "bf16",
        "hardware.learner.attention": "sdpa",
    },
}
"""Values without which a key means nothing: the plain run has them, too."""
FLASH = {"training.precision": "bf16", "hardware.learner.attention": "flash_attention_2"}
"""verl's critics and its shared sequences need flash attention, which needs 16 bits."""
IN_VERL = {"algorithm.lam", "algorithm.value_lr", "algorithm.value_clip"} | {
    "algorithm.critic_warmup",
    "hardware.learner.sequence_parallel",
}
WITH = {"env.schedule.success": {"env.schedule.iteration": None}}
"""Values that change with a key: parameters change at an iteration or after a success rate."""


def with_values(values: dict[str, Any]) -> tuple[RunSpec, Hardware]:
    """The plain run with other values."""
    spec, hardware = copy.deepcopy(PLAIN), copy.deepcopy(NODE)
    for key, value in values.items():
        *tables, name = key.split(".")
        place: Any = spec
        if tables[:1] == ["hardware"]:
            place, tables = hardware, tables[1:]
        for table in tables:
            place = place.setdefault(table, {})
            place = place[0] if isinstance(place, list) else place
        place[name] = value
    return RunSpec.from_mapping(spec), Hardware.from_mapping(hardware)


@pytest.fixture(params=ADAPTERS)
def adapter(request: pytest.FixtureRequest) -> Adapter:
    return find_adapter(request.param)


def plain(name: str) -> dict[str, Any]:
    """Values of the plain run of an adapter."""
    if name == "reference":  # one process
        return {}
    several = {"hardware.gpus_per_node": 4}
    # A Tinker server trains adapters only.
    rank = {"policy.lora_rank": 8, "policy.lora_alpha": 32.0} if name == "tinker" else {}
    return {**several, **rank}


def told(launch: Launch, key: str) -> set[str]:
    """Statuses of the rows of a key."""
    rows = {each.name: each.status for each in launch.parity}
    return {rows[name] for name in rows if name.split(".")[0] in PARTS and key_of(name) == key}


PARTS = {key.split(".")[0] for key in keys()}


def compiled(adapter: Adapter, values: dict[str, Any], folder: Path) -> str | tuple[Launch, Run]:
    """Compile a run; return it, or why it was refused, without the numbers of environments."""
    try:
        spec, hardware = with_values(values)
        launch = adapter.compile(spec, run_dir=folder, hardware=hardware)
        return launch, adapter.table.run(spec, folder, hardware)
    except MissingExtraError as error:
        pytest.skip(f"the trainer lives in another environment: {error}")
    except ConfigurationError as error:
        return re.sub(r"\.\d+|\[\d+\]", "", str(error))


def names(why: str, wanted: Iterable[str]) -> bool:
    """Whether one of these keys is refused, as in `KEY: why` or `KEY=1 with KEY=2: why`."""
    named = [each.partition("=")[0] for each in why.partition(": ")[0].split(" with ")]
    return not set(named).isdisjoint({*wanted, *(key.removeprefix("hardware.") for key in wanted)})


def ways(table: Table) -> dict[str, Way]:
    """How each key gets to the trainer."""
    return {key: way for key, way, _ in table.rows()}


def reached(adapter: Adapter, launch: Launch, run: Run) -> tuple[Any, ...]:
    """What a trainer is given, but for the file with the whole RunSpec, which always differs."""
    files = {name: text for name, text in launch.files.items() if name != SPEC_FILE}
    return launch.argv, launch.env, files, adapter.table.settings(run)


def test_every_key_has_another_value_here() -> None:
    assert set(OTHER) == set(keys())


# gem-bench writes the name into run.json. The RunSpec knows one optimiser.
@pytest.mark.parametrize("key", [k for k in keys() if k not in ("name", "optimizer.type")])
def test_another_value_is_in_the_command_refused_or_told(
    key: str, adapter: Adapter, tmp_path: Path
) -> None:
    table = adapter.table
    beside = BESIDE.get(key, {})
    if table.trainer == "verl" and key in IN_VERL:
        beside = beside | FLASH
    before = {**plain(table.trainer), **beside}
    usual = compiled(adapter, before, tmp_path)
    other = compiled(adapter, {**before, key: OTHER[key], **WITH.get(key, {})}, tmp_path)
    if isinstance(usual, str):
        assert beside and names(usual, beside), usual
    elif isinstance(other, str):
        assert names(other, [key]), other
    else:
        whole = SPEC_FILE in other[0].files and isinstance(ways(table)[key], Elsewhere)
        assert (
            reached(adapter, *usual) != reached(adapter, *other)
            or whole
            or told(other[0], key) & {"unmatched", "emulated"}
        ), f"{adapter.trainer}: {key} = {OTHER[key]!r} reaches nothing, and parity does not say so"


SAME = {"hardware.learner.pass_tokens": 600, "training.tasks": 16}
"""16 tasks of 2 episodes, of at most 320 tokens."""


@pytest.mark.parametrize(("epochs", "minibatches"), [(1, 1), (2, 1), (1, 2), (2, 4)])
def test_the_optimiser_steps_are_read_from_the_trainers_settings(
    epochs: int, minibatches: int, adapter: Adapter, tmp_path: Path
) -> None:
    values = {"algorithm.epochs": epochs, "algorithm.minibatches": minibatches}
    passes = passes_of(adapter, {**SAME, **values}, tmp_path)
    assert passes.steps == epochs * minibatches
    assert passes.settings


@pytest.mark.parametrize(("tokens", "rows"), [(320, 1), (1000, 2), (5120, 8)])
def test_a_pass_has_at_most_as_many_tokens_as_the_hardware_says(
    tokens: int, rows: int, adapter: Adapter, tmp_path: Path
) -> None:
    """32 episodes on 4 ranks; a fixed number of rows divides the 8 of a rank."""
    hardware = {"hardware.learner.pass_tokens": tokens}
    passes = passes_of(adapter, {**SAME, **hardware}, tmp_path)
    if passes.layout == "fixed":
        rows *= 4 if adapter.table.trainer == "reference" else 1
        assert (passes.rows, passes.tokens) == (rows, rows * 320)
    elif passes.layout == "server":
        assert (passes.rows, passes.tokens) == (None, None)
    else:
        assert (passes.rows, passes.tokens) == (None, tokens)


def test_rows_of_turns_make_as_many_steps(adapter: Adapter, tmp_path: Path) -> None:
    try:
        passes = passes_of(adapter, {**SAME, "policy.context": "concat"}, tmp_path)
    except ConfigurationError as error:
        pytest.skip(str(error))
    assert passes.steps == 1


def test_a_commands_passes_survive_the_way_between_environments(
    adapter: Adapter, tmp_path: Path
) -> None:
    launch = compiled_in_full(adapter, SAME, tmp_path)
    assert launch.passes is not None
    assert Launch.from_json(launch.to_json()) == launch


def passes_of(adapter: Adapter, values: dict[str, Any], folder: Path) -> Passes:
    """How the trainer of this environment divides the batches of a plain run."""
    passes = compiled_in_full(adapter, values, folder).passes
    assert passes is not None, "the adapter does not tell"
    return passes


def compiled_in_full(adapter: Adapter, values: dict[str, Any], folder: Path) -> Launch:
    """Compile a plain run with other values."""
    spec, hardware = with_values({**plain(adapter.table.trainer), **values})
    try:
        return adapter.compile(spec, run_dir=folder, hardware=hardware)
    except MissingExtraError as error:
        pytest.skip(f"the trainer lives in another environment: {error}")


ONE, TWO = {"algorithm.minibatches": 1}, {"algorithm.minibatches": 2}
COOLED = {"sampling.temperature": 0.7}
FEWER = {"sampling.top_p": 0.9}
GAP = set(NAMES)
UNTOLD: dict[str, list[tuple[dict[str, Any], set[str]]]] = {
    "reference": [(ONE, set()), (FEWER, GAP), (COOLED, set())],
    "verl": [(ONE, set()), (FEWER, GAP), (COOLED, set())],
    "openrlhf": [(ONE, set()), (COOLED, GAP), (COOLED | {"algorithm.tis_clip": 2.0}, set())],
    "oat": [(ONE, set()), (COOLED, GAP)],
    "rl2": [(ONE, GAP), (TWO, set()), ({"algorithm.kl_coef": 0.1}, set())],
    "skyrl": [(ONE, set()), (COOLED, set()), (COOLED | FEWER, GAP), (FEWER, set())],
    "roll": [(ONE, GAP), (TWO, set()), (TWO | COOLED, GAP)],
    "tinker": [(ONE, set())],
    "trl": [
        (ONE, GAP),  # without vLLM
        ({"algorithm.loss": "cispo"}, {*GAP, "clip_fraction"}),
        ({"algorithm.ratio": "sequence", "algorithm.advantage": "grpo"}, {*GAP, "clip_fraction"}),
    ],
}
"""Metrics that a trainer cannot give with other values than a plain run's; docs/records.md."""


def test_metrics_that_a_trainer_cannot_give_are_named(adapter: Adapter, tmp_path: Path) -> None:
    for values, names_of_metrics in UNTOLD[adapter.table.trainer]:
        launch = compiled_in_full(adapter, {**SAME, **values}, tmp_path)
        assert set(launch.untold) == names_of_metrics, values
        assert Launch.from_json(launch.to_json()).untold == launch.untold


MODES = {
    "verl": "trainer.v1.trainer_mode",
    "openrlhf": "train.async_enable",
    "skyrl": "trainer.fully_async",
    "trl": "GemAsyncGRPOTrainer",
    "oat": "asynchronous",
    "roll": "async_generation_ratio",
    "rl2": "every batch is sampled with the weights that it trains",
    "tinker": "every batch is sampled with the weights that it trains",
}
"""What an adapter names when it refuses `training.staleness`; the reference has it."""
SWITCHES = {"openrlhf": "train.async_enable", "skyrl": "trainer.fully_async.enabled"}


def test_staleness_is_compiled_or_refused_with_the_trainers_asynchronous_mode(
    adapter: Adapter, tmp_path: Path
) -> None:
    trainer = adapter.table.trainer
    spec, hardware = with_values({**plain(trainer), "training.staleness": 1})
    if trainer == "reference":
        assert adapter.compile(spec, run_dir=tmp_path, hardware=hardware).argv
        return
    with pytest.raises(ConfigurationError, match="^training.staleness: ") as error:
        adapter.compile(spec, run_dir=tmp_path, hardware=hardware, unchecked=True)
    assert MODES[trainer] in str(error.value)
    assert str(error.value).endswith("set it to 0, got 1")


def test_an_asynchronous_mode_that_is_asked_for_is_told(adapter: Adapter, tmp_path: Path) -> None:
    trainer = adapter.table.trainer
    if trainer not in SWITCHES:
        pytest.skip("no native setting turns one on")
    spec, hardware = with_values(plain(trainer))
    for value, status in ((True, "unmatched"), (False, "matched")):
        native = hardware.with_native(trainer, {SWITCHES[trainer]: value})
        launch = adapter.compile(spec, run_dir=tmp_path, hardware=native)
        assert told(launch, "training.staleness") == {status}
