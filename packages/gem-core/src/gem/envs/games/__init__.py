"""The games, one file each, and the parameters of their ids."""

from __future__ import annotations

from typing import Any

_ROOM_6, _ROOM_8 = (6, 6), (8, 8)

GAMES: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {
    "Crosswords": (
        "crosswords:Crosswords",
        {
            "": {"hardcore": False, "max_turns": 100, "num_words": 5},
            "-easy": {"hardcore": False, "max_turns": 30, "num_words": 3},
            "-hard": {"hardcore": True, "max_turns": 40, "num_words": 3},
            "-random": {"hardcore": None, "max_turns": 20, "num_words": 3},
        },
    ),
    "FifteenPuzzle": (
        "fifteen_puzzle:FifteenPuzzle",
        {
            "": {"num_rows": 3, "max_turns": 20},
            "-easy": {"num_rows": 2, "max_turns": 10},
            "-hard": {"num_rows": 4, "max_turns": 50},
            "-random": {"num_rows": None, "max_turns": None},
        },
    ),
    "Game2048": (
        "game_2048:Game2048",
        {
            "": {"target_tile": 2048, "max_turns": 1000},
            "-easy": {"target_tile": 64, "max_turns": 50},
            "-hard": {"target_tile": 512, "max_turns": 50},
            "-extreme-hard": {"target_tile": 2048, "max_turns": 100},
            "-random": {"target_tile": None, "max_turns": None},
        },
    ),
    "GuessTheNumber": (
        "guess_the_number:GuessTheNumber",
        {
            "": {"min_number": 1, "max_number": 20, "max_turns": 10},
            "-easy": {"min_number": 1, "max_number": 10, "max_turns": 4},
            "-hard": {"min_number": 1, "max_number": 50, "max_turns": 7},
            "-random": {"min_number": None, "max_number": None, "max_turns": None},
        },
    ),
    "Hangman": (
        "hangman:Hangman",
        {
            "": {"word_length": 5, "hardcore": False, "max_turns": 15},
            "-easy": {"word_length": 3, "hardcore": False, "max_turns": 10},
            "-hard": {"word_length": 7, "hardcore": False, "max_turns": 20},
            "-random": {"word_length": None, "hardcore": False, "max_turns": None},
        },
    ),
    "Mastermind": (
        "mastermind:Mastermind",
        {
            "": {"code_length": 4, "num_numbers": 6, "max_turns": 20},
            "-easy": {"code_length": 2, "num_numbers": 6, "max_turns": 10},
            "-hard": {"code_length": 4, "num_numbers": 8, "max_turns": 30},
            "-random": {"code_length": None, "num_numbers": None, "max_turns": None},
        },
    ),
    "Minesweeper": (
        "minesweeper:Minesweeper",
        {
            "": {"rows": 8, "cols": 8, "num_mines": 10, "max_turns": 100},
            "-easy": {"rows": 5, "cols": 5, "num_mines": 5, "max_turns": 25},
            "-hard": {"rows": 8, "cols": 8, "num_mines": 12, "max_turns": 64},
            "-random": {"rows": None, "cols": None, "num_mines": None, "max_turns": None},
        },
    ),
    "Sokoban": (
        "sokoban:Sokoban",
        {
            "": {"dim_room": _ROOM_6, "num_boxes": 3, "max_turns": 100},
            "-easy": {"dim_room": _ROOM_6, "num_boxes": 2, "max_turns": 20},
            "-hard": {"dim_room": _ROOM_8, "num_boxes": 4, "max_turns": 50},
            "-random": {"dim_room": None, "num_boxes": None, "max_turns": None},
        },
    ),
    "Sudoku": (
        "sudoku:Sudoku",
        {
            "": {"scale": 9, "max_empty": 50, "max_turns": 50},
            "-easy": {"scale": 4, "max_empty": 10, "max_turns": 15},
            "-hard": {"scale": 9, "max_empty": 50, "max_turns": 50},
            "-random": {"scale": None, "max_empty": None, "max_turns": None},
        },
    ),
    "TowerofHanoi": (
        "tower_of_hanoi:TowerofHanoi",
        {
            "": {"num_disks": 4, "max_turns": 20},
            "-easy": {"num_disks": 3, "max_turns": 10},
            "-hard": {"num_disks": 5, "max_turns": 35},
            "-random": {"num_disks": None, "max_turns": None},
        },
    ),
    "WikiGame": (
        "wiki_game:WikiGame",
        {
            "": {"max_turns": 10},
            "-easy": {"max_turns": 30},
            "-hard": {"max_turns": 15},
        },
    ),
    "WordSearch": (
        "word_search:WordSearch",
        {
            "": {"hardcore": False, "max_turns": 20, "num_words": 5},
            "-easy": {"hardcore": False, "max_turns": 20, "num_words": 5},
            "-hard": {"hardcore": True, "max_turns": 20, "num_words": 5},
            "-random": {"hardcore": None, "max_turns": 20, "num_words": 5},
        },
    ),
    "Wordle": (
        "wordle:Wordle",
        {
            "": {"word_length": 5, "max_turns": 15},
            "-easy": {"word_length": 3, "max_turns": 15},
            "-hard": {"word_length": 5, "max_turns": 25},
            "-random": {"word_length": None, "max_turns": None},
        },
    ),
}
"""Per game: module and class in this folder, and the parameters of each id.

Ids are `game:<Name>-v0<suffix>`. A parameter that is None is drawn at every reset.
"""
