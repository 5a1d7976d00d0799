"""Writes `src/gem/data/leduc.json`, an equilibrium of Leduc poker, by linear programming.

    pip install scipy && python tools/leduc_equilibrium.py

Sequence form (Koller, Megiddo, von Stengel 1996): each player's realisation plan maximises what it
gets against the best answer of the other. Probabilities are written with six digits, so that
`exploitability` of the table is not 0 but below 1e-5 chips; tests/core/test_poker.py measures it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import lil_matrix

from gem.envs.multi.poker_rules import LEDUC, Rules
from gem.envs.multi.poker_solver import exploitability, infosets, tabular

OUT = Path(__file__).parents[1] / "src" / "gem" / "data" / "leduc.json"
Sequence = tuple[str, str]
ROOT: Sequence = ("", "")


def payoffs(rules: Rules) -> dict[tuple[Sequence, Sequence], float]:
    """Return player 0's expected chips by the last sequences of both players."""
    found: dict[tuple[Sequence, Sequence], float] = defaultdict(float)

    def walk(
        history: str, cards: tuple[str, ...], board: str, last: tuple[Sequence, Sequence], p: float
    ) -> None:
        node = rules.node(history)
        if node.folded >= 0 or node.rounds == len(rules.bets):
            found[last] += p * rules.won(node, cards, board)
        elif not node.legal:
            left = list(rules.deck)
            for card in cards:
                left.remove(card)
            for card in left:
                walk(history + "/", cards, card, last, p / len(left))
        else:
            for letter in node.legal:
                here = (f"{cards[node.player]}{board}:{history}", letter)
                after = (here, last[1]) if node.player == 0 else (last[0], here)
                walk(history + letter, cards, board, after, p)

    n = len(rules.deck)
    for i, one in enumerate(rules.deck):
        for j, two in enumerate(rules.deck):
            if i != j:
                walk("", (one, two), "", (ROOT, ROOT), 1 / n / (n - 1))
    return found


def parent(rules: Rules, infoset: str) -> Sequence:
    """Return the sequence of the same player that leads to an information set."""
    cards, _, history = infoset.partition(":")
    player = rules.node(history).player
    for end in range(len(history) - 1, -1, -1):
        before = history[:end]
        if history[end] != "/" and rules.node(before).player == player:
            known = cards if "/" in before else cards[0]
            return f"{known}:{before}", history[end]
    return ROOT


def plan(rules: Rules, player: int) -> dict[Sequence, float]:
    """Return a player's realisation plan in an equilibrium."""
    sets = infosets(rules)
    of: list[dict[str, str]] = [{}, {}]
    for infoset, legal in sets.items():
        of[rules.node(infoset.partition(":")[2]).player][infoset] = legal
    index = [
        {s: k for k, s in enumerate([ROOT, *((i, a) for i, legal in own.items() for a in legal)])}
        for own in of
    ]

    def constraints(who: int) -> Any:
        rows = lil_matrix((1 + len(of[who]), len(index[who])))
        rows[0, 0] = 1
        for row, (infoset, legal) in enumerate(of[who].items(), 1):
            rows[row, index[who][parent(rules, infoset)]] = -1
            for letter in legal:
                rows[row, index[who][infoset, letter]] = 1
        return rows.tocsr()

    sign = 1 if player == 0 else -1
    matrix = lil_matrix((len(index[player]), len(index[1 - player])))
    for (one, two), value in payoffs(rules).items():
        mine, theirs = (one, two) if player == 0 else (two, one)
        matrix[index[player][mine], index[1 - player][theirs]] = sign * value
    own, other = constraints(player), constraints(1 - player)
    # max q_0  subject to  own x = e_0,  other^T q <= matrix^T x,  x >= 0
    n, m = len(index[player]), other.shape[0]
    cost = np.zeros(n + m)
    cost[n] = -1
    from scipy.sparse import csr_matrix, hstack

    first = np.zeros(own.shape[0])
    first[0] = 1
    solved = linprog(
        cost,
        A_ub=hstack([-matrix.T.tocsr(), other.T.tocsr()]),
        b_ub=np.zeros(len(index[1 - player])),
        A_eq=hstack([own, csr_matrix((own.shape[0], m))]),
        b_eq=first,
        bounds=[(0, None)] * n + [(None, None)] * m,
        method="highs",
    )
    print(f"player {player}: value {-solved.fun:.9f}, {solved.message}")
    return {sequence: max(0.0, solved.x[k]) for sequence, k in index[player].items()}


def main() -> None:
    """Write the table."""
    plans = [plan(LEDUC, player) for player in (0, 1)]

    def policy(infoset: str, legal: str) -> dict[str, float]:
        mine = plans[LEDUC.node(infoset.partition(":")[2]).player]
        weights = [mine[infoset, letter] for letter in legal]
        total = sum(weights)
        # Never reached in the equilibrium: any answer is as good, say the first.
        chances = [w / total for w in weights] if total > 1e-9 else [1.0] + [0.0] * len(weights[1:])
        return dict(zip(legal, (round(chance, 6) for chance in chances), strict=True))

    table = tabular(LEDUC, policy)
    print(f"{len(table)} information sets, exploitability {exploitability(LEDUC, table):.2e}")
    lines = (f"{json.dumps(key)}: {json.dumps(list(row.values()))}" for key, row in table.items())
    OUT.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
