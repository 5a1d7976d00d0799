"""One experiment in one trainer: what it costs, and whether the trainer computes what it should.

    python benchmarks/gpu/run.py TRAINER [--model DIR] [--iterations N] [--hardware FILE]
                                 [--python PYTHON] [--set KEY=VALUE] [--out DIR] [--smoke]

Runs `recipes/smollm2-guess.toml` with longer episodes, sampled and in bf16, as `gem-bench run`
does, and prints peak memory, tokens per second of rollout and update, the share of each stage in an
iteration's time, prefix-cache hits where the engine's log tells, levels L0 to L2, and the gap
between the sampler's log-probabilities and the trainer's (`gem_bench.gap`). L0 and L1 compare the
trainer's rows of the first batch with those of `gem.advantage`, L2 loss and gradient norm of the
first update with what the reference makes of the same episodes.

A GPU's memory is read with nvidia-smi: the benchmark needs an NVIDIA GPU.

`--smoke` does the same on the CPU with the tiny model; its speeds mean nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers

from gem.errors import ConfigurationError, GemError
from gem_bench.conformance import LOSS_FLOOR, Level, check_advantages, check_rows
from gem_bench.conformance import table as level_table
from gem_bench.gap import Gap, gaps
from gem_bench.gap import table as gap_table
from gem_bench.run import LOG, run
from gem_bench.runspec import load_hardware, load_spec
from gem_train.experiment.runspec import RunSpec
from gem_train.packed import VARIABLE
from gem_train.record import RunRecord, read_run
from gem_train.testing.conformance import Finding, expected_rows

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "recipes" / "smollm2-guess.toml"
TRAINERS = ("reference", "trl", "verl", "openrlhf", "oat", "rl2")
SAMPLED = ("training.precision=bf16", "sampling.top_k=-1")
AT_SIZE = (
    *("training.tasks=16", "training.group_size=4"),
    "env.params={ hint = 'range', format_error_ends = false }",
    *("policy.prompt_tokens=512", "policy.response_tokens=3584", "policy.turn_tokens=512"),
)
"""64 episodes of four to nine turns."""
PASS_TOKENS = 16_384
"""Of the replay, and of a trainer whose hardware does not say."""
TINY = (
    *("policy.model=tiny", "env.id=game:GuessTheNumber-v0-easy"),
    "env.params={ hint = 'range', prompt = 'short', soft_reward = true }",
    *("policy.prompt_tokens=40", "policy.response_tokens=128", "policy.turn_tokens=8"),
)
NATIVE = {"verl": ("actor_rollout_ref.rollout.disable_log_stats=false",)}
"""What makes an engine say how often its prefix cache helped."""
TOLERANCE = {"fp32": 1e-3, "bf16": 0.05}
"""Allowed relative difference of loss and gradient norm at L2."""
STAGES = ("rollout", "advantage", "update", "sync")
_HITS = re.compile(r"Prefix cache hit rate: ([0-9.]+)%")
_MARK = "GEM_MEASURED_RUN"


class Memory:
    """Peak memory of a run in bytes: of the GPU, or of the processes that have a marker."""

    def __init__(self, gpu: bool, marker: str) -> None:
        self.peak = 0
        self._read = self._of_gpu if gpu else lambda: self._of_processes(marker)
        self._done = threading.Event()

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Look twice a second."""
        thread = threading.Thread(target=self._watch)
        before = self._read()
        thread.start()
        try:
            yield
        finally:
            self._done.set()
            thread.join()
            self.peak = max(self.peak - before, 0)

    def _watch(self) -> None:
        while not self._done.wait(0.5):
            self.peak = max(self.peak, self._read())

    @staticmethod
    def check() -> None:
        """Refuse a machine whose GPU's memory cannot be read.

        Raises:
            ConfigurationError: nvidia-smi is missing, or does not answer.
        """
        try:
            Memory._of_gpu()
        except (OSError, subprocess.CalledProcessError, ValueError) as error:
            raise ConfigurationError(
                f"nvidia-smi does not say how much memory is used ({error}): the benchmark runs on "
                "NVIDIA's GPUs, with nvidia-smi on the PATH, or with --smoke on the CPU"
            ) from error

    @staticmethod
    def _of_gpu() -> int:
        ask = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        answer = subprocess.run(ask, capture_output=True, text=True, check=True)
        return sum(int(line) for line in answer.stdout.splitlines()) << 20

    @staticmethod
    def _of_processes(marker: str) -> int:
        """Proportional set size: memory that processes share counts once."""
        total = 0
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"{_MARK}={marker}".encode() in (entry / "environ").read_bytes():
                    rollup = (entry / "smaps_rollup").read_text()
                    total += int(rollup.partition("\nPss:")[2].split()[0]) << 10
        return total


