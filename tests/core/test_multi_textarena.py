"""Games of TextArena as games of several agents."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest

import gem
from gem.envs.multi import TEXTARENA
from gem.envs.multi.textarena import TextArena
from gem.errors import ConfigurationError, ResetNeededError, UnknownParameterError
from gem.multi import check_multi_reset, check_multi_step

ta = pytest.importorskip("textarena", reason="needs gem-core[textarena]")


@pytest.fixture(autouse=True)
def global_random() -> Iterator[None]:
    """Require that the process's own random numbers are left alone."""
    random.seed(99)
    before = random.getstate()
    yield
    assert random.getstate() == before


def turns(game: TextArena, seed: int) -> Iterator[tuple[str, str, str]]:
    """Play a random match; yield agent, observation and action of each turn."""
    rng = Random(seed)
    observations, _ = check_multi_reset(game, game.reset(seed=seed))
    while observations:
        ((agent, observation),) = observations.items()
        action = game.sample_random_action(agent, rng)
        yield agent, observation, action
        step = check_multi_step(game, game.step({agent: action}))
        assert not any(
            info["invalid_action"] or info["format_error"] for info in step.infos.values()
        )
        observations = step.observations
    game.last = step  # type: ignore[attr-defined]


def direct(game: TextArena, actions: list[str]) -> tuple[dict[int, float], dict[int, Any]]:
    """Play a match with TextArena alone; return its rewards and infos."""
    before = random.getstate()
    random.seed(game.match_seed)
    env = ta.make(f"{game.name}-raw")
    env.reset(num_players=len(game.agents), seed=game.match_seed)
    for action in actions:
        env.get_observation()
        done, _ = env.step(action)
    assert done
    random.setstate(before)
    return env.close()


@pytest.mark.parametrize("name", TEXTARENA.split())
def test_rewards_are_textarena_s_own_for_the_same_seed_and_actions(name: str) -> None:
    game = TextArena(name)
    played = list(turns(game, seed=3))
    rewards, infos = direct(game, [action for _, _, action in played])
    step = game.last  # type: ignore[attr-defined]
    assert list(step.rewards.values()) == [rewards[place] for place in range(len(game.agents))]
    for place, agent in enumerate(game.agents):
        assert step.infos[agent]["success"] == (rewards[place] > 0)
        assert infos[place]["reason"] in step.infos[agent]["result"]
    assert list(turns(TextArena(name), seed=3)) == played
    assert list(turns(TextArena(name), seed=4)) != played


def test_an_observation_is_what_is_new_without_the_agent_s_own_words() -> None:
    game = TextArena("TicTacToe-v0")
    observations, _ = game.reset(seed=0)
    assert list(observations) == ["player0"]
    assert observations["player0"].startswith("[GAME] You are Player 0 in Tic Tac Toe.")
    first = game.step({"player0": "I take the middle: [4]"}).observations
    assert "[GAME] You are Player 1" in first["player1"]
    assert "[Player 0] I take the middle: [4]" in first["player1"]
    second = game.step({"player1": "[0]"}).observations["player0"]
    assert "[Player 1] [0]" in second and "[4]" not in second and "You are" not in second


def test_a_snapshot_in_the_middle_goes_on_as_the_match_does() -> None:
    game = TextArena("PigDice-v0")
    game.reset(seed=1)
    for _ in range(9):
        game.step({game.asked[0]: game.sample_random_action(game.asked[0])})
    ends = []
    saved = game.snapshot()
    for other in (game, game.spawn(same_state=True), game):
        told = [other.step({other.asked[0]: "[roll]"}) for _ in range(20)]
        ends.append(told)
        game.restore(saved)
    assert ends[0] == ends[1] == ends[2]


