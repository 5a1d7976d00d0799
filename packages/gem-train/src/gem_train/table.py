"""The table in which an adapter says how its trainer realises each setting of an experiment.

A `Table` has an entry for every key of the RunSpec and of the hardware; a missing key is an error
when the adapter is imported. The command, its parity, its refusals and the adapter's page in
docs/parity are readings of this one table.

One entry of a key says how the value gets there:

- `Copied`: settings of the trainer have the value.
- `Computed`: settings of the trainer are computed from it.
- `Fixed`: the trainer knows one value; any other is refused.
- `Elsewhere`: it is no setting of the trainer, but realised otherwise.
- `Ignored`: a key of the hardware that has no effect in the trainer.

Others may stand beside it:

- `Refused`: values that the trainer cannot realise.
- `Departs`: when and how the trainer differs from the definition.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from string import Formatter
from typing import Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

from gem.errors import ConfigurationError
from gem.multi import ALL, SELF
from gem.tables import flatten
from gem_train import passes
from gem_train.experiment.hardware import CPU, Hardware
from gem_train.experiment.runspec import RunSpec

Names: TypeAlias = str | tuple[str, ...]
"""The trainer's name of a setting, or several names with the same value. Hydra's plus sign, which
adds a key, may stand before it."""
Status: TypeAlias = Literal["matched", "emulated", "unmatched", "untried", "native"]


@dataclass(frozen=True)
class Parity:
    """How a trainer realises one setting."""

    name: str
    """Key of the RunSpec, or the trainer's own name for something the spec cannot say."""
    status: Status
    """`untried`: pairs of settings that nobody has run together; see `gem_train.pairs`.
    `native`: a setting of the trainer that was given to it as it is."""
    how: str = ""
    """By which of the trainer's settings; why not, where unmatched; the value, where native."""


@dataclass(frozen=True)
class Run:
    """What an adapter compiles."""

    spec: RunSpec
    """The experiment."""
    run_dir: Path
    """Absolute folder where the run leaves its record and files."""
    hardware: Hardware
    """What the run is given."""
    fused: bool = False
    """Whether the trainer never makes the logits of a whole forward pass."""
    native: Mapping[str, Any] = field(default_factory=dict)
    """Settings that the user gives the trainer as they are."""

    @property
    def attention(self) -> str:
        """Implementation of attention."""
        return passes.attention(self.spec, self.hardware)

    @property
    def pass_tokens(self) -> int:
        """Most tokens of a forward pass."""
        return passes.pass_tokens(self.spec, self.hardware, fused=self.fused)

    @property
    def step_episodes(self) -> int:
        """Episodes of an optimiser step."""
        return self.spec.episodes // self.spec.algorithm.minibatches

    @property
    def shared_engines(self) -> int:
        """Engines where they and the learner share all GPUs."""
        return self.hardware.gpus // self.hardware.engine.tensor_parallel

    @property
    def critic(self) -> bool:
        """Whether the estimator needs a critic."""
        return self.spec.algorithm.estimator.needs_critic

    def value(self, key: str) -> Any:
        """Return the value of a key, with the default of the hardware that fits the experiment."""
        computed: dict[str, Callable[[], Any]] = {
            "hardware.engine.engines": lambda: self.hardware.engines,
            "hardware.learner.attention": lambda: self.attention,
            "hardware.learner.pass_tokens": lambda: self.pass_tokens,
        }
        if key in computed:
            return computed[key]()
        part, _, name = key.partition(".")
        return attrgetter(name)(self.hardware) if part == "hardware" else attrgetter(key)(self.spec)


SEATS = {
    f"seat={ALL}": "all seats of a match, an episode for each",
    f"opponent={SELF}": "one seat of a match, the policy plays the others",
}
"""Parity of the parameters of a game that say that the policy plays all seats."""

Condition: TypeAlias = Callable[[Run, Any], bool]
"""Takes the run and the value of the key."""


