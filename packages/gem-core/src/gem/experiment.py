"""One experiment for every trainer: the RunSpec, and what an adapter makes of it.

- `RunSpec` and its parts: everything that defines the learning problem, nothing about a trainer.
- `Knob`: how faithfully a trainer realises one setting of the spec (parity).
- `Launch`: a trainer's native command with its environment and files.
- `Adapter`: what an entry point of the group `gem.adapters` provides.

`python -m gem.experiment NAME --run-dir DIR [--cpu]` reads a RunSpec as JSON from standard input
and writes the `Launch` of adapter NAME as JSON. Trainers live in virtual environments of their
own; this is how a program in another one asks them for their command.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal, Protocol

from gem.adapter import MAX_FAILED_FRACTION, Source, check_names
from gem.advantage import ADVANTAGES
from gem.errors import ConfigurationError, GemError
from gem.rollout.context import check_context
from gem.rollout.play import Budget
from gem.tables import build, filled, flatten, setting
from gem.tasks import Task, TaskSet

ENTRY_POINT_GROUP = "gem.adapters"


@dataclass(frozen=True)
class EnvPart:
    """Training environment."""

    id: str = setting("registered environment id", check=filled)
    params: Mapping[str, Any] = setting("parameters given to `gem.make`", {})
    seed: int = setting("task j of iteration k has seed `seed + k * tasks + j`", 0)


@dataclass(frozen=True)
class EvalPart:
    """One evaluation; the same tasks every time."""

    name: str = setting("name in the metrics (`eval:<name>`)", check=filled)
    id: str = setting("registered environment id", check=filled)
    params: Mapping[str, Any] = setting("parameters given to `gem.make`", {})
    seed: int = setting("episode j has seed `seed + j`", 1_000_000)
    episodes: int = setting("episodes per evaluation", 64, least=1)
    every: int = setting(
        "iterations between evaluations; also before the first and at the end", 20, least=1
    )
    temperature: float = setting("sampling temperature; 0 is greedy", 1.0, least=0)


@dataclass(frozen=True)
class PolicyPart:
    """Model and what it is shown."""

    model: str = setting(
        "path or hub name of a model with a chat template, or one of gem-cpu's", check=filled
    )
    prompt_tokens: int = setting("most tokens of a fresh prompt", least=1)
    response_tokens: int = setting("most tokens appended to a fresh prompt", least=1)
    turn_tokens: int = setting("most tokens sampled in a turn", least=1)
    turns: int | None = setting("most turns, besides the environment's own limit", None, least=1)
    context: str = setting(
        "`chat`, `concat`, `concat_with_action` or `window:<k>`", "chat", check=check_context
    )
    system_prompt: str | None = setting("text of a system message", None)
    lora_rank: int = setting(
        "rank of low-rank adapters on the attention and MLP projections; 0 trains all weights",
        0,
        least=0,
    )
    lora_alpha: float = setting("adapters are scaled by `lora_alpha / lora_rank`", 32.0, above=0)
    lora_init: str | None = setting(
        "adapter to begin with; by default a random one", None, check=filled
    )


@dataclass(frozen=True)
class SamplingPart:
    """How training episodes are sampled; `top_k = 1` at temperature 1 is greedy."""

    temperature: float = setting("softmax temperature", 1.0, above=0)
    top_p: float = setting("nucleus mass", 1.0, above=0, most=1)
    top_k: int = setting("number of candidates; -1 is all", -1, least=1, special=-1)


@dataclass(frozen=True)
class AlgorithmPart:
    """Advantage and policy loss (clipped surrogate, arXiv 1707.06347 equation 7)."""

    advantage: str = setting("estimator of `gem.advantage`", choices=ADVANTAGES)
    gamma: float = setting("discount per turn", 1.0, least=0, most=1)
    lam: float = setting("GAE's lambda per turn", 1.0, least=0, most=1)
    clip: float = setting("clip range of the probability ratio", 0.2, above=0)
    epochs: int = setting("passes over a batch", 1, least=1)
    minibatches: int = setting("optimiser steps per pass", 1, least=1)
    loss_aggregation: str = setting(
        "mean over sampled tokens, or sum over tokens and mean over rows",
        "token-mean",
        choices=("token-mean", "row-mean-token-sum"),
    )
    kl_coef: float = setting("weight of the KL penalty to the initial policy", 0.0, least=0)
    entropy_coef: float = setting("weight of the entropy bonus", 0.0, least=0)
    value_lr: float = setting("critic's learning rate (`gae` only)", 1e-3, above=0)
    value_clip: float = setting("clip range of the critic's prediction", 0.2, above=0)


@dataclass(frozen=True)
class OptimizerPart:
    """Policy optimiser; the learning rate is constant."""

    lr: float = setting("learning rate", above=0)
    type: str = setting("optimiser", "adamw", choices=("adamw",))
    beta1: float = setting("decay of the first moment", 0.9, least=0, below=1)
    beta2: float = setting("decay of the second moment", 0.999, least=0, below=1)
    eps: float = setting("denominator offset", 1e-8, above=0)
    weight_decay: float = setting("decoupled weight decay", 0.0, least=0)
    grad_clip: float = setting("largest gradient norm", 1.0, above=0)


@dataclass(frozen=True)
class TrainingPart:
    """Size of the run; an iteration plays `tasks * group_size` episodes."""

    iterations: int = setting("batches to train on", least=1)
    tasks: int = setting("different tasks in a batch", least=1)
    group_size: int = setting("episodes of each task", 1, least=1)
    precision: str = setting("parameters and arithmetic", "fp32", choices=("fp32", "bf16"))
    max_failed_fraction: float = setting(
        "share of failed episodes in a batch above which the run stops",
        MAX_FAILED_FRACTION,
        least=0,
        most=1,
    )


@dataclass(frozen=True)
class RunSpec:
    """Everything that defines a learning problem and nothing about a trainer."""

    name: str = setting("name of the experiment", check=filled)
    env: EnvPart = setting("training environment")
    policy: PolicyPart = setting("model and context")
    algorithm: AlgorithmPart = setting("advantage and loss")
    optimizer: OptimizerPart = setting("optimiser")
    training: TrainingPart = setting("size of the run")
    sampling: SamplingPart = field(default_factory=SamplingPart)
    eval: tuple[EvalPart, ...] = ()
    seed: int = setting("seed of sampling and of newly made weights", 0, least=0)

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any]) -> RunSpec:
        """Make a spec from parsed TOML or JSON.

        Raises:
            ConfigurationError: A key is unknown, missing, of the wrong type or out of range; the
                message names the key as `table.key`.
        """
        spec = build(cls, data)
        episodes = spec.training.tasks * spec.training.group_size
        if spec.algorithm.minibatches > episodes:
            raise ConfigurationError(
                f"algorithm.minibatches must be at most the number of episodes in a batch, "
                f"training.tasks * training.group_size = {episodes}, got "
                f"{spec.algorithm.minibatches}"
            )
        if spec.policy.lora_init is not None and not spec.policy.lora_rank:
            raise ConfigurationError("policy.lora_init: needs a policy.lora_rank above 0")
        check_names([part.name for part in spec.eval], "eval")
        return spec

    def to_mapping(self) -> dict[str, Any]:
        """Return a JSON-ready mapping that `from_mapping` reads back."""
        return asdict(self)

    @property
    def budget(self) -> Budget:
        """The episode's token and turn limits."""
        p = self.policy
        return Budget(p.turn_tokens, p.response_tokens, p.prompt_tokens, p.turns)

    @property
    def task_set(self) -> TaskSet:
        """All training tasks, in order, `training.tasks` an iteration."""
        n = self.training.iterations * self.training.tasks
        return TaskSet(self.env.id, n, self.env.seed, self.env.params)

    @property
    def evaluations(self) -> list[Source]:
        """What is evaluated on."""
        return [
            Source(TaskSet(e.id, e.episodes, e.seed, e.params), e.name, e.temperature)
            for e in self.eval
        ]

    def train_tasks(self, iteration: int) -> list[Task]:
        """Return the tasks of an iteration: each of `training.tasks` seeds, one entry a task."""
        first = self.env.seed + iteration * self.training.tasks
        return [Task(self.env.id, first + j, self.env.params) for j in range(self.training.tasks)]


