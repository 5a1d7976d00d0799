"""Detects runs whose policy never changed, from the gradient norms in their metrics."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gem.errors import RecordError
from gem_train.record import read_run


def nothing_learnt(lines: Sequence[dict[str, Any]]) -> str:
    """Return why the policy never changed; "" if it changed or the metrics do not show it.

    Args:
        lines: Metrics of a run, one mapping per iteration and split.
    """
    train = [line for line in lines if line.get("split") == "train"]
    if not train or any(line.get("grad_norm") != 0.0 for line in train):
        return ""
    iterations = f"{len(train)} iteration{'s' if len(train) > 1 else ''}"
    return f"the policy never changed: its gradient was 0 in all of {iterations}; {_cause(train)}"


def nothing_learnt_in(run_dir: Path) -> str:
    """Return `nothing_learnt` of a recorded run; "" if a line of its metrics is damaged."""
    try:
        return nothing_learnt(read_run(run_dir).metrics)
    except RecordError:
        return ""


def _cause(train: Sequence[dict[str, Any]]) -> str:
    if not any(line.get("episodes") for line in train):
        return "no episode was valid (failed_episodes in the metrics)"
    same = all(line.get("return_std") == 0.0 for line in train)
    if not same:
        return (
            "episodes differ in their returns, but not within what the advantage compares: "
            "groups in which all are alike, or responses without a token that counts"
        )
    earned = {line.get("return_mean") for line in train}
    if earned == {0.0}:
        remedy = "`gem play` it, and let it pay for what this policy can do"
        return f"no episode earned anything: the policy never does what the task pays for; {remedy}"
    return "all episodes of an iteration earned the same, so that none is better than another"
