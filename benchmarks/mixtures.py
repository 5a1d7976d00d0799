"""ReBN over a batch and within each environment, where rewards are of very different sizes.

python benchmarks/mixtures.py [--seeds 3] [--iterations 60] [--out DIR]

The tiny model trains on two environments in one run with the reference trainer: the number game of
`recipes/guess-easy.toml` with reward 1, and one of a single guess, which is luck, with reward 100.
Printed are the success rates of the first over the last ten iterations.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch

from gem_bench import reference
from gem_bench.models import resolved
from gem_train.experiment.estimate import NORMALISE
from gem_train.experiment.runspec import RunSpec
from gem_train.record import read_run

WINDOW = 10
GAME = "game:GuessTheNumber-v0-easy"
PARAMS = {"hint": "range", "prompt": "short"}
LARGE = [{"name": "scale_reward", "factor": 100}]


def spec(normalise: str, seed: int, iterations: int) -> RunSpec:
    """Return the experiment; seeds differ in the tasks, too."""
    first = seed * 1_000_000
    skill = {"id": GAME, "name": "skill", "params": PARAMS, "seed": first}
    luck = {**skill, "name": "luck", "params": {**PARAMS, "max_turns": 1, "wrappers": LARGE}}
    data: dict[str, Any] = {
        "name": f"mixture-{normalise}",
        "seed": seed,
        "env": [skill, luck],
        "policy": {"model": "tiny", "prompt_tokens": 40, "response_tokens": 128, "turn_tokens": 8},
        "algorithm": {"advantage": "rebn", "gamma": 0.9, "normalise": normalise},
        "optimizer": {"lr": 1e-3, "beta2": 0.99},
        "training": {"iterations": iterations, "tasks": 16, "group_size": 8},
    }
    return resolved(RunSpec.from_mapping(data))


def success(folder: Path) -> tuple[float, float]:
    """Return the success rate of the game of skill in the first iteration and at the end."""
    rates = [m["env/skill/success_rate"] for m in read_run(folder).metrics]
    return rates[0], statistics.fmean(rates[-WINDOW:])


def main() -> None:
    """Train and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--out", type=Path, help="folder of the runs; by default a temporary one")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        out = args.out or Path(temporary)
        print(f"{'normalise':12} {'first':>6} {'last ten iterations, by seed':>32} {'mean':>7}")
        for normalise in NORMALISE:
            ends = []
            for seed in range(args.seeds):
                folder = out / f"{normalise}-{seed}"
                reference.train(spec(normalise, seed, args.iterations), folder, device="cpu")
                ends.append(success(folder))
            shown = "  ".join(f"{end:.3f}" for _, end in ends)
            first, last = (statistics.fmean(each) for each in zip(*ends, strict=True))
            print(f"{normalise:12} {first:6.3f} {shown:>32} {last:7.3f}")


if __name__ == "__main__":
    main()
