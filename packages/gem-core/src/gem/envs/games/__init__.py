"""The games, one file each, and the parameters of their ids."""

from __future__ import annotations

from typing import Any

_SUFFIXES = ("", "-easy", "-hard", "-random", "-extreme-hard")


def _ids(entry_point: str, **columns: tuple[Any, ...]) -> tuple[str, dict[str, dict[str, Any]]]:
    """Return a game's entry; a column has a parameter's value for each of `_SUFFIXES`."""
    rows = zip(*columns.values(), strict=True)
    return entry_point, {
        suffix: dict(zip(columns, row, strict=True))
        for suffix, row in zip(_SUFFIXES, rows, strict=False)
    }


GAMES = {
    "Crosswords": _ids(
        "crosswords:Crosswords",
        hardcore=(False, False, True, None),
        max_turns=(100, 30, 40, 20),
        num_words=(5, 3, 3, 3),
    ),
    "FifteenPuzzle": _ids(
        "fifteen_puzzle:FifteenPuzzle", num_rows=(3, 2, 4, None), max_turns=(20, 10, 50, None)
    ),
    "Game2048": _ids(
        "game_2048:Game2048",
        target_tile=(2048, 64, 512, None, 2048),
        max_turns=(1000, 50, 50, None, 100),
    ),
    "GuessTheNumber": _ids(
        "guess_the_number:GuessTheNumber",
        min_number=(1, 1, 1, None),
        max_number=(20, 10, 50, None),
        max_turns=(10, 4, 7, None),
    ),
    "Hangman": _ids(
        "hangman:Hangman",
        word_length=(5, 3, 7, None),
        hardcore=(False, False, False, False),
        max_turns=(15, 10, 20, None),
    ),
    "Mastermind": _ids(
        "mastermind:Mastermind",
        code_length=(4, 2, 4, None),
        num_numbers=(6, 6, 8, None),
        max_turns=(20, 10, 30, None),
    ),
    "Maze": _ids("maze:Maze", size=(5, 3, 8, None), max_turns=(30, 10, 70, None)),
    "Minesweeper": _ids(
        "minesweeper:Minesweeper",
        rows=(8, 5, 8, None),
        cols=(8, 5, 8, None),
        num_mines=(10, 5, 12, None),
        max_turns=(100, 25, 64, None),
    ),
    "Sokoban": _ids(
        "sokoban:Sokoban",
        dim_room=((6, 6), (6, 6), (8, 8), None),
        num_boxes=(3, 2, 4, None),
        max_turns=(100, 20, 50, None),
    ),
    "Sudoku": _ids(
        "sudoku:Sudoku",
        scale=(9, 4, 9, None),
        max_empty=(50, 10, 50, None),
        max_turns=(50, 15, 50, None),
    ),
    "TowerofHanoi": _ids(
        "tower_of_hanoi:TowerofHanoi", num_disks=(4, 3, 5, None), max_turns=(20, 10, 35, None)
    ),
    "WikiGame": _ids("wiki_game:WikiGame", max_turns=(10, 30, 15)),
    "WordSearch": _ids(
        "word_search:WordSearch",
        hardcore=(False, False, True, None),
        max_turns=(20, 20, 20, 20),
        num_words=(5, 5, 5, 5),
    ),
    "Wordle": _ids("wordle:Wordle", word_length=(5, 3, 5, None), max_turns=(15, 15, 25, None)),
}
"""Per game: module and class in this folder, and the parameters of each id.

Ids are `game:<Name>-v0<suffix>`. A parameter that is None is drawn at every reset, or follows from
the others.
"""
