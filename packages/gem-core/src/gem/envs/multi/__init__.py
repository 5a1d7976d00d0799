"""Games of several agents, and the entry points and parameters of their ids `multi:<Name>-v0`."""

from __future__ import annotations

from typing import Any

GAMES: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {
    "TicTacToe": ("boards:TicTacToe", {"": {}}),
    "ConnectFour": ("boards:ConnectFour", {"": {}}),
    "Nim": ("nim:Nim", {"": {}}),
    "KuhnPoker": ("poker:KuhnPoker", {"": {}}),
    "LeducPoker": ("poker:LeducPoker", {"": {}}),
    "PrisonersDilemma": ("matrix:PrisonersDilemma", {"": {}}),
    "RockPaperScissors": ("matrix:RockPaperScissors", {"": {}}),
    "TwentyQuestions": ("twenty_questions:TwentyQuestions", {"": {}}),
}
"""Per game: module and class in this folder, and the parameters of each id by its suffix."""
