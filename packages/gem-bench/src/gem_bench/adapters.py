"""Runs a trainer's adapter, in the Python environment where it is installed.

- `compile_launch`: RunSpec in, the trainer's command with its environment and parity out.
- `check_environments`: checks that the trainer's Python can play the experiment's environments.
- `reference`: the adapter of the reference trainer, which is part of this package.

Trainers pin conflicting versions, so each may have its own virtual environment, by convention
`.venvs/<name>`. This process then runs `python -m gem_train.launch` with that environment's
Python.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from gem.errors import ConfigurationError, GemError, MissingExtraError, UnsupportedVersionError
from gem_bench.reference_setup import CHECKPOINTS, check_supported
from gem_train import entries
from gem_train.experiment.hardware import Hardware, check_model
from gem_train.experiment.runspec import RunSpec
from gem_train.launch import (
    ENTRY_POINT_GROUP,
    Adapter,
    Launch,
    executor_variable,
    find_adapter,
    unknown_trainer,
)
from gem_train.pairs import COMPUTED, ON_CPU, pairs
from gem_train.passes import CPU_TOKENS, TO_PASS, Passes
from gem_train.table import Elsewhere, Fixed, Ignored, Run, Table

VENVS = ".venvs"
WITH_ADAPTERS = ("oat", "openrlhf", "rl2", "roll", "skyrl", "tinker", "trl", "verl")
"""Trainers whose adapters come with gem-bench; `make env-<trainer>` builds their environments."""
COMPILE_TIMEOUT_S = 300


@dataclass(frozen=True)
class Compiled:
    """A trainer's command and the Python that runs it."""

    launch: Launch
    python: Path
    """Interpreter of the trainer's environment."""

    def environment(self) -> dict[str, str]:
        """Return the command's environment variables: those of this process, with its changes."""
        env = {k: v for k, v in os.environ.items() if k not in self.launch.unset}
        # The launcher's subprocesses must find the commands of its virtual environment, not ours.
        env["PATH"] = os.pathsep.join([str(self.python.parent), env.get("PATH", os.defpath)])
        if self.python.parent.parent.joinpath("pyvenv.cfg").exists():
            env["VIRTUAL_ENV"] = str(self.python.parent.parent)
        return env | self.launch.env


def compile_launch(
    trainer: str,
    spec: RunSpec,
    *,
    run_dir: Path,
    hardware: Hardware | None = None,
    python: Path | None = None,
    unchecked: bool = False,
) -> Compiled:
    """Return the native command with which `trainer` runs `spec`.

    Args:
        trainer: Name of an adapter: `reference`, `verl`, ...
        spec: The experiment.
        run_dir: Folder of the run's record.
        hardware: What the run is given; by default one GPU of 80 GB.
        python: Interpreter of the environment in which the adapter is installed. Default: that of
            `.venvs/<trainer>` in this folder or a parent, else this one.
        unchecked: Whether the trainer may be missing; the command is then for reading only.

    Raises:
        ConfigurationError: The adapter is not installed, or the trainer cannot run this spec.
        UnsupportedVersionError: The trainer is missing or of an unsupported version.
    """
    python = python or find_python(trainer)
    run_dir, hardware = run_dir.absolute(), hardware or Hardware()
    check_model(spec, hardware)
    if python is not None and not _is_this(python):
        return Compiled(_ask(python, trainer, spec, run_dir, hardware), python)
    if trainer not in installed_adapters():
        raise ConfigurationError(_not_installed(trainer))
    try:
        made = find_adapter(trainer).compile(
            spec, run_dir=run_dir, hardware=hardware, unchecked=unchecked
        )
        return Compiled(made, Path(sys.executable))
    except (UnsupportedVersionError, MissingExtraError) as error:
        raise type(error)(f"{error}{in_a_clone(trainer)}") from error


def check_environments(compiled: Compiled, spec: RunSpec) -> None:
    """Begin one episode of each environment of an experiment, with the trainer's Python.

    Raises:
        ConfigurationError: Something that an environment needs is missing; the message names it.
    """
    images = ["--images"] if compiled.launch.images else []
    command = [str(compiled.python), "-m", "gem_train.preflight", *images]
    answer = _talk(command, spec.to_mapping(), compiled.environment())
    if answer.returncode == 2:
        raise ConfigurationError(f"{answer.stderr.strip()} (said by {compiled.python})")
    if answer.returncode:
        tail = "\n".join(answer.stderr.strip().splitlines()[-15:])
        raise GemError(f"the environments cannot be played (said by {compiled.python}):\n{tail}")


