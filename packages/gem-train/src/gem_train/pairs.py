"""Settings that work alone and are wrong together: what a trainer does with each pair of them.

- `FEATURES`: the settings of the hardware, and those of a RunSpec that change what GPUs compute.
- `Pair`: rows of a trainer's table: the pairs of two sets of features, and a verdict.
- `COMMON`: rows that hold for every trainer.
- `check`: refuses a run that has a refused pair, and names the pairs that nobody has tried.

A pair without a row is an error: nothing is taken to work because nobody thought of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from gem.errors import ConfigurationError
from gem_train.experiment.hardware import Hardware
from gem_train.experiment.runspec import RunSpec

FEATURES = (
    "nodes",
    "gpus_per_node",
    "engine.tensor_parallel",
    "engine.engines",
    "engine.memory_share",
    "learner.tensor_parallel",
    "learner.sequence_parallel",
    "learner.pass_tokens",
    "learner.checkpointing",
    "learner.offload",
    "sdpa",
    "flash attention",
    "executor",
    "checkpoint_every",
    "logger",
    "critic",
    "initial policy",
    "fp32",
)
"""What `features` knows of a run."""

Status = Literal["runs", "refused", "untried"]


def features(spec: RunSpec, hardware: Hardware, attention: str) -> list[str]:
    """Return the features of a run.

    Args:
        spec: The experiment.
        hardware: What the run is given.
        attention: The implementation that the adapter has chosen. By default it is the better one
            that is installed: `sdpa` may be on without a word of the user.
    """
    engine, learner = hardware.engine, hardware.learner
    has = {
        "nodes": hardware.nodes > 1,
        "gpus_per_node": hardware.gpus_per_node > 1,
        "engine.tensor_parallel": engine.tensor_parallel > 1,
        "engine.engines": engine.engines is not None,
        "engine.memory_share": engine.memory_share is not None,
        "learner.tensor_parallel": learner.tensor_parallel > 1,
        "learner.sequence_parallel": learner.sequence_parallel > 1,
        "learner.pass_tokens": learner.pass_tokens is not None,
        "learner.checkpointing": learner.checkpointing,
        "learner.offload": learner.offload,
        "sdpa": attention == "sdpa",
        "flash attention": attention != "sdpa",
        "executor": hardware.executor is not None,
        "checkpoint_every": hardware.checkpoint_every is not None,
        "logger": hardware.logger is not None,
        "critic": spec.algorithm.estimator.needs_critic,
        "initial policy": spec.algorithm.kl_coef > 0,
        "fp32": spec.training.precision == "fp32",
    }
    return [name for name in FEATURES if has[name]]


@dataclass(frozen=True)
class Pair:
    """Every pair of one feature of `some` and one of `others`."""

    some: frozenset[str]
    others: frozenset[str]
    status: Status
    """`runs`: run by a test, or plain from the trainer's source; `untried`: by neither."""
    why: str
    """Why it is refused, or how it is known to run."""
    on_gpus: bool = False
    """Whether it holds on GPUs only; without them the next row decides."""

    def covers(self, one: str, other: str, *, cpu: bool) -> bool:
        """Return whether this row is about a pair, in either order."""
        if cpu and self.on_gpus:
            return False
        return (one in self.some and other in self.others) or (
            other in self.some and one in self.others
        )


def pairs(
    some: Collection[str] | str,
    others: Collection[str] | str,
    status: Status,
    why: str = "",
    *,
    on_gpus: bool = False,
) -> Pair:
    """Return a row of a trainer's table; a single feature may be given by its name.

    Raises:
        ValueError: A name is not in `FEATURES`, or a reason is missing.
    """
    left, right = (frozenset([x] if isinstance(x, str) else x) for x in (some, others))
    if unknown := sorted((left | right) - set(FEATURES)):
        raise ValueError(f"no such feature: {', '.join(unknown)}")
    if status != "untried" and not why:
        raise ValueError(f"{status}: say why")
    return Pair(left, right, status, why, on_gpus)


ON_CPU = ("learner.pass_tokens", "sdpa", "critic", "initial policy", "fp32")
"""Features that tests run on a CPU, in one process."""
BESIDE = ("executor", "logger", "checkpoint_every", "engine.memory_share")
COMPUTED = tuple(name for name in FEATURES if name not in BESIDE)
"""Features that an adapter's table must speak of."""
COMMON = (
    pairs(BESIDE, FEATURES, "runs", "no forward or backward pass of the learner depends on it"),
    pairs("fp32", "flash attention", "refused", "flash attention has 16 bits", on_gpus=True),
    pairs("fp32", "flash attention", "runs", "gem-cpu's stand-in computes in fp32"),
)


def verdict(
    table: Iterable[Pair], one: str, other: str, *, cpu: bool = False
) -> tuple[Status, str]:
    """Return what a trainer's table, or else `COMMON`, says of a pair: of several rows the first.

    Raises:
        ConfigurationError: It says nothing.
    """
    for row in (*table, *COMMON):
        if row.covers(one, other, cpu=cpu):
            return row.status, row.why
    raise ConfigurationError(f"{shown(one, other)}: nobody has said whether they work together")


def shown(one: str, other: str) -> str:
    """Return the name of a pair for messages, with the keys that users write."""
    keys = {
        "sdpa": "learner.attention=sdpa",
        "flash attention": "learner.attention=flash_attention_2",
    }
    keys |= {"critic": "algorithm.advantage=gae", "initial policy": "algorithm.kl_coef"}
    keys |= {"fp32": "training.precision=fp32"}
    names = [keys.get(each, each) for each in (one, other)]
    spec = ("algorithm.", "training.")
    return " with ".join(each if each.startswith(spec) else f"hardware.{each}" for each in names)


def check(
    table: Iterable[Pair], spec: RunSpec, hardware: Hardware, attention: str
) -> Iterator[str]:
    """Yield the pairs of a run that nobody has tried, as `one with other`.

    Args:
        table: The trainer's rows.
        spec: The experiment.
        hardware: What the run is given.
        attention: The implementation that the adapter has chosen.

    Raises:
        ConfigurationError: A pair is refused, or has no row.
    """
    rows = tuple(table)
    for one, other in combinations(features(spec, hardware, attention), 2):
        status, why = verdict(rows, one, other, cpu=hardware.cpu)
        if status == "refused":
            raise ConfigurationError(f"{shown(one, other)}: {why}")
        if status == "untried":
            yield shown(one, other)
