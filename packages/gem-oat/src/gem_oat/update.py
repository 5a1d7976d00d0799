"""One batch becomes optimiser steps: micro-batches, ranks in step, exact denominators.

Rows differ in length and number from rank to rank. Every rank makes the same number of forward and
backward passes (DeepSpeed's collectives would wait for ever otherwise), and a loss is divided by
what counts in it on all ranks together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gem.training.batches import chunks
from gem.trajectory import TrainingRow
from gem_oat.advantage import Row
from gem_oat.loss import kl_penalty, policy_loss, sampler_correction, value_loss

AllReduce = Callable[[list[float], str], list[float]]
"""`(numbers, "sum" or "max")`: over all ranks, element by element, in float64."""


@dataclass(frozen=True)
class Loss:
    """What an optimiser step minimises."""

    clip: float
    value_clip: float
    value_weight: float
    kl_weight: float
    tis: float | None
    """Most weight of a token's importance correction; None: no correction."""
    by_token: bool
    """Mean over tokens, else sum over tokens and mean over rows."""


def pad(tensors: Sequence[Tensor], device: Any) -> Tensor:
    """Stack tensors `[n]` of different lengths, zeros at the end, `[rows, longest]`."""
    return torch.nn.utils.rnn.pad_sequence(list(tensors), batch_first=True).to(device)


