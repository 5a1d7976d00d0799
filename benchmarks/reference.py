"""Rollouts and updates of the reference trainer.

python benchmarks/reference.py [--episodes N] [--rounds N] [--model DIR]

Rollouts: one KV cache for a batch, beside one episode at a time. All variants play the same tasks
with the tiny model at temperature 1 through `gem.rollout`. The naive loop plays one episode after
the other and calls `model.generate` on the whole prompt in every turn.

Updates: one on the same 64 long episodes, with more or fewer tokens in a forward pass.

One thread, CPU time, best of the rounds, which alternate between the variants.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from gem.rollout import Budget, ChatFormat, Request, Sample, play_batch
from gem.tasks import Task
from gem.trajectory import Trajectory
from gem_bench.reference import Learner
from gem_bench.rows import training_rows
from gem_bench.sampler import CachedSampler
from gem_train.experiment.runspec import RunSpec, SamplingPart

ENV = "game:GuessTheNumber-v0-easy"
PARAMS = {"hint": "range", "prompt": "short"}
FORWARD_TOKENS = (65_536, 16_384, 4_096, 2_048, 1_024, 512)
BUDGET = Budget(turn_tokens=8, response_tokens=192, prompt_tokens=64)


def naive_sampler(model: Any, chat: ChatFormat) -> Callable[[list[Request]], list[Sample]]:
    """Generate for each request on its own, from its whole prompt."""

    def sample(requests: list[Request]) -> list[Sample]:
        out = []
        for request in requests:
            prompt = torch.tensor([request.prompt_ids])
            ids = model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                do_sample=True,
                top_k=0,
                max_new_tokens=request.max_tokens,
            )[0, prompt.shape[1] :].tolist()
            stopped = ids[-1] in chat.stop_ids
            out.append(Sample(ids, None, "stop" if stopped else "length"))
        return out

    return sample


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=256, help="for the batched variants")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", help="folder of a model; by default the tiny model")
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    if args.model is None:
        from gem_cpu.tiny_model import ensure

        args.model = str(ensure())
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    chat = ChatFormat(tokenizer)

    def cached() -> CachedSampler:
        generator = torch.Generator().manual_seed(0)
        return CachedSampler(model, chat, SamplingPart(), generator)

    def play(batch: int, n: int, make: Callable[[], Any]) -> list[Trajectory]:
        tasks = [Task(ENV, seed, PARAMS) for seed in range(n)]
        return [
            trajectory
            for i in range(0, n, batch)
            for trajectory in play_batch(tasks[i : i + batch], make(), chat, budget=BUDGET)
        ]

    # Name, episodes side by side, episodes to play, sampler.
    few = max(args.episodes // 16, 1)
    variants: list[tuple[str, int, int, Callable[[], Any]]] = [
        ("naive: model.generate per turn", 1, few, lambda: naive_sampler(model, chat)),
        ("KV cache over turns", 1, few, cached),
        *(("KV cache over turns", batch, args.episodes, cached) for batch in (16, 64, 256)),
    ]
    best: list[dict[str, float]] = [{} for _ in variants]
    for _ in range(args.rounds):
        for row, (_, batch, n, make) in zip(best, variants, strict=True):
            began = time.process_time()
            episodes = play(batch, n, make)
            seconds = time.process_time() - began
            if n / seconds > row.get("episodes", 0):
                row["episodes"] = n / seconds
                row["tokens"] = sum(t.sampled_tokens for t in episodes) / seconds
    print(f"{'rollout':32s} {'batch':>6s} {'episodes/CPU-s':>15s} {'tokens/CPU-s':>13s} {'':>8s}")
    for row, (name, batch, _, _) in zip(best, variants, strict=True):
        times = row["episodes"] / best[0]["episodes"]
        print(f"{name:32s} {batch:6d} {row['episodes']:15.1f} {row['tokens']:13.0f} {times:7.1f}x")

    long = Budget(turn_tokens=8, response_tokens=1024, prompt_tokens=320)
    tasks = [Task(ENV, seed, {"max_turns": 20}) for seed in range(64)]
    updates(args.model, play_batch(tasks, cached(), chat, budget=long), args.rounds)


def updates(model: str, episodes: Sequence[Trajectory], rounds: int) -> None:
    """Measure an update on some episodes and print one table."""
    spec = RunSpec.from_mapping(
        {
            "name": "updates",
            "env": {"id": ENV},
            "policy": {
                "model": model,
                "prompt_tokens": 320,
                "response_tokens": 1024,
                "turn_tokens": 8,
            },
            "algorithm": {"advantage": "reinforce"},
            "optimizer": {"lr": 1e-5},
            "training": {"iterations": 1000, "tasks": len(episodes)},
        }
    )
    rows = training_rows(episodes)
    advantage = [[1.0] * len(t.turns) for t in episodes]
    learners = {n: Learner(spec, torch.device("cpu"), n) for n in FORWARD_TOKENS}
    best = dict.fromkeys(FORWARD_TOKENS, math.inf)
    for _ in range(rounds):
        for n, learner in learners.items():
            began = time.process_time()
            learner.update(rows, advantage, advantage, 0)
            best[n] = min(best[n], time.process_time() - began)
    tokens = sum(len(row.ids) for row in rows)
    print(f"\n{'update':32s} {'forward tokens':>15s} {'CPU s':>8s}")
    for n, seconds in best.items():
        times = best[FORWARD_TOKENS[0]] / seconds
        name = f"{len(rows)} rows, {tokens} tokens"
        print(f"{name:32s} {n:15d} {seconds:8.2f} {times:7.1f}x")


if __name__ == "__main__":
    main()
