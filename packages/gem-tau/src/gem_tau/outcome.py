"""What is right in a task: the changes that its recorded calls make, and the rewards."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache

from gem.errors import ConfigurationError
from gem.grading.wrapping import visible
from gem.json_lines import parse
from gem_tau import airline_tools, retail_tools
from gem_tau.data import Call, Task, database, tasks, text
from gem_tau.records import Changes, Records, RefusedError
from gem_tau.tools import Toolbox, call

TOOLS: dict[str, Toolbox] = {"retail": retail_tools.TOOLS, "airline": airline_tools.TOOLS}
"""The tools of each domain."""
TRANSFER = "transfer_to_human_agents"
_NOT_CLEAN = frozenset({"5", "12", "13", "64", "105"})
"""Tasks with a hidden state machine (5) or a recorded write that raises."""
_EMAIL = re.compile(r"[\w.+-]+@[\w-]+\.[\w.]+\w")
_USER_ID = re.compile(r"\b[a-z]+_[a-z]+_\d{4}\b")


@dataclass(frozen=True, eq=False)
class Gold:
    """The outcome of a task's recorded calls."""

    changes: Changes
    """Records that differ from the shared database afterwards."""
    writes: tuple[Call, ...]
    """The recorded writes that succeed, in their order."""
    reads: tuple[Call, ...]
    """The recorded reads that succeed, without the search for the user."""
    transfers: bool
    """Whether the customer is to be transferred."""
    user_id: str
    """The customer."""


@lru_cache(maxsize=1024)
def gold(task: Task, semantics: str) -> Gold:
    """Return the outcome of a task's recorded calls."""
    db, tools = Records(semantics, task.domain), TOOLS[task.domain]
    writes, reads = [], []
    for each in task.actions:
        try:
            call(db, each, tools)
        except RefusedError:
            continue
        if tools[each.name].writes:
            writes.append(each)
        elif not each.name.startswith("find_user") and each.name != TRANSFER:
            reads.append(each)
    transfers = any(each.name == TRANSFER for each in task.actions)
    return Gold(db.changes, tuple(writes), tuple(reads), transfers, _customer(task))


@cache
def chosen(path: str | None, split: str, domain: str = "retail") -> tuple[Task, ...]:
    """Return the tasks of a split: `base` (all), `train`, `test`, or `clean`.

    `clean` is without the tasks whose right outcome is an unchanged database and those whose
    recorded writes or users are known to be wrong; see `is_clean`.

    Raises:
        ConfigurationError: There is no such task.
        DataError: See `tasks`.
    """
    every = tasks(path, domain)
    if split == "clean":
        kept = tuple(task for task in every if is_clean(task))
    else:
        ids = set(parse(text(f"{domain}_splits.json"), "the splits")[split])
        kept = tuple(task for task in every if split == "base" or task.id in ids)
    if not kept:
        raise ConfigurationError(f"split {split!r} has no task of data {path!r}")
    return kept


def is_clean(task: Task) -> bool:
    """Whether a task needs a write and has no known defect (docs/tau.md); generated ones are."""
    if task.opening is not None:
        return True
    wrong = task.domain == "retail" and task.id in _NOT_CLEAN
    return not wrong and bool(gold(task, "fixed").changes)


def _customer(task: Task) -> str:
    """Return the id of the customer, by the recorded calls or by what the customer knows."""
    tables = database(task.domain)
    users, kinds = tables["users"], {"order_id": "orders", "reservation_id": "reservations"}
    for each in task.actions:
        given = each.arguments
        if given.get("user_id") in users:
            return str(given["user_id"])
        for name, table in kinds.items():
            if name in given and given[name] in tables[table]:
                return str(tables[table][given[name]]["user_id"])
        if each.name.startswith("find_user"):
            try:
                return call(Records(), each, TOOLS[task.domain])
            except RefusedError:
                continue
    told = f"{task.known} {task.reason}"
    for key in _USER_ID.findall(told):
        if key in users:
            return str(key)
    for key, user in users.items():
        name = " ".join(user["name"].values())
        if (name in told and user["address"]["zip"] in told) or user["email"] in told:
            return key
    return ""


def knows_email(task: Task) -> bool:
    """Whether the customer knows the e-mail address of the account."""
    return bool(_EMAIL.search(f"{task.known} {task.reason}"))


def mentions(said: str, wanted: Iterable[str]) -> set[str]:
    """Return which of the wanted texts a message contains, ignoring case and its commas."""
    said = visible(said).lower().replace(",", "")
    return {each for each in wanted if each.lower() in said}


def same_write(one: Call, other: Call) -> bool:
    """Whether two writes are the same but for the order of items."""
    return one.name == other.name and _ordered(one) == _ordered(other)


def _ordered(write: Call) -> dict[str, object]:
    given = dict(write.arguments)
    olds, news = given.pop("item_ids", None), given.pop("new_item_ids", None)
    if isinstance(olds, list):
        given["items"] = _pairs(olds, news if isinstance(news, list) else olds)
    return given


def _pairs(olds: Iterable[str], news: Iterable[str]) -> list[tuple[str, str]]:
    return sorted(zip(olds, news, strict=False))
