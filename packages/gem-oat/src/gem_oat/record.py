"""The record of a run (`gem.training.record`), written by the first learner."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from gem.training.metrics import episode_metrics
from gem.training.record import RUN, Recorder, TrainedRow
from gem.trajectory import Trajectory
from gem_oat import __version__, check_oat
from gem_oat.settings import Args, shown

Part = tuple[Sequence[Trajectory], Sequence[Sequence[float]], Sequence[Sequence[TrainedRow]]]
"""Episodes of a rank, their turns' advantages, their rows if those are wanted."""


def rows_wanted() -> bool:
    """Whether the record is to show what the loss sees of every token."""
    return os.environ.get("GEM_RECORD_ROWS") == "1"


class Recording:
    """Puts together what is known of an iteration, and writes it."""

    def __init__(self, folder: str, args: Args) -> None:
        self._recorder = Recorder(folder)
        # A launcher that knows more about the run has already written it.
        if not (self._recorder.folder / RUN).exists():
            versions = {"oat-llm": check_oat(), "gem-oat": __version__}
            self._recorder.start({"trainer": "oat", "versions": versions, "config": shown(args)})
        self._values: dict[str, float] = {}
        self._parts: Sequence[Part] = ()

    def batch(self, parts: Sequence[Part], rollout_s: float, advantage_s: float) -> None:
        """Keep the episodes of an iteration.

        Args:
            parts: Of all ranks.
            rollout_s: Seconds that playing took.
            advantage_s: Seconds from there to the training rows.
        """
        self._parts = parts
        metrics = episode_metrics([t for episodes, _, _ in parts for t in episodes])
        metrics |= {"rollout_s": rollout_s, "advantage_s": advantage_s}
        metrics["tokens_per_s"] = metrics["sampled_tokens"] / rollout_s
        self._values = metrics

    def trained(self, iteration: int, values: Mapping[str, float]) -> None:
        """Write an iteration.

        Args:
            iteration: Its number, from 0.
            values: What the learner measured.

        Raises:
            RecordError: It cannot be written.
        """
        self._recorder.metrics(iteration, {**self._values, **values})
        self._recorder.episodes(
            iteration,
            [t for episodes, _, _ in self._parts for t in episodes],
            [a for _, advantages, _ in self._parts for a in advantages],
            rows=[r for _, _, rows in self._parts for r in rows] if rows_wanted() else None,
        )
        self._parts = ()

    def evaluated(self, updates: int, name: str, episodes: Sequence[Trajectory]) -> None:
        """Write an evaluation.

        Args:
            updates: Iterations that the policy has been trained for.
            name: Of the evaluation.
            episodes: Its episodes.

        Raises:
            RecordError: It cannot be written.
        """
        split = f"eval:{name}"
        self._recorder.metrics(updates, episode_metrics(episodes), split)
        self._recorder.episodes(updates, episodes, split=split)
