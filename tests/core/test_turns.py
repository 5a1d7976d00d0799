"""The wrappers `attempts` and `series`: several turns of an environment whose episodes have one."""

from __future__ import annotations

from typing import Any

import pytest

import gem
from gem.errors import ConfigurationError, ResetNeededError
from gem_check import check_env

ENV = "math:ASDiv2K"


def made(**wrapper: Any) -> gem.Env:
    return gem.make(ENV, source="sample", wrappers=[wrapper])


def test_a_question_is_asked_until_it_is_answered() -> None:
    env = made(name="attempts", most=4)
    question, _ = env.reset(seed=0)
    right = env.oracle_action()
    for _ in range(2):
        observation, reward, terminated, truncated, info = env.step("\\boxed{-17}")
        assert (reward, terminated, truncated, info["success"]) == (0.0, False, False, False)
        assert observation == "That is wrong. Try again."
        assert env.oracle_action() == right
    assert env.step(right)[1:4] == (1.0, True, False)
    with pytest.raises(ResetNeededError):
        env.step(right)
    assert env.reset()[0] != question


def test_the_last_wrong_answer_is_the_limit() -> None:
    env = made(name="attempts", most=2, again="No.")
    env.reset(seed=0)
    assert env.step("?")[0] == "No."
    observation, reward, terminated, truncated, info = env.step("?")
    assert (observation, reward, terminated, truncated) == ("", 0.0, False, True)
    assert info["success"] is False


def test_questions_in_a_row_are_those_of_the_seed_and_each_has_its_reward() -> None:
    env, plain = made(name="series", most=3), gem.make(ENV, source="sample")
    asked = [plain.reset(seed=5)[0], *(plain.reset()[0] for _ in range(5))]
    seen = [env.reset(seed=5)[0]]
    rewards = []
    for action in (env.oracle_action, lambda: "?", env.oracle_action):
        observation, reward, terminated, truncated, info = env.step(action())
        seen.append(observation)
        rewards.append(reward)
    assert (seen, rewards) == ([*asked[:3], ""], [1.0, 0.0, 1.0])
    assert (terminated, truncated, info["success"]) == (True, False, False)
    assert env.reset()[0] == asked[3]
    assert env.episode_key == (5, 1)
    for action in (env.oracle_action,) * 3:
        info = env.step(action())[-1]
    assert info["success"] is True


def test_the_questions_of_a_series_depend_on_its_key_and_options_alone() -> None:
    env, fresh = made(name="series", most=3), made(name="series", most=3)
    for seed in (5, None):
        env.reset(seed=seed, idx=2)
    fresh.seek(*env.episode_key)
    fresh.reset(idx=2)
    assert [env.step("?")[0] for _ in range(2)] == [fresh.step("?")[0] for _ in range(2)]


def test_a_series_that_ends_early_does_not_move_the_next_one() -> None:
    env = made(name="series", most=3)
    env.reset(seed=5)
    env.step("?")
    second = env.reset()[0]
    again = made(name="series", most=3)
    again.seek(5, 1)
    assert again.reset()[0] == second
    assert again.episode_key == (5, 1)
    with pytest.raises(ResetNeededError):
        _ = env.spawn().episode_key


def test_series_of_a_part_of_the_questions_repeat_none_and_are_found_by_their_key() -> None:
    def of_a_part() -> gem.Env:
        part = {"name": "questions", "last": 0.5}
        return gem.make(ENV, source="sample", wrappers=[part, {"name": "series", "most": 3}])

    def questions(env: gem.Env, **first: Any) -> list[Any]:
        return [env.reset(**first)[0], *(env.step("?")[0] for _ in range(3))][:3]

    env = of_a_part()
    plain = gem.make(ENV, source="sample", wrappers=[{"name": "questions", "last": 0.5}])
    asked = [plain.reset(seed=5)[0], *(plain.reset()[0] for _ in range(11))]
    assert questions(env, seed=5) == asked[:3]
    assert questions(env) == asked[3:6]
    env.reset()
    env.step("?")
    # The third ended early.
    assert questions(env) == asked[9:12]
    assert env.episode_key == (5, 3)
    again = of_a_part()
    for episode in (3, 1, 2):
        again.seek(5, episode)
        assert questions(again) == asked[3 * episode : 3 * episode + 3]
        assert again.episode_key == (5, episode)
    copy = env.spawn(same_state=True)
    assert questions(copy) == questions(env)


@pytest.mark.parametrize("name", ["attempts", "series"])
def test_the_contract_holds(name: str) -> None:
    wrappers = [{"name": name, "most": 3}]
    report = check_env(ENV, episodes=8, cpu_s=0.3, max_return=3, source="sample", wrappers=wrappers)
    assert report.passed and not report.warnings, str(report)


@pytest.mark.parametrize("name", ["attempts", "series"])
def test_an_episode_of_several_turns_is_refused(name: str) -> None:
    env = gem.make("game:GuessTheNumber-v0-easy", wrappers=[{"name": name}])
    env.reset(seed=0)
    with pytest.raises(ConfigurationError, match="episodes of one step"):
        env.step(env.sample_random_action())


@pytest.mark.parametrize(("key", "value"), [("most", 0), ("most", "x"), ("again", 3)])
def test_a_wrong_parameter_is_named(key: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=key):
        made(name="attempts", **{key: value})
