"""What is evaluated: task sets from environment ids, task URIs and suites."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from urllib.parse import parse_qsl

from gem.errors import ConfigurationError
from gem.tables import parse_toml
from gem.tasks import URI_SCHEME, Task, TaskSet

SUITE = "suite:"


@dataclass(frozen=True)
class Part:
    """The tasks of one environment; the unit of the table."""

    name: str
    """Environment id with its parameters, as in a task URI."""
    tasks: TaskSet

    @property
    def split(self) -> str:
        """Of its episodes in the record."""
        return f"eval:{self.name}"


@dataclass(frozen=True)
class Play:
    """One episode that is to be played."""

    part: Part
    task: Task
    group: int
    """Number of the task among those of its part; its samples share it."""
    sample: int
    """Number of the episode among those of its task, from 0."""

    @property
    def key(self) -> tuple[str, int, int]:
        """Split, seed and sample: what identifies the episode in the record."""
        return self.part.split, self.task.seed, self.sample


EPISODES = 32
"""Tasks of an environment, if nothing else is said."""
_OPTIONS = {"episodes": "n", "seed": "seed"}
"""Options, and the parameter of a task URI that has the last word."""


def parse_tasks(
    texts: Sequence[str], *, episodes: int | None = None, seed: int | None = None
) -> list[Part]:
    """Return the parts of an evaluation, in the order given.

    Args:
        texts: Environment ids, task URIs (`gem:<id>?n=32&seed=0&<parameter>=<value>`), or suites:
            `suite:smoke`, `suite:<file>.toml`, which has a list `tasks` of ids and URIs.
        episodes: Tasks of an environment whose URI has no `n`; None: `EPISODES`.
        seed: First seed where the URI has no `seed`; None: 0.

    Raises:
        ConfigurationError: A text is none of these, two of them have a task in common, or
            `episodes` or `seed` is given and no URI leaves it open.
    """
    asked = {"episodes": episodes, "seed": seed}
    used: set[str] = set()
    flat = [each for text in texts for each in (_suite(text) if _is_suite(text) else [text])]
    parts: list[Part] = []
    for text in flat:
        uri = text if text.startswith(URI_SCHEME) else f"{URI_SCHEME}{text}"
        tasks = TaskSet.parse(uri)
        given = {name for name, _ in parse_qsl(uri.partition("?")[2], keep_blank_values=True)}
        used |= {option for option, name in _OPTIONS.items() if name not in given}
        tasks = replace(
            tasks,
            n=tasks.n if "n" in given else (EPISODES if episodes is None else episodes),
            seed=tasks.seed if "seed" in given else (seed or 0),
        )
        part = Part(_name(tasks), tasks)
        if any(part.name == other.name for other in parts):
            raise ConfigurationError(
                f"{part.name} is there twice; one task set has all seeds of an environment"
            )
        parts.append(part)
    for option, value in asked.items():
        if value is not None and option not in used:
            raise ConfigurationError(
                f"--{option} {value} has no effect: all of these tasks say their "
                f"{_OPTIONS[option]} themselves"
            )
    return parts


def plays(parts: Sequence[Part], samples: int) -> list[Play]:
    """Return all episodes in the order in which they begin: part by part, task by task."""
    return [
        Play(part, task, group, sample)
        for part in parts
        for group, task in enumerate(part.tasks)
        for sample in range(samples)
    ]


def covers(uris: Sequence[str], others: Sequence[str]) -> bool:
    """Whether task sets have all tasks of other ones, with the same first seeds."""
    sets = {_name(tasks): tasks for tasks in map(TaskSet.parse, uris)}
    for other in map(TaskSet.parse, others):
        found = sets.get(_name(other))
        if found is None or found.seed != other.seed or found.n < other.n:
            return False
    return True


def _is_suite(text: str) -> bool:
    return text.startswith(SUITE)


def _suite(text: str) -> list[str]:
    name = text.removeprefix(SUITE)
    folder = files("gem_eval").joinpath("suites")
    own = sorted(each.name.removesuffix(".toml") for each in folder.iterdir())
    if name in own:
        source = folder.joinpath(f"{name}.toml").read_bytes()
    elif name.endswith(".toml"):
        try:
            source = Path(name).read_bytes()
        except OSError as error:
            raise ConfigurationError(f"suite {name!r} cannot be read: {error}") from error
    else:
        raise ConfigurationError(
            f"unknown suite {name!r}; known: {', '.join(own)}, or the path of a .toml file"
        )
    tasks = parse_toml(source, f"suite {name!r}").get("tasks")
    if not isinstance(tasks, list) or not tasks or not all(isinstance(t, str) for t in tasks):
        raise ConfigurationError(f"suite {name!r} needs a list `tasks` of ids and task URIs")
    return tasks


def _name(tasks: TaskSet) -> str:
    """Return the id, and parameters as a URI has them."""
    query = tasks.uri.rpartition("?")[2]
    params = [each for each in query.split("&") if not each.startswith(("n=", "seed="))]
    return f"{tasks.env_id}?{'&'.join(params)}" if params else tasks.env_id
