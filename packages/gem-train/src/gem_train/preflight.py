"""Checks that this Python environment can play an experiment: begins one episode of each env.

    python -m gem_train.preflight [--images] < spec.json

reads a RunSpec as JSON. It exits with status 2 and a message if something is missing (a package, a
sandbox, a server, a judge, a data file), or if an environment shows images and the policy sees none
(the trainer without `--images`, or the model in its folder). Run it in the Python environment in
which the trainer plays its episodes; otherwise a missing extra would show as a failed batch,
minutes later.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from dataclasses import replace

from gem.core import Observation
from gem.errors import ConfigurationError, exit_status
from gem.foreign import called
from gem.json_lines import parse
from gem.multi import against_itself, all_seats, make_multi, of_one_seat
from gem.tasks import Task
from gem_train.ending import to_the_end
from gem_train.experiment.hardware import model_config
from gem_train.experiment.mixtures import samples
from gem_train.experiment.runspec import RunSpec
from gem_train.judges import check_judges


def environments(spec: RunSpec) -> list[Task]:
    """Return a task of every training environment, with all parameters, and every evaluation."""
    evals = [Task(part.id, part.seed, part.params) for part in spec.eval]
    return [*samples(spec.task_set), *evals]


def check(tasks: Iterable[Task], *, images: bool = False, blind: str | None = None) -> None:
    """Make and reset the environment of every task once.

    Args:
        tasks: One for each environment.
        images: Whether policies are shown images (`gem.rollout.vision`).
        blind: The policy's model if it sees no images.

    Raises:
        ConfigurationError: An environment shows images, and policies are shown text only, or the
            policy's model sees none.
        GemError: Something that an environment, its tools or their servers need is missing.
    """
    for task in tasks:
        observation = called(_first, task)
        seen = images and blind is None
        parts = () if seen or isinstance(observation, str) else observation
        if any(part.get("type") == "image" for part in parts):
            if images:
                raise ConfigurationError(
                    f"{task.env_id} shows images, and policy.model {blind!r} sees none: choose a "
                    "model that sees, or an environment of text"
                )
            raise ConfigurationError(
                f"{task.env_id} shows images, and policies are shown text only: it can be played "
                f"and graded, but not trained or evaluated in a run"
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
            config = model_config(spec.policy.model)
            blind = spec.policy.model if config and "vision_config" not in config else None
            check(environments(spec), images=args.images, blind=blind)
            check_judges(spec)

    return exit_status(run)


if __name__ == "__main__":
    sys.exit(main())
