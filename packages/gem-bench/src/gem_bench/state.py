"""What is shown of a run while it is followed: one `State` for the terminal and for the page."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from gem_bench.following import Follower
from gem_bench.progress import RECENT, clock, recent_mean, seconds_per_iteration, tokens_per_s
from gem_bench.series import TRAIN
from gem_train.experiment.metrics import failed_by_cause, failures_text

ENDED = ("finished", "failed", "timeout", "interrupted")
"""Values of `status` with which nothing more is recorded."""
_SILENT_S = 60.0
"""Seconds without a written line after which a run says so."""


@dataclass(frozen=True)
class State:
    """A run at one time; rates and means are over its last iterations (`progress.RECENT`)."""

    run: str
    """Its folder's name."""
    trainer: str
    status: str
    """`waiting` (nothing is recorded), `running`, or one of `ENDED`."""
    iterations: int
    """Recorded iterations of training."""
    planned: int | None
    """Iterations of the RunSpec; None if it is not known."""
    success: float | None
    reward: float | None
    """Mean return of an episode."""
    turns: float | None
    """Mean turns of an episode."""
    episode_tokens: float | None
    """Mean sampled tokens of an episode."""
    episodes: int
    """Valid episodes of training."""
    failed: dict[str, int]
    """Failed episodes of all splits, by cause."""
    tokens: int
    """Sampled tokens of training."""
    tokens_per_s: float | None
    seconds: float | None
    """From the opening of the record to its last line."""
    left_s: float | None
    """Estimated seconds until the last iteration; None where nobody can say."""
    silent_s: float | None
    """Seconds since anything was written, of a run that goes on."""
    evaluations: dict[str, float]
    """Success rate of the last evaluation of each name."""
    recent: list[float | None]
    """Success rate of each of the last 40 iterations."""

    @property
    def ended(self) -> bool:
        """Whether nothing more will be recorded."""
        return self.status in ENDED

    @classmethod
    def of(cls, run: Follower, now: float | None = None) -> State:
        """Return the state of a run that is followed.

        Args:
            run: Up to date.
            now: Seconds since the epoch; by default the present.
        """
        meta, lines = run.meta, [line for line in run.metrics if line["split"] == TRAIN]
        recent = lines[-RECENT:]
        done = lines[-1]["iteration"] + 1 if lines else 0
        planned = _planned(meta)
        status = _status(run, done, planned)
        pace = seconds_per_iteration(recent)
        silent = None
        if status == "running" and run.written is not None:
            silent = max(0.0, (time.time() if now is None else now) - run.written)
        return cls(
            run=run.folder.name or str(run.folder),
            trainer=str(meta.get("trainer") or run.folder.name),
            status=status,
            iterations=done,
            planned=planned,
            success=recent_mean(recent, "success_rate"),
            reward=recent_mean(recent, "return_mean"),
            turns=recent_mean(recent, "turns_mean"),
            episode_tokens=recent_mean(recent, "tokens_per_episode"),
            episodes=int(_sum(lines, "episodes")),
            failed=failed_by_cause(run.metrics),
            tokens=int(_sum(lines, "sampled_tokens")),
            tokens_per_s=tokens_per_s(recent),
            seconds=run.metrics[-1]["time_s"] if run.metrics else None,
            left_s=None
            if pace is None or not planned or status != "running"
            else pace * max(planned - done, 0),
            silent_s=silent,
            evaluations={
                line["split"].removeprefix("eval:"): line["success_rate"]
                for line in run.metrics
                if line["split"] != TRAIN and line.get("success_rate") is not None
            },
            recent=[line.get("success_rate") for line in lines[-40:]],
        )

    def facts(self) -> dict[str, str]:
        """Return what is shown of it: name of a column, text."""
        of = "" if self.planned is None else f"/{self.planned}"
        failures = ", ".join(f"{cause} {count}" for cause, count in self.failed.items())
        return {
            "status": self.status,
            "iteration": f"{self.iterations}{of}",
            "success": _number(self.success, 3),
            "return": _number(self.reward, 3),
            "turns": _number(self.turns, 1),
            "tokens/episode": _number(self.episode_tokens, 0),
            "failed": f"{sum(self.failed.values()):,}" + (f" ({failures})" if failures else ""),
            "tokens": f"{self.tokens:,}",
            "tokens/s": _number(self.tokens_per_s, 0),
            "time": "-" if self.seconds is None else clock(self.seconds),
            "ETA": "-" if self.left_s is None else clock(self.left_s),
        }

    def notes(self) -> list[str]:
        """Return what else is to be said of it: failures, silence, evaluations."""
        found = [f"evaluation {name}: success {v:.3f}" for name, v in self.evaluations.items()]
        if self.failed:
            found.append(f"{failures_text(self.failed)}; they count nowhere")
        if self.silent_s is not None and self.silent_s > _SILENT_S:
            found.append(f"nothing was written for {clock(self.silent_s)}")
        return found

    def line(self) -> str:
        """Return one line of text."""
        shown = self.facts()
        parts = [self.run, shown.pop("status")]
        if self.status != "waiting":
            parts += [f"{name} {value}" for name, value in shown.items()]
        if self.silent_s is not None and self.silent_s > _SILENT_S:
            parts.append(f"nothing was written for {clock(self.silent_s)}")
        return "  ".join(parts)


def _planned(meta: dict[str, Any]) -> int | None:
    found = meta.get("spec", {}).get("training", {}).get("iterations")
    return found if isinstance(found, int) else None


def _status(run: Follower, done: int, planned: int | None) -> str:
    if not run.exists:
        return "waiting"
    known = run.meta.get("status")
    if known is not None:
        return str(known)
    # A trainer that gem-bench did not start does not write how it ended.
    complete = planned is not None and done >= planned and _evaluated(run, planned)
    return "finished" if complete else "running"


def _evaluated(run: Follower, planned: int) -> bool:
    """Whether the evaluations after the last iteration are recorded."""
    last = {line["split"]: line["iteration"] for line in run.metrics}
    wanted = run.meta.get("spec", {}).get("eval", [])
    return all(last.get(f"eval:{each.get('name')}", -1) >= planned for each in wanted)


def _sum(lines: list[dict[str, Any]], metric: str) -> float:
    return sum(line.get(metric) or 0.0 for line in lines)


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"
