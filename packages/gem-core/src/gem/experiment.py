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
import dataclasses
import difflib
import json
import sys
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from gem.adapter import Source, check_names
from gem.advantage import ADVANTAGES
from gem.errors import ConfigurationError, GemError
from gem.rollout.play import Budget
from gem.tasks import Task, TaskSet

ENTRY_POINT_GROUP = "gem.adapters"
PartT = TypeVar("PartT")


def _knob(
    help: str,
    default: Any = MISSING,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    choices: tuple[str, ...] | None = None,
) -> Any:
    metadata = {"help": help, "least": least, "above": above, "most": most, "choices": choices}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class EnvPart:
    """Training environment."""

    id: str = _knob("registered environment id")
    params: Mapping[str, Any] = _knob("parameters given to `gem.make`", {})
    seed: int = _knob("task j of iteration k has seed `seed + k * tasks + j`", 0)


@dataclass(frozen=True)
class EvalPart:
    """One evaluation; the same tasks every time."""

    name: str = _knob("name in the metrics (`eval:<name>`)")
    id: str = _knob("registered environment id")
    params: Mapping[str, Any] = _knob("parameters given to `gem.make`", {})
    seed: int = _knob("episode j has seed `seed + j`", 1_000_000)
    episodes: int = _knob("episodes per evaluation", 64, least=1)
    every: int = _knob("iterations between evaluations; also before the first and at the end", 20)
    temperature: float = _knob("sampling temperature; 0 is greedy", 1.0, least=0)


@dataclass(frozen=True)
class PolicyPart:
    """Model and what it is shown."""

    model: str = _knob("path or hub name of a model with a chat template, or one of gem-cpu's")
    prompt_tokens: int = _knob("most tokens of a fresh prompt", least=1)
    response_tokens: int = _knob("most tokens appended to a fresh prompt", least=1)
    turn_tokens: int = _knob("most tokens sampled in a turn", least=1)
    turns: int | None = _knob("most turns, besides the environment's own limit", None, least=1)
    context: str = _knob("`chat`, `concat`, `concat_with_action` or `window:<k>`", "chat")
    system_prompt: str | None = _knob("text of a system message", None)
    lora_rank: int = _knob(
        "rank of low-rank adapters on the attention and MLP projections; 0 trains all weights",
        0,
        least=0,
    )
    lora_alpha: float = _knob("adapters are scaled by `lora_alpha / lora_rank`", 32.0, above=0)
    lora_init: str | None = _knob("adapter to begin with; by default a random one", None)


@dataclass(frozen=True)
class SamplingPart:
    """How training episodes are sampled; `top_k = 1` at temperature 1 is greedy."""

    temperature: float = _knob("softmax temperature", 1.0, above=0)
    top_p: float = _knob("nucleus mass", 1.0, above=0, most=1)
    top_k: int = _knob("number of candidates; -1 is all", -1, least=-1)


@dataclass(frozen=True)
class AlgorithmPart:
    """Advantage and policy loss (clipped surrogate, arXiv 1707.06347 equation 7)."""

    advantage: str = _knob("estimator of `gem.advantage`", choices=ADVANTAGES)
    gamma: float = _knob("discount per turn", 1.0, least=0, most=1)
    lam: float = _knob("GAE's lambda per turn", 1.0, least=0, most=1)
    clip: float = _knob("clip range of the probability ratio", 0.2, above=0)
    epochs: int = _knob("passes over a batch", 1, least=1)
    minibatches: int = _knob("optimiser steps per pass", 1, least=1)
    loss_aggregation: str = _knob(
        "mean over sampled tokens, or sum over tokens and mean over rows",
        "token-mean",
        choices=("token-mean", "row-mean-token-sum"),
    )
    kl_coef: float = _knob("weight of the KL penalty to the initial policy", 0.0, least=0)
    entropy_coef: float = _knob("weight of the entropy bonus", 0.0, least=0)
    value_lr: float = _knob("critic's learning rate (`gae` only)", 1e-3, above=0)
    value_clip: float = _knob("clip range of the critic's prediction", 0.2, above=0)


