"""What holds for every game: the step contract, ends, messages, parameters."""

from __future__ import annotations

import pickle
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gem
from gem.errors import ConfigurationError, ResetNeededError, UnknownParameterError

GAMES = ["GuessTheNumber", "Mastermind", "Wordle"]
PLAIN = [f"game:{name}-v0" for name in GAMES]
IDS = [f"{plain}{suffix}" for plain in PLAIN for suffix in ("", "-easy", "-hard", "-random")]
LIMIT = "You have reached the maximum number of turns."


def make(env_id: str, **parameters: Any) -> Any:
    return gem.make(env_id, **parameters)


def play(env: Any, policy: Any, seed: int) -> list[Any]:
    env.reset(seed=seed)
    steps = []
    while not steps or not (steps[-1][2] or steps[-1][3]):
        steps.append(env.step(policy(env)))
    return steps


def oracle(env: Any) -> str:
    return env.oracle_action()


def sampled(env: Any) -> str:
    return env.sample_random_action()


def test_every_id_of_the_slice_is_registered() -> None:
    assert set(IDS) <= set(gem.list_envs("game:"))


@pytest.mark.parametrize("env_id", IDS)
def test_the_oracle_wins_and_a_won_game_pays_one_in_total(env_id: str) -> None:
    env = make(env_id)
    for seed in range(200 if "Guess" in env_id else 30):
        steps = play(env, oracle, seed)
        *_, (_, _, terminated, truncated, info) = steps
        assert (terminated, truncated, info["success"]) == (True, False, True)
        assert sum(step[1] for step in steps) == pytest.approx(1.0)


@pytest.mark.parametrize("env_id", IDS)
def test_random_actions_are_legal_and_flags_exclude_each_other(env_id: str) -> None:
    env = make(env_id)
    for seed in range(30):
        for _, reward, terminated, truncated, info in play(env, sampled, seed):
            assert set(info) == {"success", "format_error", "invalid_action"}
            assert not (info["format_error"] or info["invalid_action"])
            assert not (terminated and truncated)
            assert 0.0 <= reward <= 1.0


@pytest.mark.parametrize("env_id", IDS)
def test_prompts_are_complete_and_depend_on_the_seed_only_through_parameters(env_id: str) -> None:
    env = make(env_id)
    prompts = set()
    for seed in range(50):
        observation, info = env.reset(seed=seed)
        assert isinstance(observation, str)
        assert observation.endswith(env.request)
        assert "\\boxed{" in observation
        assert f"within {env.max_turns} turns" in observation
        assert info == {}
        prompts.add(observation)
    # Same parameters, same text: the prompt tells nothing about the secret.
    assert (len(prompts) == 1) == (not env_id.endswith("-random"))


@pytest.mark.parametrize("env_id", PLAIN)
def test_only_the_last_observation_asks_for_nothing(env_id: str) -> None:
    env = make(env_id)
    *earlier, last = play(env, oracle, 0)
    assert all(step[0].endswith(env.request) for step in earlier)
    assert env.request not in last[0]
    env = make(env_id, max_turns=1)
    env.reset(seed=0)
    observation, _, terminated, truncated, info = env.step(env.sample_random_action())
    assert (terminated, truncated, info["success"]) == (False, True, False)
    # The feedback of the last turn stays; the limit follows.
    assert observation.startswith("At turn 1, you guessed")
    assert observation.endswith(LIMIT)


@pytest.mark.parametrize("env_id", PLAIN)
def test_a_win_on_the_last_turn_is_a_win(env_id: str) -> None:
    turns = len(play(make(env_id), oracle, 0))
    *_, (_, _, terminated, truncated, info) = play(make(env_id, max_turns=turns), oracle, 0)
    assert (terminated, truncated, info["success"]) == (True, False, True)


