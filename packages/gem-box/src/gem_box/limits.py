"""The limits of a task's box: what its task.toml asks for, up to what the user allows."""

from __future__ import annotations

import dataclasses
import os

from gem_box.folders import Folder
from gem_box.problems import Problem
from gem_sandbox import Limits

MEMORY_MB, DISK_MB, PROCESSES = 2048, 1024, 512
_NAMES = {"memory_mb": "memory_mb", "storage_mb": "disk_mb", "cpus": "cpus"}


def limits(task: Folder, most: Limits, cpus: int | None = None) -> tuple[Limits, list[Problem]]:
    """Return the limits of a task's box, and where it asks for more than it may have.

    Args:
        task: The task.
        most: What a box may have; also what it has where the task does not say.
        cpus: The most CPUs that a task may ask for; None: those of this machine. A box that asks
            for fewer is not held to them.
    """
    allowed = {
        "memory_mb": most.memory_mb,
        "storage_mb": most.disk_mb,
        "cpus": cpus or len(os.sched_getaffinity(0)),
    }
    problems = []
    for name, value in allowed.items():
        asked = task.asked(name)
        if asked is not None and asked > value:
            kind = f"environment.{name} is above the limit {_NAMES[name]}"
            text = f"environment.{name} = {asked} is above the limit {_NAMES[name]}={value}"
            problems.append(Problem("task.toml", text, kind=kind))
    named = {"memory_mb": task.asked("memory_mb"), "disk_mb": task.asked("storage_mb")}
    given = {name: value for name, value in named.items() if value is not None}
    return dataclasses.replace(most, **given), problems