def cost(record: RunRecord) -> Iterator[str]:
    """Yield lines about speed: medians over the iterations, without the first if there are more."""
    train = [m for m in record.metrics if m["split"] == "train"]
    counted = train[1:] or train
    lengths: dict[int, int] = {}
    for episode in record.episodes("train"):
        rows = episode.trajectory.training_rows()
        lengths.setdefault(episode.iteration, 0)
        lengths[episode.iteration] += sum(len(row.ids) for row in rows)

    def seconds(metrics: dict[str, Any]) -> dict[str, float]:
        known = {s: metrics[f"{s}_s"] for s in STAGES if metrics.get(f"{s}_s") is not None}
        whole = metrics.get("step_s") or sum(known.values())
        return {**known, "other": max(whole - sum(known.values()), 0.0)}

    def median(values: Sequence[float], what: str) -> str:
        return f"{statistics.median(values):,.0f} {what}/s" if values else "not recorded"

    rollout = [m["sampled_tokens"] / m["rollout_s"] for m in counted if m.get("rollout_s")]
    update = [lengths[m["iteration"]] / m["update_s"] for m in counted if m.get("update_s")]
    yield f"rollout: {median(rollout, 'sampled tokens')}"
    yield f"update: {median(update, 'tokens')}"
    spent = [seconds(m) for m in counted]
    whole = sum(sum(each.values()) for each in spent) or math.nan
    shares = {stage: sum(s.get(stage, 0.0) for s in spent) / whole for stage in (*STAGES, "other")}
    text = ", ".join(f"{stage} {share:.0%}" for stage, share in shares.items() if share)
    yield f"time of an iteration: {text} of {whole / len(spent):.1f} s"


def prefix_hits(log: str) -> str:
    """Return what the engine said last about its prefix cache."""
    found = _HITS.findall(log)
    return f"{found[-1]} % of the prompts' tokens" if found else "the engine's log does not tell"


def levels(record: RunRecord, spec: RunSpec, first: Gap) -> list[Level]:
    """Compare the first batch and its update with `gem.advantage` and the reference's replay."""
    batch = list(record.episodes("train", {0}))
    rows = expected_rows([e.trajectory for e in batch], spec.algorithm)
    wanted = [replace(e, rows=mine) for e, mine in zip(batch, rows, strict=True)]
    return [
        check_advantages(batch, spec.algorithm),
        check_rows(wanted, batch),
        _update(first, TOLERANCE[spec.training.precision]),
    ]


def _update(gap: Gap, most: float) -> Level:
    """L2 within a relative difference; the loss of normalised advantages is near 0."""
    findings, apart = [], [0.0]
    for name, (found, expected) in (("loss", gap.loss), ("grad_norm", gap.grad_norm)):
        apart.append(math.inf if found is None else abs(found - expected))
        if apart[-1] > max(most * abs(expected), LOSS_FLOOR):
            findings.append(Finding("L2", f"{name} of iteration {gap.iteration}", expected, found))
    without = "" if gap.grad_norm[1] else "the update has no gradient"
    return Level("L2", "gradient norm and loss of the first update", findings, max(apart), without)


def measure(args: argparse.Namespace, out: Path) -> bool:
    """Run and print; return whether all levels hold.

    Raises:
        GemError: The run cannot be started or replayed, or did not finish.
    """
    changes = [*SAMPLED, *(TINY if args.smoke else AT_SIZE), *args.set]
    changes += [f"training.iterations={args.iterations}"]
    changes += [f"policy.model={args.model}"] if args.model else []
    spec = load_spec(RECIPE, changes)
    gpu = not args.smoke
    native = NATIVE.get(args.trainer, ())
    hardware = load_hardware(args.hardware if gpu else "cpu", args.trainer, native)
    pass_tokens = hardware.learner.pass_tokens or PASS_TOKENS
    hardware = replace(hardware, learner=replace(hardware.learner, pass_tokens=pass_tokens))
    marker = uuid.uuid4().hex
    if gpu:
        Memory.check()
    memory = Memory(gpu, marker)
    environment = {"GEM_RECORD_ROWS": "1", VARIABLE: "all", _MARK: marker}
    with memory.watched():
        outcome = run(
            spec,
            trainer=args.trainer,
            run_dir=out,
            hardware=hardware,
            python=args.python,
            overwrite=True,
            environment=environment,
        )
    if outcome.status != "finished":
        raise GemError(f"{args.trainer}: {outcome.message}")
    record = read_run(out)
    machine = record.meta["machine"]
    chips = ", ".join(machine["gpus"]) if gpu else f"{machine['cores']} cores of a CPU"
    versions = ", ".join(f"{name} {version}" for name, version in record.meta["versions"].items())
    print(f"\n{datetime.date.today()}  {args.trainer}  {chips}\n{versions}")
    print(f"{spec.training.iterations} iterations of {spec.episodes} episodes, {record.folder}")
    print(f"peak memory: {memory.peak / 2**30:.2f} GiB")
    for line in cost(record):
        print(line)
    log = out / LOG
    print("prefix cache:", prefix_hits(log.read_text(errors="replace") if log.exists() else ""))
    device = "cuda" if gpu else "cpu"
    found = list(gaps(record, device=device, forward_tokens=pass_tokens))
    print("", *gap_table((args.trainer, gap) for gap in found), sep="\n")
    results = levels(record, spec, found[0])
    print("", level_table(results), sep="\n", flush=True)
    return not any(level.findings or level.unknown for level in results)


def main() -> int:
    """Measure one trainer; exit status 1 if a level does not hold, 2 if it cannot be run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("trainer", choices=TRAINERS)
    parser.add_argument("--model", help="folder or hub name; by default smollm2 or, tried, tiny")
    parser.add_argument("--iterations", type=int, help="by default 20, or 2 with --smoke")
    parser.add_argument("--hardware", default="1xh100", help="what the run is given")
    parser.add_argument("--python", type=Path, help="interpreter of the trainer's environment")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path, help="folder of the record; by default a temporary one")
    parser.add_argument("--smoke", action="store_true", help="on the CPU, small")
    args = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    args.iterations = args.iterations or (2 if args.smoke else 20)
    os.chdir(ROOT)
    if args.smoke:
        torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        try:
            held = measure(args, (args.out or Path(scratch) / args.trainer).absolute())
        except GemError as error:
            sys.stderr.write(f"{error}\n")
            return 2
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