@pytest.mark.parametrize("text", ["", "7", "\\boxed{}", "\\boxed{?!}", "boxed{1}", "\\boxed{1"])
@pytest.mark.parametrize("env_id", PLAIN)
def test_a_format_error_ends_the_game_and_names_the_form(env_id: str, text: str) -> None:
    env = make(env_id, max_turns=1)
    env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step(text)
    assert (reward, terminated, truncated) == (-0.1, True, False)
    assert info == {"success": False, "format_error": True, "invalid_action": False}
    assert "At turn 1, you did not provide a valid guess. Expected " in observation
    assert "inside \\boxed{}, for example \\boxed{" in observation


@pytest.mark.parametrize("env_id", PLAIN)
def test_a_format_error_can_cost_a_turn_instead(env_id: str) -> None:
    env = make(env_id, max_turns=2, format_error_ends=False)
    env.reset(seed=0)
    observation, reward, terminated, truncated, _ = env.step("?")
    assert (reward, terminated, truncated) == (-0.1, False, False)
    assert observation.endswith(env.request)
    observation, reward, terminated, truncated, _ = env.step("?")
    assert (reward, terminated, truncated) == (-0.1, False, True)
    assert observation.endswith(LIMIT)


@pytest.mark.parametrize("env_id", PLAIN)
def test_the_last_readable_box_counts(env_id: str) -> None:
    env, expected = make(env_id), make(env_id)
    env.reset(seed=0)
    expected.reset(seed=0)
    first, second = (make(env_id) for _ in range(2))
    first.reset(seed=1)
    second.reset(seed=2)
    one, two = first.sample_random_action(), second.sample_random_action()
    text = f"Perhaps {one}? No: {two}, not \\boxed{{}} nor \\boxed{{???}}."
    assert env.step(text) == expected.step(two)


@pytest.mark.parametrize("env_id", [*PLAIN, "multi:TicTacToe-v0", "openspiel:kuhn_poker"])
def test_thousands_of_boxes_in_boxes_are_soon_read(env_id: str) -> None:
    if env_id.startswith("openspiel:"):
        pytest.importorskip("pyspiel")
    env = make(env_id)
    env.reset(seed=0)
    began = time.process_time()
    env.step("\\boxed{" * 2000 + "?" + "}" * 2000)
    assert time.process_time() - began < 2


@pytest.mark.parametrize("env_id", PLAIN)
def test_steps_need_a_running_episode(env_id: str) -> None:
    env = make(env_id)
    for call in (lambda: env.step("x"), env.render, env.oracle_action, env.sample_random_action):
        with pytest.raises(ResetNeededError, match=r"reset\(\)"):
            call()
    play(env, oracle, 0)
    with pytest.raises(ResetNeededError, match=r"reset\(\)"):
        env.step(env.sample_random_action())
    env.reset()
    env.step(env.sample_random_action())


@pytest.mark.parametrize("env_id", PLAIN)
def test_random_actions_never_hang_when_none_is_legal_any_more(env_id: str) -> None:
    smallest = {
        "game:GuessTheNumber-v0": {"min_number": 1, "max_number": 2},
        "game:Mastermind-v0": {"code_length": 1, "num_numbers": 2},
        "game:Wordle-v0": {"max_turns": 2000},
    }
    env = make(env_id, **smallest[env_id])
    play(env, sampled, 0)
    assert env.sample_random_action().startswith("\\boxed{")


@pytest.mark.parametrize("env_id", PLAIN)
def test_actions_are_text(env_id: str) -> None:
    env = make(env_id)
    env.reset(seed=0)
    for action in (None, 3, b"\\boxed{1}"):
        with pytest.raises(TypeError, match="action must be a str"):
            env.step(action)  # type: ignore[arg-type]
    assert env.turn == 0


