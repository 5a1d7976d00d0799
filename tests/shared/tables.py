"""Tables of adapters that stand for a trainer in tests."""

from __future__ import annotations

from gem_train.table import Elsewhere, Entry, Table, keys


def table(trainer: str, entries: dict[str, Entry | tuple[Entry, ...]] | None = None) -> Table:
    """Return a table in which every key is realised by `--all`, but for these entries."""
    return Table(trainer, {**dict.fromkeys(keys(), Elsewhere("--all")), **(entries or {})})
