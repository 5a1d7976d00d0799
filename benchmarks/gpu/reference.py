"""The reference trainer on one GPU: nothing but torch, transformers and this repository.

python benchmarks/gpu/reference.py [--smollm2 DIR] [--out DIR] [--smoke]

Part 1: the tiny model on the reward that is never negative, three estimators, three seeds (fp32).
Part 2: SmolLM2-135M-Instruct on game:GuessTheNumber-v0-easy, a short warm start that teaches the
answer format, then ReBN (bf16). The network is not used: make the model's folder beforehand with
`python -m gem_cpu.smollm2 --out DIR`; without it part 2 is left out, and says so.

`--smoke` does a little of everything in two minutes, on a CPU too; its numbers mean nothing.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import os
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
try:
    import gem  # noqa: F401
except ImportError:
    sys.path += [str(folder) for folder in sorted(ROOT.glob("packages/*/src"))]
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch  # noqa: E402
import transformers  # noqa: E402

from gem.errors import MissingExtraError  # noqa: E402
from gem_bench.reference import train  # noqa: E402
from gem_cpu import smollm2, tiny_model  # noqa: E402
from gem_train.experiment.runspec import RunSpec  # noqa: E402

ENV = "game:GuessTheNumber-v0-easy"


def tiny_spec(model: Path, advantage: str, seed: int, iterations: int, tasks: int) -> RunSpec:
    """Soft reward, short texts; see recipes/guess-easy-soft.toml."""
    params = {"hint": "range", "prompt": "short", "soft_reward": True}
    return RunSpec.from_mapping(
        {
            "name": "guess-easy-soft",
            "seed": seed,
            "env": {"id": ENV, "params": params, "seed": seed * 10**6},
            "policy": {
                "model": str(model),
                "prompt_tokens": 64,
                "response_tokens": 192,
                "turn_tokens": 8,
            },
            "algorithm": {"advantage": advantage, "gamma": 0.9},
            "optimizer": {"lr": 1e-3, "beta2": 0.99},
            "training": {"iterations": iterations, "tasks": tasks, "group_size": 8},
        }
    )


def smollm2_spec(model: Path, iterations: int, tasks: int) -> RunSpec:
    """Full texts, ReBN, bf16."""
    return RunSpec.from_mapping(
        {
            "name": "guess-easy-smollm2",
            "env": {"id": ENV, "params": {"hint": "range"}},
            "policy": {
                "model": str(model),
                "prompt_tokens": 384,
                "response_tokens": 512,
                "turn_tokens": 16,
            },
            "algorithm": {"advantage": "rebn", "gamma": 0.9},
            "optimizer": {"lr": 1e-5, "beta2": 0.99},
            "training": {
                "iterations": iterations,
                "tasks": tasks,
                "group_size": 8,
                "precision": "bf16",
            },
        }
    )


def warm_start(source: Path, target: Path, device: str, steps: int, batch: int) -> None:
    """Teach the answer format by cloning a player who guesses at random."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    recipe = tiny_model.Recipe(params={"hint": "range"})
    rows = tiny_model.cloning_rows(recipe, tokenizer, 0.0, max(steps, 1) * batch)
    began = time.perf_counter()
    loss = tiny_model.clone(model.to(device), rows, steps=steps, batch=batch, lr=5e-5)
    print(f"format warm start: {steps} steps of {batch} episodes, loss {loss:.3f}, "
          f"{time.perf_counter() - began:.1f} s")  # fmt: skip
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def measure(spec: RunSpec, folder: Path, device: str) -> list[float]:
    """Train, print one line, return the success rate of every iteration."""
    lines: list[dict[str, float]] = []
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    train(spec, folder, device=device, report=lambda _, split, values: lines.append(values))
    seconds = time.perf_counter() - began
    success = [line["success_rate"] for line in lines]
    tokens = sum(line["sampled_tokens"] for line in lines)
    peak = f"{torch.cuda.max_memory_allocated() / 2**30:.2f} GiB peak" if device != "cpu" else ""
    n = min(20, len(success))
    print(
        f"{spec.algorithm.advantage:10s} seed {spec.seed}  "
        f"success {statistics.fmean(success[:n]):.3f} -> {statistics.fmean(success[-n:]):.3f}  "
        f"{len(lines) / seconds:6.2f} iterations/s  "
        f"{tokens / sum(line['rollout_s'] for line in lines):8.0f} sampled tokens/s (rollout)  "
        f"{tokens / seconds:8.0f} (whole run)  {peak}",
        flush=True,
    )
    return success


def print_curve(name: str, curves: list[list[float]], points: int = 12) -> None:
    """Print the mean success over seeds in equal stretches of the run."""
    n = len(curves[0])
    cuts = sorted({round(i * n / points) for i in range(points + 1)})
    means = [
        statistics.fmean(x for curve in curves for x in curve[a:b])
        for a, b in itertools.pairwise(cuts)
    ]
    print(f"  curve {name:10s} {' '.join(f'{x:.2f}' for x in means)}", flush=True)


def main() -> None:
    """Run both parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smollm2", type=Path, help="folder made by python -m gem_cpu.smollm2")
    parser.add_argument("--out", type=Path, help="folder for the runs' records")
    parser.add_argument("--iterations", type=int, default=240, help="of part 1")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--smoke", action="store_true")
    args = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    chip = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    print(
        f"{datetime.date.today()}  {chip}  Python {sys.version.split()[0]}  "
        f"torch {torch.__version__}  transformers {transformers.__version__}"
    )
    recipe = tiny_model.Recipe()
    iterations, seeds, tasks = args.iterations, args.seeds, 16
    steps, batch, later, later_tasks = 40, 32, 60, 16
    if args.smoke:
        recipe = replace(recipe, careful_steps=40, unskilled_steps=10)
        iterations, seeds, tasks = 3, 1, 2
        steps, batch, later, later_tasks = 1, 2, 2, 1

    with tempfile.TemporaryDirectory() as scratch:
        out = args.out or Path(scratch)
        tiny = tiny_model.make(recipe, progress=False)
        print(f"\ntiny model, soft reward, {tasks} tasks x 8 episodes, fp32")
        curves: dict[str, list[list[float]]] = {}
        for advantage in ("reinforce", "grpo", "rebn"):
            for seed in range(seeds):
                spec = tiny_spec(tiny, advantage, seed, iterations, tasks)
                success = measure(spec, out / f"tiny-{advantage}-{seed}", device)
                curves.setdefault(advantage, []).append(success)
        for advantage, runs in curves.items():
            print_curve(advantage, runs)

        source = find_smollm2(args.smollm2, tiny if args.smoke else None)
        if source is None:
            return
        name = smollm2.NAME if source != tiny else "tiny model"
        print(f"\n{name}, {later_tasks} tasks x 8 episodes, bf16")
        warm = Path(scratch) / "warm"
        warm_start(source, warm, device, steps, batch)
        spec = smollm2_spec(warm, later, later_tasks)
        print_curve("rebn", [measure(spec, out / "smollm2-rebn", device)])


def find_smollm2(given: Path | None, instead: Path | None) -> Any:
    """Return the model's folder, or `instead`, or None with the reason printed."""
    if given is not None:
        return given
    try:
        return smollm2.ensure()
    except MissingExtraError as error:
        if instead is not None:
            print(f"\n{error}; the smoke run uses the tiny model in its place")
        else:
            print(f"\npart 2 left out, no --smollm2: {error}")
        return instead


if __name__ == "__main__":
    main()
