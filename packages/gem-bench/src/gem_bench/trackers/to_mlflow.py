"""MLflow: the server or database that `MLFLOW_TRACKING_URI` names."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any

from gem_bench.trackers import About, Point

_MOST = 100
"""Most parameters of a request, and most metrics in ours."""
_LONGEST = 500
"""Most characters of a parameter's value that every MLflow server takes."""
_STATUS = {"finished": "FINISHED", "running": "RUNNING", "interrupted": "KILLED"}


class MlflowRun:
    """A run of MLflow."""

    def __init__(self, about: About, earlier: str | None) -> None:
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        self._client: Any = MlflowClient()
        self._began = time.time()
        if earlier is None:
            experiment = self._client.get_experiment_by_name(about.project)
            number = (
                self._client.create_experiment(about.project)
                if experiment is None
                else experiment.experiment_id
            )
            tags = {"gem.folder": str(about.folder), "gem.experiment": about.group or ""}
            self.id = self._client.create_run(number, run_name=about.name, tags=tags).info.run_id
            known = [Param(key, str(v)[:_LONGEST]) for key, v in about.config.items()]
            for i in range(0, len(known), _MOST):
                self._client.log_batch(self.id, params=known[i : i + _MOST])
        else:
            self.id = earlier
            self._client.update_run(self.id, status="RUNNING")
        self.place = f"{self._client.tracking_uri}, experiment {about.project}, run {self.id}"

    def write(self, points: Sequence[Point]) -> None:
        """See `TrackedRun`."""
        from mlflow.entities import Metric

        metrics = [
            Metric(_name(name), value, int((self._began + point.time_s) * 1000), point.step)
            for point in points
            for name, value in point.values.items()
        ]
        for i in range(0, len(metrics), _MOST):
            self._client.log_batch(self.id, metrics=metrics[i : i + _MOST])

    def missing(self, point: Point) -> Point | None:
        """See `TrackedRun`."""
        return point.without([name for name in point.values if self._has(name, point.step)])

    def _has(self, name: str, step: int) -> bool:
        history = self._client.get_metric_history(self.id, _name(name))
        return any(each.step == step for each in history)

    def close(self, status: str) -> None:
        """See `TrackedRun`."""
        self._client.set_terminated(self.id, _STATUS.get(status, "FAILED"))


def _name(metric: str) -> str:
    """Return a name that MLflow takes: letters, digits, and some signs."""
    return re.sub(r"[^\w/.\- ]", "_", metric, flags=re.ASCII)


def open_run(about: About, earlier: str | None) -> MlflowRun:
    """See `OpenRun`."""
    return MlflowRun(about, earlier)
