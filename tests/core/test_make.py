"""What `make` makes: specs, checks, and what users of Gymnasium expect."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest

import gem
from gem import registry
from gem.contract import succeeded
from gem.core import Env, Step, Wrapper
from gem.envs.games.guess_the_number import GuessTheNumber
from gem.errors import (
    ConfigurationError,
    ContractError,
    MissingExtraError,
    ResetNeededError,
    UnknownEnvError,
    UnknownParameterError,
)
from gem.wrappers import Checked, EpisodeTracking, RecordEpisodeStatistics, ToolEnv, wrap
from gem_check import check_env
from gem_sandbox.tool import PythonTool

GUESS = "game:GuessTheNumber-v0-easy"
ROWS = [{"problem": "1 + 1?", "answer": "2"}]
TOOL = {"name": "python", "runner": "subprocess"}


class Scaled(Wrapper):
    """Multiplies rewards."""

    def __init__(self, env: Env, factor: float = 2.0, *more: float, **named: float) -> None:
        super().__init__(env)
        self.factor = factor
        self.more = more
        self.named = named

    def step(self, action: str) -> Step:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward * self.factor, terminated, truncated, info


# Specs


def played(env: Env) -> list[Any]:
    """The first observation and the steps of an episode of random play."""
    found: list[Any] = [env.reset(seed=5)[0]]
    while not (len(found) > 1 and (found[-1][2] or found[-1][3])):
        found.append(env.step(env.sample_random_action()))
    return found


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"max_turns": 2},
        {"wrappers": ["episode_tracking"]},
        {"tools": [TOOL], "wrappers": [{"name": f"{__name__}:Scaled", "factor": 3.0}]},
        {"wrappers": [{"name": "tool_env", "tools": ["python"]}, *["episode_tracking"] * 2]},
    ],
    ids=["plain", "parameters", "wrapper", "tool", "wrappers"],
)
def test_a_spec_makes_the_environment_again_with_wrappers_and_tools(how: dict[str, Any]) -> None:
    env = gem.make(GUESS, **how)
    spec = env.spec
    assert spec is not None
    read = gem.spec(json.loads(json.dumps(spec.to_dict())))
    assert read == spec
    for again in (gem.make(spec), gem.make(read), pickle.loads(pickle.dumps(env))):
        assert repr(again) == repr(env)
        assert again.spec == spec
        assert played(again) == played(env)
    assert gem.make(spec, max_turns=1).reset(seed=0)[0] != gem.make(GUESS).reset(seed=0)[0]


def test_a_wrapper_put_around_by_hand_is_in_the_spec_with_its_arguments() -> None:
    env = Scaled(EpisodeTracking(gem.make(GUESS)), 4.0)
    assert env.spec is not None
    again = gem.make(env.spec)
    assert isinstance(again, Scaled)
    assert (again.factor, repr(again)) == (4.0, repr(env))
    many = Scaled(gem.make(GUESS), 4.0, 5.0, x=6.0)
    assert many.spec is not None
    again = gem.make(many.spec)
    assert isinstance(again, Scaled)
    assert (again.factor, again.more, again.named) == (4.0, (5.0,), {"x": 6.0})
    by_name = Scaled(env=gem.make(GUESS), factor=4.0)
    assert by_name.spec == Scaled(gem.make(GUESS), 4.0).spec


def test_a_wrapper_of_a_function_is_made_again_but_not_from_json() -> None:
    class Local(Scaled):
        pass

    env = gem.make(GUESS, wrappers=[lambda inner: Local(inner, factor=7.0)])
    assert env.spec is not None
    again = gem.make(env.spec)
    assert isinstance(again, Local)
    assert again.factor == 7.0
    with pytest.raises(ConfigurationError, match=r"wrappers\[0\] must be a text"):
        env.spec.to_dict()


def test_a_tool_given_as_an_object_is_made_again_but_not_from_json() -> None:
    env = gem.make(GUESS, tools=[PythonTool(runner="subprocess", timeout_s=3.0)])
    assert env.spec is not None
    again = gem.make(env.spec)
    assert isinstance(again, ToolEnv)
    assert again.tools[0].timeout_s == 3.0  # type: ignore[attr-defined]
    with pytest.raises(ConfigurationError, match=r"wrappers\[0\].tools\[0\] must be a text"):
        env.spec.to_dict()


def test_an_entry_point_that_wraps_is_not_wrapped_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registry", dict(registry._registry))
    gem.register("test:Wrapping-v0", lambda: EpisodeTracking(gem.make(GUESS)))
    env = gem.make("test:Wrapping-v0", wrappers=["episode_tracking"])
    assert env.spec is not None
    assert (env.spec.id, env.spec.wrappers) == ("test:Wrapping-v0", ({"name": "episode_tracking"},))
    assert repr(gem.make(env.spec)) == repr(env)


@pytest.mark.parametrize("same_state", [True, False])
def test_a_spawned_wrapper_has_the_spec_of_its_parent(same_state: bool) -> None:
    env = gem.make(GUESS, tools=[TOOL], wrappers=["episode_tracking"])
    env.reset(seed=0)
    child = env.spawn(same_state=same_state)
    assert child.spec == env.spec
    env.restore(child.snapshot() if same_state else env.snapshot())
    assert child.spec == env.spec


def test_specs_from_elsewhere_are_read_with_clear_errors() -> None:
    with pytest.raises(ConfigurationError, match="not the spec of an environment"):
        gem.spec({"id": GUESS})
    with pytest.raises(UnknownEnvError, match="did you mean"):
        gem.spec({"id": GUESS + "x", "kwargs": {}, "wrappers": []})
    assert len({gem.spec(GUESS), gem.spec(GUESS)}) == 1


@pytest.mark.parametrize(
    "name", ["no.such:Wrapper", "gem.wrappers:Nothing", ":", "gem.core:__doc__"]
)
def test_a_wrapper_that_cannot_be_imported_is_named(name: str) -> None:
    with pytest.raises(
        ConfigurationError, match="wrapper '.*' (cannot be imported|must be callable)"
    ):
        wrap(gem.make(GUESS), [name])


# Options


@pytest.mark.parametrize("how", [{}, {"wrappers": ["episode_tracking"]}, {"tools": [TOOL]}])
def test_every_environment_takes_options_as_gymnasium_gives_them(how: dict[str, Any]) -> None:
    for id in (GUESS, "game:Sokoban-v0-easy"):
        env = gem.make(id, **how)
        first = env.reset(seed=1)
        for options in (None, {}):
            assert env.reset(seed=1, options=options)[0] == first[0]
        with pytest.raises(UnknownParameterError, match="no option 'x'"):
            env.reset(options={"x": 1})
    env = gem.make("qa:HotpotQA", source=ROWS * 5, **how)
    assert env.reset(options={"idx": 3})[1]["index"] == 3
    assert env.reset(seed=7, options=None)[1]["index"] == env.reset(seed=7)[1]["index"]
    with pytest.raises(UnknownParameterError, match="no option 'x'"):
        env.reset(options={"x": 1})


def test_vectors_take_options_as_gymnasium_gives_them() -> None:
    envs = gem.make_vec("qa:HotpotQA", num_envs=2, source=ROWS * 5)
    assert [info["index"] for info in envs.reset(options={"idx": 3})[1]] == [3, 3]
    assert len(envs.reset(seed=1, options=None)[0]) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"options": 3}, "options must be a mapping or None, got 3"),
        ({"options": {"idx": 1}, "idx": 1}, "the option 'idx' twice"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        gem.make("qa:HotpotQA", source=ROWS * 5).reset(**options)


# Checks


class Faulty(GuessTheNumber):
    """Does one thing wrong."""

    def __init__(self, fault: str, **parameters: Any) -> None:
        super().__init__(1, 10, 4, **parameters)
        self.fault = fault

    def reset(self, seed: int | None = None, **options: Any) -> Any:
        observation, info = super().reset(seed=seed, **options)
        return (None if self.fault == "observation" else observation), info

    def step(self, action: str) -> Any:
        faults = {"reward": (1, float("nan")), "ends": (2, True), "info": (4, None)}
        step = list(super().step(action))
        if self.fault == "ends":
            step[3] = True
        if self.fault in faults:
            place, value = faults[self.fault]
            step[place] = value
        return tuple(step)


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(registry, "_registry", dict(registry._registry))
    gem.register("test:Faulty-v0", Faulty)
    return "test:Faulty-v0"


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("observation", r"reset\(\) must return text"),
        ("reward", "finite reward, got nan"),
        ("ends", "terminated and truncated at once"),
        ("info", "a dict as info, got None"),
    ],
)
def test_a_checked_environment_names_the_fault_where_it_happens(
    faulty: str, fault: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def play(env: Env) -> None:
        env.reset(seed=0)
        env.step(r"\boxed{5}")

    play(gem.make(faulty, fault=fault))
    with pytest.raises(ContractError, match=f"<Faulty {faulty}>: .*{message}"):
        play(gem.make(faulty, fault=fault, checked=True))
    monkeypatch.setenv("GEM_CHECKED", "1")
    with pytest.raises(ContractError, match=message):
        play(gem.make(faulty, fault=fault))
    play(gem.make(faulty, fault=fault, checked=False))


def test_a_checked_environment_wants_a_running_episode_and_text() -> None:
    class Careless(Faulty):
        def step(self, action: str) -> Any:
            return "", np.float32(1.0), np.bool_(True), False, {}

    env = Checked(Careless("none"))
    with pytest.raises(ResetNeededError, match="has not begun"):
        env.step("x")
    env.reset(seed=0)
    with pytest.raises(TypeError, match="must be a str, got int"):
        env.step(3)  # type: ignore[arg-type]
    assert [type(value) for value in env.step("x")[1:3]] == [float, bool]
    with pytest.raises(ResetNeededError, match="is over"):
        env.step("x")
    env.reset()
    child = env.spawn(same_state=True)
    assert child.step("x")[2]
    with pytest.raises(ResetNeededError):
        env.spawn().step("x")


def test_checks_are_no_part_of_the_spec_and_change_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env, checked = gem.make(GUESS, tools=[TOOL]), gem.make(GUESS, tools=[TOOL], checked=True)
    assert isinstance(checked, Checked)
    assert checked.spec == env.spec
    assert played(checked) == played(env)
    monkeypatch.setenv("GEM_CHECKED", "0")
    assert not isinstance(gem.make(GUESS), Checked)


def test_every_check_passes_on_an_environment_with_checks_and_statistics() -> None:
    wrappers = ["record_episode_statistics", "checked"]
    report = check_env(GUESS, episodes=4, cpu_s=0.05, wrappers=wrappers)
    assert not [r for r in report.results if r.status == "failed"], str(report)


# Statistics


def test_the_statistics_of_an_episode_are_in_the_info_of_its_last_step() -> None:
    env = gem.make(GUESS, wrappers=["record_episode_statistics"], soft_reward=True)
    for _ in range(2):
        env.reset(seed=3)
        rewards, done = [], False
        while not done:
            _, reward, terminated, truncated, info = env.step(r"\boxed{1}")
            rewards.append(reward)
            done = terminated or truncated
            assert ("episode" in info) == done
        assert info["episode"]["r"] == pytest.approx(sum(rewards))
        assert info["episode"]["l"] == len(rewards) > 1
        assert info["episode"]["t"] >= 0.0
        json.dumps(info)


def test_the_statistics_go_along_with_a_copy_of_the_state_only() -> None:
    env = RecordEpisodeStatistics(gem.make(GUESS, soft_reward=True, max_turns=3))
    env.reset(seed=3)
    env.step(r"\boxed{1}")
    same, other = env.spawn(same_state=True), env.spawn()
    elsewhere = RecordEpisodeStatistics(gem.make(GUESS))
    elsewhere.restore(env.snapshot())
    other.reset(seed=3)
    lengths = []
    for each in (same, elsewhere, other):
        info: dict[str, Any] = {}
        while "episode" not in info:
            info = each.step(r"\boxed{1}")[4]
        lengths.append(info["episode"]["l"])
    assert lengths == [3, 3, 3]
    assert other.reset()[1] == gem.make(GUESS).reset()[1]


def test_rewards_are_scaled_and_success_is_not() -> None:
    wrapped = gem.make(GUESS, wrappers=[{"name": "scale_reward", "factor": 100}], max_turns=1)
    env = gem.make(GUESS, max_turns=1)
    won = 0
    for seed in range(20):
        rewards = []
        for each in (env, wrapped):
            each.reset(seed=seed)
            _, reward, terminated, _, info = each.step("\\boxed{7}")
            rewards.append(reward)
            assert succeeded(reward, terminated, info) == (reward > 0)
        assert rewards[1] == 100 * rewards[0]
        won += rewards[0] > 0
    assert 0 < won < 20
    with pytest.raises(ConfigurationError, match="factor must be .*got 0"):
        gem.make(GUESS, wrappers=[{"name": "scale_reward", "factor": 0}])


def test_only_the_outcome_is_paid() -> None:
    id = "game:Minesweeper-v0-easy"
    outcomes = []
    for seed in range(20):
        env = gem.make(id, wrappers=["outcome_reward"], max_turns=5)
        env.reset(seed=seed)
        rewards: list[float] = []
        over = won = False
        while not over:
            oracle = seed % 2 or len(rewards) < 2
            action = env.oracle_action() if oracle else env.sample_random_action()
            _, reward, terminated, truncated, info = env.step(action)
            rewards.append(reward)
            over, won = terminated or truncated, info["success"]
        assert rewards == [0.0] * (len(rewards) - 1) + [float(won)]
        outcomes.append(won)
    assert True in outcomes and False in outcomes


def test_an_id_whose_package_is_not_installed_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gem.plugins.entry_points", lambda **_: [])
    for id, extra in (("agent:x", "serve"), ("verifiers:x?y=1", "verifiers")):
        with pytest.raises(MissingExtraError, match=rf"gem-core\[{extra}\]"):
            gem.make(id)
