"""The database as one episode sees it: shared records, and copies of those that it changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

from gem_tau.data import Record, database

Changes: TypeAlias = dict[tuple[str, str], Record]
"""Changed records by table and key."""


class RefusedError(Exception):
    """A tool refuses a call; the message is what the agent is told."""


class BadCallError(RefusedError):
    """There is no such tool, or its arguments are missing, unknown or of a wrong type."""


class Records:
    """An overlay on the shared database; pickles as the changed records alone."""

    def __init__(self, semantics: str = "fixed", domain: str = "retail") -> None:
        """Begin with no changes.

        Args:
            semantics: `fixed` or `upstream`, see `gem_tau.retail.Retail`.
            domain: Whose database.
        """
        self.semantics = semantics
        self.domain = domain
        self._own: Changes = {}

    def read(self, table: str, key: str) -> Record:
        """Return a record, which the caller may not change.

        Raises:
            RefusedError: It does not exist.
        """
        record = self._own.get((table, key)) or database(self.domain)[table].get(key)
        if record is None:
            raise RefusedError(f"{table[:-1].capitalize()} not found")
        return record

    def edit(self, table: str, key: str) -> Record:
        """Return a record that the caller may change.

        Raises:
            RefusedError: It does not exist.
        """
        if (table, key) not in self._own:
            self._own[table, key] = _copied(self.read(table, key))
        return self._own[table, key]

    def add(self, table: str, key: str, record: Record) -> None:
        """Add a record that does not exist."""
        self._own[table, key] = record

    def rows(self, table: str) -> Iterator[tuple[str, Record]]:
        """Yield all records of a table with their keys, in the order of the database."""
        for key in database(self.domain)[table]:
            yield key, self.read(table, key)

    @property
    def changes(self) -> Changes:
        """The records that differ from the shared ones."""
        return {
            (table, key): record
            for (table, key), record in self._own.items()
            if record != database(self.domain)[table].get(key)
        }


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(each) for key, each in value.items()}
    return [_copied(each) for each in value] if isinstance(value, list) else value
