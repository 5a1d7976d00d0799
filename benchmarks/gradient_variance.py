"""Why a baseline helps or hurts: sizes of the scores of successes and failures along a run.

python benchmarks/gradient_variance.py RECIPE... [--every 8] [--episodes 96] [--set KEY=VALUE]

The score of an episode is the gradient of the log-probability of its sampled tokens. With reward 1
for success (probability p) and 0 for failure, let S and F be the mean squared norms of the scores
of successes and failures. The mean squared norm of one episode's gradient is then

    p S                           without a baseline (REINFORCE)
    p (1-p)^2 S + (1-p) p^2 F     with the mean reward as baseline (ReBN, before its division)

so that the mean as baseline lowers the variance only where F/S < (2-p)/(1-p). Each row is one
point of a run in the reference trainer: the recipe's, with the recipe's estimator.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import torch
from transformers import AutoTokenizer

from gem.rollout import ChatFormat
from gem_bench.models import load_pretrained, resolved
from gem_bench.reference import (
    Learner,
    rollout,
    token_statistics,
    training_batch,
    turn_advantages,
)
from gem_bench.rows import training_rows
from gem_bench.runspec import load_spec
from gem_train.experiment.mixtures import Mixture


def scores(learner: Learner, chat: ChatFormat, episodes: int, iteration: int) -> Sequence[float]:
    """Return p, S and F of the policy on new episodes of the recipe's tasks.

    Args:
        learner: Has the policy.
        chat: Token layout of a conversation.
        episodes: Number of tasks, each played once.
        iteration: Gives the episodes a random stream that training does not use.
    """
    spec = learner.spec
    tasks = list(Mixture(spec.env, episodes, episodes))
    played, _ = rollout(learner, chat, tasks, 1, spec.sampling, (iteration, 1_000))
    weights = [each for each in learner.policy.parameters() if each.requires_grad]
    squares: dict[bool, list[float]] = {True: [], False: []}
    for row in training_rows(played):
        if row.sampled:
            logprobs, _ = token_statistics(learner.policy, [row], spec.sampling.temperature)
            score = torch.autograd.grad(logprobs.sum(), weights)
            squares[played[row.episode].success].append(sum(float((g * g).sum()) for g in score))
    p = fmean(float(episode.success) for episode in played if episode.valid)
    return [p, *(fmean(squares[won]) if squares[won] else math.nan for won in (True, False))]


def main() -> None:
    """Print a table of points along a run of each recipe."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("recipes", nargs="+", type=Path)
    parser.add_argument("--every", type=int, default=8, help="iterations between two points")
    parser.add_argument("--episodes", type=int, default=96, help="episodes of a point")
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE of the RunSpec")
    args = parser.parse_args()
    print(
        "| recipe | iteration | p | S | F | F/S | (2-p)/(1-p) | without baseline | with the mean |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for path in args.recipes:
        spec = resolved(load_spec(path, args.set))
        learner = Learner(spec, torch.device("cpu"), 65_536)
        chat = spec.policy.chat_format(load_pretrained(AutoTokenizer, spec.policy.model))
        for iteration in range(spec.training.iterations + 1):
            if iteration % args.every == 0:
                p, won, lost = scores(learner, chat, args.episodes, iteration)
                limit = (2 - p) / (1 - p) if p < 1 else math.inf
                print(
                    f"| {spec.name} | {iteration} | {p:.2f} | {won:.0f} | {lost:.0f} "
                    f"| {lost / won:.2f} | {limit:.1f} | {p * won:.1f} "
                    f"| {p * (1 - p) ** 2 * won + (1 - p) * p**2 * lost:.1f} |",
                    flush=True,
                )
            if iteration < spec.training.iterations:
                batch, counted, _ = training_batch(
                    learner, chat, iteration, {}, learner.behaviour.at(iteration)
                )
                advantage, target = turn_advantages(spec.algorithm, batch, trained=counted)
                learner.update(training_rows(batch, counted), advantage, target, iteration)


if __name__ == "__main__":
    main()
