"""Stand-in for Courier's handlers: a function is its own handler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def BuildPyCallHandler(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what `courier.Server` calls."""
    return function
