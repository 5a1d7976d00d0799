"""Data of the domains: shared databases, tasks, policies; each is read once per process."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeAlias

from gem.errors import DataError
from gem.json_lines import parse, read_json

Record: TypeAlias = dict[str, Any]
"""A user, an order, a flight and so on, as JSON has it."""
TableName: TypeAlias = str
"""`users`, `orders`, `products`; in the airline `users`, `reservations`, `flights`."""
Database: TypeAlias = dict[TableName, dict[str, Record]]

NL_ASSERTION = "NL_ASSERTION"
_BASES = {"DB", "COMMUNICATE", NL_ASSERTION}


@dataclass(frozen=True)
class Call:
    """A call of a tool."""

    name: str
    arguments: Mapping[str, Any]

    @property
    def key(self) -> str:
        """The call as text; equal calls have equal keys."""
        return json.dumps([self.name, self.arguments], sort_keys=True)


@dataclass(frozen=True, eq=False)
class Task:
    """What a customer wants, and what is right to do. Tasks compare by identity."""

    id: str
    reason: str
    """What the customer wants, in the second person."""
    known: str
    """What the customer knows."""
    unknown: str
    """What the customer does not know."""
    manner: str
    """How the customer behaves."""
    actions: tuple[Call, ...]
    """The recorded calls."""
    communicate: tuple[str, ...]
    """What the agent must tell the customer, word for word."""
    basis: tuple[str, ...] = ()
    """What the task's data says it is judged by; empty if they do not say."""
    assertions: tuple[str, ...] = ()
    """Sentences about the conversation for a judge."""
    opening: str | None = None
    """The scripted user's first message, if it is not made from `reason`."""
    domain: str = "retail"
    identified: bool = False
    """Whether the first message says who the customer is."""


def database(domain: str = "retail") -> Database:
    """Return the database of a domain, which is shared: nobody may change it."""
    return _database(domain)


@cache
def _database(domain: str) -> Database:
    raw = gzip.decompress((files("gem_tau") / f"data/{domain}_db.json.gz").read_bytes())
    tables: Database = parse(raw, f"{domain}_db.json.gz")
    return tables


@cache
def text(name: str) -> str:
    """Return a file of the data as text."""
    return (files("gem_tau") / "data" / name).read_text(encoding="utf-8").strip()


def tasks(path: str | None, domain: str = "retail") -> tuple[Task, ...]:
    """Return the tasks of a file in tau2-bench's format, None for the bundled ones.

    Raises:
        DataError: The file cannot be read or is not in this format.
    """
    return _tasks(path, domain)


@cache
def _tasks(path: str | None, domain: str) -> tuple[Task, ...]:
    try:
        if path is None:
            file = files("gem_tau") / f"data/{domain}_tasks.json.gz"
            rows = parse(gzip.decompress(file.read_bytes()), file.name)
        else:
            rows = read_json(Path(path), error=DataError)
    except (OSError, DataError) as error:
        raise DataError(f"data {path!r} cannot be read as JSON: {error}") from None
    if not isinstance(rows, list) or not rows:
        raise DataError(f"data {path!r} must be a list of tasks of tau2-bench")
    return tuple(
        _task(row, domain, f"data {path!r}, task {place}") for place, row in enumerate(rows)
    )


def _task(row: Any, domain: str, where: str) -> Task:
    try:
        told, judged = row["user_scenario"]["instructions"], row["evaluation_criteria"]
        task = Task(
            id=str(row["id"]),
            reason=told["reason_for_call"],
            known=told["known_info"] or "",
            unknown=told["unknown_info"] or "",
            manner=told["task_instructions"] or "",
            actions=tuple(
                Call(str(each["name"]), dict(each["arguments"])) for each in judged["actions"] or ()
            ),
            communicate=tuple(map(str, judged.get("communicate_info") or ())),
            basis=tuple(judged.get("reward_basis") or ()),
            assertions=tuple(judged.get("nl_assertions") or ()),
            domain=domain,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{where}: not a task of tau2-bench: {error!r}") from None
    if set(task.basis) - _BASES:
        raise DataError(f"{where}: reward_basis {task.basis} has more than {sorted(_BASES)}")
    return task
