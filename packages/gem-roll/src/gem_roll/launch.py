"""gem-bench's hook: a RunSpec becomes ROLL's YAML and the command of ROLL's own launcher.

`agentic.yaml` is the configuration with the names of settings in the place of their values.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from gem.errors import ConfigurationError
from gem.experiment.hardware import Hardware
from gem.experiment.runspec import RunSpec
from gem.tables import flatten
from gem.tasks import TaskSet
from gem.training import launch, platforms
from gem.training.pairs import COMPUTED, ON_CPU, pairs
from gem.training.platforms import Platform
from gem_roll.checkout import LAUNCHER, check_roll
from gem_roll.settings import ONE_ROW
from gem_roll.version import SUPPORTED_ROLL

Tree: TypeAlias = dict[str, Any]
CONFIG, TEMPLATE = "roll", Path(__file__).with_name("agentic.yaml")
"""Name of the configuration, a file in the run's folder; what it is made of."""

HOW: dict[str, launch.Names] = {
    **launch.ALL_WEIGHTS,
    **launch.SHARED_GPUS,
    "env": "custom_envs.train",
    "eval": "custom_envs.eval:<name>, eval_steps",
    "algorithm.tis_clip": "train_infer_correction is off",
    "optimizer": "fixed in ROLL's strategies; lr_scheduler_type=constant",
}
"""How settings, or all of a table, reach ROLL that the template does not name."""

_OPTIMISED = ("actor_train", "critic")
_LACKING = {
    "engine.tensor_parallel": "a GPU has a whole engine here",
    "learner.tensor_parallel": "FSDP divides no matrices",
    "learner.sequence_parallel": "a GPU has whole rows here",
}


def compile_spec(spec: RunSpec, *, run_dir: Path, hardware: Hardware) -> launch.Launch:
    """Return ROLL's command for a spec; see `gem.training.launch.Adapter`.

    Raises:
        ConfigurationError: ROLL cannot run this spec; the message names the key.
        MissingExtraError: There is no checkout of ROLL.
        UnsupportedVersionError: It is of another commit.
    """
    roll = check_roll()
    if "${" in json.dumps(spec.to_mapping()):
        raise ConfigurationError("ROLL's configuration would take '${' for a reference")
    launch.refuse(
        spec,
        launch.all_weights(spec),
        launch.no_correction(spec, "ROLL's train_infer_correction is not compiled"),
        launch.whole_minibatches(spec),
        *spec.policy.several_rows(ONE_ROW, "policy."),
        ("optimizer.eps", spec.optimizer.eps != 1e-8, "ROLL's AdamW has 1e-8, and no key"),
    )
    launch.check_hardware(spec, hardware, _LACKING)
    gpu = Platform(env=platforms.python_path(roll))
    platform = platforms.of("roll", spec, run_dir, hardware, gpu, path=[roll])
    given = launch.with_native(platform.settings, hardware, "roll")
    # Hydra takes a folder relative to the script, and no absolute one.
    folder = os.path.relpath(run_dir, (roll / LAUNCHER).parent)
    template: Tree = yaml.safe_load(TEMPLATE.read_text(encoding="utf-8"))
    names = {str(v)[1:-1]: key for key, v in flatten(template).items() if str(v)[:1] == "<"}
    return launch.Launch.of(
        spec,
        ["python", str(roll / LAUNCHER), "--config_path", folder, "--config_name", CONFIG],
        platform,
        {"ROLL_LOG_DIR": str(run_dir / "logs"), "TOKENIZERS_PARALLELISM": "false"},
        files={f"{CONFIG}.yaml": _config(spec, hardware, template, run_dir, given)},
        parity=launch.parity(spec, HOW | names, _departures(spec, hardware), hardware, "roll"),
    )


PAIRS = (
    pairs(ON_CPU, ON_CPU, "runs", "tests/conformance, on the CPU"),
    pairs(COMPUTED, COMPUTED, "untried"),
)
"""Which settings of the hardware work together in ROLL."""

adapter = launch.Adapter("roll", SUPPORTED_ROLL, "roll", compile_spec, pairs=PAIRS)


