"""Entries of tables that several adapters share; see `gem_train.table`."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeAlias

from gem.multi import agents, all_seats
from gem_train.experiment.agreement import NAMES
from gem_train.experiment.mixtures import samples
from gem_train.experiment.runspec import RunSpec
from gem_train.experiment.tasksets import EvalSampling
from gem_train.table import (
    Departs,
    Elsewhere,
    Entry,
    Fixed,
    Ignored,
    Parity,
    Refused,
    Run,
    Way,
)

Part: TypeAlias = dict[str, Entry | tuple[Entry, ...]]
"""Part of a table."""

ALL_WEIGHTS: Part = {
    "policy.lora_rank": Fixed(0, "all weights are trained"),
    "policy.lora_alpha": Elsewhere("no adapters"),
    "policy.lora_init": Elsewhere("no adapters"),
}
"""Of a trainer that is told to train all weights. Without a rank the other two keys have no
effect."""

ALL_ENGINES = Refused(
    lambda run, value: run.hardware.engines != run.shared_engines,
    "engines and learner share all GPUs, which makes {run.shared_engines} engines",
)
"""Of a trainer whose engines and learner share all GPUs; beside `hardware.engine.engines`."""

SHARED_GPUS: Part = {
    "hardware.device": Elsewhere("GEM_CPU=1 without a GPU"),
    "hardware.gpu_memory_gb": Ignored("only `gem-bench fit` looks at it"),
    "hardware.engine.engines": (Elsewhere("as many as the GPUs allow"), ALL_ENGINES),
}
"""Of a trainer whose engines and learner share all GPUs."""

SYNCHRONOUS: Part = {
    "training.staleness": Fixed(0, "every batch is sampled with the weights that it trains")
}
"""Of a trainer, or an adapter, that samples and trains in turn."""


def bounded_staleness(how: str, *switches: str) -> Part:
    """Return the entry of a trainer whose asynchronous mode does not fix how old weights are.

    Args:
        how: What the mode does instead, a sentence without its full stop.
        *switches: Native settings that turn it on; a run that has one is not of staleness 0.
    """

    def asynchronous(run: Run, value: Any) -> bool:
        given = {name.lstrip("+"): on for name, on in run.native.items()}
        return any(given.get(name) for name in switches)

    return {
        "training.staleness": (
            Fixed(0, f"{how}; the key fixes it for every batch"),
            Departs(
                asynchronous,
                f"{' or '.join(switches)}: sampled with older weights while it trains",
                "unmatched",
            ),
        )
    }


FIXED_REFERENCE: Part = {
    "algorithm.kl_reset": Fixed(None, "the penalty is to the initial policy"),
}
"""Of a trainer, or an adapter, whose KL penalty always has the same reference."""

NO_CRITIC: Part = {
    "algorithm.value_lr": Elsewhere("gae only"),
    "algorithm.value_clip": Elsewhere("gae only"),
    "algorithm.critic_warmup": Elsewhere("gae only"),
}
"""Of a trainer without a critic."""

SCHEDULED_LATE = Refused(
    lambda run, value: (
        value > 0 and (run.spec.optimizer.schedule != "constant" or run.spec.optimizer.warmup > 0)
    ),
    "the policy's learning rate would begin its schedule after the critic's warm-up; set "
    "optimizer.schedule to 'constant' and optimizer.warmup to 0",
)
"""Of a trainer whose schedule counts updates of the policy; beside `algorithm.critic_warmup`."""

PLAYED_ONCE: Part = {
    "training.extra_batches": Fixed(None, "an iteration has the tasks that the trainer gives it"),
    "training.mask_overlong": Fixed(False, "the rows of all valid episodes are trained on"),
}
"""Of a trainer, or an adapter, that trains on all episodes that it plays."""

CONSTANT_RATE: Part = {
    "optimizer.schedule": Fixed("constant", "schedules are not compiled for this trainer"),
    "optimizer.warmup": Fixed(0, "schedules are not compiled for this trainer"),
    "optimizer.min_lr_ratio": Fixed(0, "schedules are not compiled for this trainer"),
}
"""Of a trainer with a constant learning rate."""

WHOLE_MINIBATCHES = Refused(
    lambda run, value: run.spec.episodes % value > 0,
    "{run.spec.episodes} episodes (training.tasks * training.group_size) do not divide so",
)
"""Of a trainer that wants minibatches of equally many episodes; beside `algorithm.minibatches`."""

WHOLE_STEPS = Refused(
    lambda run, value: run.step_episodes % run.hardware.ranks > 0,
    "an optimiser step's {run.step_episodes} episodes do not divide among {run.hardware.ranks} "
    "ranks",
)
"""Of a trainer that divides the episodes of a step among ranks; beside `algorithm.minibatches`."""

ALL_CANDIDATES: Part = {
    "sampling.min_p": Fixed(0.0, "the sampler has no min-p"),
    "sampling.repetition_penalty": Fixed(1.0, "the sampler has no repetition penalty"),
}
"""Of a trainer, or an adapter, whose sampler has neither."""

GROUPED = Refused(
    lambda run, value: run.spec.algorithm.estimator.compares == "group" and value < 2,
    "{run.spec.algorithm.advantage} compares the episodes of a task, which must be 2 or more",
)
"""Beside `training.group_size`."""

SEED_PER_TURN = "every turn has a seed of its own; other random numbers than in other trainers"
"""How `gem_train.sampling.EngineSampler` lets trainers draw random numbers."""

VALUES_ON_TOKENS = Departs(
    lambda run, value: run.critic,
    "all tokens of a turn are trained towards the turn's target, not where it begins",
)
"""Of a trainer that trains the critic on all tokens of a turn; beside `algorithm.value_clip`."""

NO_DECAY = Departs(lambda run, value: value > 0, "biases and norms are left out")
"""Beside `optimizer.weight_decay`."""

OPTIMIZER_WEIGHTS = "precision of the optimiser's weights"
FP32 = ("fp32", "float32", "float", "32")
"""How trainers write it."""


JUDGE = Elsewhere("GEM_JUDGES: environments ask it, and the trainer sees rewards")
"""Of `judge`, in every trainer: `Adapter.compile` gives the run what environments need."""


def tasks(way: Way) -> Part:
    """Return the entries of training environments, all of whose tasks are made before the run.

    With them comes that of the judges, which environments ask.

    Args:
        way: How they get to the trainer.
    """
    named = ("id", "params", "seed", "name", "weight", "schedule.iteration", "schedule.params")
    given = "the trainer is given all tasks before the run; say `iteration` instead"
    adaptive = Refused(lambda run, value: value is not None, given)
    return {
        **{f"env.{name}": way for name in named},
        "env.schedule.success": (way, adaptive),
        "judge": JUDGE,
    }


def evaluations(
    way: Way,
    missed: str = "",
    when: Callable[[RunSpec], bool] = lambda spec: True,
    every: Way | None = None,
) -> Part:
    """Return the entries of evaluations in a trainer that makes all of them at the same time.

    Args:
        way: How they get to the trainer.
        missed: Which evaluation that the spec asks for the trainer never makes.
        when: Whether that matters to a spec; by default to every one.
        every: How their interval gets there; by default as they do.
    """
    named = ("name", "id", "params", "seed", "episodes", "samples", *EvalSampling().engine)
    together = "everything is evaluated at once: every {run.spec.eval_every} iterations"
    late = Departs(lambda run, value: bool(missed) and when(run.spec), f"{together}, but {missed}")
    often = Departs(lambda run, value: value != run.spec.eval_every, together)
    return {
        **{f"eval.{name}": way for name in named},
        "eval.every": (every or way, late, often),
    }


def without_schedule(why: str) -> Refused:
    """Refuse extra batches where parameters change with the iteration.

    Args:
        why: What the trainer is given; beside `training.extra_batches`.
    """
    return Refused(
        lambda run, value: value is not None and any(env.schedule for env in run.spec.env),
        f"{why}, which know no iteration; leave env.schedule or this out",
    )


def seeds(how: str = SEED_PER_TURN) -> Departs:
    """Say how random numbers are drawn, unless sampling is greedy; beside `seed`."""
    return Departs(lambda run, value: run.spec.sampling.top_k != 1, how)


def computed_in_bf16(how: str) -> Departs:
    """Say how a trainer computes in bf16; beside `training.precision`."""
    return Departs(lambda run, value: value == "bf16", f"{how} (the reference: autocast)")


def bf16_only(why: str) -> tuple[Departs, Departs]:
    """Say of a trainer without fp32 that it has it only where gem-cpu adds it.

    Args:
        why: What the trainer does instead on a GPU; beside `training.precision`.
    """
    return (
        Departs(
            lambda run, value: value == "fp32" and run.hardware.cpu, "GEM_CPU_DTYPE of gem-cpu"
        ),
        Departs(lambda run, value: value == "fp32", why, "unmatched"),
    )


def one_row(why: str) -> dict[str, Refused]:
    """Return refusals, by key, of values with which an episode has several training rows.

    Args:
        why: Why there must be one.
    """
    chat = Refused(lambda run, value: value != "chat", f"{why}: only 'chat' is possible")
    keep = Refused(lambda run, value: value == "drop", f"{why}: choose 'keep'")
    return {"policy.context": chat, "policy.thinking": keep}


def whole_rows(trainer: str) -> tuple[Refused, Refused]:
    """Refuse minibatches of a trainer that divides rows, where a task has several.

    Args:
        trainer: Its name; beside `algorithm.minibatches`.
    """
    torn = f"{trainer} divides rows, not episodes; set it to 1 for"
    return (
        Refused(lambda run, value: value > 1 and most_agents(run.spec) > 1, f"{torn} seat=all"),
        Refused(
            lambda run, value: value > 1 and not run.spec.policy.one_row,
            f"{torn} {{run.spec.policy.shown}}",
        ),
    )


def aggregations(trainer: str, names: Mapping[str, str]) -> Refused:
    """Refuse ways to add up losses that a trainer does not have; beside the key.

    Args:
        trainer: Its name.
        names: The trainer's name of each way that it has.
    """
    return Refused(lambda run, value: value not in names, f"{trainer} has {', '.join(names)} only")


def plain_loss(trainer: str, *, without: Collection[str] = ()) -> Part:
    """Return the entries of a trainer whose loss is the clipped surrogate of tokens alone.

    Args:
        trainer: Its name.
        without: Keys of `algorithm` that the trainer's table has itself.
    """
    found: Part = {
        "loss": Fixed("ppo", f"{trainer} has the clipped surrogate only"),
        "clip_high": Fixed(None, f"{trainer} has one clip range"),
        "dual_clip": Fixed(None, f"{trainer} has no second clip"),
        "ratio": Fixed("token", f"{trainer} has ratios of tokens only"),
        "sapo_positive": Elsewhere("SAPO only"),
        "sapo_negative": Elsewhere("SAPO only"),
    }
    return {f"algorithm.{key}": entry for key, entry in found.items() if key not in without}


def plain_correction(trainer: str, *, without: Collection[str] = ()) -> Part:
    """Return the entries of a trainer that at most truncates weights of tokens (`tis_clip`).

    Args:
        trainer: Its name.
        without: Keys of `algorithm` that the trainer's table has itself.
    """
    found: Part = {
        "tis_floor": Fixed(None, f"{trainer} has no lower bound of the weights"),
        "tis_level": Fixed("token", f"{trainer} has no weights of sequences"),
        "tis_outside": Fixed("clip", f"{trainer} has no masked importance sampling"),
        "reject_low": Fixed(None, f"{trainer} rejects nothing so that means still count it"),
        "reject_high": Fixed(None, f"{trainer} rejects nothing so that means still count it"),
        "reject_level": Elsewhere("no rejection"),
    }
    return {f"algorithm.{key}": entry for key, entry in found.items() if key not in without}


MEANS_OF_ROWS = Refused(
    lambda run, value: run.spec.algorithm.loss == "sapo" and value != "row-mean-token-mean",
    "the trainer's 'sapo' is a mean of rows' means; set it to 'row-mean-token-mean'",
)
"""Beside `algorithm.loss_aggregation`, of a trainer that adds SAPO up in one way only."""


def constant_in_rows(trainer: str) -> tuple[Refused, Refused]:
    """Refuse a ratio of sequences that is wrong where turns of a row have different advantages.

    Its gradient reaches all tokens of a row through each token, so that they share the mean of the
    row's advantages.

    Args:
        trainer: Its name; beside `algorithm.ratio`.
    """
    shared = f"{trainer} gives all tokens of a row the mean of the row's advantages"
    return (
        Refused(
            lambda run, value: (
                value == "sequence" and run.spec.algorithm.advantage not in ("grpo", "rloo")
            ),
            f"{shared}: choose the advantage 'grpo' or 'rloo', which are the same in all turns, or "
            "the ratio 'token'",
        ),
        Refused(
            lambda run, value: value == "sequence" and run.spec.algorithm.weighs,
            f"{trainer} corrects the ratio of tokens only; leave algorithm.tis_* out",
        ),
    )


def warmup_ratio(run: Run, *, up: bool) -> float:
    """Return the share of the run that is warm-up, for a trainer that computes steps from it.

    Args:
        run: What is compiled.
        up: Whether the trainer rounds the product up, else down.
    """
    warmup, steps = run.spec.optimizer.warmup, run.spec.training.iterations * run.spec.steps
    return (warmup + (-0.5 if up else 0.5)) / steps if warmup else 0.0


def no_linear_minimum(trainer: str) -> Refused:
    """Refuse a minimum of a linear schedule, which transformers lacks; beside `min_lr_ratio`."""
    return Refused(
        lambda run, value: value > 0 and run.spec.optimizer.schedule == "linear",
        f"{trainer}'s linear schedule ends at 0; choose the schedule 'cosine', or set it to 0",
    )


def critic_head(run: Run) -> Iterator[Parity]:
    """Say that a critic begins with another head than the reference's; for `Table.others`."""
    if run.critic:
        how = "a random linear layer, where the reference starts from zero"
        yield Parity("critic's initial head", "unmatched", how)


