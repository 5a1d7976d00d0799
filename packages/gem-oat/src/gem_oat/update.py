"""One batch becomes optimiser steps: micro-batches, ranks in step, exact denominators.

Rows differ in length and number from rank to rank. Every rank makes the same number of forward and
backward passes (DeepSpeed's collectives would wait for ever otherwise), and a loss is divided by
what counts in it on all ranks together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from gem.training.batches import chunks
from gem.trajectory import TrainingRow
from gem_oat.advantage import Row
from gem_oat.loss import kl_penalty, policy_loss, sampler_correction, value_loss

ChunkLoss = Callable[[list[Row]], Tensor]
"""The part of a loss that is about some rows."""


class Updater:
    """Makes optimiser steps with the models of oat's learner, as its arguments say."""

    def __init__(self, learner: Any) -> None:
        self.learner = learner
        self.args, self.gem = learner.args, learner.args.gem
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
        learner, args = self.learner, self.args
        rows = [row for row in rows if row.sampled]
        tokens, count = self._reduce([sum(row.sampled for row in rows), len(rows)], "sum")
        if tokens == 0:
            return {}
        denominator = tokens if self.gem.loss_aggregation == "token-mean" else count
        sums, differences = torch.zeros(4, dtype=torch.float64), [0.0]
        lr = learner.scheduler.get_last_lr()[0]

        def loss(chunk: list[Row]) -> Tensor:
            new, entropy = self._logprobs(learner.model, chunk)
            mask = self._pad([row.mask for row in chunk])
            advantage = self._pad([row.advantages for row in chunk])
            old = self._pad_known([row.old for row in chunk])
            if old is None:
                old = new.detach()
            per_token = policy_loss(new, old, advantage, args.cliprange)
            sampler = self._pad_known([row.sampler for row in chunk])
            if sampler is not None:
                differences.append(float(((old - sampler) * mask).abs().max()))
                if args.tis_c is not None:
                    per_token = per_token * sampler_correction(old, sampler, args.tis_c)
            outside = ((new.detach() - old).exp() - 1).abs() > args.cliprange
            counted = [per_token.detach(), entropy, outside]
            if args.beta:
                with torch.no_grad():
                    reference, _ = self._logprobs(learner.ref_model, chunk)
                kl = kl_penalty(new, reference)
                counted.append(kl.detach())
                per_token = per_token + args.beta * kl
            for index, each in enumerate(counted):
                sums[index] += float((each * mask).sum())
            return (per_token * mask).sum() / denominator

        norm = self._step(loss, rows, learner.model.model, learner.optimizer, learner.scheduler)
        totals = self._reduce(sums.tolist(), "sum")
        [difference] = self._reduce([max(differences)], "max")
        metrics = {
            "loss": (totals[0] + args.beta * totals[3]) / denominator,
            "grad_norm": norm,
            "entropy": totals[1] / tokens,
            "clip_fraction": totals[2] / tokens,
            "logprob_difference_max": difference,
            "lr": float(lr),
        }
        return metrics | ({"kl": totals[3] / tokens} if args.beta else {})

    def critic_step(self, rows: Sequence[Row]) -> dict[str, float]:
        """Improve the critic on rows; return the step's metrics, the same on all ranks."""
        learner, args = self.learner, self.args
        [turns] = self._reduce([sum(len(row.spans) for row in rows)], "sum")
        if turns == 0:
            return {}
        losses = []

        def loss(chunk: list[Row]) -> Tensor:
            new = torch.cat(self._critic(chunk)).float()
            old = torch.cat([row.values for row in chunk]).to(new)
            target = torch.cat([row.targets for row in chunk]).to(new)
            each = value_loss(new, old, target, args.cliprange_value)
            part: Tensor = args.vf_coef * each.sum() / turns
            losses.append(float(part.detach()))
            return part

        optimizer, scheduler = learner.critic_optimizer, learner.critic_scheduler
        norm = self._step(loss, rows, learner.critic, optimizer, scheduler)
        [value] = self._reduce([sum(losses)], "sum")
        return {"value_loss": value, "value_grad_norm": norm}

    def _reduce(self, numbers: list[float], op: str) -> list[float]:
        """Return the `sum` or `max` over all ranks, element by element, in float64."""
        mine = torch.tensor(numbers, dtype=torch.float64)
        return [float(n) for n in self.learner.strategy.all_reduce(mine, op).tolist()]

    def _in_step(self, rows: Sequence[Row]) -> Iterator[list[Row]]:
        """Yield chunks, as many as on the rank that has most; those that are missing are empty
        rows, which count for nothing."""
        work = list(chunks(rows, self.gem.forward_tokens))
        [most] = self._reduce([len(work)], "max")
        yield from work
        for _ in range(int(most) - len(work)):
            yield [empty_row()]

    def _step(
        self, loss: ChunkLoss, rows: Sequence[Row], engine: Any, optimizer: Any, scheduler: Any
    ) -> float:
        """Make an optimiser step on the sum of the loss over chunks of rows.

        Returns:
            Gradient norm before clipping, of all ranks; NaN where DeepSpeed does not say (ZeRO-0).
        """
        strategy = self.learner.strategy
        work = list(self._in_step(rows))
        for number, chunk in enumerate(work, 1):
            part = loss(chunk)
            engine.set_gradient_accumulation_boundary(number == len(work))
            # DeepSpeed takes the mean over ranks and over a fixed number of passes; this is a sum.
            factor = strategy.world_size * engine.gradient_accumulation_steps()
            strategy.backward(part * factor, engine, optimizer)
            strategy.optimizer_step(optimizer, engine, scheduler)
        norm = engine.get_global_grad_norm()
        return math.nan if norm is None else float(norm)

    def _logprobs(self, model: Any, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy of every token but the first, `[rows, tokens - 1]`."""
        ids, attention = self._inputs(rows)
        logprobs, entropy = self.learner.get_batch_logps(
            model=model,
            input_ids=ids,
            att_mask=attention,
            temperature=self.args.temperature,
            compute_entropy=True,
        )
        return logprobs.float(), entropy.detach().float()

    def _critic(self, rows: Sequence[Row]) -> list[Tensor]:
        """Value before each turn, a tensor `[turns]` for every row."""
        ids, attention = self._inputs(rows)
        values = self.learner.critic(input_ids=ids, attention_mask=attention)
        pairs = zip(values, rows, strict=True)
        return [each[row.places.to(each.device)] for each, row in pairs]

    def _inputs(self, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
        ids = [row.ids for row in rows]
        return self._pad(ids), self._pad([torch.ones_like(each) for each in ids])

    def _pad(self, tensors: list[Tensor]) -> Tensor:
        """Stack tensors `[n]` of different lengths, zeros at the end, `[rows, longest]`."""
        return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True).to(self.device)

    def _pad_known(self, tensors: list[Tensor | None]) -> Tensor | None:
        """Stack tensors as `_pad` does; None if one of them is not known."""
        known = [tensor for tensor in tensors if tensor is not None]
        return self._pad(known) if len(known) == len(tensors) else None


def empty_row() -> Row:
    """A row without anything to train on."""
    return Row(-1, TrainingRow([0], [0], [0], [0.0], []), -1)
