"""Extracts from a failed trainer's log the first exception and the last lines."""

from __future__ import annotations

import io
import re
from pathlib import Path

_LAST_LINES = 25
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_EXCEPTION = re.compile(r"(?:^|\s)((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception): .+)")


def explain(message: str, log: Path, *, after: int = 0) -> str:
    """Append to a message the log's last lines, its first exception and its path.

    In a distributed trainer the first failure is often far above the end of the log, which is full
    of processes that failed because of it.

    Args:
        message: Comes first.
        log: The file.
        after: Number of bytes that are not looked at: those of earlier starts.
    """
    try:
        with log.open("rb") as file:
            skipped = file.read(after).count(b"\n")
            text = io.TextIOWrapper(file, encoding="utf-8", errors="replace", newline="\n")
            first, last = _read(list(text), skipped)
    except OSError as error:
        first, last = None, [f"(the log cannot be read: {error})"]
    lines = [message, *(f"  | {line}" for line in last or ["(the log is empty)"])]
    if first is not None:
        lines.append(f"first exception in the log, line {first[0]}: {first[1]}")
    return "\n".join([*lines, f"whole log: {log}", "what was recorded so far is readable"])


def _read(raw: list[str], skipped: int) -> tuple[tuple[int, str] | None, list[str]]:
    """Return the first exception above the last lines, with its line number; the last lines."""
    lines = [_COLOURS.sub("", line).rstrip() for line in raw]
    # Keep only the last state of a progress bar, which overwrites its line.
    numbered = enumerate(lines, skipped + 1)
    said = [(n, line.rpartition("\r")[2]) for n, line in numbered if line.strip()]
    last = said[-_LAST_LINES:]
    for number, line in said[: -_LAST_LINES or None]:
        found = _EXCEPTION.search(line)
        if found:
            return (number, found[1]), [line for _, line in last]
    return None, [line for _, line in last]