def optimizer_weights(how: str, *keys: str) -> Callable[[Run], Iterator[Parity]]:
    """Say in which precision the optimiser keeps the weights: fp32; for `Table.others`.

    At a learning rate of 1e-6 most updates are smaller than the steps of bf16 and would be lost.

    Args:
        how: By what the trainer keeps them in fp32.
        *keys: Native settings of the trainer that would make it another precision; of a table its
            `dtype`.
    """

    def said(run: Run) -> Iterator[Parity]:
        for key, value in run.native.items():
            dtype = value.get("dtype", "fp32") if isinstance(value, Mapping) else value
            if key.lstrip("+") in keys and str(dtype).removeprefix("torch.") not in FP32:
                lost = f"{key} = {json.dumps(value)}: updates below its rounding are lost"
                yield Parity(OPTIMIZER_WEIGHTS, "unmatched", lost)
                return
        yield Parity(OPTIMIZER_WEIGHTS, "matched", f"fp32: {how}")

    return said


def untold(
    when: Callable[[Run], object], why: str, metrics: Collection[str] = NAMES
) -> Callable[[Run], dict[str, str]]:
    """Say which metrics of the record a trainer cannot give; for `Table.untold`.

    Args:
        when: Whether it cannot, in this run.
        why: Of the trainer, a sentence without its full stop.
        metrics: Their names; by default those that compare the trainer with its sampler.
    """
    return lambda run: dict.fromkeys(metrics, why) if when(run) else {}


OTHER_DISTRIBUTION = (
    "the sampler's log-probabilities are of another distribution than the trainer's"
)


def most_agents(spec: RunSpec) -> int:
    """Return the most trajectories of a task: 1, or the agents of a match with `seat=all`."""
    players = [task for task in samples(spec.task_set) if all_seats(task.params)]
    return max((len(agents(task.env_id, task.params)) for task in players), default=1)