@dataclass(frozen=True)
class Copied:
    """Settings of the trainer that have the value; they are left out where it is None.

    Several names are a text with spaces between them.
    """

    names: Names
    said: str = ""
    """Parity; by default the names."""

    def settings(self, run: Run, key: str) -> dict[str, Any]:
        """Return the trainer's settings, by name."""
        value = run.value(key)
        if isinstance(value, tuple):
            value = " ".join(value) or None
        return {} if value is None else dict.fromkeys(_several(self.names), value)

    @property
    def text(self) -> str:
        """What the parity says."""
        return self.said or ", ".join(name.removeprefix("+") for name in _several(self.names))


@dataclass(frozen=True)
class Computed:
    """Settings of the trainer that are computed."""

    how: Callable[[Run], Mapping[str, Any]]
    """Returns them by name. Several keys may have the same function."""
    text: str
    """What the parity says."""

    def settings(self, run: Run, key: str) -> dict[str, Any]:
        """Return the trainer's settings, by name."""
        return dict(self.how(run))


@dataclass(frozen=True)
class Fixed:
    """The only value that the trainer knows."""

    value: Any
    why: str
    """Of the trainer, a sentence without its full stop."""

    def settings(self, run: Run, key: str) -> dict[str, Any]:
        """Return no setting."""
        return {}

    @property
    def text(self) -> str:
        """What the parity says."""
        return self.why


@dataclass(frozen=True)
class Elsewhere:
    """Realised by something that is no setting of the trainer, such as a file of tasks."""

    text: str
    """What the parity says."""

    def settings(self, run: Run, key: str) -> dict[str, Any]:
        """Return no setting."""
        return {}


@dataclass(frozen=True)
class Ignored:
    """Without effect in this trainer; the parity says so of a value that is not the default."""

    text: str = "without effect in this trainer"

    def settings(self, run: Run, key: str) -> dict[str, Any]:
        """Return no setting."""
        return {}


@dataclass(frozen=True)
class Refused:
    """Values that the trainer cannot realise, or would silently realise otherwise."""

    when: Condition
    why: str
    """Fields of the run may stand in it, as in `{run.step_episodes} episodes`."""


@dataclass(frozen=True)
class Departs:
    """A difference between the trainer and the definition."""

    when: Condition
    how: str
    """Fields of the run may stand in it."""
    status: Status = "emulated"


Way: TypeAlias = Copied | Computed | Fixed | Elsewhere | Ignored
Entry: TypeAlias = Way | Refused | Departs
Entries: TypeAlias = Mapping[str, Entry | tuple[Entry, ...]]
WAYS = get_args(Way)


