"""One batch becomes optimiser steps: micro-batches, ranks in step, exact denominators.

Rows differ in length and number from rank to rank. Every rank makes the same number of forward and
backward passes (DeepSpeed's collectives would wait for ever otherwise), and a loss is divided by
what counts in it on all ranks together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gem.errors import RolloutError
from gem.trajectory import TrainingRow
from gem_oat.advantage import Row
from gem_train.batches import chunks
from gem_train.experiment.agreement import Agreement
from gem_train.experiment.losses import (
    bounded,
    clipped,
    importance_weights,
    kept,
    kl_penalty,
    policy_loss,
    probability_ratio,
    value_loss,
)

ChunkLoss = Callable[[list[Row]], tuple[Tensor, list[Tensor]]]
"""Returns the part of a loss that is about some rows, and numbers that are added up over chunks."""


class Updater:
    """Makes optimiser steps with the models of oat's learner, as its arguments say."""

    def __init__(self, learner: Any) -> None:
        self.learner = learner
        self.args, self.gem = learner.args, learner.args.gem
        self.device = torch.cuda.current_device()
        self.agreement = Agreement()
        """Of the sampler's log-probabilities with those of the last step's `old` ones."""

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
        gem, longest = self.gem, args.max_model_len - args.prompt_max_length
        counts = [sum(row.sampled for row in rows), sum(gem.units(row.turns) for row in rows)]
        tokens, units = self._reduce(counts, "sum")
        if tokens == 0:
            return {}
        for row in rows:
            weights = row.tokens.spread(gem.weights(row.turns, longest))
            row.weights = torch.from_numpy(row.padded(weights))
        lr, agreement = learner.scheduler.get_last_lr()[0], [Agreement()]

        def loss(chunk: list[Row]) -> tuple[Tensor, list[Tensor]]:
            new, entropy = self._logprobs(learner.model, chunk)
            mask, advantage = self._padded(chunk, "mask"), self._padded(chunk, "advantages")
            old, sampler = self._padded(chunk, "old"), self._padded(chunk, "sampler")
            stays, beyond = torch.ones_like(mask).bool(), torch.zeros_like(mask).bool()
            if old is None:
                old = new.detach()
            means, sums = partial(_row_means, mask), partial(_row_sums, mask)
            per_token = policy_loss(new, old, advantage, gem, means)
            if sampler is not None:
                # The engine's are of temperature 1.
                if args.temperature == 1:
                    agreement.append(Agreement.of(old.cpu(), sampler.cpu(), mask.cpu()))
                per_token = per_token * importance_weights(old, sampler, gem, sums)
                stays = kept(old, sampler, gem, sums)
                beyond = bounded(old, sampler, gem, sums)
            elif gem.corrects:
                raise RolloutError("the engine reported no log-probabilities to correct with")
            ratio = probability_ratio(new.detach(), old, gem, means)
            outside = clipped(ratio, advantage, gem)
            counted = [entropy, outside, beyond, ~stays]
            if args.beta:
                with torch.no_grad():
                    reference, _ = self._logprobs(learner.ref_model, chunk)
                kl = kl_penalty(new, reference, gem.kl_estimator)
                counted.append(kl.detach())
                per_token = per_token + args.beta * kl
            part = (per_token * stays * self._padded(chunk, "weights")).sum() / units
            return part, [part.detach(), *((each * mask).sum() for each in counted)]

        norm, sums = self._step(loss, rows, learner.model.model)
        total, entropy, outside, beyond, rejected, *kl = sums
        self.agreement = self._reduce_agreement(agreement)
        metrics = {
            "loss": total,
            "grad_norm": norm,
            "entropy": entropy / tokens,
            "clip_fraction": outside / tokens,
            "lr": float(lr),
        }
        if gem.weighs:
            metrics["tis_fraction"] = beyond / tokens
        if gem.rejects:
            metrics["rejected_fraction"] = rejected / tokens
        return metrics | ({"kl": kl[0] / tokens} if kl else {})

    def critic_step(self, rows: Sequence[Row]) -> dict[str, float]:
        """Improve the critic on rows; return the step's metrics, the same on all ranks."""
        learner, args = self.learner, self.args
        [turns] = self._reduce([sum(len(row.spans) for row in rows)], "sum")
        if turns == 0:
            return {}

        def loss(chunk: list[Row]) -> tuple[Tensor, list[Tensor]]:
            new = torch.cat(self._critic(chunk)).float()
            old = torch.cat([row.values for row in chunk]).to(new)
            target = torch.cat([row.targets for row in chunk]).to(new)
            each = value_loss(new, old, target, args.cliprange_value)
            part: Tensor = args.vf_coef * each.sum() / turns
            return part, [part.detach()]

        norm, [value] = self._step(loss, rows, learner.critic)
        return {"value_loss": value, "value_grad_norm": norm}

    def _reduce(self, numbers: list[float], op: str) -> list[float]:
        """Return the `sum` or `max` over all ranks, element by element, in float64."""
        mine = torch.tensor(numbers, dtype=torch.float64)
        return [float(n) for n in self.learner.strategy.all_reduce(mine, op).tolist()]

    def _reduce_agreement(self, parts: Sequence[Agreement]) -> Agreement:
        """Return the sum of parts, over all ranks."""
        mine = sum(parts, Agreement())
        [largest] = self._reduce([mine.largest], "max")
        sums = [float(n) for n in (mine.tokens, mine.total, mine.kl, mine.mismatched)]
        tokens, total, kl, mismatched = self._reduce(sums, "sum")
        return Agreement(round(tokens), total, largest, kl, round(mismatched))

    def _in_step(self, rows: Sequence[Row]) -> list[list[Row]]:
        """Return chunks, as many as on the rank that has most; those that are missing are empty
        rows, which count for nothing."""
        work = list(chunks(rows, self.gem.forward_tokens))
        [most] = self._reduce([len(work)], "max")
        empty = Row(-1, TrainingRow([0], [0], [0], [0.0], []), -1)
        return work + [[empty]] * (int(most) - len(work))

    def _step(self, loss: ChunkLoss, rows: Sequence[Row], engine: Any) -> tuple[float, list[float]]:
        """Make an optimiser step on the sum of the loss over chunks of rows.

        `engine` is DeepSpeed's, which has the model, its optimiser and its scheduler.

        Returns:
            Gradient norm before clipping, of all ranks (NaN where DeepSpeed does not say: ZeRO-0);
            the numbers that the loss counts, added up over chunks and ranks.
        """
        work, counted = self._in_step(rows), []
        for number, chunk in enumerate(work, 1):
            part, numbers = loss(chunk)
            counted.append([float(each) for each in numbers])
            engine.set_gradient_accumulation_boundary(number == len(work))
            # DeepSpeed takes the mean over ranks and over a fixed number of passes; this is a sum.
            factor = self.learner.strategy.world_size * engine.gradient_accumulation_steps()
            engine.backward(part * factor)
            engine.step()
        norm = engine.get_global_grad_norm()
        sums = self._reduce([sum(column) for column in zip(*counted, strict=True)], "sum")
        return math.nan if norm is None else float(norm), sums

    def _logprobs(self, model: Any, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy of every token but the first, `[rows, tokens - 1]`."""
        logprobs, entropy = self.learner.get_batch_logps(
            model, *self._inputs(rows), self.args.temperature, compute_entropy=True
        )
        return logprobs.float(), entropy.detach().float()

    def _critic(self, rows: Sequence[Row]) -> list[Tensor]:
        """Value before each turn, a tensor `[turns]` for every row."""
        ids, attention = self._inputs(rows)
        values = self.learner.critic(input_ids=ids, attention_mask=attention)
        return [each[row.places.to(each.device)] for each, row in zip(values, rows, strict=True)]

    def _inputs(self, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
        ids = self._padded(rows, "ids")
        lengths = torch.tensor([[len(row.ids)] for row in rows], device=self.device)
        return ids, (torch.arange(ids.shape[1], device=self.device) < lengths).long()

    def _padded(self, rows: Sequence[Row], name: str) -> Any:
        """Stack a tensor `[n]` of each row, zeros at the end, `[rows, longest]`; None if one of
        them is not known."""
        found = [getattr(row, name) for row in rows]
        if any(each is None for each in found):
            return None
        return torch.nn.utils.rnn.pad_sequence(found, batch_first=True).to(self.device)


def _row_means(mask: Tensor, values: Tensor) -> Tensor:
    """Return for each token the mean over the sampled tokens of its row, `[rows, tokens]`."""
    return _row_sums(mask, values) / _row_sums(mask, torch.ones_like(values)).clamp(min=1)


def _row_sums(mask: Tensor, values: Tensor) -> Tensor:
    """Return for each token the sum over the sampled tokens of its row, `[rows, tokens]`."""
    return (values * mask).sum(-1, keepdim=True).expand_as(values)
