"""Games of several agents: what `multi:`, `openspiel:` and `textarena:` have ids for."""

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

TEXTARENA = """
    Briscola-v0 Crusade-v0 HighSociety-v0 IndianPoker-v0 IteratedMatchingPennies-v0
    IteratedPrisonersDilemma-v0 IteratedRockPaperScissors-v0 IteratedUltimatumGame-v0 KuhnPoker-v0
    Othello-v0 PigDice-v0 SimpleBlindAuction-v0 SimpleNegotiation-v0 SimpleTak-v0 Snake-v0
    Surround-v0 ThreePlayerIPD-v0 ThreePlayerTicTacToe-v0 TicTacToe-v0 WildTicTacToe-v0
"""
"""TextArena's ids of the games that have an id, all of which pass the checker; any other is
`TextArena(name)`."""