@dataclass(frozen=True)
class Knob:
    """How a trainer realises one setting."""

    name: str
    """Key of the RunSpec, or the trainer's own name for something the spec cannot say."""
    status: Literal["matched", "emulated", "unmatched"]
    how: str = ""
    """By which of the trainer's settings; why not, where unmatched."""


def parity(spec: RunSpec, how: Mapping[str, str], departures: Iterable[Knob] = ()) -> list[Knob]:
    """Say of every setting of a spec how it reaches a trainer.

    Args:
        spec: The experiment.
        how: By which of the trainer's settings, for a key of the spec or for all of its table.
        departures: What is not matched; entries that name no key of the spec come last.
    """
    left = {knob.name: knob for knob in departures}
    knobs = [
        left.pop(name)
        if name in left
        else Knob(name, "matched", how.get(name) or how[name.split(".")[0]])
        for name in flatten(spec.to_mapping())
    ]
    return [*knobs, *left.values()]


@dataclass(frozen=True)
class Launch:
    """A trainer's native command, ready to start."""

    argv: list[str]
    """Command line; the first word is found on the trainer's PATH."""
    env: dict[str, str] = field(default_factory=dict)
    """Environment variables to add."""
    unset: list[str] = field(default_factory=list)
    """Environment variables to remove."""
    files: dict[str, str] = field(default_factory=dict)
    """Files to write into the run folder before the start: relative path, content."""
    parity: list[Knob] = field(default_factory=list)
    """One entry per setting of the RunSpec."""
    state: list[str] = field(default_factory=list)
    """Files and folders in the run folder, beside the record, that the trainer would go on from if
    an earlier run had left them."""

    def to_json(self) -> str:
        """Return JSON that `from_json` reads back."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Launch:
        """Rebuild from `to_json`."""
        data = json.loads(text)
        return cls(**{**data, "parity": [Knob(**k) for k in data["parity"]]})


class Adapter(Protocol):
    """What an entry point of the group `gem.adapters` names."""

    trainer: str
    """Name of the trainer's distribution, such as `verl`."""
    supported: str
    """Supported versions of it, such as `>=0.9.1,<0.10`."""
    venv: str
    """Name of the virtual environment that `make env-<name>` builds."""

    def compile(self, spec: RunSpec, *, run_dir: Path, cpu: bool) -> Launch:
        """Return the trainer's native command for a spec.

        Args:
            spec: The experiment.
            run_dir: Absolute folder where the run leaves its record and files.
            cpu: Use the settings that let the trainer run without a GPU.

        Raises:
            ConfigurationError: The trainer cannot run this spec; the message names the key.
            UnsupportedVersionError: The trainer is missing or of an unsupported version.
        """


def find_adapter(name: str) -> Adapter:
    """Return the installed adapter called `name`.

    Raises:
        ConfigurationError: No such adapter is installed here.
    """
    found = {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
    if name not in found:
        raise ConfigurationError(
            f"no adapter {name!r} is installed; installed: {', '.join(sorted(found)) or 'none'}. "
            f"Install it with: pip install gem-{name}"
        )
    adapter: Adapter = found[name].load()
    return adapter


def main(argv: list[str] | None = None) -> int:
    """Compile the RunSpec on standard input; exit status 2 and a message if that is impossible."""
    parser = argparse.ArgumentParser(prog="python -m gem.experiment")
    parser.add_argument("adapter")
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--cpu", action="store_true")
    args = parser.parse_args(argv)
    try:
        spec = RunSpec.from_mapping(json.load(sys.stdin))
        launch = find_adapter(args.adapter).compile(
            spec, run_dir=args.run_dir.absolute(), cpu=args.cpu
        )
    except (GemError, json.JSONDecodeError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(launch.to_json() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
