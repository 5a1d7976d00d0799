"""Defects of the original GEM (gem-llm 0.1.0) that these environments must not have, one a test."""

from __future__ import annotations

import builtins
import json
import pickle
import random
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gem
from gem.core import Env, Wrapper
from gem.envs.games import words
from gem.errors import ConfigurationError, ResetNeededError, UnknownParameterError
from gem.vector import SyncVectorEnv

EASY = "game:GuessTheNumber-v0-easy"
IDS = gem.list_envs("game:")
PLAIN = [env_id for env_id in IDS if env_id.endswith("-v0")]


def make(env_id: str, **parameters: Any) -> Any:
    return gem.make(env_id, **parameters)


def episode(env: Env, seed: int | None = None) -> list[Any]:
    """Return an episode of random play."""
    told: list[Any] = [env.reset(seed=seed)[0]]
    done = False
    while not done:
        step = env.step(env.sample_random_action())
        told.append(step)
        done = step[2] or step[3]
    return told


@pytest.fixture
def global_states() -> Iterator[Any]:
    before, before_np = random.getstate(), np.random.get_state(legacy=True)
    yield lambda: (random.getstate(), repr(np.random.get_state(legacy=True)))
    random.setstate(before)
    np.random.set_state(before_np)


@pytest.mark.parametrize("env_id", IDS)
def test_the_users_global_generators_are_left_alone(env_id: str, global_states: Any) -> None:
    before = global_states()
    env = gem.make(env_id, seed=7)
    episode(env, seed=7)
    episode(env)
    env.oracle_action()
    env.spawn(seed=3).reset()
    assert global_states() == before


@pytest.mark.parametrize("env_id", IDS)
def test_siblings_do_not_change_an_episode(env_id: str) -> None:
    def first_of(n: int) -> list[Any]:
        env = gem.make_vec(env_id, num_envs=n, seed=3)
        told: list[Any] = [env.reset()[0][0]]
        for _ in range(20):
            observations, rewards, *_ = env.step([e.sample_random_action() for e in env.envs])
            told.append((observations[0], rewards[0]))
        return told

    assert first_of(1) == first_of(4)


@pytest.mark.parametrize("env_id", IDS)
def test_another_environment_in_between_does_not_change_an_episode(env_id: str) -> None:
    alone, env, other = episode(gem.make(env_id), seed=5), gem.make(env_id), gem.make(env_id)
    told: list[Any] = [env.reset(seed=5)[0]]
    for turn, _ in enumerate(alone[1:]):
        if turn < 10:
            # Making a board may take longer than all turns on it.
            other.reset(seed=5)
        action = env.sample_random_action()
        *_, terminated, truncated, _ = other.step(other.sample_random_action())
        if terminated or truncated:
            other.reset()
        told.append(env.step(action))
    assert told == alone


@pytest.mark.parametrize("env_id", IDS)
def test_the_seed_given_to_make_and_make_vec_has_an_effect(env_id: str) -> None:
    assert episode(gem.make(env_id, seed=5)) == episode(gem.make(env_id, seed=5))
    runs = []
    for _ in range(2):
        vector = gem.make_vec(env_id, num_envs=3, seed=5)
        vector.reset()
        runs.append([episode(env) for env in vector.envs])
    assert runs[0] == runs[1]
    assert len({repr(told) for told in runs[0]}) > 1


def test_automatic_resets_continue_the_environments_own_seed() -> None:
    vector, single = gem.make_vec(EASY, seed=9), make(EASY)
    vector.reset()
    inner: Any = vector.envs[0]
    single.reset(seed=inner.episode_key[0])
    targets = []
    for _ in range(12):
        targets.append(inner.target)
        while not vector.step([inner.oracle_action()])[2][0]:
            pass
    expected = []
    for _ in targets:
        expected.append(single.target)
        single.reset()
    assert targets == expected


@pytest.mark.parametrize("env_id", IDS)
def test_the_seed_fixes_the_whole_episode_not_only_its_start(env_id: str) -> None:
    random.seed(1)
    first = episode(gem.make(env_id), seed=4)
    random.seed(2)
    assert episode(gem.make(env_id), seed=4) == first