@dataclass(frozen=True)
class Table:
    """How a trainer realises every key.

    Raises:
        ConfigurationError: A key has no entry, or not exactly one that says how its value gets to
            the trainer; a key of the RunSpec is ignored; an entry is of no key; or a text names a
            field that a run does not have.
    """

    trainer: str
    """Name of the adapter."""
    entries: Entries
    """By key of the RunSpec, and of the hardware with `hardware.` before it."""
    others: tuple[Callable[[Run], Iterable[Parity]], ...] = ()
    """Parity of what is no key."""
    fused: Callable[[RunSpec], bool] = lambda spec: False
    """See `Run.fused`."""
    untold: tuple[Callable[[Run], Mapping[str, str]], ...] = ()
    """Metrics of the record that the trainer cannot give, with the reason; see `entries.untold`."""
    _rows: dict[str, tuple[Way, tuple[Refused | Departs, ...]]] = field(
        init=False, repr=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        for key in keys():
            if key not in self.entries:
                raise ConfigurationError(
                    f"{key}: the table of the adapter {self.trainer!r} has no entry for this key"
                )
            entry = self.entries[key]
            several = entry if isinstance(entry, tuple) else (entry,)
            ways = [each for each in several if isinstance(each, WAYS)]
            if len(ways) != 1:
                raise ConfigurationError(
                    f"{key}: the table of the adapter {self.trainer!r} must say once how the "
                    f"value gets to the trainer, it says so {len(ways)} times"
                )
            if isinstance(ways[0], Ignored) and not key.startswith("hardware."):
                raise ConfigurationError(
                    f"{key}: defines the experiment, the adapter {self.trainer!r} may not ignore it"
                )
            beside = tuple(each for each in several if isinstance(each, Refused | Departs))
            for each in beside:
                text = each.why if isinstance(each, Refused) else each.how
                if unknown := [name for name in _fields(text) if not _is_of_run(name)]:
                    raise ConfigurationError(
                        f"{key}: the table of the adapter {self.trainer!r} says {text!r}, but a "
                        f"run has no {', '.join(unknown)}"
                    )
            self._rows[key] = ways[0], beside
        if unknown := sorted(self.entries.keys() - self._rows.keys()):
            raise ConfigurationError(
                f"{', '.join(unknown)}: in the table of the adapter {self.trainer!r}, but no key "
                "of the RunSpec or the hardware"
            )

    def run(self, spec: RunSpec, run_dir: Path, hardware: Hardware) -> Run:
        """Return what is compiled."""
        native = hardware.native.get(self.trainer, {})
        return Run(spec, run_dir, hardware, self.fused(spec), native)

    def refuse(self, run: Run) -> None:
        """Refuse the first value that the trainer cannot realise.

        Raises:
            ConfigurationError: The message has the key, the reason and the value.
        """
        for name, value in _values(run).items():
            way, beside = self._rows[key_of(name)]
            if isinstance(way, Fixed) and value != way.value:
                instead = "leave it out" if way.value is None else f"set it to {way.value!r}"
                raise ConfigurationError(f"{name}: {way.why}; {instead}, got {value!r}")
            for each in beside:
                if isinstance(each, Refused) and each.when(run, value):
                    why = each.why.format(run=run)
                    raise ConfigurationError(f"{name}: {why}, got {value!r}")

    def settings(self, run: Run) -> dict[str, Any]:
        """Return the trainer's settings, by name.

        Raises:
            ConfigurationError: Two entries give a setting different values.
        """
        made: dict[str, Any] = {}
        for key, (way, _) in self._rows.items():
            if key.startswith("eval.") and not run.spec.eval:
                continue
            for name, value in way.settings(run, key).items():
                if made.setdefault(name, value) != value:
                    raise ConfigurationError(
                        f"{key}: the table of the adapter {self.trainer!r} sets {name} to "
                        f"{value!r}, and another entry to {made[name]!r}"
                    )
        return made

    def parity(self, run: Run) -> list[Parity]:
        """Say of every key how it reaches the trainer; entries that are no key come last.

        Keys of the hardware for which the trainer has one value only are left out.
        """
        default = CPU if run.hardware.cpu else Hardware()
        usual = flatten({"hardware": {**default.to_mapping(), "native": {}}})
        found = []
        for name, value in _values(run).items():
            way, beside = self._rows[key_of(name)]
            if isinstance(way, Ignored):
                if value != usual[name]:
                    found.append(Parity(name, "unmatched", way.text))
                continue
            if isinstance(way, Fixed) and name in usual:
                continue
            for each in beside:
                if isinstance(each, Departs) and each.when(run, value):
                    found.append(Parity(name, each.status, each.how.format(run=run)))
                    break
            else:
                seats = SEATS.get(f"{name.rpartition('.')[2]}={value}")
                found.append(Parity(name, "matched", seats or way.text))
        for other in self.others:
            found += other(run)
        native = (Parity(k, "native", json.dumps(v)) for k, v in run.native.items())
        return [*found, *native]

    def missing(self, run: Run) -> dict[str, str]:
        """Return which metrics of the record the trainer cannot give in a run, and why."""
        found: dict[str, str] = {}
        for each in self.untold:
            found |= each(run)
        return found

    def with_native(self, settings: Mapping[str, Any], run: Run) -> dict[str, Any]:
        """Return a trainer's settings with those that the user gives it as they are.

        Raises:
            ConfigurationError: The adapter has set one of them, or a key in it.
        """
        made = {name.lstrip("+"): value for name, value in settings.items()}
        made |= flatten(made)
        for name in run.native:
            place = name.lstrip("+")
            # Some trainers merge a table into theirs, others replace theirs by it.
            if decided := [key for key in made if f"{key}.".startswith(f"{place}.")]:
                what = "it" if decided[0] == place else f"{decided[0]}, a part of it"
                raise ConfigurationError(
                    f"native.{self.trainer}.{name}: the experiment or the hardware decides {what} "
                    f"({made[decided[0]]!r}); change it there, and name other parts one by one"
                )
        return {**settings, **run.native}

    def rows(self) -> Iterator[tuple[str, Way, tuple[Refused | Departs, ...]]]:
        """Yield each key with how its value gets to the trainer, and what stands beside that."""
        for key, (way, beside) in self._rows.items():
            yield key, way, beside


@lru_cache(maxsize=1)
def keys() -> tuple[str, ...]:
    """Return every key: of the RunSpec, and of the hardware with `hardware.` before it.

    The keys of an array of tables have no number (`eval.every`). A free table, such as the
    parameters of an environment, is one key. `landmarks` is nothing to a trainer.
    """
    hardware = (f"hardware.{key}" for key in _keys(Hardware) if key != "native")
    return (*(key for key in _keys(RunSpec) if key != "landmarks"), *hardware)


def key_of(name: str) -> str:
    """Return the key in which a flattened name is: `eval.every` for `eval.0.every`.

    Raises:
        KeyError: There is none.
    """
    known, parts = keys(), []
    for part in name.split("."):
        if not part.isdigit():
            parts.append(part)
        if ".".join(parts) in known:
            return ".".join(parts)
    raise KeyError(name)


def namesakes(settings: type[Any], form: str = "{}") -> dict[str, Entry]:
    """Return entries for the keys that an adapter's own settings have under the same name.

    Args:
        settings: The adapter's own settings, a dataclass. `seed` and the environment are not
            looked at; of the hardware only the executor is.
        form: What the trainer calls the adapter's setting `{}`, such as `+gem.{}`.
    """
    names = {each.name for each in fields(settings)}
    parts = ("policy", "sampling", "algorithm", "optimizer", "training")
    same = (key for key in keys() if key.count(".") == 1 and key.split(".")[0] in parts)
    found = {key: key.split(".")[1] for key in (*same, "hardware.executor")}
    return {key: Copied(form.format(name)) for key, name in found.items() if name in names}


def below(settings: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the settings whose names begin with a prefix, without it."""
    return {k.removeprefix(prefix): v for k, v in settings.items() if k.startswith(prefix)}


def _values(run: Run) -> dict[str, Any]:
    """Return the values of all keys, flattened; free tables that are empty are left out."""
    hardware = {**run.hardware.to_mapping(), "native": {}}
    return flatten({**run.spec.settings(), "hardware": hardware})


def _keys(part: type[Any], prefix: str = "") -> Iterator[str]:
    hints = get_type_hints(part)
    for each in fields(part):
        hint, path = hints[each.name], prefix + each.name
        if get_origin(hint) is tuple:
            hint = get_args(hint)[0]
        if is_dataclass(hint):
            yield from _keys(hint, f"{path}.")  # type: ignore[arg-type]
        else:
            yield path


def _fields(text: str) -> list[str]:
    """Return the fields of a text for `str.format`."""
    return [name for _, name, _, _ in Formatter().parse(text) if name is not None]


def _is_of_run(name: str) -> bool:
    """Whether a field such as `run.spec.episodes` can be read from a run."""
    first, *rest = name.split(".")
    kind: Any = Run
    for part in rest:
        known = getattr(kind, part, None)
        read = getattr(known, "fget", None) or getattr(known, "func", None)
        hints = {part: get_type_hints(read)["return"]} if read else get_type_hints(kind)
        if part not in hints:
            return False
        kind = hints[part]
    return first == "run"


def _several(names: Names) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names
