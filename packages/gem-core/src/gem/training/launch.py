"""What an adapter makes of a RunSpec: a trainer's native command, and parity setting by setting.

- `Parity`: how faithfully a trainer realises one setting of the spec (parity).
- `Launch`: a trainer's native command with its environment and files.
- `Adapter`: what an entry point of the group `gem.adapters` provides.

`python -m gem.training.launch NAME --run-dir DIR` reads `{"spec": ..., "hardware": ...}` as JSON
from standard input and writes the `Launch` of adapter NAME as JSON. Trainers live in virtual
environments of their own; this is how a program in another one asks them for their command.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from difflib import get_close_matches
from importlib.metadata import entry_points
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_type_hints

from gem.errors import ConfigurationError, exit_status
from gem.executors.named import VARIABLE
from gem.experiment.hardware import CPU, Hardware, model_config
from gem.experiment.mixtures import samples
from gem.experiment.runspec import RunSpec
from gem.json_lines import parse_as
from gem.multi import ALL, SELF, agents, all_seats
from gem.tables import flatten
from gem.training import pairs
from gem.training.platforms import Platform
from gem.training.settings import NO_STATE, Refusal, refuse_values

ENTRY_POINT_GROUP = "gem.adapters"

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_/.-]*")
_KEYWORDS = ("null", "true", "false", "nan", "inf")
"""No text to Hydra unless quoted."""


@dataclass(frozen=True)
class Parity:
    """How a trainer realises one setting."""

    name: str
    """Key of the RunSpec, or the trainer's own name for something the spec cannot say."""
    status: Literal["matched", "emulated", "unmatched", "untried", "native"]
    """`untried`: pairs of settings that nobody has run together; see `gem.training.pairs`.
    `native`: a setting of the trainer that was given to it as it is."""
    how: str = ""
    """By which of the trainer's settings; why not, where unmatched; the value, where native."""


Names: TypeAlias = str | tuple[str, ...]
"""The trainer's name of a setting, or several names with the same value."""

SHARED_GPUS = {
    "hardware.device": "GEM_CPU=1 without a GPU",
    "hardware.engine.engines": "as many as the GPUs allow",
}
"""Parity of the hardware where engines and learner share all GPUs; see `check_hardware`."""

SEED_PER_TURN = "every turn has a seed of its own; other random numbers than in other trainers"
"""How `gem.training.sampling.EngineSampler` lets trainers draw random numbers."""

OPTIMIZER_WEIGHTS = "precision of the optimiser's weights"
FP32 = ("fp32", "float32", "float", "32")
"""How trainers write it."""

_SEATS = {
    f"seat={ALL}": "all seats of a match, an episode for each",
    f"opponent={SELF}": "one seat of a match, the policy plays the others",
}
"""Parity of the parameters of a game that say that the policy plays all seats."""

ALL_WEIGHTS = {
    "policy.lora_rank": "all weights",
    "policy.lora_alpha": "no adapters",
    "policy.lora_init": "no adapters",
}
"""Parity of the settings of low-rank adapters in a trainer that is told to train all weights."""


def namesakes(settings: type[Any], form: str = "{}") -> dict[str, Names]:
    """Return the settings of a spec that an adapter has under the same name, for `copied`.

    Of the hardware it is the executor of environments.

    Args:
        settings: The adapter's own settings, a dataclass. `seed` and the environment are not
            looked at.
        form: What the trainer calls the adapter's setting `{}`, such as `+gem.{}`.
    """
    known = {each.name for each in fields(settings)}
    executor: dict[str, Names] = {}
    if "executor" in known:
        executor["hardware.executor"] = form.format("executor")
    return executor | {
        f"{table}.{each.name}": form.format(each.name)
        for table, part in get_type_hints(RunSpec).items()
        if is_dataclass(part) and table != "env"
        for each in fields(part)
        if each.name in known
    }


def copied(
    spec: RunSpec,
    names: Mapping[str, Names],
    hardware: Hardware | None = None,
    *,
    fused: bool = False,
) -> dict[str, Any]:
    """Return the settings of a trainer that have the value of a setting of the spec.

    Args:
        spec: The experiment; settings that are None are left out.
        names: The trainer's name or names for a key of the spec, or of the hardware with
            `hardware.` before it. `parity` takes the same table.
        hardware: What the run is given, with values in the place of defaults that depend on the
            experiment; without it its keys are left out.
        fused: See `pass_tokens`.
    """
    values = {key: attrgetter(key)(spec) for key in names if not key.startswith("hardware.")}
    if hardware is not None:
        values |= _flat(hardware) | {
            "hardware.engine.engines": hardware.engines,
            "hardware.learner.attention": attention(spec, hardware),
            "hardware.learner.pass_tokens": pass_tokens(spec, hardware, fused=fused),
        }
    return {
        name: values[key]
        for key, each in names.items()
        for name in ((each,) if isinstance(each, str) else each)
        if values.get(key) is not None
    }