def _config(
    spec: RunSpec, hardware: Hardware, template: Tree, run_dir: Path, settings: Mapping[str, Any]
) -> str:
    """Return ROLL's configuration; `settings` are given as they are, with dots between tables."""
    given = flatten({**spec.to_mapping(), "hardware": hardware.to_mapping()})
    values = {**given, **_computed(spec, hardware), ".run_dir": str(run_dir)}
    text = re.sub('"<(.+?)>"', lambda name: json.dumps(values[name[1]]), json.dumps(template))
    tree: Tree = json.loads(text)
    train = tree["custom_envs"]["train"]
    for source in spec.evaluations:
        first = source.tasks[0]
        tasks = {"env_type": first.env_id, "env_config": dict(first.params)}
        own = {"first_seed": first.seed, "temperature": source.temperature, "tasks": None}
        tree["custom_envs"][f"eval:{source.name}"] = train | tasks | {"gem": train["gem"] | own}
    for key, value in settings.items():
        *tables, name = key.split(".")
        table = tree
        for each in tables:
            table = table.setdefault(each, {})
        table[name] = value
    unused = {
        "critic": not spec.algorithm.estimator.needs_critic,
        "reference": not spec.algorithm.kl_coef,
    }
    kept = {key: value for key, value in tree.items() if not unused.get(key)}
    return str(yaml.safe_dump(kept, sort_keys=False, allow_unicode=True))


def _computed(spec: RunSpec, hardware: Hardware) -> Tree:
    """Return what is not in the spec or the hardware as ROLL wants it, by the template's names."""
    algorithm, length, tasks = spec.algorithm, spec.policy.tokens, spec.task_set
    step = spec.episodes // algorithm.minibatches // hardware.ranks
    fitting = launch.pass_tokens(spec, hardware) // length
    rows = max(n for n in range(1, min(step, fitting) + 1) if step % n == 0)
    attention = launch.attention(spec, hardware).replace("flash_attention_2", "fa2")
    evaluated = {f"eval:{each.name}": len(each.tasks) for each in spec.evaluations} or {"train": 1}
    sharding: Tree = {"fsdp_size": hardware.gpus, "reduce_dtype": "float32"}
    if spec.training.precision == "fp32":
        # In bf16 ROLL would load the optimiser's weights in this type, too: where it is left out
        # they are fp32, and FSDP computes in bf16.
        sharding["param_dtype"] = "float32"
    return {
        ".env_type": tasks[0].env_id,
        ".params": dict(tasks[0].params),
        ".first_seed": tasks[0].seed,
        ".tasks": None if isinstance(tasks, TaskSet) else tasks.uri,
        "policy.template_kwargs": spec.policy.template_kwargs,
        ".eval_steps": spec.eval_every,
        ".episodes": spec.episodes,
        ".evaluated": sum(evaluated.values()),
        ".evaluations": [*evaluated],
        ".evaluation_sizes": [*evaluated.values()],
        ".tokens": length,
        ".adv_estimator": "gae" if algorithm.estimator.needs_critic else "reinforce",
        ".use_kl_loss": algorithm.kl_coef > 0,
        "algorithm.loss_aggregation": algorithm.loss_aggregation.replace("row-", "seq-"),
        "hardware.logger": hardware.logger or "stdout",
        "hardware.checkpoint_every": hardware.checkpoint_every or 1_000_000_000,
        "hardware.learner.attention": attention,
        "hardware.learner.checkpointing": not hardware.learner.checkpointing,
        "hardware.engine.memory_share": hardware.engine.memory_share or 0.6,
        ".sharding": sharding,
        ".devices": f"list(range(0,{hardware.gpus}))",
        "hardware.learner.pass_tokens": rows,
        "algorithm.minibatches": step // rows,
    }


def _departures(spec: RunSpec, hardware: Hardware) -> Iterator[launch.Parity]:
    at_end = spec.eval and spec.training.iterations % spec.eval_every == 0
    yield from launch.departures(
        spec,
        "vLLM's own; which turn gets which number depends on timing",
        weights=launch.optimizer_weights(
            "FSDP2TrainStrategy loads them so where param_dtype is left out",
            hardware.native.get("roll"),
            *(
                f"{part}.strategy_args.strategy_config.param_dtype"
                for part in ("actor_train", "critic")
            ),
        ),
        bf16="FSDP's arithmetic in bf16, reduced in fp32",
        values_on_tokens=True,
        missed="not at the end" if at_end else None,
    )
    if spec.algorithm.minibatches > 1:
        how = "gradient_accumulation_steps; ROLL draws the episodes of a minibatch at random"
        yield launch.Parity("algorithm.minibatches", "emulated", how)
