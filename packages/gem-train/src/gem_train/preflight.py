"""Checks that this Python environment can play an experiment: begins one episode of each env.

    python -m gem_train.preflight [--images] < spec.json

reads a RunSpec as JSON. It exits with status 2 and a message if something is missing (a package, a
sandbox, a server, a judge, a data file) or if an environment shows images and the policy is shown
none: without `--images`, or because its model does not see. Run it in the Python environment in
which the trainer plays its episodes; otherwise a missing extra would show as a failed batch,
minutes later.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace

from gem.core import Observation
from gem.errors import ConfigurationError, exit_status
from gem.foreign import called
from gem.json_lines import parse
from gem.multi import against_itself, all_seats, make_multi, of_one_seat
from gem.tasks import Task
from gem_train.ending import to_the_end
from gem_train.experiment.hardware import sees
from gem_train.experiment.mixtures import samples
from gem_train.experiment.runspec import RunSpec
from gem_train.judges import check_judges


def environments(spec: RunSpec) -> list[Task]:
    """Return a task of every training environment, with all parameters, and every evaluation."""
    evals = [Task(part.id, part.seed, part.params) for part in spec.eval]
    return [*samples(spec.task_set), *evals]


def check(tasks: Iterable[Task], *, images: bool = False) -> list[str]:
    """Make and reset the environment of every task once; return ids of those that show images.

    Args:
        tasks: One for each environment.
        images: Whether policies are shown images (`gem.rollout.vision`).

    Raises:
        ConfigurationError: An environment shows images, and policies are shown text only.
        GemError: Something that an environment, its tools or their servers need is missing.
    """
    shown = []
    for task in tasks:
        observation = called(_first, task)
        parts = () if isinstance(observation, str) else observation
        if not any(part.get("type") == "image" for part in parts):
            continue
        shown.append(task.env_id)
        if not images:
            raise ConfigurationError(
                f"{task.env_id} shows images, and policies are shown text only: it can be played "
                f"and graded, but not trained or evaluated in a run"
            )
    return shown


def check_sees(model: str, shown: Sequence[str]) -> None:
    """Make sure that a model sees if environments show images.

    Args:
        model: Folder or hub name; one that is not here yet is not examined.
        shown: Environments that show images.

    Raises:
        ConfigurationError: It does not see.
    """
    if shown and sees(model) is False:
        raise ConfigurationError(
            f"{shown[0]} shows images, and policy.model {model!r} sees none: choose a model that "
            "sees, or an environment of text"
        )


def _first(task: Task) -> Observation:
    """Return the first observation of a task."""
    if all_seats(task.params) or against_itself(task.env_id, task.params):
        with make_multi(task.env_id, **task.params) as game:
            [observation, *_] = game.reset(seed=task.seed)[0].values()
    else:
        params = of_one_seat(task.env_id, task.params)
        with replace(task, params=params).make() as env:
            observation, _ = env.reset(seed=task.seed)
    return observation


def main(argv: list[str] | None = None) -> int:
    """Check the RunSpec on standard input."""
    parser = argparse.ArgumentParser(prog="python -m gem_train.preflight")
    parser.add_argument("--images", action="store_true", help="the trainer trains on images")
    args = parser.parse_args(argv)

    def run() -> None:
        spec = RunSpec.from_mapping(parse(sys.stdin.read(), "standard input"))
        with to_the_end(lambda: 0, lambda: 0):
            check_sees(spec.policy.model, check(environments(spec), images=args.images))
            check_judges(spec)

    return exit_status(run)


if __name__ == "__main__":
    sys.exit(main())
