"""Audits a trainer: the reference replays the episodes that the trainer recorded.

Sampled runs of two trainers cannot be compared episode by episode. But the reference can train its
own copy of the policy on the episodes that another trainer recorded, iteration by iteration, and
check whether that trainer

- scored its samples as the replayed policy does (`logprob_difference`): engine and weights,
- computed the same loss and gradient from them (`loss`, `grad_norm`): update,
- drew them from the policy's distribution (`surprisal_z`, `stop_z`): sampler. For a correct sampler
  these are standard normal, and so is their sum over n iterations divided by sqrt(n).

The replay continues with its own weights, so rounding errors grow from update to update. A second
replay measures them: it starts with weights that differ from the first by a relative 1e-7
(`gem_bench.noise`) and sums in another order. The difference of the two replays is the noise
floor. A trainer must stay within a small multiple of it. Iterations whose noise floor exceeds
`TELLING` are not judged.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gem.errors import ConfigurationError
from gem_bench.conformance import LOSS_FLOOR, RELATIVE
from gem_bench.noise import perturb
from gem_bench.reference import Learner, turn_advantages
from gem_bench.replay import batches, experiment, logprobs, recorded, trained
from gem_bench.rows import Row, pad, training_rows
from gem_train.batches import chunks
from gem_train.record import RunRecord
from gem_train.testing.conformance import Finding

TELLING = 1e-4
"""Largest noise floor of log-probabilities at which an iteration is judged."""
MULTIPLE = 30.0
"""Largest deviation of a trainer, in units of the noise floor: other kernels round differently."""
FLOOR = 1e-6
"""Least noise floor of a log-probability: two float32 rounding errors at the size of a logit."""
MUST_TELL = 5
"""Least number of judged iterations; fewer are a finding: large updates amplified rounding."""
RARE = -10.0
"""Log-probability below which a token is rare; errors of a sampler show there first."""
Z_LIMIT = 4.0
"""Largest standardised deviation of a correct sampler (exceeded once in 16,000)."""


@dataclass(frozen=True)
class Audit:
    """One iteration of a recorded run beside its replay."""

    iteration: int
    loss: tuple[float | None, float]
    """Recorded, replayed."""
    grad_norm: tuple[float | None, float]
    """Recorded, replayed."""
    logprob_difference: float | None
    """Largest difference between recorded and replayed log-probability of a sampled token."""
    logprob_noise: float
    """Largest such difference between the two replays, in this and all earlier iterations."""
    grad_noise: float
    """Largest relative difference of the two replays' gradient norms so far."""
    surprisal_z: float | None
    """Standardised difference between the samples' surprisal and the policy's entropy; positive:
    the sampler prefers unlikely tokens. None if the spec leaves tokens out or penalises them.
    """
    stop_z: float | None
    """Standardised difference between the number of tokens that end a turn and the number
    expected; positive: the sampler ends turns too often."""
    rare: tuple[int, float] | None
    """Number of rare tokens: drawn, expected."""


@dataclass(frozen=True)
class _Moments:
    """Statistics of the policy's distribution at every sampled token, `[sampled tokens]`."""

    logprob: Tensor
    entropy: Tensor
    variance: Tensor
    """Variance of the surprisal."""
    stop: Tensor
    """Probability of a token that ends the turn."""
    stopped: Tensor
    """Whether a token that ends the turn was drawn."""
    rare: Tensor
    """Probability of a rare token."""


