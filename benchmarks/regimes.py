"""Where each estimator wins: a contextual bandit, trained like a language model, in minutes.

python benchmarks/regimes.py [--only NAME] [--seeds 8] [--json FILE]

The policy answers one of 24 questions in each turn with one of 16 tokens; one is right. It is a
linear softmax policy on random features. It is trained by policy gradient (token mean, gradient
norm clipped at 1) with Adam (0.9, 0.99), like the reference trainer's. `gem.estimators` computes
the advantages. A regime says

- `start`: how likely the right token is at the beginning;
- `wrong`: whether the other tokens are equally likely, or one of them has nine tenths of the rest
  (`mode`), so that the most likely answer is wrong;
- `filler`: how many tokens before each answer decide nothing; they are uniform at the beginning,
  share the policy's weights, and are trained on like the others;
- `reward`: `right` 1 for a right turn, else 0; `cost` 0 or -1; `end` 1 after the last turn if all
  turns are right; `first` the episode ends with the first right turn, which earns 1;
- `offset`: what is added to every reward.

The table has the mean share of right turns over the whole run, at the learning rate (in brackets)
that is best on twelve other seeds. Runs of two estimators have the same seeds; the last column
names the one that is ahead by more than the 95 % t interval of the difference. `control` gives all
turns the advantage 1: what rises with it does not learn from the reward.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from gem.advantage import TurnTable
from gem.estimators import Options, estimator
from gem_bench.stats import Estimate, over_runs

QUESTIONS, TOKENS, FEATURES, GROUP = 24, 16, 64, 4
RATES = (0.02, 0.04, 0.08, 0.16, 0.32, 0.64)
TUNING = 12
"""Seeds on which the learning rate is chosen."""
BETA1, BETA2, CLIP = 0.9, 0.99, 1.0

ESTIMATORS = ("reinforce", "rebn", "grpo", "control")


@dataclass(frozen=True)
class Regime:
    """What is trained; see the module's docstring."""

    start: float
    wrong: str = "even"
    filler: int = 0
    reward: str = "right"
    turns: int = 1
    gamma: float = 1.0
    offset: float = 0.0
    episodes: int = 64
    updates: int = 80


REGIMES: dict[str, list[Regime]] = {
    "short answers": [Regime(start) for start in (0.02, 0.1, 0.3, 0.8)],
    "wrong mode": [Regime(start, "mode") for start in (0.02, 0.1, 0.3, 0.8)],
    "filler": [Regime(start, filler=32) for start in (0.02, 0.1, 0.3, 0.8)],
    "filler, wrong mode": [Regime(start, "mode", 32) for start in (0.1, 0.3, 0.8)],
    "offset": [
        Regime(start, filler=filler, offset=offset)
        for start, filler in ((0.3, 0), (0.3, 32))
        for offset in (-1.0, -0.5, 1.0)
    ],
    "a reward every turn": [
        Regime(0.3, reward=reward, turns=8, gamma=gamma, episodes=32, updates=60)
        for reward in ("right", "cost")
        for gamma in (1.0, 0.9)
    ],
    "a reward at the end": [Regime(0.5, reward="end", turns=3, episodes=32, updates=60)],
    "ends with the first success": [
        Regime(0.15, reward="first", turns=6, gamma=gamma, episodes=32, updates=60)
        for gamma in (1.0, 0.9)
    ],
    "batch and updates": [
        Regime(0.3, episodes=episodes, updates=updates)
        for episodes, updates in ((16, 320), (256, 20), (64, 320))
    ],
}


@dataclass(frozen=True)
class Policy:
    """The bandit's questions and the weights of all runs at the beginning."""

    questions: torch.Tensor
    """Features, `[questions, features]`."""
    fillers: torch.Tensor
    """Features of the filler's places, `[filler, features]`."""
    right: torch.Tensor
    """Right token of each question, `[questions]`."""
    weights: torch.Tensor
    """`[features, tokens]`."""


