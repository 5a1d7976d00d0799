"""Hydra's grammar: values as they are written on a command line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gem.errors import ConfigurationError

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_/.-]*")
_KEYWORDS = ("null", "true", "false", "nan", "inf")
"""Words that Hydra reads as text only in quotes."""


def hydra_value(value: Any) -> str:
    """Write a value in Hydra's override grammar.

    Raises:
        ConfigurationError: A key of a mapping is one that Hydra cannot read back.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(map(hydra_value, value))}]"
    if isinstance(value, Mapping):
        for key in value:
            if not (key.isascii() and key.isidentifier()) or key.lower() in _KEYWORDS:
                raise ConfigurationError(f"Hydra cannot read a table with the key {key!r}")
        return f"{{{','.join(f'{key}:{hydra_value(each)}' for key, each in value.items())}}}"
    if isinstance(value, str | Path):
        if _PLAIN.fullmatch(str(value)) and str(value).lower() not in _KEYWORDS:
            return str(value)
        # Backslashes are escapes only before a quote, or before `${`, which is a reference.
        text = re.sub(r"(\\*)('|\Z)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), str(value))
        return re.sub(r"(\\*)\$\{", lambda m: m[1] * 2 + r"\${", f"'{text}'")
    return repr(value)
