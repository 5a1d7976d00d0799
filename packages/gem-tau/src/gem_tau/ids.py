"""The ids `tau:<Name>-<version>` and `user:Task-v0`; nothing is imported or loaded here."""

from __future__ import annotations

from typing import Any

from gem.registry import register

_TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "tau:Retail-v2": ("retail:Retail", {}),
    "tau:RetailSeats-v2": ("seats:RetailSeats", {}),
    "tau:Airline-v2": ("airline:Airline", {}),
    "tau:RetailGen-v0": ("retail_gen:RetailGen", {}),
    "tau:RetailGen-v0-brief": (
        "retail_gen:RetailGen",
        {"intents": "cancel", "max_intents": 1, "brief": True, "first_call_reward": 0.5},
    ),
    "user:Task-v0": ("user_task:UserTask", {"seat": "agent"}),
}
"""Per id: module and class in this package, and its parameters."""


def register_all() -> None:
    """Register every id; the registry calls it through the entry-point group `gem.envs`."""
    for id, (entry_point, parameters) in _TASKS.items():
        register(id, f"gem_tau.{entry_point}", **parameters)
