"""What is read from files and servers: JSON, and files of JSON objects, one a line.

`parse` is the one way from a text to a value. Files of lines are appended whole and are readable
after a crash.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from gem.errors import DataError, GemError, RecordError
from gem.schema import WrongTypeError, check

MOST_DEPTH = 200
"""Most lists and objects inside one another; code that goes through a value is recursive."""


def parse(text: str | bytes, place: str, error: type[GemError] = DataError) -> Any:
    """Return the value of a JSON text.

    Args:
        text: Bytes are UTF-8.
        place: Where the text comes from, for the message: a file, a line, a server.
        error: What is raised.

    Raises:
        error: The text is not JSON or not UTF-8, has an integer of thousands of digits, or is too
            deeply nested; the message begins with `place`.
    """
    try:
        value = json.loads(text.decode("utf-8-sig") if isinstance(text, bytes) else text)
        if _depth(value) > MOST_DEPTH:
            raise RecursionError
    except RecursionError:
        raise error(
            f"{place} is damaged: more than {MOST_DEPTH} lists and objects inside one another"
        ) from None
    except ValueError as problem:  # also a wrong encoding, and integers that are too long
        raise error(f"{place} is damaged: {problem}") from problem
    return value


def parse_as(text: str | bytes, wanted: Any, place: str, error: type[GemError] = DataError) -> Any:
    """Return the value of a JSON text of a known type.

    Args:
        text: As for `parse`, as the others.
        wanted: A type, see `gem.schema`.
        place: Where the text comes from.
        error: What is raised.

    Raises:
        error: It is not JSON, or of another type; the message names the place and the key.
    """
    return checked(parse(text, place, error), wanted, place, error)


def checked(value: Any, wanted: Any, place: str, error: type[GemError] = DataError) -> Any:
    """Return a value that was parsed before, if it is of a type; see `parse_as`."""
    try:
        check(value, wanted)
    except WrongTypeError as problem:
        raise error(f"{place} is damaged: {problem}") from problem
    return value


def read_json(path: Path, wanted: Any = Any, error: type[GemError] = RecordError) -> Any:
    """Return the value of a JSON file.

    Args:
        path: The file.
        wanted: Its type, see `gem.schema`.
        error: What is raised.

    Raises:
        error: It cannot be read, or is damaged.
    """
    try:
        content = path.read_bytes()
    except OSError as problem:
        raise error(f"cannot read {path}: {problem}") from problem
    return parse_as(content, wanted, str(path), error)


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


def read_lines(path: Path, wanted: Any = dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the lines of a file of JSON objects; nothing if there is no such file.

    A last line that was cut off is left out.

    Args:
        path: The file.
        wanted: The type of a line, see `gem.schema`.

    Raises:
        RecordError: The file cannot be read, or a line other than the last is damaged; the message
            has its number.
    """
    for _, value in numbered_lines(path, wanted):
        yield value


def numbered_lines(
    path: Path, wanted: Any = dict[str, Any]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the lines of `read_lines` with their numbers in the file, from 1."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error}") from error
    with file:
        for number, line in enumerate(_lines(file, path), 1):
            if not line.endswith(b"\n"):
                return
            if line.strip():
                yield number, parse_as(line, wanted, f"{path}, line {number}", RecordError)


def _lines(file: Iterable[bytes], path: Path) -> Iterator[bytes]:
    try:
        yield from file
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error}") from error


def drop_torn_line(path: Path) -> None:
    """Remove a last line that was cut off, before others are appended."""
    if path.exists():
        with path.open("rb+") as file:
            file.truncate(sum(len(line) for line in file if line.endswith(b"\n")))


def _depth(value: Any) -> int:
    """Return how many lists and objects are inside one another, at most one above `MOST_DEPTH`."""
    depth, level = 0, [value] if isinstance(value, dict | list) else []
    while level and depth <= MOST_DEPTH:
        depth += 1
        below: list[Any] = []
        for each in level:
            parts = each.values() if isinstance(each, dict) else each
            # Most lists are of numbers only, which one look at their types tells.
            if not {dict, list}.isdisjoint(map(type, parts)):
                below += [part for part in parts if isinstance(part, dict | list)]
        level = below
    return depth
