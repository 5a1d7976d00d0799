"""Training environments of a spec of which every trainer must play the same tasks."""

from __future__ import annotations

from typing import Any

GAME = "game:GuessTheNumber-v0-easy"

MIXTURE: list[dict[str, Any]] = [
    {"id": GAME, "name": "it's 50 % & more", "weight": 2, "seed": 50, "params": {"hint": "range"}},
    {"id": "game:Mastermind-v0"},
    {
        "id": GAME,
        "name": "growing",
        "weight": 0.5,
        "schedule": [{"iteration": 1, "params": {"max_number": 7, "prompt": "short"}}],
    },
]
"""Names that a shell, Hydra and a URI must leave alone, and parameters that change."""