def installed_adapters() -> list[str]:
    """Return the names of the adapters installed in this environment."""
    return sorted({entry.name for entry in entry_points(group=ENTRY_POINT_GROUP)})


def find_python(trainer: str) -> Path | None:
    """Return the interpreter of `.venvs/<trainer>` in the current folder or a parent, if any."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        python = folder / VENVS / trainer / "bin" / "python"
        if python.exists():
            return python
    return None


def _is_this(python: Path) -> bool:
    # Virtual environments share one binary: compare the folders of its links, not the binary.
    return python.absolute().parent.parent == Path(sys.prefix).absolute()


def _ask(python: Path, trainer: str, spec: RunSpec, run_dir: Path, hardware: Hardware) -> Launch:
    command = [str(python), "-m", "gem_train.launch", trainer, "--run-dir", str(run_dir)]
    answer = _talk(command, {"spec": spec.to_mapping(), "hardware": hardware.to_mapping()})
    if answer.returncode == 2:  # the adapter refused; its message is meant for the user
        raise ConfigurationError(f"{answer.stderr.strip()} (said by {python})")
    try:
        if answer.returncode:
            raise ValueError(f"exit status {answer.returncode}")
        # The answer is the last line: a trainer may print while it is imported.
        return Launch.from_json(answer.stdout.strip().rpartition("\n")[2])
    except (ValueError, TypeError, KeyError) as error:
        tail = "\n".join((answer.stderr or answer.stdout).strip().splitlines()[-15:])
        raise GemError(
            f"{' '.join(command)} did not answer with a command ({error}). "
            f"Is gem-core installed in that environment? The end of its output:\n{tail}"
        ) from error


def _talk(
    command: list[str], asked: dict[str, Any], env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command with JSON on stdin; return the completed process."""
    try:
        return subprocess.run(
            command,
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMPILE_TIMEOUT_S,
            check=False,
            env=env,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigurationError(f"cannot ask {' '.join(command[:3])}: {error}") from error


def _not_installed(trainer: str) -> str:
    installed = installed_adapters()
    if trainer in WITH_ADAPTERS:
        return (
            f"the adapter of {trainer} is neither installed here (installed: "
            f"{', '.join(installed) or 'none'}) nor in {VENVS}/{trainer}{in_a_clone(trainer)}"
        )
    return unknown_trainer(trainer, {*installed, *WITH_ADAPTERS})


def in_a_clone(trainer: str) -> str:
    """Say how a clone of the repository builds the environment of a trainer that has one there."""
    venv = "dev" if trainer == "reference" else trainer
    known = trainer in (*WITH_ADAPTERS, "reference")
    return f"; in a clone of the repository: `make env-{venv}`" if known else ""


_DEFINED = {
    "": "name seed",
    "env": ("id params seed name weight schedule.iteration schedule.success schedule.params"),
    "policy": (
        "context system_prompt template_kwargs thinking model prompt_tokens "
        "response_tokens turn_tokens turns lora_rank lora_alpha lora_init"
    ),
    "algorithm": (
        "advantage gamma lam normalise reward_scale reward_clip group_std whiten advantage_clip "
        "loss clip clip_high dual_clip sapo_positive sapo_negative ratio epochs minibatches "
        "loss_aggregation kl_coef kl_in kl_estimator kl_reset entropy_coef value_lr value_clip "
        "critic_warmup tis_clip tis_floor tis_level tis_outside reject_low reject_high reject_level"
    ),
    "optimizer": ("lr schedule warmup min_lr_ratio type beta1 beta2 eps weight_decay grad_clip"),
    "training": (
        "iterations tasks group_size staleness extra_batches mask_overlong precision "
        "max_failed_fraction info_metrics"
    ),
    "sampling": "temperature top_p top_k min_p repetition_penalty",
    "eval": "name id params seed episodes samples every temperature top_p top_k min_p",
}
"""Keys of each part of the RunSpec that `gem_bench.reference` defines. A new one comes here when it
is defined there."""

REFERENCE = Table(
    "reference",
    {
        **{
            f"{part}.{name}".lstrip("."): Elsewhere("by definition")
            for part, names in _DEFINED.items()
            for name in names.split()
        },
        "judge": entries.JUDGE,
        "hardware.device": Elsewhere("--device"),
        "hardware.nodes": Fixed(1, "the reference trainer is one process"),
        "hardware.gpus_per_node": Fixed(1, "the reference trainer is one process"),
        "hardware.gpu_memory_gb": Ignored(),
        "hardware.engine.tensor_parallel": Ignored(),
        "hardware.engine.engines": Ignored(),
        "hardware.engine.memory_share": Ignored(),
        "hardware.executor": Elsewhere("GEM_EXECUTOR"),
        "hardware.checkpoint_every": Elsewhere("--checkpoint-every"),
        "hardware.logger": Ignored(),
        "hardware.learner.tensor_parallel": Ignored(),
        "hardware.learner.sequence_parallel": Ignored(),
        "hardware.learner.pass_tokens": Elsewhere("--forward-tokens"),
        "hardware.learner.checkpointing": Elsewhere("--gradient-checkpointing"),
        "hardware.learner.offload": Ignored(),
        "hardware.learner.attention": Ignored(),
    },
    others=(entries.optimizer_weights("torch's AdamW; passes in bf16 are under autocast"),),
    untold=(entries.untold(lambda run: not run.spec.sampling.whole, entries.OTHER_DISTRIBUTION),),
)
"""The reference trainer defines every setting of the spec."""


def _compile(run: Run) -> Launch:
    """Return the reference trainer's command.

    Raises:
        ConfigurationError: The reference trainer does not support a setting of the spec.
        MissingExtraError: torch or transformers is not installed.
    """
    missing = [m for m in ("torch", "transformers") if importlib.util.find_spec(m) is None]
    if missing:
        raise MissingExtraError(
            f"the reference trainer needs {' and '.join(missing)}: "
            "pip install 'gem-bench[reference]'"
        )
    check_supported(run.spec)
    spec_file = run.run_dir / "spec.json"
    argv = [sys.executable, "-m", "gem_bench.reference"]
    argv += ["--spec", str(spec_file), "--record", str(run.run_dir)]
    argv += ["--checkpoint-every", str(run.hardware.checkpoint_every or 0)]
    small = run.hardware.cpu and run.hardware.learner.pass_tokens is None
    argv += ["--forward-tokens", str(CPU_TOKENS if small else run.pass_tokens)]
    if run.hardware.learner.checkpointing:
        argv.append("--gradient-checkpointing")
    env = executor_variable(run.hardware)
    if run.hardware.cpu:
        argv += ["--device", "cpu"]
        # One thread is fastest for the small models that a CPU can train, above all beside
        # other programs. And results do not depend on the number of cores.
        env["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")
    argv += [f"--{name}={value}" for name, value in REFERENCE.with_native({}, run).items()]
    return Launch(
        argv=argv,
        env=env,
        files={spec_file.name: json.dumps(run.spec.to_mapping(), indent=2) + "\n"},
        state=[CHECKPOINTS],
        passes=_forward(run, argv),
    )


def _forward(run: Run, argv: list[str]) -> Passes:
    """Return how `gem_bench.reference` divides a batch."""
    option, algorithm = "--forward-tokens", run.spec.algorithm
    tokens = int(argv[argv.index(option) + 1])
    said = {
        option: tokens,
        "algorithm.epochs": algorithm.epochs,
        "algorithm.minibatches": algorithm.minibatches,
    }
    return Passes("dynamic", TO_PASS, run.spec.steps, tokens, None, said)


_PAIRS = (
    pairs((*ON_CPU, "learner.checkpointing"), ON_CPU, "runs", "tests/bench, on the CPU"),
    pairs(COMPUTED, COMPUTED, "untried"),
)

reference = Adapter(
    "gem-bench",
    ">=0.1",
    "dev",
    REFERENCE,
    _compile,
    all_seats=True,
    images=True,
    keeps_state=True,
    pairs=_PAIRS,
    attention="sdpa",
)
"""Starts `gem_bench.reference`."""
