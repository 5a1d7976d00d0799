"""Board, pile and matrix games of several agents: rules, and that their oracles are optimal."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import pytest

import gem
from gem.envs.games.base import boxed
from gem.envs.multi.boards import Board, ConnectFour, TicTacToe, best_cells
from gem.envs.multi.matrix import PrisonersDilemma, RockPaperScissors
from gem.envs.multi.nim import Nim
from gem.envs.multi.twenty_questions import ANIMALS, FEATURES, TwentyQuestions
from gem.errors import ConfigurationError
from gem.multi import MultiAgentEnv, MultiStep
from gem_check.playing import oracle_policy, play


def moves(game: MultiAgentEnv, *contents: Any) -> MultiStep:
    """Play moves in turn and return the last step."""
    observations, _ = game.reset(seed=0)
    step: Any = None
    for content in contents:
        [agent] = observations
        step = game.step({agent: boxed(content)})
        observations = step.observations
    return step


def worst(game: Any, oracle: str) -> float:
    """Return the oracle's lowest return over all legal moves of the other, from here on."""
    if not game.asked:
        return game.points[oracle]
    [agent] = game.asked
    if agent == oracle:
        actions = [game.oracle_action(agent)]
    else:
        actions = [boxed(move) for move in game._legal(agent)]
    state = game.snapshot()
    values = []
    for action in actions:
        game.restore(state)
        game.step({agent: action})
        values.append(worst(game, oracle))
    return min(values)


@pytest.mark.parametrize("agent", ["x", "o"])
def test_the_oracle_of_tic_tac_toe_never_loses(agent: str) -> None:
    game = TicTacToe()
    game.reset(seed=0)
    assert worst(game, agent) == 0.0


@pytest.mark.parametrize(
    ("cells", "winner"),
    [
        ((1, 4, 2, 5, 3), "x"),
        ((1, 2, 4, 5, 9, 8), "o"),
        ((1, 2, 5, 3, 9), "x"),
        ((3, 1, 5, 2, 7), "x"),
        ((2, 1, 3, 5, 7, 9), "o"),
    ],
)
def test_three_in_a_row_win(cells: tuple[int, ...], winner: str) -> None:
    step = moves(TicTacToe(), *cells)
    loser = "o" if winner == "x" else "x"
    assert step.rewards == {winner: 1.0, loser: -1.0}
    assert step.infos[winner]["success"] is True
    assert f"{winner} wins." in step.infos[loser]["result"]


def test_a_full_board_is_a_draw() -> None:
    step = moves(TicTacToe(), 1, 2, 3, 5, 4, 6, 8, 7, 9)
    assert step.terminated
    assert step.rewards == {"x": 0.0, "o": 0.0}
    assert "A draw." in step.infos["x"]["result"]


def test_stones_fall_and_four_in_a_line_win() -> None:
    assert moves(ConnectFour(), 1, 2, 1, 2, 1, 2, 1).rewards["x"] == 1.0
    assert moves(ConnectFour(), 1, 1, 2, 2, 3, 3, 4).rewards["x"] == 1.0
    rising = moves(ConnectFour(), 1, 2, 2, 3, 3, 4, 3, 4, 4, 6, 4)
    assert rising.rewards["x"] == 1.0
    falling = moves(ConnectFour(), 7, 6, 6, 5, 5, 4, 5, 4, 4, 2, 4)
    assert falling.rewards["x"] == 1.0
    full = moves(ConnectFour(rows=4, line=4), 1, 1, 1, 1, 1)
    assert full.infos["x"]["invalid_action"] is True


def test_lines_do_not_run_around_the_edge() -> None:
    board = Board(4, 3, 3, drop=False)
    across = 1 << 2 | 1 << 3 | 1 << 4
    assert not any(board.wins(across, cell) for cell in (2, 3, 4))
    lines = {line for lines in board.lines for line in lines}
    # 2 places in each of 3 rows, 1 in each of 4 columns, 2 diagonals in each of 2 directions.
    assert len(lines) == 6 + 4 + 4


@cache
def solved(board: Board, mine: int, theirs: int) -> int:
    """Return the value for who is to move, by plain minimax: a calculation of its own."""
    cells = board.cells(mine | theirs)
    best = -1 if cells else 0
    for cell in cells:
        stones = mine | 1 << cell
        best = max(best, 1 if board.wins(stones, cell) else -solved(board, theirs, stones))
    return best


