"""Find in a failed trainer's log what a person needs to see first."""

from __future__ import annotations

import re
from pathlib import Path

_LAST_LINES = 25
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_EXCEPTION = re.compile(r"(?:^|\s)((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception): .+)")


def explain(message: str, log: Path) -> str:
    """Add to a message what a log says: its first exception, its last lines, and where it is.

    What fails first in a distributed trainer is often far above the end, which is full of the
    processes that failed because of it.
    """
    try:
        with log.open(encoding="utf-8", errors="replace", newline="\n") as file:
            first, last = _read(list(file))
    except OSError as error:
        first, last = None, [f"(the log cannot be read: {error})"]
    lines = [message, *(f"  | {line}" for line in last or ["(it said nothing)"])]
    if first is not None:
        lines.append(f"first exception in the log, line {first[0]}: {first[1]}")
    return "\n".join([*lines, f"whole log: {log}", "what was recorded so far is readable"])


def _read(raw: list[str]) -> tuple[tuple[int, str] | None, list[str]]:
    """The first exception with its line number, unless it is among the last lines; these."""
    lines = [_COLOURS.sub("", line).rstrip() for line in raw]
    # Of a progress bar, which overwrites its line again and again, the last state is enough.
    said = [(n, line.rpartition("\r")[2]) for n, line in enumerate(lines, 1) if line.strip()]
    last = said[-_LAST_LINES:]
    for number, line in said[: -_LAST_LINES or None]:
        found = _EXCEPTION.search(line)
        if found:
            return (number, found[1]), [line for _, line in last]
    return None, [line for _, line in last]
