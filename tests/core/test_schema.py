"""Types of what is read: what a JSON value may be, and what its error names."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

import pytest

from gem.errors import DataError
from gem.json_lines import MOST_DEPTH, parse, parse_as
from gem.schema import NumberOrNan, WrongTypeError, check


@dataclass
class Point:
    x: float
    name: str = ""


class Open(TypedDict, total=False):
    x: int


RIGHT: list[tuple[Any, Any]] = [
    (1, int),
    (1, float),
    (1.5, float),
    ("a", str),
    (True, bool),
    (None, None | int),
    ([1, 2], list[int]),
    ([], list[int]),
    ([1, 2.5], list[float]),
    ([None, 1.0], list[float | None]),
    ([1, 2], tuple[int, int]),
    ([{"a": "b"}], tuple[dict[str, str], ...]),
    ({"a": 1}, dict[str, int]),
    ({"x": 1}, Point),
    ({"x": 1, "y": 2}, Open),
    ({}, Open),
    ("a", Literal["a", "b"]),
    (math.nan, NumberOrNan),
    ("text", str | list[int]),
    ([1], str | list[int]),
    (object, Any),
]
WRONG: list[tuple[Any, Any]] = [
    (True, int),
    (1.0, int),
    (True, float),
    (math.nan, float),
    (math.inf, float),
    ("1", int),
    (2**128, int),
    (2**200, float),
    (None, int),
    ([1, "a"], list[int]),
    ([2**130], list[int]),
    ([math.nan], list[float]),
    ([1], tuple[int, int]),
    (["a"], tuple[int, ...]),
    ({"a": "b"}, dict[str, int]),
    ({}, Point),
    ({"x": 1, "y": 2}, Point),
    ({"x": "1"}, Open),
    ("c", Literal["a", "b"]),
    ([], Literal["a"]),
    (1, str | list[int]),
    ("a", list[str]),
    ({}, list[int]),
    ([], dict[str, int]),
]


@pytest.mark.parametrize(("value", "wanted"), RIGHT)
def test_what_is_right_passes(value: Any, wanted: Any) -> None:
    check(value, wanted)


@pytest.mark.parametrize(("value", "wanted"), WRONG)
def test_what_is_wrong_is_named(value: Any, wanted: Any) -> None:
    with pytest.raises(WrongTypeError, match="must be|is missing|is not known"):
        check(value, wanted)


def test_the_place_is_named() -> None:
    with pytest.raises(DataError, match=r"^file, line 3 is damaged: a\[0\]\.x must be a finite"):
        parse_as('{"a": [{"x": NaN}]}', dict[str, list[Point]], "file, line 3")


@pytest.mark.parametrize(
    "text",
    [
        *("{", "", "nope", "[1,]", "9" * 5000, "[" * 10**5, "[" * 10**5 + "]" * 10**5),
        *(b"\xff", b"\xef\xbb\xbf", "1".encode("utf-16"), b"\0\0"),
        "[" * (MOST_DEPTH + 1) + "]" * (MOST_DEPTH + 1),
        '{"a":' * (MOST_DEPTH + 1) + "1" + "}" * (MOST_DEPTH + 1),
    ],
    ids=range(13),
)
def test_what_cannot_be_parsed_is_one_error_with_its_place(text: str | bytes) -> None:
    with pytest.raises(DataError, match=r"^here is damaged: "):
        parse(text, "here")


def test_a_byte_order_mark_is_skipped() -> None:
    assert parse(b"\xef\xbb\xbf1", "here") == 1


def test_what_is_as_deep_as_allowed_is_read() -> None:
    text = "[" * MOST_DEPTH + "]" * MOST_DEPTH
    assert json.dumps(parse(text, "here")) == text
