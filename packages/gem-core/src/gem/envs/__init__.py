"""The built-in environments: names and parameters of all ids, without importing any of them."""

from __future__ import annotations

from typing import Any

from gem.registry import register

_GUESS = "gem.envs.games.guess_the_number:GuessTheNumber"
_MASTERMIND = "gem.envs.games.mastermind:Mastermind"
_WORDLE = "gem.envs.games.wordle:Wordle"

# Per game: entry point and the parameters of each variant; None is drawn at every reset.
_GAMES: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {
    "GuessTheNumber": (
        _GUESS,
        {
            "": {"min_number": 1, "max_number": 20, "max_turns": 10},
            "-easy": {"min_number": 1, "max_number": 10, "max_turns": 4},
            "-hard": {"min_number": 1, "max_number": 50, "max_turns": 7},
            "-random": {"min_number": None, "max_number": None, "max_turns": None},
        },
    ),
    "Mastermind": (
        _MASTERMIND,
        {
            "": {"code_length": 4, "num_numbers": 6, "max_turns": 20},
            "-easy": {"code_length": 2, "num_numbers": 6, "max_turns": 10},
            "-hard": {"code_length": 4, "num_numbers": 8, "max_turns": 30},
            "-random": {"code_length": None, "num_numbers": None, "max_turns": None},
        },
    ),
    "Wordle": (
        _WORDLE,
        {
            "": {"word_length": 5, "max_turns": 15},
            "-easy": {"word_length": 3, "max_turns": 15},
            "-hard": {"word_length": 5, "max_turns": 25},
            "-random": {"word_length": None, "max_turns": None},
        },
    ),
}


def register_all() -> None:
    """Register every built-in id; called once, by the first look-up of an id."""
    for name, (entry_point, variants) in _GAMES.items():
        for suffix, parameters in variants.items():
            register(f"game:{name}-v0{suffix}", entry_point, **parameters)
