"""`gym:` and `pettingzoo:` environments of others, and ours under `gymnasium.make`."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import Any

import pytest

gymnasium = pytest.importorskip("gymnasium", reason="needs the extra gymnasium")
pytest.importorskip("pettingzoo", reason="needs the extra pettingzoo")

from gymnasium.utils.env_checker import check_env  # noqa: E402

import gem  # noqa: E402
from gem.__main__ import main  # noqa: E402
from gem.errors import (  # noqa: E402
    ConfigurationError,
    MissingExtraError,
    ResetNeededError,
    UnknownParameterError,
)
from gem.multi import make_multi  # noqa: E402

SPELL = "gym:plain_envs:test/Spell-v0"
CHAIN = "pettingzoo:plain_envs"


def test_an_environment_of_gymnasium_is_played_as_it_is() -> None:
    env = gem.make(SPELL)
    plain = gymnasium.make("test/Spell-v0")
    for seed in (0, 3, 11):
        assert env.reset(seed=seed) == plain.reset(seed=seed)
    observation, info = env.reset(seed=3)
    word = str(observation).rpartition(" ")[2]
    assert info == {"letters": len(word)}
    assert env.step("x") == ("No.", 0.0, False, False, {})
    assert env.step(f" {word[::-1]}\n") == ("Yes.", 1.0, True, False, {})
    with pytest.raises(ResetNeededError):
        env.step("x")
    # Out of turns, and not won.
    env.reset(seed=3)
    env.step("x")
    assert env.step("x")[2:4] == (False, True)
    assert env.reset(seed=3, options={"word": "cow"})[0] == "Write backwards: cow"


def test_parameters_go_to_gymnasium_and_episodes_of_a_seed_differ() -> None:
    env = gem.make(SPELL, turns=1, render_mode="ansi")
    env.reset(seed=0)
    assert env.step("x")[3] and env.render().startswith("word ")
    env.reset(seed=0)
    assert len({env.reset()[0] for _ in range(20)}) > 1
    again = gem.make(SPELL)
    again.reset(seed=0)
    env.reset(seed=0)
    assert [env.reset()[0] for _ in range(5)] == [again.reset()[0] for _ in range(5)]


def test_an_action_outside_its_space_ends_the_episode_and_is_not_played() -> None:
    env = gem.make(SPELL)
    env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step("Ä" * 3)
    assert (reward, terminated, truncated) == (0.0, True, False)
    assert info["invalid_action"] and "1 to 10 of the characters 'abc" in str(observation)


@pytest.mark.parametrize(
    ("id", "said"),
    [
        ("gym:plain_envs:test/Numbers-v0", "observation space must be gymnasium.spaces.Text"),
        ("gym:CartPole-v1", "observation space must be gymnasium.spaces.Text"),
        ("gym:NoSuch-v0", "gym:NoSuch-v0 cannot be made"),
        ("gym:no_such_module:X-v0", "gym:no_such_module:X-v0 cannot be made"),
        ("pettingzoo:no_such_module", "pettingzoo:no_such_module cannot be made"),
        ("pettingzoo:random", "pettingzoo:random cannot be made"),
    ],
)
def test_what_cannot_be_played_is_said(id: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        gem.make(id)
    with pytest.raises(UnknownParameterError, match="unexpected keyword argument 'x'"):
        gem.make(SPELL, x=1)


def test_the_checker_passes_a_plain_environment_and_says_what_it_lacks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["check", SPELL, "--episodes", "4"]) == 0
    printed = capsys.readouterr().out
    assert "skipped  no oracle_action()" in printed
    assert "info of the last step does not tell success" in printed
    assert main(["check", "gym:plain_envs:test/Careless-v0", "--episodes", "4"]) == 1
    printed = capsys.readouterr().out
    assert "determinism  failed" in printed and "global_rng   failed" in printed


def test_a_game_of_pettingzoo_has_seats() -> None:
    env = gem.make(CHAIN, seat="first", opponent="random")
    observation, _ = env.reset(seed=5)
    word = str(observation).rpartition(" ")[2]
    _, reward, terminated, _, info = env.step(word[-1] + "x")
    # The random opponent most likely says a word that does not fit.
    assert (reward, terminated, info["success"]) == (1.0, True, True)
    env.reset(seed=5)
    wrong = "b" if word[-1] != "b" else "c"
    _, reward, terminated, truncated, info = env.step(wrong)
    assert (reward, terminated, truncated, info["success"]) == (-1.0, True, False, False)
    assert main(["check", CHAIN, "--episodes", "4"]) in (0, 1)


def test_a_match_of_pettingzoo_ends_as_the_game_says() -> None:
    with make_multi(CHAIN, params={"words": 2}) as game:
        assert game.agents == ("first", "second")
        seen, _ = game.reset(seed=1)
        [(agent, text)] = seen.items()
        assert agent == "first"
        step = game.step({"first": text[-1] + "x"})
        assert [*step.observations] == ["second"] and step.rewards == {"first": 0, "second": 0}
        step = game.step({"second": "xy"})
        assert (step.terminated, step.truncated, step.observations) == (False, True, {})
        game.reset(seed=1)
        step = game.step({"first": "Not a word"})
        assert step.rewards == {"first": -1.0, "second": 0.0} and step.terminated
        assert step.infos["first"]["invalid_action"] is True


def test_the_copy_of_a_match_of_pettingzoo_has_to_be_reset() -> None:
    with make_multi(CHAIN) as game:
        seen, _ = game.reset(seed=1)
        with pytest.raises(ResetNeededError):
            game.spawn().step(dict.fromkeys(seen, "abc"))


def test_a_parallel_game_is_played_in_turns() -> None:
    with make_multi("pettingzoo:plain_parallel") as game:
        seen, _ = game.reset(seed=1)
        assert [*seen] == ["left"]
        step = game.step({"left": "cat"})
        assert [*step.observations] == ["right"]
        step = game.step({"right": "cat"})
        assert step.rewards == {"left": 1.0, "right": 1.0} and step.terminated
        assert all(info["success"] for info in step.infos.values())


@pytest.mark.parametrize(
    "id",
    [
        "game:GuessTheNumber-v0-easy",
        "game:Wordle-v0",
        "game:Sudoku-v0",
        "multi:TicTacToe-v0",
        "judge:Reply-v0",
    ],
)
def test_ours_pass_gymnasium_s_checker(id: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gymnasium.make("gem.gymnasium:gem/Env-v0", env_id=id)
        check_env(env.unwrapped)
    ours = gem.make(id)
    assert env.reset(seed=4) == ours.reset(seed=4)
    action = ours.sample_random_action()
    assert env.step(action) == ours.step(action)


def test_ours_render_and_take_parameters_under_gymnasium() -> None:
    made: Any = gymnasium.make(
        "gem.gymnasium:gem/Env-v0",
        env_id="game:GuessTheNumber-v0",
        max_turns=2,
        render_mode="ansi",
    )
    made.reset(seed=0)
    assert made.unwrapped.gem.max_turns == 2
    assert made.render() == made.unwrapped.gem.render()


def test_without_the_package_its_extra_is_named() -> None:
    program = (
        "import sys; sys.modules['gymnasium'] = None\n"
        "import gem\nfrom gem.errors import MissingExtraError\n"
        "for id in ('gym:CartPole-v1', 'pettingzoo:x'):\n"
        "    try: gem.make(id)\n"
        "    except MissingExtraError as error: print('gem-core[' in str(error))\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.stdout.split() == ["True", "True"], ran.stderr
    assert issubclass(MissingExtraError, ImportError)
