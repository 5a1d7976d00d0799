"""Records that are damaged in every way that a list of mutations knows."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MISSING = object()
VALUES: tuple[Any, ...] = (
    *(MISSING, None, True, "x", "\ud800", "", -1, 0, 3, 2.5, 10**300, 10**4000),
    *(float("nan"), float("inf"), -float("inf"), [], {}, [1], [[1]], {"a": 1}, [None]),
)
"""What a value is replaced by; `MISSING` removes it."""

DEEP = 100_000
_HUGE = "9" * 5000

Mutation = tuple[str, bytes]
"""Its name, and the content of the file."""


def of_texts(content: bytes) -> Iterator[Mutation]:
    """Yield a file of lines, or with one JSON value, with other bytes."""
    first, _, rest = content.partition(b"\n")
    yield "empty", b""
    yield "byte order mark", b"\xef\xbb\xbf" + content
    yield "utf-16", content.decode().encode("utf-16")
    yield "latin-1", first[:-1] + b', "x": "\xe9"}\n' + rest
    yield "NULs", first + b"\0" * 512 + b"\n" + rest
    yield "NUL line", b"\0" * 512 + b"\n" + content
    yield "NUL tail", content + b"\0" * 512
    yield "cut line", first[: len(first) // 2] + b"\n" + rest
    yield "cut tail", content[: -len(content) // 3]
    yield "deep list", b"[" * DEEP + b"\n" + content
    yield "deep closed list", b"[" * DEEP + b"]" * DEEP + b"\n" + content
    yield "deep object", b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"\n" + content
    yield (
        "below the parser's depth",
        first[:-1] + b',"z":' + b"[" * 400 + b"]" * 400 + b"}\n" + rest,
    )
    yield "long integer", first[:-1] + f', "z": {_HUGE}}}\n'.encode() + rest
    for line in (b"1", b'"text"', b"null", b"[]", b"{}", b"NaN", b"<html>", b"a,b,c"):
        yield f"line {line.decode()}", line + b"\n" + content
    yield "line twice", first + b"\n" + content
    yield "all twice", content + content
    yield "carriage returns", content.replace(b"\n", b"\r\n")
    yield "foreign", b'{"step": 1, "loss": 0.5}\n'


def of_values(line: dict[str, Any], most: int = 2) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield an object with each of its values replaced by each of `VALUES`.

    Args:
        line: The object; of its lists the first entries are looked at.
        most: How many.
    """
    for path in _paths(line, most):
        for value in VALUES:
            changed = copy.deepcopy(line)
            place: Any = changed
            for step in path[:-1]:
                place = place[step]
            if value is MISSING:
                del place[path[-1]]
            else:
                place[path[-1]] = value
            name = ".".join(map(str, path))
            shown = "missing" if value is MISSING else repr(value)[:20]
            yield f"{name}: {shown}", changed


def _paths(value: Any, most: int, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _paths(each, most, (*path, key))
    elif isinstance(value, list):
        for index, each in enumerate(value[:most]):
            yield from _paths(each, most, (*path, index))


def damaged(path: Path, *, most: int = 2) -> Iterator[Mutation]:
    """Yield all mutations of a file of a record."""
    content = path.read_bytes()
    yield from of_texts(content)
    if path.suffix == ".jsonl":
        first, _, rest = content.partition(b"\n")
        for name, line in of_values(json.loads(first), most):
            yield name, _bytes(line) + b"\n" + rest
    else:
        for name, value in of_values(json.loads(content), most):
            yield name, _bytes(value) + b"\n"


def _bytes(value: Any) -> bytes:
    return json.dumps(value).encode()