@dataclass(frozen=True)
class OptimizerPart:
    """Policy optimiser; the learning rate is constant."""

    lr: float = _knob("learning rate", above=0)
    type: str = _knob("optimiser", "adamw", choices=("adamw",))
    beta1: float = _knob("decay of the first moment", 0.9, least=0, most=1)
    beta2: float = _knob("decay of the second moment", 0.999, least=0, most=1)
    eps: float = _knob("denominator offset", 1e-8, above=0)
    weight_decay: float = _knob("decoupled weight decay", 0.0, least=0)
    grad_clip: float = _knob("largest gradient norm", 1.0, above=0)


@dataclass(frozen=True)
class TrainingPart:
    """Size of the run; an iteration plays `tasks * group_size` episodes."""

    iterations: int = _knob("batches to train on", least=1)
    tasks: int = _knob("different tasks in a batch", least=1)
    group_size: int = _knob("episodes of each task", 1, least=1)
    precision: str = _knob("parameters and arithmetic", "fp32", choices=("fp32", "bf16"))


@dataclass(frozen=True)
class RunSpec:
    """Everything that defines a learning problem and nothing about a trainer."""

    name: str = _knob("name of the experiment")
    env: EnvPart = _knob("training environment")
    policy: PolicyPart = _knob("model and context")
    algorithm: AlgorithmPart = _knob("advantage and loss")
    optimizer: OptimizerPart = _knob("optimiser")
    training: TrainingPart = _knob("size of the run")
    sampling: SamplingPart = field(default_factory=SamplingPart)
    eval: tuple[EvalPart, ...] = ()
    seed: int = _knob("seed of sampling and of newly made weights", 0, least=0)

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any]) -> RunSpec:
        """Make a spec from parsed TOML or JSON.

        Raises:
            ConfigurationError: A key is unknown, missing, of the wrong type or out of range; the
                message names the key as `table.key`.
        """
        spec = _build(cls, data, "")
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


def flatten(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a nested mapping under dotted keys, `{"algorithm.gamma": 0.9, "eval.0.name": ...}`."""
    return dict(_leaves(settings, ""))


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


def _build(part: type[PartT], data: Any, path: str) -> PartT:
    if not isinstance(data, Mapping):
        name = path.rstrip(".") or "the spec"
        raise ConfigurationError(f"{name} must be a table, got {data!r}")
    hints = typing.get_type_hints(part)
    fields = {f.name: f for f in dataclasses.fields(part)}  # type: ignore[arg-type]
    for key in data:
        if key not in fields:
            near = difflib.get_close_matches(str(key), fields, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(fields))}"
            raise ConfigurationError(f"unknown key {path + str(key)!r}; {hint}")
    values = {}
    for name, spec in fields.items():
        if name in data:
            values[name] = _value(hints[name], data[name], path + name, spec.metadata)
        elif spec.default is MISSING and spec.default_factory is MISSING:
            raise ConfigurationError(f"missing key {path + name!r} ({spec.metadata['help']})")
    return part(**values)


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}.{index}")
    else:
        yield path, value


def _value(hint: Any, value: Any, path: str, limits: Mapping[str, Any]) -> Any:
    if typing.get_origin(hint) is types.UnionType:  # `T | None`
        if value is None:
            return None
        hint = next(arm for arm in typing.get_args(hint) if arm is not type(None))
    if dataclasses.is_dataclass(hint):
        return _build(typing.cast(type[Any], hint), value, f"{path}.")
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigurationError(f"{path} must be an array of tables, got {value!r}")
        item = typing.get_args(hint)[0]
        return tuple(_build(item, entry, f"{path}[{i}].") for i, entry in enumerate(value))
    if typing.get_origin(hint) is not None:  # Mapping[str, Any]
        if not isinstance(value, Mapping):
            raise ConfigurationError(f"{path} must be a table, got {value!r}")
        return dict(value)
    if hint is float and type(value) is int:
        value = float(value)
    if type(value) is not hint:
        raise ConfigurationError(f"{path} must be of type {hint.__name__}, got {value!r}")
    least, above, most = limits.get("least"), limits.get("above"), limits.get("most")
    if least is not None and not value >= least:
        raise ConfigurationError(f"{path} must be at least {least}, got {value}")
    if above is not None and not value > above:
        raise ConfigurationError(f"{path} must be above {above}, got {value}")
    if most is not None and not value <= most:
        raise ConfigurationError(f"{path} must be at most {most}, got {value}")
    choices = limits.get("choices")
    if choices is not None and value not in choices:
        raise ConfigurationError(f"{path} must be one of {', '.join(choices)}, got {value!r}")
    return value


if __name__ == "__main__":
    sys.exit(main())
