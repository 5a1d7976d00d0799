"""Checks that a trainer computes what the reference does, from the records of two greedy runs.

- L0: the trainer's per-token advantages are those of `gem.advantage`, to the last float32 bit.
- L1: token ids, masks and per-token rewards of the first batch are equal.
- L2: gradient norm and loss of the updates up to the first non-zero one are equal within
  `RELATIVE`.
- L3: the mean return of every iteration is equal.

The runs must use the same RunSpec with greedy sampling (`top_k = 1`), fp32 and different seeds for
all episodes of a batch, and must have recorded their own training rows (`GEM_RECORD_ROWS=1`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gem.advantage import advantages
from gem.training.record import EpisodeRecord, RunRecord, TrainedRow
from gem.training.runspec import AlgorithmPart
from gem.trajectory import turn_table

RELATIVE = 1e-3
"""Allowed relative difference of gradient norm and loss."""
LOSS_FLOOR = 1e-5
"""Allowed absolute difference of the loss: with normalised advantages it is near 0."""
RETURN_TOLERANCE = 1e-6
"""Allowed difference of mean returns: rounding, far below one episode's smallest reward."""


@dataclass(frozen=True)
class Finding:
    """One deviation of a run from the reference."""

    level: str
    """`L0` to `L3`."""
    where: str
    expected: Any
    found: Any

    def __str__(self) -> str:
        return f"{self.level} {self.where}: expected {self.expected}, found {self.found}"


def compare_runs(reference: RunRecord, other: RunRecord, algorithm: AlgorithmPart) -> list[Finding]:
    """Return everything in `other` that differs from `reference`; empty means it conforms."""
    ours, theirs = _first_batch(reference), _first_batch(other)
    return [
        *check_advantages(theirs, algorithm),
        *check_rows(ours, theirs),
        *check_update(_train(reference), _train(other)),
        *check_curve(_train(reference), _train(other)),
    ]


def check_advantages(episodes: Sequence[EpisodeRecord], algorithm: AlgorithmPart) -> list[Finding]:
    """L0 on a recorded batch: recompute the advantages and compare with the trainer's rows.

    `gae` is not checked: it depends on the critic's values, which are not in the record.
    """
    if algorithm.advantage == "gae":
        return []
    table = turn_table(e.trajectory for e in episodes)
    per_turn, _ = advantages(algorithm.advantage, table, gamma=algorithm.gamma, lam=algorithm.lam)
    found = []
    for episode, values in zip(episodes, table.split(per_turn), strict=True):
        if not episode.trajectory.valid:
            continue
        name = f"advantages of seed {episode.trajectory.task.seed}"
        if episode.rows is None:
            found.append(Finding("L0", name, "recorded rows", None))
            continue
        expected = [
            np.asarray(row.spread(values), np.float32).tolist()
            for row in episode.trajectory.training_rows()
        ]
        got = [np.asarray(row.advantages, np.float32).tolist() for row in episode.rows]
        if expected != got:
            found.append(Finding("L0", name, expected, got))
    return found


def check_rows(reference: Sequence[EpisodeRecord], other: Sequence[EpisodeRecord]) -> list[Finding]:
    """L1: the same episodes with the same training rows."""
    expected, got = _by_task(reference), _by_task(other)
    found = []
    for key in sorted(expected.keys() | got.keys()):
        where = f"seed {key[0]}" + (f", copy {key[1]}" if key[1] else "")
        if key not in expected or key not in got:
            found.append(Finding("L1", f"episode of {where}", key in expected, key in got))
            continue
        mine, theirs = expected[key].rows, got[key].rows
        if mine is None or theirs is None or len(mine) != len(theirs):
            counts = [None if rows is None else len(rows) for rows in (mine, theirs)]
            found.append(Finding("L1", f"rows of {where}", *counts))
            continue
        for index, (a, b) in enumerate(zip(mine, theirs, strict=True)):
            found += _row_findings(f"{where}, row {index}", a, b)
    return found


def check_update(
    reference: Sequence[dict[str, Any]], other: Sequence[dict[str, Any]]
) -> list[Finding]:
    """L2: gradient norm and loss of the updates up to the first with a gradient."""
    found = []
    for k, (mine, theirs) in enumerate(zip(reference, other, strict=False)):
        for name, floor in (("grad_norm", 0.0), ("loss", LOSS_FLOOR)):
            a, b = mine.get(name), theirs.get(name)
            if a is None or b is None or abs(a - b) > max(RELATIVE * abs(a), floor):
                found.append(Finding("L2", f"{name} of iteration {k}", a, b))
        if mine.get("grad_norm"):
            return found
    return [*found, Finding("L2", "an update with a gradient", "one", "none")]


def check_curve(
    reference: Sequence[dict[str, Any]], other: Sequence[dict[str, Any]]
) -> list[Finding]:
    """L3: the mean return of every iteration."""
    a, b = ([m.get("return_mean") for m in metrics] for metrics in (reference, other))
    if len(a) != len(b):
        return [Finding("L3", "number of iterations", len(a), len(b))]
    return [
        Finding("L3", f"return_mean of iteration {k}", x, y)
        for k, (x, y) in enumerate(zip(a, b, strict=True))
        if x is None or y is None or abs(x - y) > RETURN_TOLERANCE
    ]


def _row_findings(where: str, expected: TrainedRow, got: TrainedRow) -> list[Finding]:
    found = []
    for name in ("prompt_ids", "response_ids", "mask", "rewards"):
        a, b = getattr(expected, name), getattr(got, name)
        if name == "rewards":
            a, b = (np.asarray(x, np.float32).tolist() for x in (a, b))
        if a != b:
            found.append(Finding("L1", f"{name} of {where}", a, b))
    return found


def _by_task(episodes: Sequence[EpisodeRecord]) -> dict[tuple[int, int], EpisodeRecord]:
    """Return episodes by seed and by index among those with the same seed."""
    seen: Counter[int] = Counter()
    out = {}
    for episode in episodes:
        seed = episode.trajectory.task.seed
        out[seed, seen[seed]] = episode
        seen[seed] += 1
    return out


def _first_batch(run: RunRecord) -> list[EpisodeRecord]:
    return [e for e in run.episodes() if e.split == "train" and e.iteration == 0]


def _train(run: RunRecord) -> list[dict[str, Any]]:
    return [m for m in run.metrics if m["split"] == "train"]
