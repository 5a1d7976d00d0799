"""Which code reads each setting of a trainer while an adapter is in use.

A table says it of every one, so that none is accepted and read by nobody. A trainer's new version
that has further settings, or lacks some, fails the test until somebody has looked who reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomllib

KINDS = ("trainer", "gem", "unused")
"""Read by the trainer's own code, by the adapter (or set by it), by nobody even without it."""
REFUSED = "refused"


@dataclass(frozen=True)
class Refused:
    """A setting that an adapter refuses where it cannot work."""

    key: str
    value: Any
    """A value that is refused."""
    beside: Mapping[str, Any]
    """Other settings without which this value works."""

    def __str__(self) -> str:
        return self.key


@dataclass(frozen=True)
class Readers:
    """The table of an adapter, `readers.toml` beside its tests."""

    about: str
    """Whose settings they are, and of which version."""
    read: Mapping[str, str]
    """Kind of each setting; `section.*` is all of a section."""
    refused: tuple[Refused, ...]

    @classmethod
    def load(cls, path: Path) -> Readers:
        """Read a table; a setting that is in it twice is an error."""
        found = tomllib.loads(path.read_text(encoding="utf-8"))
        assert found.keys() <= {"about", *KINDS, REFUSED}, sorted(found)
        entries = [(key, kind) for kind in KINDS for key in found.get(kind, ())]
        refused = []
        for key, value in found.get(REFUSED, {}).items():
            plain = not isinstance(value, dict)
            given = {"value": value} if plain else value
            refused.append(Refused(key, given["value"], given.get("beside", {})))
            entries.append((key, REFUSED))
        names = [key for key, _ in entries]
        assert len(set(names)) == len(names), sorted(n for n in names if names.count(n) > 1)
        return cls(found["about"], dict(entries), tuple(refused))

    def check(self, keys: Iterable[str]) -> None:
        """Fail unless each of a trainer's settings has one entry, and each entry a setting."""
        keys = set(keys)
        matches = {entry: {key for key in keys if _covers(entry, key)} for entry in self.read}
        missing = keys.difference(*matches.values())
        assert not missing, f"nobody has looked who reads these: {sorted(missing)}"
        gone = [entry for entry, found in matches.items() if not found]
        assert not gone, f"the trainer has no such settings: {gone}"
        twice = [k for k in sorted(keys) if sum(k in found for found in matches.values()) > 1]
        assert not twice, f"more than one entry is about these: {twice}"


def _covers(entry: str, key: str) -> bool:
    return key.startswith(entry[:-1]) if entry.endswith(".*") else key == entry