def parity(
    spec: RunSpec,
    how: Mapping[str, Names],
    departures: Iterable[Parity] = (),
    hardware: Hardware | None = None,
    trainer: str = "",
) -> list[Parity]:
    """Say of every setting of a spec, and of the hardware, how it reaches a trainer.

    Args:
        spec: The experiment.
        how: By which of the trainer's settings, for a key of the spec or for all of a table; for
            keys of the hardware with `hardware.` before them.
        departures: What is not matched; entries that name no key of the spec come last.
        hardware: What the run is given. A value that is not the default and of which `how` says
            nothing has no effect in the trainer.
        trainer: Whose native settings are listed.
    """
    left = {each.name: each for each in departures}
    found = []
    values, default = _flat(hardware), _flat(CPU if hardware and hardware.cpu else Hardware())
    flat = flatten(spec.to_mapping()) | values
    for name in flat:
        if name in values and name not in how:
            if values[name] != default[name] and name not in left:
                found.append(Parity(name, "unmatched", "without effect in this trainer"))
            continue
        parts = name.split(".")
        tables = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
        ways = how[next(table for table in tables if table in how)]
        # Hydra's plus sign adds a key and is no part of its name.
        named = (way.removeprefix("+") for way in ((ways,) if isinstance(ways, str) else ways))
        said = _SEATS.get(f"{parts[-1]}={flat[name]}") or ", ".join(named)
        found.append(left.pop(name, Parity(name, "matched", said)))
    native = hardware.native.get(trainer, {}) if hardware else {}
    given = [Parity(name, "native", json.dumps(value)) for name, value in native.items()]
    return [*found, *left.values(), *given]


def executor_variable(hardware: Hardware) -> dict[str, str]:
    """Return the environment of a program that is told by it where environments run."""
    return {} if hardware.executor is None else {VARIABLE: hardware.executor}


def with_native(settings: Mapping[str, Any], hardware: Hardware, trainer: str) -> dict[str, Any]:
    """Return a trainer's settings with those that the user gives it as they are.

    Raises:
        ConfigurationError: The adapter has set one of them.
    """
    native = hardware.native.get(trainer, {})
    made = {name.lstrip("+"): value for name, value in settings.items()}
    for name in native:
        if name.lstrip("+") in made:
            raise ConfigurationError(
                f"native.{trainer}.{name}: the experiment or the hardware decides it "
                f"({made[name.lstrip('+')]!r}); change it there"
            )
    return {**settings, **native}


def _flat(hardware: Hardware | None) -> dict[str, Any]:
    """Return the settings of hardware as `hardware.<key>`, the native ones left out."""
    known = {} if hardware is None else {**hardware.to_mapping(), "native": {}}
    return flatten({"hardware": known})


def refuse(spec: RunSpec, *found: Refusal) -> None:
    """Refuse what a trainer cannot do, or would silently do differently.

    Args:
        spec: The experiment.
        *found: With keys of the spec.

    Raises:
        ConfigurationError: A value is refused; the message has the key, the reason and the value.
    """
    values = flatten(spec.to_mapping())
    chosen = "the trainer is given all tasks before the run; say `iteration` instead"
    adaptive = [
        (key, True, chosen)
        for key, value in values.items()
        if re.fullmatch(r"env\.([0-9]+\.)?schedule\.[0-9]+\.success", key) and value is not None
    ]
    refuse_values(values, [*adaptive, *found])


def most_agents(spec: RunSpec) -> int:
    """Return the most trajectories of a task: 1, or the agents of a match with `seat=all`."""
    tasks = [task for task in samples(spec.task_set) if all_seats(task.params)]
    return max((len(agents(task.env_id, task.params)) for task in tasks), default=1)


def whole_minibatches(spec: RunSpec) -> Refusal:
    """Refuse minibatches of different numbers of episodes; see `refuse`."""
    reason = f"{spec.episodes} episodes (training.tasks * training.group_size) do not divide so"
    return "algorithm.minibatches", spec.episodes % spec.algorithm.minibatches > 0, reason


