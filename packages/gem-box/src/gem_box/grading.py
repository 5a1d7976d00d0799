"""Runs a task's tests in a box and reads the reward that they write."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gem.admission import Core
from gem.errors import BusyMachineError, ConfigurationError, DataError
from gem.json_lines import parse
from gem_box.folders import Folder
from gem_box.overlay import OverlayBox

LOGS = ("/logs/agent", "/logs/verifier", "/logs/artifacts")
_VERIFIER = "/logs/verifier"
_MOST = 1 << 16
# What a policy may have left in its home is none of the tests' Python.
_ENVIRONMENT = {"PYTHONNOUSERSITE": "1"}
_SEARCHED = {"PATH", "PYTHONPATH", "LD_LIBRARY_PATH"}
"""Variables that say in which folders programs and libraries are looked for."""
_TESTS = "chmod +x /tests/test.sh && exec /tests/test.sh"


class Graded(NamedTuple):
    """What the tests said."""

    reward: float
    """0 if they said nothing that can be read: the policy may have broken them."""
    rewards: dict[str, float]
    """All numbers of reward.json, or that of reward.txt under the key `reward`."""
    reason: str = ""
    """Why there is no reward; empty if there is one."""
    output: str = ""
    """The end of what the tests printed."""
    reached_out: bool = False
    """Whether the tests, or what they started, tried to reach a network."""


def grade(
    task: Folder, box: OverlayBox, pristine: Sequence[str], reward_key: str | None = None
) -> Graded:
    """Run the tests after all other processes of the box have ended.

    The tests may use `verifier.timeout_sec` of CPU time. If they got too little of it, they run
    again while nothing else does.

    Args:
        task: The task.
        box: A box in which a policy has worked.
        pristine: Folders that are put back to what the image has, with those in which the tests
            look for programs and libraries; empty: everything stays.
        reward_key: The number of reward.json that is the reward; None: `reward`, or the only one.

    Raises:
        BusyMachineError: The tests got too little CPU time twice.
        ConfigurationError: The tests write numbers, and none has the name of the reward.
        UnreachableError: The box is gone.
    """
    env = {**box.env, **_ENVIRONMENT, **task.env("verifier")}
    searched = _searched(env, box.workdir) if pristine else {}
    restored = [*pristine, *(each for folders in searched.values() for each in folders)]
    for alone in (False, True):
        kept = box.restart(restored)
        box.put(task.path / "tests", "/tests", fresh=True)
        box.put(None, _VERIFIER, fresh=True)
        try:
            with Core(alone=alone) as core:
                for name, folders in searched.items():
                    env[name] = ":".join(each for each in folders if each not in kept)
                argv = ["/bin/sh", "-c", _TESTS]
                before = box.tries()
                ran = box.execute(argv, task.tests_s, env=env, core=core)
            break
        except BusyMachineError:
            if alone:
                raise
    reached_out = box.tries() > before
    output = ran.output.decode("utf-8", "replace")[-4000:]
    try:
        if ran.limit_hit:
            raise DataError(f"the tests hit their limit of {ran.limit_hit}")
        rewards = _rewards(
            box.read(f"{_VERIFIER}/reward.json", _MOST), box.read(f"{_VERIFIER}/reward.txt", _MOST)
        )
    except DataError as error:
        return Graded(0.0, {}, str(error), output, reached_out)
    return Graded(reward_of(task.name, rewards, reward_key), rewards, "", output, reached_out)


def _searched(env: Mapping[str, str], workdir: str) -> dict[str, list[str]]:
    """Return the folders, by variable, in which the tests may look if they are the image's.

    Libraries below the folder in which the policy works are its work, and relative folders depend
    on it: the tests do without.
    """
    found = {}
    for name in env.keys() & _SEARCHED:
        folders = [os.path.normpath(each) for each in env[name].split(":") if each.startswith("/")]
        if name != "PATH" and workdir != "/":
            folders = [each for each in folders if not each.startswith(f"{workdir}/")]
        found[name] = folders
    return found


def _rewards(json: bytes | None, text: bytes | None) -> dict[str, float]:
    data = json if json is not None else text
    if data is None or not data.strip():
        raise DataError("the tests wrote no reward")
    if len(data) > _MOST:
        raise DataError(f"the reward is longer than {_MOST} bytes")
    if json is not None:
        value = parse(json, "reward.json")
    else:
        try:
            value = float(data)
        except ValueError:
            raise DataError("reward.txt is no number") from None
    values: Mapping[str, Any] = value if isinstance(value, dict) else {"reward": value}
    if not values:
        raise DataError("the tests wrote no reward")
    return finite(values)


def finite(rewards: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers that tests wrote.

    Raises:
        DataError: One is no number, infinite, or an integer that no float is as large as.
    """
    for name, each in rewards.items():
        numeric = isinstance(each, int | float) and not isinstance(each, bool)
        if not numeric or not abs(each) <= sys.float_info.max:
            raise DataError(f"the reward {name!r:.40} is no finite number")
    return {str(name): float(each) for name, each in rewards.items()}


def reward_of(task: str, rewards: Mapping[str, float], key: str | None) -> float:
    """Return the number that is the reward: every episode of a wrong key would earn 0.

    Args:
        task: Name of the task.
        rewards: The numbers that its tests write.
        key: Name of the reward; None: `reward`, or the only one.

    Raises:
        ConfigurationError: None has that name.
    """
    if key is None:
        key = "reward" if len(rewards) != 1 else next(iter(rewards))
    if key not in rewards:
        raise ConfigurationError(
            f"reward_key: the tests of {task} write the "
            f"numbers {', '.join(map(repr, rewards))} and none is named {key!r}"
        )
    return rewards[key]


def solution(task: Folder) -> Path | None:
    """Return the folder with the task's solution; None if there is none."""
    folder = task.path / "solution"
    return folder if (folder / "solve.sh").is_file() else None