def test_the_search_agrees_with_plain_minimax_on_a_small_board() -> None:
    board = Board(4, 4, 3, drop=True)
    game = ConnectFour(4, 4, 3, depth=16)
    value = solved(board, 0, 0)
    assert value == 1
    for agent, expected in (("x", value), ("o", -value)):
        seen = set()
        for seed in range(30):
            game.reset(seed=seed)
            while game.asked:
                [asked] = game.asked
                mine, theirs = game.stones[asked], game._taken() ^ game.stones[asked]
                now = solved(board, mine, theirs)
                for cell in best_cells(board, mine, theirs, 16):
                    stones = mine | 1 << cell
                    after = 1 if board.wins(stones, cell) else -solved(board, theirs, stones)
                    assert after == now
                move = game.oracle_action if asked == agent else game.sample_random_action
                game.step({asked: move(asked, game.rng)})
            seen.add(game.points[agent])
        assert min(seen) >= expected


def test_the_oracle_of_connect_four_takes_a_win_and_prevents_one() -> None:
    for cells in ((1, 7, 1, 7, 1), (1, 7, 1, 6, 1)):
        game = ConnectFour()
        moves(game, *cells)
        assert game.oracle_action("o") == boxed(1)
    game = ConnectFour()
    moves(game, 1, 7, 1, 7, 1, 7)
    assert game.oracle_action("x") == boxed(1)
    # An open pair becomes an open three: seen three moves ahead.
    game = ConnectFour()
    moves(game, 4, 1, 5)
    assert game.oracle_action("o") in (boxed(3), boxed(6))


@pytest.mark.parametrize("misere", [False, True])
def test_the_oracle_of_nim_wins_every_position_that_can_be_won(misere: bool) -> None:
    @cache
    def won(piles: tuple[int, ...]) -> bool:
        """Whether who is to move wins, from the rules alone."""
        if not any(piles):
            return misere
        return any(
            not won(tuple(sorted((*piles[:k], pile - n, *piles[k + 1 :]))))
            for k, pile in enumerate(piles)
            for n in range(1, pile + 1)
        )

    for piles in product(range(1, 4), repeat=3):
        game = Nim(list(piles), misere)
        game.reset(seed=0)
        if won(tuple(sorted(piles))):
            assert worst(game, "first") == 1.0
        else:
            assert worst(game, "second") == 1.0


def test_nim_takes_stones_and_the_last_one_decides() -> None:
    step = moves(Nim([1, 2]), "2 2", "1, 1")
    assert step.rewards == {"first": -1.0, "second": 1.0}
    assert "second takes 1 from pile 1." in step.infos["first"]["result"]
    assert moves(Nim([1, 2], misere=True), "2 2", "1 1").rewards["first"] == 1.0
    assert moves(Nim([1, 2]), "1 2").infos["first"]["invalid_action"] is True
    assert moves(Nim([1, 2]), "3 1").infos["first"]["format_error"] is True


