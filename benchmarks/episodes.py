"""What an iteration's episodes cost the processes that play and train: bytes now, JSON before.

python benchmarks/episodes.py [--episodes N] [--turns N] [--tokens N] [--record VALUE]

Episodes arrive as Ray hands them over (pickled), 32 different ones again and again. `train`: the
driver computes metrics and advantages from the numbers, which is all that gem-verl takes of an
episode that it does not record; `check`: from whole episodes, of which it compares every training
row with the trainer's tokens, as gem-openrlhf, gem-rl2 and gem-oat do; `record`: it also writes the
record, before all episodes, now as `--record` says (default: as without a setting). `play` is what
a process that plays spends on one episode, mean of 32, and what it hands over. Rows are one an
episode or one a turn. A quarter of the tokens are the environment's; text is random words, four
bytes a token.

Each number is of a process of its own: CPU time, and the peak of its memory (Linux: VmHWM) above
what it takes before anything arrives.
"""

from __future__ import annotations

import argparse
import gc
import json
import pickle
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.resources import files
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from gem.tasks import Task
from gem.trajectory import Trajectory, Turn
from gem_train.experiment.estimate import turn_advantages
from gem_train.experiment.metrics import episode_metrics
from gem_train.packed import PackedTrajectory, Played, Selection
from gem_train.record import Recorder
from gem_train.rows import PlacedRow, split_turns

DIFFERENT = 32
FORMS = ("before", "now")
WORDS = (files("gem") / "data" / "words_large.txt").read_text(encoding="utf-8").split()
RANKS = list(accumulate(1 / (rank + 3) for rank in range(len(WORDS))))
"""Words are as frequent as in a language (Zipf), so that text can be compressed like one."""


