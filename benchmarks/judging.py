"""Judges: what verdicts of a server that answers in 100 ms add to the episodes of an iteration.

python benchmarks/judging.py [--episodes N] [--repeats N] [--wait-s S] [--tokens N] [--hidden N]

The reference trainer plays `judge:Reply-v0` with a small model whose turns have `--tokens` tokens
at most, all episodes of an iteration at once. Rows: the judge by rules, in the process (the
baseline); the same judge behind `gem judge serve`, three votes, of which two decide, so two
requests for a verdict; the same again from the cache. The rows alternate; each number is the least
of the repeats, which other work on the machine disturbs least. The policy does not learn here, and
rows sample alike, so that all play the same episodes.

Columns: wall time of the episodes, what it is above the baseline (100 ms at least, whatever the
episodes take: with short ones the share is large), CPU time of this process.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from gem.tasks import Task
from gem_bench.models import load_pretrained, resolved
from gem_bench.reference import Learner, rollout
from gem_train.experiment.runspec import RunSpec

ENV = "judge:Reply-v0"
MODEL = "small?episodes=200&steps=40&careful_steps=40&layers=4"


@contextmanager
def server(wait_s: float) -> Iterator[str]:
    """Run the judge by rules; yield the URL of its API."""
    command = [sys.executable, "-m", "gem", "judge", "serve", "--port", "0"]
    command += ["--delay-s", str(wait_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().rpartition(" ")[2].strip()
        finally:
            process.terminate()


def spec(tokens: int, hidden: int) -> RunSpec:
    """Return the experiment, whose model is made or in gem-cpu's cache."""
    lengths = {"prompt_tokens": 256, "response_tokens": tokens, "turn_tokens": tokens}
    data = {
        "name": "judging",
        "env": {"id": ENV},
        "policy": {"model": f"{MODEL}&hidden={hidden}", **lengths},
        "algorithm": {"advantage": "grpo"},
        "optimizer": {"lr": 1e-3},
        "training": {"iterations": 1, "tasks": 1, "group_size": 2},
    }
    return resolved(RunSpec.from_mapping(data))


def timed(learner: Learner, chat: Any, judge: Any, episodes: int) -> tuple[float, float, int]:
    """Play the episodes; return wall and CPU time, and how many earned something."""
    tasks = [Task(ENV, seed, {"judge": judge}) for seed in range(episodes)]
    began, cpu = time.perf_counter(), time.process_time()
    played, _ = rollout(learner, chat, tasks, 1, learner.spec.sampling, (0, 0))
    wall = time.perf_counter() - began
    assert all(each.valid for each in played)
    return wall, time.process_time() - cpu, sum(each.total_reward > 0 for each in played)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--wait-s", type=float, default=0.1)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--hidden", type=int, default=256, help="width of the model")
    args = parser.parse_args()
    torch.set_num_threads(1)
    experiment = spec(args.tokens, args.hidden)
    learner = Learner(experiment, torch.device("cpu"), 65_536)
    chat = experiment.policy.chat_format(load_pretrained(AutoTokenizer, experiment.policy.model))
    found: dict[str, list[tuple[float, float, int]]] = {}
    with server(args.wait_s) as url, tempfile.TemporaryDirectory() as folder:
        for repeat in range(-1, args.repeats):
            asked = {
                "url": url,
                "model": "rules",
                "allow_uncalibrated": True,
                "votes": 3,
                "sampling": {"temperature": 0.7},
                "cache": str(Path(folder) / f"{repeat}.sqlite"),
            }
            for name, judge in (
                ("by rules, in the process", "rules"),
                ("behind a server", asked),
                ("from the cache", asked),
            ):
                measured = timed(learner, chat, judge, args.episodes)
                if repeat >= 0:  # the first round loads and compiles
                    found.setdefault(name, []).append(measured)
    assert len({row[2] for rows in found.values() for row in rows}) == 1, "other episodes"
    print(f"{args.episodes} episodes, {args.wait_s * 1000:g} ms an answer, best of {args.repeats}")
    print(f"{'judge':<28}{'wall s':>8}{'added':>8}{'CPU s':>8}")
    base = 0.0
    for name, rows in found.items():
        wall, cpu = (min(row[i] for row in rows) for i in (0, 1))
        base = base or wall
        print(f"{name:<28}{wall:>8.2f}{wall / base - 1:>8.1%}{cpu:>8.2f}")


if __name__ == "__main__":
    main()
