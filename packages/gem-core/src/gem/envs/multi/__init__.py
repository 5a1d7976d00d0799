"""Games of several agents: entry points and parameters of the ids, `multi:` and `openspiel:`."""

from __future__ import annotations

from typing import Any

GAMES: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {
    "TicTacToe": ("boards:TicTacToe", {"": {}}),
    "ConnectFour": ("boards:ConnectFour", {"": {}}),
    "Nim": ("nim:Nim", {"": {}}),
    "KuhnPoker": ("poker:KuhnPoker", {"": {}}),
    "LeducPoker": ("poker:LeducPoker", {"": {}}),
    "Negotiation": ("negotiation:Negotiation", {"": {}}),
    "PrisonersDilemma": ("matrix:PrisonersDilemma", {"": {}}),
    "RockPaperScissors": ("matrix:RockPaperScissors", {"": {}}),
    "TwentyQuestions": ("twenty_questions:TwentyQuestions", {"": {}}),
}
"""Per game: module and class in this folder, and the parameters of each id by its suffix."""

OPENSPIEL = """
    backgammon bargaining breakthrough bridge checkers chess connect_four crazy_eights dark_hex
    dots_and_boxes gin_rummy go goofspiel hanabi hearts hex kuhn_poker leduc_poker liars_dice
    mancala othello pig tic_tac_toe
"""
"""OpenSpiel's names of the games that have an id; any other is `OpenSpiel(name)`."""