@pytest.mark.parametrize(
    ("kind", "params", "message"),
    [
        (Nim, {"piles": [3]}, "piles must be 2 to 6 numbers, got .3."),
        (Nim, {"piles": "345"}, "piles must be 2 to 6 numbers"),
        (Nim, {"piles": [3, 10]}, "piles must be an integer from 1 to 9, got 10"),
        (Nim, {"misere": 1}, "misere must be True or False"),
        (ConnectFour, {"columns": 1}, "columns must be an integer from 2 to 9"),
        (ConnectFour, {"line": 8}, "line must fit a board of 7x6, got 8"),
        (ConnectFour, {"depth": 0}, "depth must be"),
        (PrisonersDilemma, {"rounds": 0}, "rounds must be"),
    ],
)
def test_impossible_parameters_are_refused(kind: Any, params: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        kind(**params)


def test_the_dilemma_pays_its_table_every_round() -> None:
    game = PrisonersDilemma(rounds=4)
    game.reset(seed=0)
    paid = []
    for one, two in (("cooperate", "cooperate"), ("cooperate", "defect"), ("defect", "cooperate")):
        paid.append(game.step({"row": boxed(one), "column": boxed(two)}).rewards)
    assert [step["row"] * 20 for step in paid] == pytest.approx([3, 0, 5])
    assert [step["column"] * 20 for step in paid] == pytest.approx([3, 5, 0])
    step = game.step({"row": boxed("defect"), "column": boxed("defect")})
    assert step.terminated
    assert "Your points: 9." in step.infos["row"]["result"]


def best_return(env_id: str, opponent: str, rounds: int) -> float:
    """Return the most that any fixed sequence of moves earns against a deterministic opponent."""
    options = gem.make(env_id).unwrapped.game._all_moves()
    best = -1.0
    for sequence in product(options, repeat=rounds):
        env = gem.make(env_id, opponent=opponent, rounds=rounds, seat="row")
        env.reset(seed=0)
        best = max(best, sum(env.step(boxed(move))[1] for move in sequence))
    return best


@pytest.mark.parametrize("opponent", ["tit_for_tat", "grim", "always_cooperate", "always_defect"])
def test_the_best_response_in_the_dilemma_is_the_best_of_all_sequences(opponent: str) -> None:
    env = gem.make("multi:PrisonersDilemma-v0", opponent=opponent, rounds=5, seat="row")
    best = play(env, oracle_policy, 9, 0).total_reward
    assert best == pytest.approx(best_return("multi:PrisonersDilemma-v0", opponent, 5))


@pytest.mark.parametrize("opponent", ["cycle", "copy", "repeat"])
def test_the_best_response_in_rock_paper_scissors_wins_all_rounds_but_the_first(
    opponent: str,
) -> None:
    env = gem.make("multi:RockPaperScissors-v0", opponent=opponent, rounds=6)
    firsts = set()
    for seed in range(20):
        rewards = [step[1] for step in play(env, oracle_policy, 9, seed).steps]
        firsts.add(round(rewards[0] * 6))
        assert rewards[1:] == pytest.approx([1 / 6] * 5)
    assert firsts == {-1, 0, 1}


def test_rock_paper_scissors_is_fair() -> None:
    game = RockPaperScissors()
    table = game.payoffs
    assert len(table) == 9
    assert all(table[a, b] == tuple(reversed(table[b, a])) for a, b in table)
    assert sum(paid[0] for paid in table.values()) == 0
    assert table["paper", "rock"] == (1, -1)
    game.reset(seed=0)
    drawn = {game.oracle_action("row", game.rng) for _ in range(50)}
    assert drawn == {boxed(move) for move in ("rock", "paper", "scissors")}


def test_players_of_simultaneous_games_learn_moves_after_the_round_only() -> None:
    game = RockPaperScissors(rounds=2)
    first, _ = game.reset(seed=0)
    assert "chose" not in str(first["row"])
    step = game.step({"row": boxed("rock"), "column": boxed("paper")})
    assert "You chose rock, the other paper: you get -1" in str(step.observations["row"])
    assert "You chose paper, the other rock: you get 1" in str(step.observations["column"])


def hidden(animal: str, **params: Any) -> TwentyQuestions:
    """Return a match whose animal is this one."""
    game, seed = TwentyQuestions(**params), 0
    game.reset(seed=seed)
    while game.secret != animal:
        seed += 1
        game.reset(seed=seed)
    return game


def test_animals_can_be_told_apart_and_have_known_features() -> None:
    assert len(set(ANIMALS.values())) == len(ANIMALS) == 26
    assert set().union(*ANIMALS.values()) == set(FEATURES)


@pytest.mark.parametrize("animal", ANIMALS)
def test_two_oracles_find_every_animal_in_few_questions(animal: str) -> None:
    game = hidden(animal)
    while game.asked:
        [agent] = game.asked
        step = game.step({agent: game.oracle_action(agent)})
    assert step.rewards == {"asker": 1.0, "answerer": 1.0}
    # 26 animals need 5 questions at least, the name among them.
    assert len(game.answers) <= 6


def test_questions_are_answered_and_wrong_names_count() -> None:
    game = hidden("eagle", questions=3)
    step = game.step({"asker": boxed("flies")})
    assert "The question: does it fly?" in str(step.observations["answerer"])
    step = game.step({"answerer": boxed("yes")})
    assert "Your question: does it fly? yes." in str(step.observations["asker"])
    assert "eagle" not in str(step.observations["asker"]).split("Legal moves")[0]
    step = game.step({"asker": boxed("duck")})
    assert "names duck: wrong" in str(step.observations["asker"])
    assert game.questions - len(game.answers) == 1
    step = game.step({"asker": boxed("swan")})
    assert step.terminated
    assert step.rewards == {"asker": 0.0, "answerer": 0.0}
    assert "The animal is eagle." in step.infos["asker"]["result"]


def test_a_lie_misleads_the_oracle_and_both_pay_for_it() -> None:
    game = hidden("zebra", questions=6)
    while game.asked:
        [agent] = game.asked
        action = game.oracle_action(agent)
        if agent == "answerer":
            action = boxed("no" if "yes" in action else "yes")
        step = game.step({agent: action})
    assert step.rewards == {"asker": 0.0, "answerer": 0.0}