def test_the_end_of_an_episode_is_not_lost_by_the_automatic_reset() -> None:
    env = gem.make_vec(EASY, num_envs=2, seed=0)
    env.reset()
    inner: Any = env.envs[0]
    action = f"\\boxed{{{inner.target}}}"
    _, _, terminated, _, infos = env.step([action, "\\boxed{}"])
    assert terminated.all()
    assert infos[0]["final_obs"].startswith("Congratulations!")
    assert infos[0]["final_info"]["success"] is True
    assert infos[1]["final_info"]["format_error"] is True


def test_one_environment_that_raises_costs_the_others_nothing() -> None:
    class Crashes(Wrapper):
        def step(self, action: str) -> Any:
            raise MemoryError("no room")

    def crashing() -> Env:
        return Crashes(gem.make(EASY))

    env = SyncVectorEnv([lambda: gem.make(EASY), crashing, lambda: gem.make(EASY)], seed=0)
    env.reset()
    *_, infos = env.step(["\\boxed{2}"] * 3)
    assert ["failure" in info for info in infos] == [False, True, False]
    assert [e.turn for e in env.envs] == [1, 0, 1]  # type: ignore[attr-defined]


def test_modes_are_strings_too_arrays_are_actions_and_a_string_is_not() -> None:
    env = gem.make_vec(EASY, num_envs=3, seed=0, autoreset="next_step")
    env.reset()
    env.step(np.array(["\\boxed{1}", "\\boxed{2}", "\\boxed{3}"]))
    with pytest.raises(ConfigurationError, match="single string"):
        env.step("abc")


def test_make_vec_changes_nothing_of_its_callers_and_prints_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    own: Any = [{"max_turns": 2}, {}]
    env = gem.make_vec([EASY, EASY], vec_kwargs=own, max_turns=3, seed=1)
    env.reset()
    assert own == [{"max_turns": 2}, {}]
    assert [e.max_turns for e in env.envs] == [2, 3]  # type: ignore[attr-defined]
    assert pickle.loads(pickle.dumps(env)).num_envs == 2
    env.close()
    assert capfd.readouterr() == ("", "")


class Plain(Wrapper):
    """Adds nothing."""


def test_wrappers_show_the_present_not_a_copy_of_the_past() -> None:
    env: Any = Plain(Plain(gem.make(EASY)))
    env.reset(seed=0)
    env.step("\\boxed{1}")
    assert env.turn == env.unwrapped.turn == 1


def test_wrappers_pass_on_actions_copies_and_reset_options() -> None:
    env = Plain(gem.make(EASY))
    env.reset(seed=0)
    action = env.sample_random_action()
    child = env.spawn(same_state=True)
    assert isinstance(child, Plain)
    assert child.step(action) == env.step(action)
    with pytest.raises(UnknownParameterError, match="'idx'"):
        env.reset(idx=3)


@pytest.mark.parametrize("env_id", IDS)
def test_a_spawned_copy_equals_its_parent_for_good(env_id: str) -> None:
    env = gem.make(env_id)
    env.reset(seed=2)
    env.step(env.sample_random_action())
    child = env.spawn(same_state=True)
    assert [episode(child) for _ in range(3)] == [episode(env) for _ in range(3)]


@pytest.mark.parametrize("env_id", IDS)
def test_observations_hold_all_the_policy_needs(env_id: str) -> None:
    env = make(env_id)
    observation, info = env.reset(seed=0)
    assert observation.endswith(env.request)
    assert info == {}
    *_, info = env.step(env.sample_random_action())
    assert set(info) == {"success", "format_error", "invalid_action"}


def test_only_the_exact_number_pays() -> None:
    env = make(EASY)
    for seed in range(50):
        *_, last = episode(env, seed)
        assert last[1] == (1.0 if last[4]["success"] else 0.0)


def test_a_repeated_guess_earns_no_soft_reward() -> None:
    env = make(EASY, soft_reward=True, max_turns=2)
    env.reset(seed=0)
    wrong = env.target % 10 + 1
    env.step(f"\\boxed{{{wrong}}}")
    assert env.step(f"\\boxed{{{wrong}}}")[1:4] == (0.0, False, True)