def whole_rows(spec: RunSpec, trainer: str) -> Refusal:
    """Refuse minibatches of a trainer that divides rows, where a task has several; see `refuse`."""
    several = most_agents(spec) > 1
    shown = "seat=all" if several else spec.policy.shown
    torn = f"{trainer} divides rows, not episodes; set it to 1 for {shown}"
    refused = spec.algorithm.minibatches > 1 and (several or not spec.policy.one_row)
    return "algorithm.minibatches", refused, torn


def token_mean(spec: RunSpec, trainer: str) -> Refusal:
    """Refuse other losses than a mean over tokens; see `refuse`."""
    reason = f"{trainer} has 'token-mean' and a mean of rows' token means, but no sum over tokens"
    return "algorithm.loss_aggregation", spec.algorithm.loss_aggregation != "token-mean", reason


def all_weights(spec: RunSpec) -> Refusal:
    """Refuse low-rank adapters; see `refuse`."""
    return "policy.lora_rank", spec.policy.lora_rank > 0, "all weights are trained; set it to 0"


def no_correction(spec: RunSpec, reason: str, lacking: bool = True) -> Refusal:
    """Refuse truncated importance sampling where it is `lacking`; see `refuse`."""
    wanted = spec.algorithm.tis_clip is not None
    return "algorithm.tis_clip", wanted and lacking, f"{reason}; leave it out"


def check_hardware(spec: RunSpec, hardware: Hardware, lacking: Mapping[str, str]) -> None:
    """Refuse what a trainer cannot do whose engines and learner share all GPUs.

    Args:
        spec: The experiment.
        hardware: What the run is given.
        lacking: Why the trainer knows no other value than 1, for keys of the hardware.

    Raises:
        ConfigurationError: A value is refused; the message has the key, the reason and the value.
    """
    step = spec.episodes // spec.algorithm.minibatches
    torn = f"an optimiser step's {step} episodes do not divide among {hardware.ranks} ranks"
    engines = hardware.gpus // hardware.engine.tensor_parallel
    idle = f"engines and learner share all GPUs, which makes {engines} engines"
    found: list[Refusal] = [
        ("algorithm.minibatches", step % hardware.ranks > 0, torn),
        ("hardware.engine.engines", hardware.engines != engines, idle),
    ]
    for name, reason in lacking.items():
        one = attrgetter(name)(hardware) > 1
        found.append((f"hardware.{name}", one, f"{reason}; set it to 1"))
    refuse_values(flatten(spec.to_mapping()) | _flat(hardware), found)


def attention(spec: RunSpec, hardware: Hardware) -> str:
    """Return the implementation of attention: flash attention where it is installed, in bf16."""
    if hardware.learner.attention is not None:
        return hardware.learner.attention
    flash = spec.training.precision == "bf16" and not hardware.cpu
    return "flash_attention_2" if flash and find_spec("flash_attn") is not None else "sdpa"


