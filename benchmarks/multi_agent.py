"""Steps per CPU second of matches between random players, beside OpenSpiel and TextArena.

python benchmarks/multi_agent.py [--cpu-s S]

All agents draw uniformly from their legal moves; a step is one agent's move, in simultaneous games
one of each agent. OpenSpiel's games have no text: `no text` plays them alone, `text` also makes the
strings that OpenSpiel has for the state and the legal moves. TextArena's games are those that list
the available moves; Kuhn poker has five hands a match there. Both libraries are left out where they
are not installed (open_spiel, textarena).
"""

from __future__ import annotations

import argparse
import random
import re
import time
from collections.abc import Callable, Iterator
from functools import partial

import gem

GAMES = {
    "multi:TicTacToe-v0": ("tic_tac_toe", "TicTacToe-v0-raw"),
    "multi:ConnectFour-v0": ("connect_four", None),
    "multi:Nim-v0": ("nim", None),
    "multi:KuhnPoker-v0": ("kuhn_poker", "KuhnPoker-v0-short-raw"),
    "multi:LeducPoker-v0": ("leduc_poker", None),
    "multi:PrisonersDilemma-v0": (None, None),
    "multi:RockPaperScissors-v0": ("matrix_rps", None),
    "multi:Negotiation-v0": (None, None),
    "multi:TwentyQuestions-v0": (None, None),
}


def ours(id: str) -> Iterator[int]:
    """Play matches; yield the steps of each."""
    game = gem.make_multi(id)
    seed = 0
    while True:
        observations, _ = game.reset(seed)
        steps = 0
        while observations:
            actions = {agent: game.sample_random_action(agent) for agent in observations}
            observations = game.step(actions).observations
            steps += 1
        seed += 1
        yield steps


def open_spiel(name: str, text: bool) -> Iterator[int]:
    """Play matches of OpenSpiel."""
    import pyspiel

    game, rng = pyspiel.load_game(name), random.Random(0)
    while True:
        state, steps = game.new_initial_state(), 0
        while not state.is_terminal():
            if state.is_chance_node():
                outcomes, weights = zip(*state.chance_outcomes(), strict=True)
                state.apply_action(rng.choices(outcomes, weights)[0])
                continue
            if state.is_simultaneous_node():
                players = range(game.num_players())
            else:
                players = [state.current_player()]
            moves = []
            for player in players:
                legal = state.legal_actions(player)
                if text:
                    _ = str(state), [state.action_to_string(player, each) for each in legal]
                moves.append(rng.choice(legal))
            state.apply_actions(moves) if len(moves) > 1 else state.apply_action(moves[0])
            steps += 1
        yield steps


def textarena(name: str) -> Iterator[int]:
    """Play matches of TextArena."""
    import textarena as ta

    rng, seed = random.Random(0), 0
    while True:
        env = ta.make(name)
        env.reset(num_players=2, seed=seed)
        done, steps = False, 0
        while not done:
            _, observation = env.get_observation()
            # What it lists as available comes last.
            found = re.findall(r"\[[\w ]+\]", str(observation).rpartition("vailable")[2])
            done, _ = env.step(rng.choice(found))
            steps += 1
        env.close()
        seed += 1
        yield steps


def rate(matches: Callable[[], Iterator[int]], cpu_s: float) -> str:
    """Return steps per CPU second, "-" if the library or the game is missing."""
    try:
        play = matches()
        next(play)
    except ModuleNotFoundError:
        return "-"
    steps, began = 0, time.process_time()
    while time.process_time() - began < cpu_s:
        steps += next(play)
    return f"{steps / (time.process_time() - began):,.0f}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cpu-s", type=float, default=2.0, help="of each number (default: 2)")
    cpu_s = parser.parse_args().cpu_s
    print(
        "| game | gem | OpenSpiel, text | OpenSpiel, no text | TextArena |\n|---|---|---|---|---|"
    )
    for id, (theirs, arena) in GAMES.items():
        cells = [rate(partial(ours, id), cpu_s)]
        cells += [
            rate(partial(open_spiel, theirs, text), cpu_s) if theirs else "-"
            for text in (True, False)
        ]
        cells.append(rate(partial(textarena, arena), cpu_s) if arena else "-")
        print(f"| {id} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
