"""Customer service: TAU-bench retail, and the entry points of the ids `tau:<Name>-<version>`."""

from __future__ import annotations

from typing import Any

TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "tau:Retail-v2": ("retail:Retail", {}),
    "tau:RetailSeats-v2": ("seats:RetailSeats", {}),
    "tau:Airline-v2": ("airline:Airline", {}),
    "tau:RetailGen-v0": ("retail_gen:RetailGen", {}),
    "tau:RetailGen-v0-brief": (
        "retail_gen:RetailGen",
        {"intents": "cancel", "max_intents": 1, "brief": True, "first_call_reward": 0.5},
    ),
}
"""Per id: module and class in this folder, and its parameters."""