@pytest.mark.parametrize("env_id", PLAIN)
@given(text=st.text() | st.binary().map(lambda b: b.decode("utf-8", "surrogateescape")))
@settings(max_examples=100)
def test_any_text_is_answered(env_id: str, text: str) -> None:
    for action in (text, f"\\boxed{{{text}}}"):
        env = make(env_id)
        env.reset(seed=0)
        observation, reward, terminated, truncated, _ = env.step(action)
        assert isinstance(observation, str)
        assert -0.1 <= reward <= 1.0
        assert not (terminated and truncated)


@pytest.mark.parametrize("env_id", PLAIN)
@pytest.mark.parametrize("content", ["9" * 10_000, "a" * 100_000, "1 " * 50_000, "1," * 50_000])
def test_feedback_never_echoes_a_long_action(env_id: str, content: str) -> None:
    env = make(env_id)
    env.reset(seed=0)
    assert len(env.step(f"\\boxed{{{content}}}")[0]) < 200


@pytest.mark.parametrize("env_id", IDS)
def test_a_snapshot_continues_bit_for_bit(env_id: str) -> None:
    env = make(env_id)
    env.reset(seed=6)
    env.step(env.sample_random_action())
    copies = [env.spawn(same_state=True), pickle.loads(pickle.dumps(env)), make(env_id)]
    copies[2].restore(env.snapshot())
    action = env.sample_random_action()
    expected = env.step(action), env.render(), env.reset(), env.sample_random_action()
    for copy in copies:
        assert copy.sample_random_action() == action
        again = copy.step(action), copy.render(), copy.reset(), copy.sample_random_action()
        assert again == expected


@pytest.mark.parametrize("env_id", PLAIN)
def test_render_shows_what_the_player_knows_and_nothing_more(env_id: str) -> None:
    renders = set()
    for seed in range(20):
        env = make(env_id)
        env.reset(seed=seed)
        renders.add(env.render())
    assert len(renders) == 1
    assert "turn 0 of" in renders.pop()


@pytest.mark.parametrize("env_id", PLAIN)
def test_wrong_keywords_are_named(env_id: str) -> None:
    with pytest.raises(UnknownParameterError, match="no parameter 'max_turn'.*max_turns"):
        make(env_id, max_turn=3)
    with pytest.raises(UnknownParameterError, match="no option 'idx'"):
        make(env_id).reset(seed=0, idx=3)


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("GuessTheNumber", {"max_turns": 0}, "max_turns must be an integer from 1 .*got 0"),
        ("GuessTheNumber", {"max_turns": 2.5}, "max_turns .*got 2.5"),
        ("GuessTheNumber", {"max_turns": True}, "max_turns .*got True"),
        ("GuessTheNumber", {"min_number": "1"}, "min_number .*got '1'"),
        ("GuessTheNumber", {"min_number": 20}, r"max_number .*min_number \(20\), got 20"),
        ("GuessTheNumber", {"min_number": None, "max_number": 1}, "drawn from 1 to 10.*got 1"),
        ("GuessTheNumber", {"hint": "loud"}, "hint must be .*'direction'.*'range'.*'loud'"),
        ("GuessTheNumber", {"prompt": None}, "prompt must be .*None"),
        ("GuessTheNumber", {"soft_reward": 1}, "soft_reward must be True or False, got 1"),
        ("GuessTheNumber", {"format_error_ends": "no"}, "format_error_ends .*'no'"),
        ("Mastermind", {"code_length": 0}, "code_length .*got 0"),
        ("Mastermind", {"code_length": 7}, "code_length=7 and num_numbers=6"),
        ("Mastermind", {"code_length": 9, "num_numbers": None}, "code_length=9"),
        ("Mastermind", {"duplicate_numbers": None}, "duplicate_numbers .*got None"),
        ("Wordle", {"word_length": 2}, "word_length must be an integer from 3 to 7, got 2"),
        ("Wordle", {"max_turns": "5"}, "max_turns .*got '5'"),
        ("Wordle", {"require_word": 0}, "require_word .*got 0"),
    ],
)
def test_impossible_parameters_are_refused_at_construction(
    name: str, parameters: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make(f"game:{name}-v0", **parameters)
