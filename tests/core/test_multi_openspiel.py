"""Games of OpenSpiel as games of several agents."""

from __future__ import annotations

from random import Random

import pytest

import gem
from gem.envs.multi import OPENSPIEL
from gem.envs.multi.openspiel import OpenSpiel
from gem.errors import ConfigurationError, UnknownParameterError
from gem.multi import check_multi_reset, check_multi_step

pyspiel = pytest.importorskip("pyspiel", reason="needs gem-core[openspiel]")


def play(game: OpenSpiel, seed: int, most: int = 200) -> list[int]:
    """Play a random match; return what OpenSpiel's state then has as its history."""
    rng = Random(seed)
    observations, _ = check_multi_reset(game, game.reset(seed=seed))
    for _ in range(most):
        if not observations:
            break
        actions = {agent: game.sample_random_action(agent, rng) for agent in observations}
        step = check_multi_step(game, game.step(actions))
        for agent in game.asked:
            assert f"{agent}, enter your move." in step.observations[agent]
        assert not any(
            info["invalid_action"] or info["format_error"] for info in step.infos.values()
        )
        observations = step.observations
    return list(game.state.history())


@pytest.mark.parametrize("name", OPENSPIEL.split())
def test_points_are_openspiel_s_returns_for_the_same_history(name: str) -> None:
    game = OpenSpiel(name)
    history = play(game, seed=3)
    # Simultaneous moves have no history that could be applied one by one.
    state = pyspiel.load_game(name).deserialize_state(game.state.serialize())
    if game.game.get_type().dynamics.name != "SIMULTANEOUS":
        state = pyspiel.load_game(name).new_initial_state()
        for action in history:
            state.apply_action(action)
    most = max(abs(game.game.min_utility()), abs(game.game.max_utility()))
    expected = [value / most for value in state.returns()]
    assert [game.points[agent] for agent in game.agents] == pytest.approx(expected)
    if game.zero_sum:
        assert sum(expected) == pytest.approx(0)
    assert play(OpenSpiel(name), seed=3) == history
    assert play(OpenSpiel(name), seed=4) != history


def test_a_snapshot_in_the_middle_goes_on_as_the_match_does() -> None:
    game = OpenSpiel("backgammon")
    game.reset(seed=1)
    for _ in range(5):
        game.step({game.asked[0]: game.sample_random_action(game.asked[0])})
    saved = game.snapshot()
    ends = []
    for _ in range(2):
        rng = Random(7)
        for _ in range(20):
            game.step({game.asked[0]: game.sample_random_action(game.asked[0], rng)})
        ends.append(list(game.state.history()))
        game.restore(saved)
    assert ends[0] == ends[1]


def test_hidden_cards_are_in_no_observation_of_the_others() -> None:
    for seed in range(6):
        game = OpenSpiel("kuhn_poker")
        observations, _ = game.reset(seed=seed)
        own, others = game.state.history()
        shown = observations["player0"].split("loses the match.\n")[1].split("\n")[0]
        assert shown == str(own) != str(others)


def test_a_move_is_read_whatever_its_case_commas_and_spaces() -> None:
    game = OpenSpiel("bargaining")
    game.reset(seed=0)
    (agent,) = game.asked
    name = game.state.action_to_string(game.agents.index(agent), game.state.legal_actions()[0])
    assert "," in name
    step = game.step({agent: rf"\boxed{{ {name.upper().replace(',', ' , ')} }}"})
    assert not step.infos[agent]["invalid_action"]


def test_moves_of_the_same_name_are_told_apart() -> None:
    game = OpenSpiel("chess")
    game.reset(seed=0)
    game.state = game.game.new_initial_state("4k3/8/8/2p5/1P6/4B3/8/4K3 w - - 0 1")
    (agent,) = game._next()
    names = {game.state.action_to_string(a) for a in game.state.legal_actions()}
    assert {"bxc5", "Bxc5"} <= names
    assert sorted(game._actions(agent).values()) == sorted(game.state.legal_actions())


def test_what_is_not_a_move_of_the_state_is_illegal_and_no_box_is_a_format_error() -> None:
    for action, flag in ((r"\boxed{e5}", "invalid_action"), ("e4", "format_error")):
        game = OpenSpiel("chess")
        game.reset(seed=0)
        (agent,) = game.asked
        step = game.step({agent: action})
        assert step.infos[agent][flag] and step.terminated
        assert step.rewards[agent] == -1 and sum(step.rewards.values()) == -1


def test_a_seat_plays_to_the_end() -> None:
    env = gem.make("openspiel:leduc_poker", seat="player1")
    _, info = env.reset(seed=5)
    assert info["seat"] == "player1"
    over = False
    while not over:
        _, reward, terminated, truncated, info = env.step(env.sample_random_action())
        over = terminated or truncated
    assert -1 <= reward <= 1 and info["success"] == (reward > 0)
    with pytest.raises(NotImplementedError, match="no oracle"):
        env.oracle_action()


def test_parameters_go_to_openspiel() -> None:
    game = OpenSpiel("hex", params={"board_size": 3})
    game.reset(seed=0)
    assert len(game.state.legal_actions()) == 9


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("chss", None, "OpenSpiel has no game 'chss'; it has 2048, "),
        ("hex", {"size": 3}, "OpenSpiel refuses hex"),
        ("solitaire", None, "two players or more"),
        ("mfg_garnet", None, "two players or more"),
        ("negotiation", None, "chance that it leaves to its caller"),
    ],
)
def test_what_cannot_be_played_is_refused(name: str, params: object, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        OpenSpiel(name, params=params)  # type: ignore[arg-type]
    with pytest.raises(UnknownParameterError):
        gem.make("openspiel:hex", size=3)
