"""Files of JSON objects, one a line: appended whole, readable after a crash."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from gem.errors import RecordError


def append_lines(path: Path, lines: Iterable[str]) -> None:
    """Append lines to a file of a run's folder, all of them or none.

    Args:
        path: The file; it is created if it is missing.
        lines: JSON objects.

    Raises:
        RecordError: They cannot be written.
    """
    try:
        # Unbuffered: a buffer that cannot be flushed would be flushed again by `truncate`.
        with path.open("ab", buffering=0) as file:
            end = file.tell()
            try:
                for line in lines:
                    left = memoryview(f"{line}\n".encode())
                    while left:
                        left = left[file.write(left) :]
            except BaseException:
                file.truncate(end)
                raise
    except OSError as error:
        raise RecordError(
            f"cannot write {path}: {error}; what was recorded before is intact. When this can be "
            "written again, the run can go on from its last checkpoint"
        ) from error


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a file of JSON objects; nothing if there is no such file.

    A last line that was cut off is left out.

    Raises:
        RecordError: A line other than the last is damaged.
    """
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith("\n"):
                return
            if not line.strip():
                continue
            try:
                data = json.loads(line)
            except json.JSONDecodeError as error:
                raise RecordError(f"{path}, line {number} is damaged: {error}") from error
            if not isinstance(data, dict):
                raise RecordError(
                    f"{path}, line {number} is damaged: a JSON object is expected, got {data!r:.80}"
                )
            yield data


def drop_torn_line(path: Path) -> None:
    """Remove a last line that was cut off, before others are appended."""
    if path.exists():
        with path.open("rb+") as file:
            file.truncate(sum(len(line) for line in file if line.endswith(b"\n")))