def test_zero_is_a_number() -> None:
    env = make(EASY)
    env.reset(seed=0)
    _, reward, terminated, _, info = env.step("\\boxed{0}")
    assert (reward, terminated, info["invalid_action"]) == (0.0, False, True)


def test_codes_with_duplicates_may_be_longer_than_the_numbers() -> None:
    env = make("game:Mastermind-v0", code_length=6, num_numbers=3, duplicate_numbers=True)
    assert "\\boxed{1 2 3 1 2 3}" in env.reset(seed=0)[0]
    with pytest.raises(ConfigurationError, match="duplicate_numbers=True"):
        make("game:Mastermind-v0", code_length=6, num_numbers=3)


@pytest.mark.parametrize("env_id", IDS)
def test_every_registered_id_can_be_played_and_sampled_actions_are_legal(env_id: str) -> None:
    env = gem.make(env_id)
    for seed in range(20):
        for _, _, _, _, info in episode(env, seed)[1:]:
            assert not (info["format_error"] or info["invalid_action"])


@pytest.mark.parametrize("env_id", PLAIN)
def test_one_unreadable_reply_need_not_end_the_game(env_id: str) -> None:
    env = gem.make(env_id, format_error_ends=False)
    env.reset(seed=0)
    reward = env.unwrapped.format_error_reward  # type: ignore[attr-defined]
    assert reward < 0
    assert env.step("I do not know.")[1:4] == (reward, False, False)
    assert not env.step(env.sample_random_action())[4]["format_error"]


@pytest.mark.parametrize("env_id", PLAIN)
def test_a_limit_truncates_and_a_format_error_terminates_never_both(env_id: str) -> None:
    env: Any = gem.make(env_id, format_error_ends=True)
    env.reset(seed=0)
    assert env.step("nothing")[2:4] == (True, False)
    for seed in range(20):
        *_, (_, _, terminated, truncated, info) = episode(env, seed)
        assert terminated != truncated
        assert not (truncated and (info["success"] or env.turn < env.max_turns))


@pytest.mark.parametrize("env_id", PLAIN)
def test_a_finished_game_does_not_go_on(env_id: str) -> None:
    env = gem.make(env_id)
    episode(env, seed=0)
    with pytest.raises(ResetNeededError, match=r"reset\(\)"):
        env.step(env.sample_random_action())


@pytest.mark.parametrize("env_id", PLAIN)
def test_unknown_keywords_are_not_swallowed(env_id: str) -> None:
    with pytest.raises(UnknownParameterError, match="'is_random'"):
        gem.make(env_id, is_random=True)


@pytest.mark.parametrize("env_id", IDS)
def test_constructors_read_no_file(env_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gem.make(env_id)  # its module is imported now
    words.word_list.cache_clear()
    words.words_of_length.cache_clear()

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a constructor opened a file")

    monkeypatch.setattr(builtins, "open", refuse)
    monkeypatch.setattr("pathlib.Path.read_text", refuse)
    gem.make(env_id)


def in_a_new_process(code: str) -> Any:
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(run.stdout)


def test_importing_gem_loads_no_third_party_module() -> None:
    # Modules that site-packages hooks load before any of our code are not ours.
    code = (
        "import json, sys\n"
        "before = set(sys.modules)\n"
        "import gem\n"
        "gem.list_envs()\n"
        "new = {m.partition('.')[0] for m in set(sys.modules) - before}\n"
        "print(json.dumps(sorted(new - set(sys.stdlib_module_names))))"
    )
    ours = ["gem", "gem_judge", "gem_math", "gem_sandbox", "gem_tau", "gem_vision"]
    assert in_a_new_process(code) == ours


def test_importing_and_playing_configures_no_logging() -> None:
    code = (
        "import json, logging\n"
        "import gem\n"
        f"env = gem.make_vec({EASY!r}, num_envs=2)\n"
        "env.reset(seed=0)\n"
        "env.step(['', ''])\n"
        "print(json.dumps([logging.getLogger().handlers, logging.getLogger().level]))"
    )
    assert in_a_new_process(code) == [[], 30]


@pytest.mark.parametrize("name", ["GuessTheNumber", "Mastermind", "Wordle"])
def test_the_plain_ids_of_documentation_exist(name: str) -> None:
    gem.make(f"game:{name}-v0").reset(seed=0)
