"""The ids `judge:<Name>-<version>`; nothing is imported or loaded here."""

from __future__ import annotations

from gem.registry import register

_TASKS = {
    "judge:QA-v0": "JudgedQa",
    "judge:Reply-v0": "Reply",
    "judge:Better-v0": "Better",
}
"""Class by id."""


def register_all() -> None:
    """Register every id; the registry calls it through the entry-point group `gem.envs`."""
    for id, name in _TASKS.items():
        register(id, f"gem_judge.envs:{name}")
