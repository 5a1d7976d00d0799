"""The file beside a run with a judge's votes, verdicts and counters; processes share it."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gem.errors import JudgeError, RecordError
from gem.json_lines import parse, parse_as

_TABLES = """
CREATE TABLE IF NOT EXISTS votes (
    key TEXT PRIMARY KEY, vote TEXT NOT NULL, reply TEXT, served TEXT, seconds REAL);
CREATE TABLE IF NOT EXISTS verdicts (
    number INTEGER PRIMARY KEY, judge TEXT NOT NULL, key TEXT NOT NULL, score REAL, correct INTEGER,
    reason TEXT NOT NULL, votes TEXT NOT NULL, chars INTEGER NOT NULL, seconds REAL NOT NULL,
    cached INTEGER NOT NULL, time REAL NOT NULL);
CREATE TABLE IF NOT EXISTS calls (judge TEXT PRIMARY KEY, n INTEGER NOT NULL);
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
            self._db.executescript(_TABLES)
        except sqlite3.Error as error:
            raise RecordError(f"cannot open the judge's cache {self.path}: {error}") from error

    def _run(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        """Run one statement, which is a transaction; return its rows."""
        with self._lock:
            try:
                return self._db.execute(statement, values).fetchall()
            except sqlite3.Error as error:
                raise RecordError(f"the judge's cache {self.path}: {error}") from error

    def vote(self, key: str) -> Any:
        """Return a vote that is kept, `[value]`; None if there is none."""
        rows = self._run("SELECT vote FROM votes WHERE key = ?", (key,))
        return [parse(rows[0][0], f"a vote in {self.path}", RecordError)] if rows else None

    def keep(self, key: str, vote: Any, reply: str, served: str, seconds: float) -> Any:
        """Keep a vote unless there is one already; return the one that is kept."""
        row = (key, json.dumps(vote), reply, served, seconds)
        insert = "INSERT OR IGNORE INTO votes VALUES (?, ?, ?, ?, ?) RETURNING key"
        return vote if self._run(insert, row) else self.vote(key)[0]

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
        self._run(
            "INSERT INTO verdicts (judge, key, score, correct, reason, votes, chars, seconds, "
            "cached, time) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            row,
        )

    def verdicts(self, judge: str) -> list[dict[str, Any]]:
        """Return the verdicts of a judge, in order, by the names of the columns."""
        rows = self._run("SELECT * FROM verdicts WHERE judge = ? ORDER BY number", (judge,))
        names = [row[1] for row in self._run("PRAGMA table_info(verdicts)")]
        return [dict(zip(names, row, strict=True)) for row in rows]

    def verdict_count(self, judge: str, reason: str | None = None) -> int:
        """Return the number of verdicts of a judge that are not void, or of those of a reason."""
        every = "SELECT count(*) FROM verdicts WHERE judge = ? AND score IS NOT NULL"
        if reason is None:
            return int(self._run(every, (judge,))[0][0])
        return int(self._run(f"{every} AND reason = ?", (judge, reason))[0][0])

    def spend(self, judge: str, calls: int, budget: int) -> None:
        """Count requests before they are made.

        Raises:
            JudgeError: There would be more than the budget allows; none of them is counted.
        """
        spent = calls <= budget and self._run(
            "INSERT INTO calls VALUES (?, ?) ON CONFLICT (judge) DO UPDATE SET n = n + excluded.n "
            "WHERE n + excluded.n <= ? RETURNING n",
            (judge, calls, budget),
        )
        if not spent:
            raise JudgeError(
                f"judge {judge!r}: budget_calls = {budget} is used up; the run ends, and goes on "
                "with a larger budget when it is resumed"
            )

    def report(self, identity: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the calibration report of a judge, which is made if there is none.

        Args:
            identity: Of the judge and its calibration file.
            make: Makes it; other processes may make it at the same time.
        """
        rows = self._run("SELECT report FROM reports WHERE identity = ?", (identity,))
        if rows:
            place = f"a report in {self.path}"
            found: dict[str, Any] = parse_as(rows[0][0], dict[str, Any], place, RecordError)
            return found
        made = make()
        self._run("INSERT OR REPLACE INTO reports VALUES (?, ?)", (identity, json.dumps(made)))
        return made

    def close(self) -> None:
        """Close the file."""
        self._db.close()
