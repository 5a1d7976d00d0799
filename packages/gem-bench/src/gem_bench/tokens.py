"""Decodes single tokens to bytes, for the report; needs only a tokenizer's `tokenizer.json`.

Bytes, because a token of a byte-level tokenizer can be half a character: the report joins
neighbours until they are text.
"""

from __future__ import annotations

import json
import os
import re
from functools import cache
from pathlib import Path
from typing import Any

from gem.errors import ConfigurationError, DataError
from gem.json_lines import read_json

_BYTE_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def token_bytes(folder: Path) -> dict[int, bytes]:
    """Return the bytes of every token.

    Args:
        folder: Holds `tokenizer.json`.

    Raises:
        ConfigurationError: The file is missing, or is not a tokenizer.
    """
    path = folder / "tokenizer.json"
    try:
        data = read_json(path, dict[str, Any], DataError)
        vocab = data["model"]["vocab"]
        pieces = (
            vocab.items() if isinstance(vocab, dict) else ((p, i) for i, (p, _) in enumerate(vocab))
        )
        decode = _byte_level if _uses_byte_level(data) else _plain
        tokens = {int(index): decode(piece) for piece, index in pieces}
        # Special tokens are stored as plain text.
        tokens |= {t["id"]: t["content"].encode() for t in data.get("added_tokens", [])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"cannot read the tokenizer {path}: {error!r}") from error
    return tokens


def find_tokenizer(model: str) -> Path | None:
    """Return the folder of a model's tokenizer, if it is on this machine.

    Args:
        model: A folder, or a hub name that is looked up in the hub's cache.
    """
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    snapshots = home / "hub" / f"models--{model.replace('/', '--')}" / "snapshots"
    candidates = [Path(model), *(sorted(snapshots.iterdir()) if snapshots.is_dir() else [])]
    return next((folder for folder in candidates if (folder / "tokenizer.json").exists()), None)


def _uses_byte_level(data: Any) -> bool:
    parts = [data.get("pre_tokenizer"), data.get("decoder")]
    return any(part is not None and '"ByteLevel"' in json.dumps(part) for part in parts)


def _byte_level(piece: str) -> bytes:
    try:
        return bytes(_byte_of_character()[character] for character in piece)
    except KeyError:  # a piece that was added as plain text
        return piece.encode()


def _plain(piece: str) -> bytes:
    """Return the bytes of a SentencePiece token: ▁ marks a space, <0x0A> a single byte."""
    byte = _BYTE_FALLBACK.fullmatch(piece)
    return bytes([int(byte[1], 16)]) if byte else piece.replace("▁", " ").encode()


@cache
def _byte_of_character() -> dict[str, int]:
    """Return GPT-2's table: printable bytes map to themselves, the others to U+0100 and above."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(other)}
