"""Task sets as verl's data files name them, and tasks as a column of verl's batches."""

from __future__ import annotations

import json
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote

from gem.errors import ConfigurationError
from gem.tasks import Task, TaskSet


@dataclass(frozen=True)
class Source:
    """A task set and how it is to be validated on."""

    tasks: TaskSet
    name: str
    """Name in verl's metrics."""
    temperature: float | None = None
    """Sampling temperature instead of the configured one; 0 is greedy."""

    @classmethod
    def parse(cls, text: str) -> Source:
        """Parse `<task set URI>[#name=...&temperature=...]`.

        Raises:
            ConfigurationError: It is malformed; the message names the part.
        """
        uri, _, fragment = text.partition("#")
        tasks = TaskSet.parse(uri)
        options = dict(parse_qsl(fragment, keep_blank_values=True))
        name = options.pop("name", tasks.env_id)
        temperature = options.pop("temperature", None)
        try:
            value = None if temperature is None else float(temperature)
        except ValueError:
            value = -1.0
        if options or not name or (value is not None and value < 0):
            raise ConfigurationError(
                f"{text!r}: after '#' may stand name=<text> and temperature=<number >= 0>"
            )
        return cls(tasks, name, value)

    @property
    def text(self) -> str:
        """What `parse` reads back."""
        options = f"name={quote(self.name)}"
        if self.temperature is not None:
            options += f"&temperature={self.temperature!r}"
        return f"{self.tasks.uri}#{options}"


def encode_task(task: Task, temperature: float | None = None) -> str:
    """Pack a task into a dataset column."""
    return json.dumps({**task.to_dict(), "temperature": temperature})


def decode_task(text: str) -> tuple[Task, float | None]:
    """Unpack `encode_task`: the task and its own sampling temperature, if it has one."""
    data = json.loads(text)
    return Task.from_dict(data), data["temperature"]
