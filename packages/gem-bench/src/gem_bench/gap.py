"""How far the trainer's log-probabilities of the sampled tokens are from the sampler's.

    python -m gem_bench.gap RUN... [--iterations N] [--lora-init DIR] [--device DEVICE]

The sampler's are in the record (`episodes.jsonl`). The trainer's are not, and are computed again:
the reference trainer takes the recorded episodes, in the precision of the run, iteration by
iteration, and makes the update that the trainer made. The table has, for every iteration,

- the mean and the largest `|gap|`, `gap = trainer - sampler`, over all sampled tokens,
- `own max`, the largest one in the trainer's own metrics (`logprob_difference_max`), if it has any,
- the mean of `ratio = exp(gap)`, which is 1 for equal distributions,
- `kl`, the mean of `ratio - 1 - gap`: estimator k3 of the divergence of the trainer's distribution
  from the sampler's (http://joschu.net/blog/kl-approx.html),
- loss and gradient norm, recorded and replayed.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from gem.errors import ConfigurationError, exit_status
from gem_bench.reference import Learner, turn_advantages
from gem_bench.replay import batches, experiment, logprobs, recorded, trained
from gem_bench.rows import training_rows
from gem_train.record import RunRecord, read_run


@dataclass(frozen=True)
class Gap:
    """One iteration of a run; `gap` is the trainer's log-probability less the sampler's.

    What is said of it is None where the trainer records none of its sampler.
    """

    iteration: int
    tokens: int
    """Sampled tokens of all episodes."""
    mean: float | None
    """Mean of `|gap|`."""
    largest: float | None
    """Largest `|gap|`."""
    own: float | None
    """Largest `|gap|` that the trainer itself found."""
    ratio: float | None
    """Mean of `exp(gap)`."""
    kl: float | None
    """Mean of `exp(gap) - 1 - gap`."""
    loss: tuple[float | None, float]
    """Recorded, replayed."""
    grad_norm: tuple[float | None, float]
    """Recorded, replayed."""


def gaps(
    run: RunRecord,
    *,
    lora_init: str | None = None,
    device: str = "cpu",
    forward_tokens: int = 65_536,
) -> Iterator[Gap]:
    """Replay the iterations of a run that began with its model's original weights.

    Args:
        run: A record with the spec and all training episodes.
        lora_init: See `gem_bench.replay.experiment`.
        device: Torch device.
        forward_tokens: Most tokens, padding included, in one forward pass.

    Raises:
        ConfigurationError: The record lacks something, has a part that cannot be replayed, or its
            samples are not drawn from all tokens.
    """
    spec = experiment(run, lora_init)
    if not spec.sampling.whole:
        raise ConfigurationError(
            "sampling.top_k, top_p, min_p, repetition_penalty: engines report other "
            "log-probabilities where they leave tokens out or penalise them; measure a run without"
        )
    learner = Learner(spec, torch.device(device), forward_tokens)
    for known, episodes in batches(run):
        iteration = known["iteration"]
        rows = [row for row in training_rows(episodes) if row.sampled]
        drawn = recorded(rows)
        gap = None if drawn is None else logprobs(learner, rows).cpu() - drawn
        counted = trained(spec, episodes)
        turns = turn_advantages(
            spec.algorithm, episodes, state=learner.estimator_state, trained=counted
        )
        in_loss = spec.training.in_loss(episodes, counted)
        learner.reset_reference(iteration)
        replayed = learner.update([row for row in rows if in_loss[row.episode]], *turns, iteration)
        yield Gap(
            iteration,
            sum(len(row.sampled) for row in rows),
            mean=None if gap is None else float(gap.abs().mean()),
            largest=None if gap is None else float(gap.abs().max()),
            own=known.get("logprob_difference_max"),
            ratio=None if gap is None else float(gap.exp().mean()),
            kl=None if gap is None else float((gap.exp() - 1 - gap).mean()),
            loss=(known.get("loss"), replayed["loss"]),
            grad_norm=(known.get("grad_norm"), replayed["grad_norm"]),
        )


def table(found: Iterable[tuple[str, Gap]]) -> Iterator[str]:
    """Yield the lines of a Markdown table of runs, by name, and their iterations."""
    yield (
        "| run | iteration | tokens | mean abs. gap | largest | own max | mean ratio | KL (k3) "
        "| loss, replayed | gradient norm, replayed |"
    )
    yield "|" + "---|" * 10
    for name, gap in found:
        cells = [
            *(name, gap.iteration, gap.tokens),
            *map(_number, (gap.mean, gap.largest, gap.own, gap.ratio, gap.kl)),
            *(", ".join(map(_number, pair)) for pair in (gap.loss, gap.grad_norm)),
        ]
        yield f"| {' | '.join(map(str, cells))} |"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def main(argv: list[str] | None = None) -> int:
    """Print the table of the runs that are named; exit status 2 and a message if one has none."""
    parser = argparse.ArgumentParser(
        prog="python -m gem_bench.gap", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a record")
    parser.add_argument("--iterations", type=int, default=2, help="how many of each run")
    parser.add_argument("--lora-init", help="folder of the adapter that the runs began with")
    parser.add_argument("--device", default="cpu", help="torch device of the replay")
    args = parser.parse_args(argv)

    def found() -> Iterator[tuple[str, Gap]]:
        for folder in args.runs:
            replay = gaps(read_run(folder), lora_init=args.lora_init, device=args.device)
            for gap in itertools.islice(replay, args.iterations):
                yield folder.name, gap

    def write() -> None:
        for line in table(found()):
            print(line, flush=True)

    return exit_status(write)


if __name__ == "__main__":
    sys.exit(main())