def test_hidden_cards_are_in_no_observation_of_the_others() -> None:
    dealt = set()
    for seed in range(8):
        game = TextArena("KuhnPoker-v0")
        observations, _ = game.reset(seed=seed)
        cards = game.game.state.game_state["player_cards"]
        dealt.add(tuple(cards.values()))
        for _ in range(2):
            ((agent, seen),) = observations.items()
            shown = {card for card in "JQK" if f"Your card is: '{card}'" in seen}
            assert shown == {"JQK"[cards[int(agent[-1])]]}
            observations = game.step({agent: "[check]" if "[check]" in seen else "[call]"})[0]
    assert len(dealt) > 2


def test_the_second_invalid_move_in_a_row_loses() -> None:
    game = TextArena("TicTacToe-v0")
    game.reset(seed=0)
    game.step({"player0": "[4]"})
    step = game.step({"player1": "[4]"})
    assert step.infos["player1"]["invalid_action"] and not step.infos["player0"]["invalid_action"]
    assert list(step.observations) == ["player1"]
    assert "cell 4 is already occupied" in step.observations["player1"]
    step = game.step({"player1": "no move"})
    assert step.terminated and step.rewards == {"player0": 1.0, "player1": -1.0}
    assert step.infos["player1"]["invalid_action"]
    assert step.infos["player0"]["success"] and not step.infos["player1"]["success"]
    with pytest.raises(ResetNeededError):
        game.step({"player0": "[0]"})


def test_interleaved_and_threaded_matches_do_not_disturb_each_other() -> None:
    alone = [list(turns(TextArena("LiarsDice-v0"), seed)) for seed in (1, 2)]
    mixed: list[list[Any]] = [[], []]
    playing = [turns(TextArena("LiarsDice-v0"), seed) for seed in (1, 2)]
    for _ in range(max(map(len, alone)) + 1):
        for told, match in zip(mixed, playing, strict=True):
            told.extend([turn] if (turn := next(match, None)) else [])
    assert mixed == alone
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda seed: list(turns(TextArena("LiarsDice-v0"), seed)), (1, 2) * 4)
    assert list(found) == alone * 4


def test_a_seat_plays_to_the_end() -> None:
    env = gem.make("textarena:KuhnPoker-v0", seat="player1")
    _, info = env.reset(seed=5)
    assert info["seat"] == "player1"
    over = False
    while not over:
        observation, reward, terminated, truncated, info = env.step(env.sample_random_action())
        over = terminated or truncated
    assert reward in (-1, 0, 1) and info["success"] == (reward > 0)
    assert "The match is over: " in str(observation)
    with pytest.raises(NotImplementedError, match="no oracle"):
        env.oracle_action()


def test_more_players_than_the_least_number() -> None:
    game = TextArena("LiarsDice-v0", players=4)
    assert game.agents == ("player0", "player1", "player2", "player3")
    assert {agent for agent, _, _ in turns(game, seed=0)} == set(game.agents)
    assert len(TextArena("SecretMafia-v0").agents) == 6


def test_a_failure_of_textarena_is_raised_and_ends_the_match() -> None:
    game = TextArena("TicTacToe-v0")
    game.reset(seed=0)
    game.game.state.game_state["board"] = None
    with pytest.raises(TypeError):
        game.step({"player0": "[4]"})
    with pytest.raises(ResetNeededError):
        game.step({"player0": "[4]"})


@pytest.mark.parametrize(
    ("name", "players", "message"),
    [
        ("TicTacTo-v0", None, "TextArena has no game 'TicTacTo-v0'; it has TicTacToe-v0"),
        ("", None, "name must be a name"),
        ("Blackjack-v0", None, "Blackjack-v0 is a game for a single player"),
        ("TicTacToe-v0", 3, "TicTacToe-v0 refuses 3 players: The number of players has to be 2"),
        ("TicTacToe-v0", 1, "players must be an integer from 2 to 15"),
    ],
)
def test_what_cannot_be_played_is_refused(name: str, players: int | None, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        TextArena(name, players=players)
    with pytest.raises(UnknownParameterError):
        gem.make("textarena:TicTacToe-v0", size=3)


def test_a_game_that_needs_a_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    with pytest.raises(ConfigurationError, match="cannot begin Debate-v0: .*OPENROUTER_API_KEY"):
        TextArena("Debate-v0")
