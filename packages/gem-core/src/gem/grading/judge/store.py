"""The file beside a run with a judge's votes, verdicts and counters; processes share it."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from gem.errors import JudgeError, RecordError

T = TypeVar("T")
_TABLES = """
CREATE TABLE IF NOT EXISTS votes (
    key TEXT PRIMARY KEY, vote TEXT NOT NULL, reply TEXT, served TEXT, seconds REAL);
CREATE TABLE IF NOT EXISTS verdicts (
    number INTEGER PRIMARY KEY, judge TEXT NOT NULL, key TEXT NOT NULL, score REAL, correct INTEGER,
    reason TEXT NOT NULL, votes TEXT NOT NULL, chars INTEGER NOT NULL, seconds REAL NOT NULL,
    cached INTEGER NOT NULL, time REAL NOT NULL);
CREATE TABLE IF NOT EXISTS counts (
    judge TEXT NOT NULL, name TEXT NOT NULL, n INTEGER NOT NULL, PRIMARY KEY (judge, name));
CREATE TABLE IF NOT EXISTS reports (
    identity TEXT PRIMARY KEY, report TEXT NOT NULL);
"""
_WAIT_S = 60.0


class Store:
    """Votes by key, verdicts in order, counters and calibration reports, in one SQLite file.

    Threads and processes of one machine may share it. The folder must not be on a network disk.
    """

    def __init__(self, path: str | Path | None) -> None:
        """Open the file, or a store in memory.

        Raises:
            RecordError: It cannot be opened, or is something else.
        """
        self.path = str(path) if path is not None else ":memory:"
        self._lock = threading.Lock()
        try:
            self._db = sqlite3.connect(
                self.path, timeout=_WAIT_S, isolation_level=None, check_same_thread=False
            )
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            with self._transaction():
                for statement in filter(str.strip, _TABLES.split(";")):
                    self._db.execute(statement)
        except sqlite3.Error as error:
            raise RecordError(f"cannot open the judge's cache {self.path}: {error}") from error

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                yield self._db
                self._db.execute("COMMIT")
            except sqlite3.Error as error:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise RecordError(f"the judge's cache {self.path}: {error}") from error
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def vote(self, key: str) -> Any:
        """Return a vote that is kept, `[value]`; None if there is none."""
        with self._lock:
            row = self._db.execute("SELECT vote FROM votes WHERE key = ?", (key,)).fetchone()
        return None if row is None else [json.loads(row[0])]

    def keep(self, key: str, vote: Any, reply: str, served: str, seconds: float) -> Any:
        """Keep a vote unless there is one already; return the one that is kept."""
        row = (key, json.dumps(vote), reply, served, seconds)
        with self._transaction() as db:
            db.execute("INSERT OR IGNORE INTO votes VALUES (?, ?, ?, ?, ?)", row)
            [kept] = db.execute("SELECT vote FROM votes WHERE key = ?", (key,)).fetchone()
        return json.loads(kept)

    def record(
        self,
        judge: str,
        key: str,
        score: float | None,
        correct: bool | None,
        reason: str,
        votes: str,
        chars: int,
        seconds: float,
        cached: bool,
    ) -> None:
        """Append a verdict; one without a score is void."""
        row = (judge, key, score, correct, reason, votes, chars, seconds, cached, time.time())
        with self._transaction() as db:
            db.execute(
                "INSERT INTO verdicts (judge, key, score, correct, reason, votes, chars, seconds, "
                "cached, time) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                row,
            )

    def verdicts(self, judge: str) -> list[dict[str, Any]]:
        """Return the verdicts of a judge, in order, by the names of the columns."""
        with self._lock:
            found = self._db.execute(
                "SELECT * FROM verdicts WHERE judge = ? ORDER BY number", (judge,)
            )
            names = [each[0] for each in found.description]
            return [dict(zip(names, row, strict=True)) for row in found]

    def count(self, judge: str, name: str, n: int = 1, most: int | None = None) -> int:
        """Add to a counter; return what it has then.

        Args:
            judge: Whose.
            name: Of the counter.
            n: What is added.
            most: Nothing is added if it would have more.

        Raises:
            JudgeError: It would.
        """
        with self._transaction() as db:
            row = db.execute(
                "SELECT n FROM counts WHERE judge = ? AND name = ?", (judge, name)
            ).fetchone()
            total = (row[0] if row else 0) + n
            if most is not None and total > most:
                raise JudgeError(
                    f"judge {judge!r}: budget_calls = {most} is used up; the run ends, and goes on "
                    "with a larger budget when it is resumed"
                )
            db.execute("INSERT OR REPLACE INTO counts VALUES (?, ?, ?)", (judge, name, total))
        return int(total)

    def report(self, identity: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the calibration report of a judge, which is made if there is none.

        Args:
            identity: Of the judge and its calibration file.
            make: Makes it; other processes may make it at the same time.
        """
        with self._lock:
            row = self._db.execute(
                "SELECT report FROM reports WHERE identity = ?", (identity,)
            ).fetchone()
        if row is None:
            made = make()
            with self._transaction() as db:
                db.execute(
                    "INSERT OR REPLACE INTO reports VALUES (?, ?)", (identity, json.dumps(made))
                )
            return made
        found: dict[str, Any] = json.loads(row[0])
        return found

    def close(self) -> None:
        """Close the file."""
        self._db.close()