def made(regime: Regime) -> Policy:
    """Return a policy with exactly the probabilities that the regime asks for."""
    generator = torch.Generator().manual_seed(0)
    scale = 1 / math.sqrt(FEATURES)
    questions = torch.randn(QUESTIONS, FEATURES, generator=generator) * scale
    fillers = torch.randn(regime.filler, FEATURES, generator=generator) * scale
    right = torch.randint(0, TOKENS, (QUESTIONS,), generator=generator)
    rest = 1 - regime.start
    p = torch.full((QUESTIONS, TOKENS), rest / (TOKENS - 1))
    if regime.wrong == "mode":
        p[:] = 0.1 * rest / (TOKENS - 2)
        p[torch.arange(QUESTIONS), (right + 1) % TOKENS] = 0.9 * rest
    p[torch.arange(QUESTIONS), right] = regime.start
    both = torch.cat([p, torch.full((regime.filler, TOKENS), 1 / TOKENS)]).log()
    # There are no more rows than features, so that least squares are exact.
    features = torch.cat([questions, fillers])
    weights = torch.linalg.lstsq(features, both - both.mean(1, keepdim=True), driver="gelsd")
    return Policy(questions, fillers, right, weights.solution)


def rewards(regime: Regime, correct: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rewards of turns and whether they are played.

    Args:
        regime: Says which.
        correct: Whether turns are right, `[runs, episodes, turns]`, as 0 or 1.
    """
    played = torch.ones_like(correct)
    if regime.reward == "right":
        reward = correct
    elif regime.reward == "cost":
        reward = correct - 1
    elif regime.reward == "end":
        reward = torch.zeros_like(correct)
        reward[..., -1] = correct.prod(-1)
    else:
        played = ((correct.cumsum(-1) - correct) == 0).float()
        reward = correct * played
    return (reward + regime.offset) * played, played


def advantage(name: str, gamma: float, reward: np.ndarray, played: np.ndarray) -> np.ndarray:
    """Return the advantages of one run's batch, `[episodes, turns]`, 0 where nothing is played."""
    episode, turn = np.nonzero(played)
    table = TurnTable(
        episode=episode,
        turn=turn,
        group=episode // GROUP,
        reward=reward[episode, turn].astype(np.float64),
        valid=np.ones(len(episode), np.bool_),
        part=np.zeros(len(episode), np.int64),
        part_names=("0",),
        lengths=played.sum(1).astype(np.int64),
    )
    found = np.zeros_like(reward)
    found[episode, turn] = estimator(name)(table, Options(gamma=gamma)).advantages
    return found


def trained(name: str, regime: Regime, rates: torch.Tensor, seed: int) -> torch.Tensor:
    """Train runs side by side; return their share of right turns over the run, `[runs]`.

    Args:
        name: Of the estimator.
        regime: What is trained.
        rates: Learning rate of each run.
        seed: Of all their random numbers.
    """
    policy, runs = made(regime), len(rates)
    generator = torch.Generator().manual_seed(seed)
    n, turns = regime.episodes, regime.turns
    weights = policy.weights.expand(runs, -1, -1).clone()
    mean, square = torch.zeros_like(weights), torch.zeros_like(weights)
    shares = []
    for update in range(1, regime.updates + 1):
        shape = (runs, n // GROUP, turns)
        asked = torch.randint(0, QUESTIONS, shape, generator=generator)
        asked = asked.repeat_interleave(GROUP, 1)
        x = policy.questions[asked].reshape(runs, n * turns, FEATURES)
        p = torch.bmm(x, weights).softmax(-1)
        token = torch.multinomial(p.reshape(-1, TOKENS), 1, generator=generator)
        correct = (token.reshape(runs, n, turns) == policy.right[asked]).float()
        reward, played = rewards(regime, correct)
        per_turn = torch.from_numpy(
            np.stack(
                [
                    advantage(name, regime.gamma, r, m)
                    for r, m in zip(reward.numpy(), played.numpy(), strict=True)
                ]
            )
        ).reshape(runs, n * turns)
        chosen = torch.zeros_like(p).scatter_(2, token.reshape(runs, -1, 1), 1.0)
        gradient = torch.bmm(x.transpose(1, 2), per_turn[..., None] * (chosen - p))
        if regime.filler:
            gradient += filler_gradient(policy, weights, per_turn, generator)
        count = played.sum((1, 2))[:, None, None]
        gradient = -gradient / (count * (1 + regime.filler))
        norm = gradient.flatten(1).norm(dim=1)[:, None, None]
        gradient = gradient * (CLIP / norm.clamp(min=CLIP))
        mean = BETA1 * mean + (1 - BETA1) * gradient
        square = BETA2 * square + (1 - BETA2) * gradient**2
        step = mean / (1 - BETA1**update) / ((square / (1 - BETA2**update)).sqrt() + 1e-8)
        weights = weights - rates[:, None, None] * step
        shares.append((correct * played).sum((1, 2)) / played.sum((1, 2)))
    return torch.stack(shares).mean(0)


def filler_gradient(
    policy: Policy, weights: torch.Tensor, per_turn: torch.Tensor, generator: torch.Generator
) -> torch.Tensor:
    """Return the summed gradient of the log-probabilities of filler, times the advantages."""
    runs, count = per_turn.shape
    x = policy.fillers.expand(runs, -1, -1)
    p = torch.bmm(x, weights).softmax(-1)
    places = p.shape[1]
    token = torch.multinomial(
        p.reshape(-1, TOKENS), count, replacement=True, generator=generator
    ).reshape(runs, places, count)
    summed = torch.zeros_like(p).scatter_add_(
        2, token, per_turn[:, None, :].expand(runs, places, count).contiguous()
    )
    return torch.bmm(x.transpose(1, 2), summed - per_turn.sum(1)[:, None, None] * p)


def measured(regime: Regime, name: str, seeds: int) -> tuple[float, list[float]]:
    """Return the best learning rate, and the share of right turns of each reported seed."""
    tuning = torch.tensor(RATES).repeat_interleave(TUNING)
    tuned = trained(name, regime, tuning, seed=1).reshape(len(RATES), TUNING)
    rate = RATES[int(tuned.mean(1).argmax())]
    return rate, trained(name, regime, torch.full((seeds,), rate), seed=2).tolist()


def ahead(difference: Estimate, first: str, second: str) -> str:
    """Return which of two estimators is ahead beyond the interval of the difference."""
    if difference.low is None or difference.high is None:
        return "?"
    if difference.low > 0:
        return first
    return second if difference.high < 0 else "-"


def described(group: str, regime: Regime) -> str:
    """Return the name of a group and what else is not as by default in a regime of it."""
    usual = asdict(Regime(regime.start))
    changed = {key: value for key, value in asdict(regime).items() if value != usual[key]}
    size = (changed.pop("episodes", 64), changed.pop("updates", 80))
    texts = [f"{key} {value:g}" for key, value in changed.items() if isinstance(value, int | float)]
    if size != (64, 80) and group == "batch and updates":
        texts.append(f"{size[0]} x {size[1]}")
    if regime.reward == "cost":
        texts.insert(0, "0 or -1")
    return ", ".join([f"{group}: start {regime.start:g}", *texts])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=REGIMES, help="one group of regimes")
    parser.add_argument("--seeds", type=int, default=8, help="reported runs (default: 8)")
    parser.add_argument("--json", type=Path, help="write the numbers, too")
    args = parser.parse_args()
    torch.set_num_threads(1)
    began, lines = time.process_time(), []
    print("| regime | REINFORCE | ReBN | GRPO | control | ReBN less REINFORCE | ahead |")
    print("|---|---|---|---|---|---|---|")
    for group, regimes in REGIMES.items():
        for regime in regimes if args.only in (None, group) else ():
            found = {name: measured(regime, name, args.seeds) for name in ESTIMATORS}
            pairs = zip(found["rebn"][1], found["reinforce"][1], strict=True)
            difference = over_runs([a - b for a, b in pairs])
            cells = [f"{over_runs(shares).mean:.3f} ({rate:g})" for rate, shares in found.values()]
            low, high = difference.low or math.nan, difference.high or math.nan
            print(
                f"| {described(group, regime)} | {' | '.join(cells)} "
                f"| {difference.mean:+.3f} [{low:+.3f}, {high:+.3f}] "
                f"| {ahead(difference, 'ReBN', 'REINFORCE')} |",
                flush=True,
            )
            shares = {name: {"lr": rate, "shares": each} for name, (rate, each) in found.items()}
            lines.append({"group": group, **asdict(regime), "estimators": shares})
    print(f"\n{time.process_time() - began:.0f} CPU seconds, {args.seeds} seeds")
    if args.json:
        args.json.write_text(json.dumps(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
