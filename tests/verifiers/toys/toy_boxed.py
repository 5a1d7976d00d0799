"""A taskset of verifiers whose tasks need a container."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf

__all__ = ["Boxed"]


class BoxedTask(vf.Task[vf.TaskData]):
    NEEDS_CONTAINER = True


class Boxed(vf.Taskset[BoxedTask, vf.TasksetConfig]):
    def load(self) -> Iterator[Any]:
        yield BoxedTask(vf.TaskData(prompt="ls"), self.config.task)