def episode(seed: int, turns: int, tokens: int, *, fresh: bool) -> Trajectory:
    """Return an episode with random tokens, its log-probabilities as an engine reports them."""
    rng = np.random.default_rng(seed)
    words = random.Random(seed)
    sampled = tokens // turns * 3 // 4
    read = tokens // turns - sampled

    def text(n: int) -> str:
        return " ".join(words.choices(WORDS, cum_weights=RANKS, k=n // 2))

    played = [
        Turn(
            observation=text(read),
            context_ids=rng.integers(0, 151_936, read).tolist(),
            fresh=fresh or turn == 0,
            response_ids=rng.integers(0, 151_936, sampled).tolist(),
            logprobs=(-rng.exponential(0.3, sampled)).astype(np.float32).tolist(),
            text=text(sampled),
            reward=float(turn == turns - 1 and seed % 2),
            terminated=turn == turns - 1,
            truncated=False,
            stop_reason="stop",
            info={"success": bool(seed % 2), "format_error": False},
        )
        for turn in range(turns)
    ]
    return Trajectory(Task("bench:Episode-v0", seed), played, policy_version=(0, 0))


def encoded(trajectory: Trajectory, form: str) -> Any:
    """Return what a process that plays hands over."""
    return trajectory.to_json() if form == "before" else PackedTrajectory.of(trajectory)


def rows(trajectory: Trajectory, *, fresh: bool) -> list[Any]:
    """Return training rows: one, or one for every turn."""
    whole = trajectory.training_rows()
    return [part for row in whole for part in split_turns(row)] if fresh else whole


def make(folder: Path, args: argparse.Namespace, form: str, *, fresh: bool) -> None:
    """Write what will arrive, and the trainer's tokens."""
    arriving, tensors = [], []
    for seed in range(DIFFERENT):
        trajectory = episode(seed, args.turns, args.tokens, fresh=fresh)
        whole = encoded(trajectory, form)
        parts = [whole, whole if form == "before" else whole.head]
        arriving.append([pickle.dumps(part, protocol=5) for part in parts])
        for row in rows(trajectory, fresh=fresh):
            mask = [0] * (len(row.prompt_ids) - 1) + row.mask
            tensors.append((np.array(row.ids, np.int64), np.array(mask, np.int64)))
    (folder / "arriving").write_bytes(pickle.dumps((arriving, tensors), protocol=5))


def check(row: PlacedRow, ids: Any, mask: Any, form: str) -> None:
    """Compare a row with the trainer's tokens."""
    if form == "now":
        row.check(ids, mask, "a row")
        return
    tokens: Any = row.tokens
    wanted = [0] * row.first + tokens.mask
    wanted += [0] * (len(mask) - len(wanted))
    assert ids.tolist() == tokens.ids and mask.tolist() == wanted


def drive(folder: Path, args: argparse.Namespace, what: str, form: str) -> None:
    """Do a driver's share of an iteration; print seconds of CPU time and MB."""
    arriving, tensors = pickle.loads((folder / "arriving").read_bytes())
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak of memory is from here on
    before, began = memory(), time.process_time()
    part = int(what == "train")
    arrived = [pickle.loads(arriving[i % DIFFERENT][part]) for i in range(args.episodes)]
    batch: Sequence[Played] = arrived
    if form == "before":
        batch = [Trajectory.from_json(each) for each in arrived]
    elif part:
        batch = [PackedTrajectory.from_bytes(each) for each in arrived]
    for number, trajectory in enumerate(batch):
        trajectory.group = number // 8
    metrics = episode_metrics(batch)
    advantages, _ = turn_advantages("rebn", batch, gamma=1.0)
    if what != "train":
        wanted = iter(tensors * (args.episodes // DIFFERENT + 1))
        for trajectory in batch:
            for place, row in enumerate(trajectory.training_rows()):
                check(PlacedRow(place, row), *next(wanted), form)
    if what == "record":
        which = Selection("all" if form == "before" else args.record).of(batch)
        recorder = Recorder(folder / "record")
        recorder.metrics(0, metrics)
        recorder.episodes(0, [batch[i] for i in which], [advantages[i] for i in which])
    print(json.dumps([time.process_time() - began, (memory() - before) / 1e6]))


def play(args: argparse.Namespace, form: str, *, fresh: bool) -> None:
    """Encode episodes as a process that plays does; print CPU seconds and MB of one."""
    episodes = [episode(seed, args.turns, args.tokens, fresh=fresh) for seed in range(DIFFERENT)]
    began, size = time.process_time(), 0
    for trajectory in episodes:
        # The text was made again for every row.
        for _ in range(args.turns if fresh and form == "before" else 1):
            size += len(pickle.dumps(encoded(trajectory, form), protocol=5))
    print(json.dumps([(time.process_time() - began) / DIFFERENT, size / DIFFERENT / 1e6]))


def memory() -> int:
    """Return the peak of this process's resident memory, in bytes."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def measure(arguments: Sequence[str], *role: str) -> tuple[float, float]:
    """Run this file as another process."""
    command = [sys.executable, __file__, *arguments, "--role", *role]
    answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    seconds, megabytes = json.loads(answer.stdout or "[0, 0]")
    return seconds, megabytes


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=1024)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=32_000)
    parser.add_argument("--record", help="all, metrics, sample:<n> (default: as without a setting)")
    parser.add_argument("--role", nargs="*", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.role:
        role, form, shape, *folder = args.role
        fresh = shape == "turn"
        if role == "make":
            make(Path(folder[0]), args, form, fresh=fresh)
        elif role == "play":
            play(args, form, fresh=fresh)
        else:
            drive(Path(folder[0]), args, role, form)
        return
    print(f"{args.episodes:,} episodes of {args.tokens:,} tokens, {args.turns} turns")
    head = ("", "rows per", "CPU s before", "now", "times", "MB before", "now", "times")
    print("{:8}{:9}{:>13}{:>8}{:>7}{:>11}{:>8}{:>7}".format(*head))
    for role in ("train", "check", "record", "play"):
        for shape in ("episode", "turn"):
            found = []
            for form in FORMS:
                with tempfile.TemporaryDirectory() as folder:
                    measure(sys.argv[1:], "make", form, shape, folder)
                    found += measure(sys.argv[1:], role, form, shape, folder)
            s0, m0, s1, m1 = found
            times = s0 / max(s1, 1e-9), m0 / max(m1, 1e-9)
            print(
                f"{role:8}{shape:9}{s0:13.3f}{s1:8.3f}{times[0]:7.0f}"
                f"{m0:11,.1f}{m1:8,.1f}{times[1]:7.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