class Updater:
    """Makes optimiser steps with the models of oat's learner."""

    def __init__(
        self, learner: Any, loss: Loss, *, forward_tokens: int, all_reduce: AllReduce
    ) -> None:
        self.learner = learner
        self.loss = loss
        self.forward_tokens = forward_tokens
        self.all_reduce = all_reduce
        self.device = torch.cuda.current_device()

    @torch.no_grad()
    def values(self, rows: Sequence[Row]) -> None:
        """Let the critic say what every turn's state is worth: at the last token before it."""
        for chunk in self._in_step(rows):
            for row, value in zip(chunk, self._critic(chunk), strict=True):
                row.values = value.float().cpu()

    @torch.no_grad()
    def remember(self, rows: Sequence[Row]) -> None:
        """Keep the log-probabilities of the policy before its first update."""
        for chunk in self._in_step(rows):
            logprobs, _ = self._logprobs(self.learner.model, chunk)
            for row, each in zip(chunk, logprobs, strict=True):
                row.old = each[: len(row.mask)].clone()

    def policy_step(self, rows: Sequence[Row]) -> dict[str, float]:
        """Improve the policy on rows; return the step's metrics, the same on all ranks."""
        learner, loss = self.learner, self.loss
        rows = [row for row in rows if row.sampled]
        tokens, count = self.all_reduce([sum(row.sampled for row in rows), len(rows)], "sum")
        if tokens == 0:
            return {}
        denominator = tokens if loss.by_token else count
        engine, sums, largest = learner.model.model, torch.zeros(4, dtype=torch.float64), 0.0
        work = list(self._in_step(rows))
        lr = learner.scheduler.get_last_lr()[0]
        for number, chunk in enumerate(work):
            new, entropy = self._logprobs(learner.model, chunk)
            mask = pad([row.mask for row in chunk], self.device)
            advantage = pad([row.advantages for row in chunk], self.device)
            old = new.detach()
            if all(row.old is not None for row in chunk):
                old = pad([row.old for row in chunk if row.old is not None], self.device)
            per_token = policy_loss(new, old, advantage, loss.clip)
            if all(row.sampler is not None for row in chunk):
                known = [row.sampler for row in chunk if row.sampler is not None]
                sampler = pad(known, self.device)
                largest = max(largest, float(((old - sampler) * mask).abs().max()))
                if loss.tis is not None:
                    per_token = per_token * sampler_correction(old, sampler, loss.tis)
            with torch.no_grad():
                outside = ((new - old).exp() - 1).abs() > loss.clip
                sums[0] += float((per_token * mask).sum())
                sums[1] += float((entropy * mask).sum())
                sums[2] += float((outside * mask).sum())
            if loss.kl_weight:
                with torch.no_grad():
                    reference, _ = self._logprobs(learner.ref_model, chunk)
                kl = kl_penalty(new, reference)
                sums[3] += float((kl.detach() * mask).sum())
                per_token = per_token + loss.kl_weight * kl
            self._step(
                engine,
                (per_token * mask).sum() / denominator,
                last=number == len(work) - 1,
                step=(learner.model, learner.optimizer, learner.scheduler),
            )
        totals = self.all_reduce(sums.tolist(), "sum")
        [difference] = self.all_reduce([largest], "max")
        kl_loss = loss.kl_weight * totals[3]
        metrics = {
            "loss": (totals[0] + kl_loss) / denominator,
            "grad_norm": _norm(engine),
            "entropy": totals[1] / tokens,
            "clip_fraction": totals[2] / tokens,
            "logprob_difference_max": difference,
            "lr": float(lr),
        }
        return metrics | ({"kl": totals[3] / tokens} if loss.kl_weight else {})

    def critic_step(self, rows: Sequence[Row]) -> dict[str, float]:
        """Improve the critic on rows; return the step's metrics, the same on all ranks."""
        learner, loss = self.learner, self.loss
        [turns] = self.all_reduce([sum(len(row.states) for row in rows)], "sum")
        if turns == 0:
            return {}
        total = 0.0
        work = list(self._in_step(rows))
        for number, chunk in enumerate(work):
            new = torch.cat(self._critic(chunk)).float()
            old = torch.cat([row.values for row in chunk if row.values is not None])
            target = torch.cat([row.targets for row in chunk])
            each = value_loss(new, old.to(new), target.to(new), loss.value_clip)
            part = loss.value_weight * each.sum() / turns
            total += float(part.detach())
            self._step(
                learner.critic,
                part,
                last=number == len(work) - 1,
                step=(learner.critic, learner.critic_optimizer, learner.critic_scheduler),
            )
        [value] = self.all_reduce([total], "sum")
        return {"value_loss": value, "value_grad_norm": _norm(learner.critic)}

    def _in_step(self, rows: Sequence[Row]) -> Iterator[list[Row]]:
        """Yield chunks, as many as on the rank that has most; those that are missing are empty
        rows, which count for nothing."""
        work = list(chunks(rows, self.forward_tokens))
        [most] = self.all_reduce([len(work)], "max")
        yield from work
        for _ in range(int(most) - len(work)):
            yield [empty_row()]

    def _step(self, engine: Any, part: Tensor, *, last: bool, step: tuple[Any, Any, Any]) -> None:
        """Add a part of the loss to the gradient; the last part makes the optimiser step."""
        model, optimizer, scheduler = step
        strategy = self.learner.strategy
        engine.set_gradient_accumulation_boundary(last)
        # DeepSpeed takes the mean over ranks and over a fixed number of passes; this is a sum.
        factor = strategy.world_size * engine.gradient_accumulation_steps()
        strategy.backward(part * factor, model, optimizer)
        strategy.optimizer_step(optimizer, model, scheduler)

    def _logprobs(self, model: Any, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy of every token but the first, `[rows, tokens - 1]`."""
        ids, attention = self._inputs(rows)
        logprobs, entropy = self.learner.get_batch_logps(
            model=model,
            input_ids=ids,
            att_mask=attention,
            temperature=self.learner.args.temperature,
            compute_entropy=True,
        )
        return logprobs.float(), entropy.detach().float()

    def _critic(self, rows: Sequence[Row]) -> list[Tensor]:
        """Value before each turn, a tensor `[turns]` for every row."""
        ids, attention = self._inputs(rows)
        values = self.learner.critic(input_ids=ids, attention_mask=attention)
        where = [
            torch.tensor([position for _, position in row.states], dtype=torch.int64)
            for row in rows
        ]
        return [values[i, positions.to(values.device)] for i, positions in enumerate(where)]

    def _inputs(self, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
        ids = pad([row.ids for row in rows], self.device)
        return ids, pad([torch.ones_like(row.ids) for row in rows], self.device)


def _norm(engine: Any) -> float:
    """Gradient norm before clipping, of all ranks; NaN where DeepSpeed does not say (ZeRO-0)."""
    norm = engine.get_global_grad_norm()
    return math.nan if norm is None else float(norm)


def empty_row() -> Row:
    """A row without anything to train on."""
    return Row(
        episode=-1,
        tokens=TrainingRow([0], [0], [0], [0.0], []),
        ids=torch.zeros(2, dtype=torch.int64),
        mask=torch.zeros(1),
        advantages=torch.zeros(1),
        sampler=torch.zeros(1),
        states=[],
        targets=torch.zeros(0),
        values=torch.zeros(0),
        old=torch.zeros(1),
    )