def audit(
    run: RunRecord,
    *,
    lora_init: str | None = None,
    device: str = "cpu",
    forward_tokens: int = 65_536,
) -> Iterator[Audit]:
    """Replay the iterations of a run that started from its model's original weights.

    Args:
        run: A record with the spec and all training episodes.
        lora_init: Folder of the run's initial adapter (`policy.lora_rank`), if it differs from the
            reference's.
        device: Torch device.
        forward_tokens: Most tokens, padding included, in one forward pass.

    Raises:
        ConfigurationError: The record has no spec, lacks episodes, or has a part that cannot be
            replayed.
    """
    spec = experiment(run, lora_init)
    if spec.training.precision != "fp32":
        raise ConfigurationError(
            f"training.precision: {spec.training.precision} hides what an audit looks for; audit "
            "the same experiment in fp32 (`python -m gem_bench.gap` shows what bf16 does)"
        )
    place = torch.device(device)
    learner = Learner(spec, place, forward_tokens)
    second = Learner(spec, place, max(forward_tokens // 20, 1))
    perturb(second.policy.parameters(), seed=0)
    logprob_noise, grad_noise = FLOOR, 0.0
    for known, episodes in batches(run):
        iteration = known["iteration"]
        rows = [row for row in training_rows(episodes) if row.sampled]
        moments = _moments(learner, rows, sorted(learner.chat.stop_ids), spec.sampling.temperature)
        again, drawn = logprobs(second, rows), recorded(rows)
        logprob_noise = _larger(logprob_noise, float((again - moments.logprob).abs().max()))
        counted = trained(spec, episodes)
        turns = turn_advantages(
            spec.algorithm, episodes, state=learner.estimator_state, trained=counted
        )
        in_loss = spec.training.in_loss(episodes, counted)
        for each in (learner, second):
            each.reset_reference(iteration)
        rows = [row for row in rows if in_loss[row.episode]]
        replayed = learner.update(rows, *turns, iteration)
        norm = second.update(rows, *turns, iteration)["grad_norm"]
        if replayed["grad_norm"]:
            grad_noise = _larger(grad_noise, abs(norm / replayed["grad_norm"] - 1))
        whole = spec.sampling.whole
        yield Audit(
            iteration,
            (known.get("loss"), replayed["loss"]),
            (known.get("grad_norm"), replayed["grad_norm"]),
            None if drawn is None else float((drawn - moments.logprob.cpu()).abs().max()),
            logprob_noise,
            grad_noise,
            _z(-moments.logprob - moments.entropy, moments.variance) if whole else None,
            _z(moments.stopped - moments.stop, moments.stop * (1 - moments.stop))
            if whole
            else None,
            (int((moments.logprob < RARE).sum()), float(moments.rare.sum())) if whole else None,
        )


def _larger(known: float, found: float) -> float:
    """Return the larger number; NaN if one is NaN, which `max` may drop."""
    return found if math.isnan(found) or found > known else known


def telling(audits: Sequence[Audit]) -> list[Audit]:
    """Return the iterations before the noise floor exceeds `TELLING`."""
    return list(itertools.takewhile(lambda a: a.logprob_noise <= TELLING, audits))


def pooled(values: Iterable[float | None]) -> float | None:
    """Pool independent standard normal numbers into one (sum / sqrt(n)); None without any."""
    known = [value for value in values if value is not None]
    return math.fsum(known) / math.sqrt(len(known)) if known else None


def judge(audits: Sequence[Audit]) -> list[Finding]:
    """Return a run's deviations from the reference; empty if there are none.

    Levels are those of `gem_bench.conformance`: `L1` for samples, `L2` for updates.
    """
    if not audits:
        return [Finding("L2", "iterations", "at least one", 0)]
    good = telling(audits)
    found = []
    if len(good) < min(MUST_TELL, len(audits)):
        bad = audits[len(good)]
        where = f"noise floor of log-probabilities in iteration {bad.iteration}"
        found.append(Finding("L2", where, f"within {TELLING:g}", bad.logprob_noise))
    scored = any(audit.logprob_difference is not None for audit in good)
    drawn = any(z is not None for audit in good for z in (audit.surprisal_z, audit.stop_z))
    if good and not (scored or drawn):
        wanted = "log-probabilities in the record, or sampling that leaves no token out"
        found.append(Finding("L1", "samples", wanted, "nothing"))
    for audit in good:
        limit = MULTIPLE * audit.logprob_noise
        difference = audit.logprob_difference
        if scored and (difference is None or not difference <= limit):  # NaN is a finding, too
            where = f"log-probabilities of iteration {audit.iteration}"
            found.append(Finding("L1", where, f"within {limit:.1g}", difference))
        relative = max(RELATIVE, MULTIPLE * audit.grad_noise)
        for name, floor in (("loss", LOSS_FLOOR), ("grad_norm", 0.0)):
            recorded, replayed = getattr(audit, name)
            if recorded is None or not abs(recorded - replayed) <= max(
                relative * abs(replayed), floor
            ):
                found.append(
                    Finding("L2", f"{name} of iteration {audit.iteration}", replayed, recorded)
                )
    for name in ("surprisal_z", "stop_z"):
        z = pooled(getattr(audit, name) for audit in good)
        if z is not None and not abs(z) <= Z_LIMIT:
            found.append(Finding("L1", f"{name} of all samples", f"within ±{Z_LIMIT:g}", z))
    return found


def lines(audits: Sequence[Audit]) -> Iterator[str]:
    """Yield the lines of a table of the judged iterations, then the pooled numbers."""
    yield (
        f"{'iteration':>9}  {'loss':>11} {'replayed':>11}  {'grad_norm':>9} {'replayed':>9}  "
        f"{'logprobs':>8} {'noise':>8}  {'surprisal':>9} {'stops':>6}"
    )
    good = telling(audits)
    for a in good:
        yield (
            f"{a.iteration:9}  {_number(a.loss[0], 11, 7)} {_number(a.loss[1], 11, 7)}  "
            f"{_number(a.grad_norm[0], 9, 6)} {_number(a.grad_norm[1], 9, 6)}  "
            f"{_number(a.logprob_difference, 8, 6)} {_number(a.logprob_noise, 8, 6)}  "
            f"{_number(a.surprisal_z, 9, 2)} "
            f"{_number(a.stop_z, 6, 2)}"
        )
    yield (
        f"audited {len(good)} of {len(audits)} iterations; over all of them surprisal "
        f"{_number(pooled(a.surprisal_z for a in good), 0, 2)}, "
        f"stops {_number(pooled(a.stop_z for a in good), 0, 2)} standard deviations"
    )
    rare = [a.rare for a in good if a.rare is not None]
    if rare:
        yield (
            f"{sum(drawn for drawn, _ in rare)} tokens with a log-probability below {RARE:g} were "
            f"drawn, {math.fsum(expected for _, expected in rare):.1f} expected"
        )


def _number(value: float | None, width: int, digits: int) -> str:
    return f"{'-':>{width}}" if value is None else f"{value:{width}.{digits}f}"


@torch.no_grad()
def _moments(
    learner: Learner, rows: Sequence[Row], stop_ids: list[int], temperature: float
) -> _Moments:
    model, parts = learner.policy, []
    for chunk in chunks(rows, learner.forward_tokens):
        where = [(i, position) for i, row in enumerate(chunk) for position in row.sampled]
        row, position = torch.tensor(where, device=model.device).T
        batch = pad(chunk, model.device, learner.chat)
        with learner.autocast():
            logits = model(**batch, use_cache=False).logits[row, position - 1]
        logprobs = (logits.float() / temperature).log_softmax(-1).double()
        probs = logprobs.exp()
        chosen = batch["input_ids"][row, position]
        entropy = -(probs * logprobs).sum(-1)
        stop = torch.tensor(stop_ids, device=model.device)
        parts.append(
            _Moments(
                logprobs.gather(1, chosen[:, None])[:, 0],
                entropy,
                (probs * logprobs**2).sum(-1) - entropy**2,
                probs[:, stop].sum(-1),
                torch.isin(chosen, stop).double(),
                (probs * (logprobs < RARE)).sum(-1),
            )
        )
    names = _Moments.__dataclass_fields__
    return _Moments(**{n: torch.cat([getattr(part, n) for part in parts]) for n in names})


def _z(excess: Tensor, variance: Tensor) -> float:
    """Return a sum of deviations in units of its standard deviation; 0 if the variance is 0."""
    spread = math.sqrt(max(float(variance.sum()), 0.0))
    return float(excess.sum()) / spread if spread > 0 else 0.0
