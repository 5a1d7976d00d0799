"""MessagePack, as much of it as the original's search servers speak: JSON's types and bytes.

Format: https://github.com/msgpack/msgpack/blob/master/spec.md
"""

from __future__ import annotations

import struct
from typing import Any

_DEEPEST = 64
# First byte: (struct format of the length, kind).
_SIZED = {
    0xC4: (">B", "bin"),
    0xC5: (">H", "bin"),
    0xC6: (">I", "bin"),
    0xD9: (">B", "str"),
    0xDA: (">H", "str"),
    0xDB: (">I", "str"),
    0xDC: (">H", "array"),
    0xDD: (">I", "array"),
    0xDE: (">H", "map"),
    0xDF: (">I", "map"),
}
_NUMBERS = {
    0xCA: ">f",
    0xCB: ">d",
    0xCC: ">B",
    0xCD: ">H",
    0xCE: ">I",
    0xCF: ">Q",
    0xD0: ">b",
    0xD1: ">h",
    0xD2: ">i",
    0xD3: ">q",
}
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
# Kinds by the width of their length: one byte, two, four (arrays and mappings begin with two).
_HEADS = {
    "bin": (0xC4, 0xC5, 0xC6),
    "str": (0xD9, 0xDA, 0xDB),
    "array": (None, 0xDC, 0xDD),
    "map": (None, 0xDE, 0xDF),
}


def packed(value: Any) -> bytes:
    """Return a value as MessagePack.

    Raises:
        ValueError: It is none of None, bool, int of 64 bits, float, str, bytes, list, tuple, dict.
    """
    if value is None:
        return b"\xc0"
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        return _integer(value)
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, str):
        data = value.encode("utf-8", "replace")
        return (bytes([0xA0 | len(data)]) if len(data) < 32 else _head("str", len(data))) + data
    if isinstance(value, bytes):
        return _head("bin", len(value)) + value
    if isinstance(value, list | tuple):
        head = bytes([0x90 | len(value)]) if len(value) < 16 else _head("array", len(value))
        return head + b"".join(map(packed, value))
    if isinstance(value, dict):
        head = bytes([0x80 | len(value)]) if len(value) < 16 else _head("map", len(value))
        return head + b"".join(packed(part) for item in value.items() for part in item)
    raise ValueError(f"MessagePack has no {type(value).__name__}")


def _integer(value: int) -> bytes:
    if -32 <= value < 128:
        return struct.pack(">b", value)
    head, form = (0xCF, ">Q") if value >= 0 else (0xD3, ">q")
    try:
        return bytes([head]) + struct.pack(form, value)
    except struct.error:
        raise ValueError(f"MessagePack has no integer of more than 64 bits: {value}") from None


def _head(kind: str, size: int) -> bytes:
    for head, form, limit in zip(
        _HEADS[kind], (">B", ">H", ">I"), (1 << 8, 1 << 16, 1 << 32), strict=True
    ):
        if head is not None and size < limit:
            return bytes([head]) + struct.pack(form, size)
    raise ValueError(f"{size} parts or bytes are too many for MessagePack")


def unpacked(data: bytes) -> Any:
    """Return the value of a message.

    Raises:
        ValueError: It is no MessagePack, of a type that JSON does not have, or goes on after the
            value.
    """
    try:
        value, end = _value(data, 0, 0)
    except (IndexError, struct.error, UnicodeDecodeError, TypeError) as error:
        raise ValueError(f"not MessagePack: {error}") from None
    if end != len(data):
        raise ValueError(f"not MessagePack: {len(data) - end} bytes too many")
    return value


def _value(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    if depth > _DEEPEST:
        raise ValueError(f"not MessagePack of at most {_DEEPEST} levels")
    head = data[at]
    at += 1
    if head < 0x80:
        return head, at
    if head >= 0xE0:
        return head - 0x100, at
    if head in _CONSTANTS:
        return _CONSTANTS[head], at
    if head in _NUMBERS:
        form = _NUMBERS[head]
        return struct.unpack_from(form, data, at)[0], at + struct.calcsize(form)
    if head < 0xC0:
        kind = "map" if head < 0x90 else "array" if head < 0xA0 else "str"
        size = head & (0x1F if kind == "str" else 0x0F)
    elif head in _SIZED:
        form, kind = _SIZED[head]
        size = struct.unpack_from(form, data, at)[0]
        at += struct.calcsize(form)
    else:
        raise ValueError(f"not MessagePack: no type begins with byte {head:#x}")
    if kind in ("str", "bin"):
        part = data[at : at + size]
        if len(part) < size:
            raise ValueError("not MessagePack: it ends too early")
        return (part.decode() if kind == "str" else part), at + size
    parts: list[Any] = []
    for _ in range(size * (2 if kind == "map" else 1)):
        part, at = _value(data, at, depth + 1)
        parts.append(part)
    return (parts if kind == "array" else dict(zip(parts[::2], parts[1::2], strict=True))), at
