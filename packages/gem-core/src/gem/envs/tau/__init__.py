"""Customer service: TAU-bench retail, and the entry points of the ids `tau:<Name>-<version>`."""

from __future__ import annotations

from typing import Any

TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "tau:Retail-v2": ("retail:Retail", {}),
}
"""Per id: module and class in this folder, and its parameters."""
