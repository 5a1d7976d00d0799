"""The ids `image:<Name>-v0`; nothing is imported or loaded here."""

from __future__ import annotations

from typing import Any

from gem.registry import register

_SUFFIXES = ("", "-easy", "-hard")

_TASKS: dict[str, tuple[str, dict[str, tuple[Any, Any, Any]]]] = {
    "Angle": ("reading:Angle", {"multiple_of": (15, 45, 5), "distractors": (0, 0, 2)}),
    "Bars": (
        "reading:Bars",
        {
            "bars": (4, 3, 8),
            "highest": (10, 5, 30),
            "tick": (2, 1, 5),
            "difference": (False, False, True),
        },
    ),
    "Clock": (
        "reading:Clock",
        {
            "multiple_of": (5, 30, 1),
            "numerals": (True, True, False),
            "seconds": (False, False, True),
        },
    ),
    "Colour": ("shapes:Colour", {"shapes": (3, 1, 4), "colours": (6, 4, 6)}),
    "Compare": (
        "shapes:Compare",
        {"shapes": (4, 3, 6), "distractors": (2, 0, 8), "margin": (3, 6, 1)},
    ),
    "Count": (
        "shapes:Count",
        {"side": (6, 4, 8), "max_targets": (8, 5, 16), "max_distractors": (8, 3, 24)},
    ),
    "Grid": ("puzzles:Grid", {"size": (4, 3, 5), "empty": (6, 3, 12)}),
    "Path": ("puzzles:Path", {"nodes": (7, 5, 11), "extra_edges": (2, 0, 4)}),
    "Rotation": (
        "puzzles:Rotation",
        {"squares": (5, 5, 7), "mirrored": (True, False, True)},
    ),
}
"""Per name: module and class in `tasks`, and the parameters of the id with each suffix."""


def register_all() -> None:
    """Register every id; the registry calls it through the entry-point group `gem.envs`."""
    for name, (entry_point, columns) in _TASKS.items():
        for place, suffix in enumerate(_SUFFIXES):
            parameters = {key: values[place] for key, values in columns.items()}
            register(f"image:{name}-v0{suffix}", f"gem_vision.tasks.{entry_point}", **parameters)