def pass_tokens(spec: RunSpec, hardware: Hardware, *, fused: bool = False) -> int:
    """Return the most tokens of a forward pass, at least those of an episode.

    By default the logits take at most 1 GiB as fp32. A model that is no folder is taken to have a
    vocabulary of 131,072 tokens.

    Args:
        spec: The experiment.
        hardware: What the run is given.
        fused: Whether the trainer never makes the logits of a whole pass. On a GPU the default is
            then 16,384 tokens.
    """
    vocabulary = model_config(spec.policy.model).get("vocab_size", 2**17)
    default = 16_384 if fused and not hardware.cpu else min(2**28 // int(vocabulary), 65_536)
    return max(hardware.learner.pass_tokens or default, spec.policy.tokens)


def departures(
    spec: RunSpec,
    seeds: str = SEED_PER_TURN,
    *,
    weights: Parity,
    bf16: str | None = None,
    undecayed: str | None = None,
    values_on_tokens: bool = False,
    missed: str | None = None,
) -> Iterator[Parity]:
    """Yield in what trainers with a loss of their own differ from the reference in the same way.

    That is random numbers, unless sampling is greedy; a KL penalty as a term of the loss (k3
    estimator), where the spec asks for one; a critic's new head; evaluations at other times,
    because all are made at once; and the rest as the arguments say.

    Args:
        spec: The experiment.
        seeds: How random numbers are drawn.
        weights: The precision in which the optimiser keeps the weights; see `optimizer_weights`.
        bf16: How the trainer computes in bf16, where the reference uses autocast.
        undecayed: Which weights the trainer leaves out of weight decay; None: none.
        values_on_tokens: Whether the critic is trained on all tokens of a turn.
        missed: Which evaluation that the spec asks for the trainer never makes.
    """
    yield weights
    if spec.sampling.top_k != 1:
        yield Parity("seed", "emulated", seeds)
    if spec.algorithm.kl_coef:
        how = "as a term of the loss (k3 estimator), not of the reward"
        yield Parity("algorithm.kl_coef", "emulated", how)
    if spec.algorithm.estimator.needs_critic:
        how = "a random linear layer, where the reference starts from zero"
        yield Parity("critic's initial head", "unmatched", how)
        if values_on_tokens:
            how = "all tokens of a turn are trained towards the turn's target, not where it begins"
            yield Parity("algorithm.value_clip", "emulated", how)
    if undecayed is not None and spec.optimizer.weight_decay:
        yield Parity("optimizer.weight_decay", "emulated", f"{undecayed} are left out")
    if bf16 is not None and spec.training.precision == "bf16":
        yield Parity("training.precision", "emulated", f"{bf16} (the reference: autocast)")
    how = f"everything is evaluated at once: every {spec.eval_every} iterations"
    how += f", but {missed}" if missed else ""
    for index, part in enumerate(spec.eval):
        if missed or part.every != spec.eval_every:
            yield Parity(f"eval.{index}.every", "emulated", how)


def optimizer_weights(how: str, native: Mapping[str, Any] | None = None, *keys: str) -> Parity:
    """Return the parity of the precision in which the optimiser keeps the weights: fp32.

    At a learning rate of 1e-6 most updates are smaller than the steps of bf16 and would be lost.

    Args:
        how: By what the trainer keeps them in fp32.
        native: Native settings of the trainer.
        *keys: Those that would make it another precision.
    """
    for key, value in (native or {}).items():
        if key.lstrip("+") in keys and str(value).removeprefix("torch.") not in FP32:
            lost = f"{key} = {json.dumps(value)}: updates below its rounding are lost"
            return Parity(OPTIMIZER_WEIGHTS, "unmatched", lost)
    return Parity(OPTIMIZER_WEIGHTS, "matched", f"fp32: {how}")


def bf16_only(spec: RunSpec, reason: str, *, cpu: bool) -> Iterator[Parity]:
    """Yield that a trainer without fp32 has it only where gem-cpu adds it.

    Args:
        spec: The experiment.
        reason: What the trainer does instead on a GPU.
        cpu: Whether the run is without a GPU.
    """
    if spec.training.precision == "fp32":
        how = "GEM_CPU_DTYPE of gem-cpu" if cpu else reason
        yield Parity("training.precision", "emulated" if cpu else "unmatched", how)


def hydra_value(value: Any) -> str:
    """Write a value in Hydra's override grammar.

    Raises:
        ConfigurationError: A key of a mapping is one that Hydra cannot read back.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(map(hydra_value, value))}]"
    if isinstance(value, Mapping):
        for key in value:
            if not (key.isascii() and key.isidentifier()) or key.lower() in _KEYWORDS:
                raise ConfigurationError(f"Hydra cannot read a table with the key {key!r}")
        return f"{{{','.join(f'{key}:{hydra_value(each)}' for key, each in value.items())}}}"
    if isinstance(value, str | Path):
        if _PLAIN.fullmatch(str(value)) and str(value).lower() not in _KEYWORDS:
            return str(value)
        # Hydra takes backslashes for escapes only before a quote, and `${` for a reference.
        text = re.sub(r"(\\*)('|\Z)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), str(value))
        return f"'{text}'".replace("${", r"\${")
    return repr(value)


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
    parity: list[Parity] = field(default_factory=list)
    """One entry per setting of the RunSpec."""
    state: list[str] = field(default_factory=list)
    """Files and folders in the run folder, beside the record, that the trainer would go on from if
    an earlier run had left them."""

    @classmethod
    def of(
        cls,
        spec: RunSpec,
        argv: Sequence[str],
        platform: Platform,
        env: Mapping[str, str] | None = None,
        **others: Any,
    ) -> Launch:
        """Make the launch of a command on a platform.

        Args:
            spec: The experiment; where its model is a folder, no model hub is asked.
            argv: The trainer's command, with the platform's settings.
            platform: What the machine adds; its environment wins.
            env: The trainer's environment variables.
            **others: Further fields.
        """
        offline = {"HF_HUB_OFFLINE": "1"} if Path(spec.policy.model).exists() else {}
        return cls(
            argv=[*platform.before, *argv],
            env={**offline, **(env or {}), **platform.env},
            unset=platform.unset,
            state=[*others.pop("state", ()), *platform.state],
            **others,
        )

    def checked(
        self,
        table: Iterable[pairs.Pair],
        spec: RunSpec,
        hardware: Hardware,
        only: str | None = None,
    ) -> Launch:
        """Return the launch with a line about the pairs of settings that nobody has tried.

        Args:
            table: The trainer's; see `gem.training.pairs`.
            spec: The experiment.
            hardware: What the run is given.
            only: The only implementation of attention that the trainer has, if it has only one.

        Raises:
            ConfigurationError: A pair of settings is refused, or the table says nothing of it.
        """
        untried = list(pairs.check(table, spec, hardware, only or attention(spec, hardware)))
        if not untried:
            return self
        return replace(
            self, parity=[*self.parity, Parity("together", "untried", "; ".join(untried))]
        )

    def to_json(self) -> str:
        """Return JSON that `from_json` reads back."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Launch:
        """Rebuild from `to_json`."""
        data = parse_as(text, dict[str, Any], "the command")
        return cls(**{**data, "parity": [Parity(**each) for each in data["parity"]]})


@dataclass(frozen=True)
class Adapter:
    """What an entry point of the group `gem.adapters` names."""

    trainer: str
    """Name of the trainer's distribution, such as `verl`."""
    supported: str
    """Supported versions of it, such as `>=0.9.1,<0.10`."""
    venv: str
    """Name of the virtual environment that `make env-<name>` builds."""
    compiler: Callable[..., Launch]
    """What `compile` calls with the same arguments."""
    all_seats: bool = False
    """Whether it trains all seats of a match (`seat=all`)."""
    keeps_state: bool = False
    """Whether it keeps the state of an estimator from batch to batch, also in its checkpoints."""
    pairs: tuple[pairs.Pair, ...] = ()
    """Which settings of the hardware work together. A pair without a row stops the compile."""
    attention: str | None = None
    """The only implementation of attention that the trainer has, if it has only one."""

    def compile(self, spec: RunSpec, *, run_dir: Path, hardware: Hardware) -> Launch:
        """Return the trainer's native command for a spec.

        Args:
            spec: The experiment.
            run_dir: Absolute folder where the run leaves its record and files.
            hardware: What the run is given.

        Raises:
            ConfigurationError: The trainer cannot run this spec; the message names the key.
            MissingExtraError: The trainer is missing.
            UnsupportedVersionError: The trainer is of an unsupported version.
        """
        name, values = self.trainer, flatten(spec.to_mapping())
        one = f"{name} trains one seat of a match; opponent=self lets the policy play the others"
        stateless = f"{name} keeps no state of an estimator from batch to batch; {NO_STATE}"
        seats = [] if self.all_seats else [key for key in values if key.endswith(".params.seat")]
        stateful = spec.algorithm.estimator.keeps_state and not self.keeps_state
        found: list[Refusal] = [(key, values[key] == ALL, one) for key in seats]
        refuse_values(values, [*found, ("algorithm.advantage", stateful, stateless)])
        made = self.compiler(spec, run_dir=run_dir, hardware=hardware)
        return made.checked(self.pairs, spec, hardware, self.attention)


def unknown_trainer(name: str, known: Iterable[str]) -> str:
    """Say that there is no adapter of this name, which ones there are, and which may be meant."""
    close = get_close_matches(name, sorted(known), n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"no adapter for trainer {name!r}; known: {', '.join(sorted(known)) or 'none'}{hint}"


def find_adapter(name: str) -> Adapter:
    """Return the installed adapter called `name`.

    Raises:
        ConfigurationError: No such adapter is installed here.
    """
    found = {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
    if name not in found:
        raise ConfigurationError(unknown_trainer(name, found))
    adapter: Adapter = found[name].load()
    return adapter


def main(argv: list[str] | None = None) -> int:
    """Compile what is on standard input; exit status 2 and a message if that is impossible."""
    parser = argparse.ArgumentParser(prog="python -m gem.training.launch")
    parser.add_argument("adapter")
    parser.add_argument("--run-dir", type=Path, required=True)
    args = parser.parse_args(argv)

    def compile_spec() -> None:
        asked = parse_as(sys.stdin.read(), dict[str, dict[str, Any]], "standard input")
        launch = find_adapter(args.adapter).compile(
            RunSpec.from_mapping(asked["spec"]),
            run_dir=args.run_dir.absolute(),
            hardware=Hardware.from_mapping(asked["hardware"]),
        )
        sys.stdout.write(launch.to_json() + "\n")

    return exit_status(compile_spec)


if __name__ == "__main__":
    sys.exit(main())
