"""Vector environments: seeds, autoreset, selective stepping, failures, bad input."""

from __future__ import annotations

import pickle
import signal
from typing import Any, cast

import numpy as np
import pytest

import gem
import gem.executors.recipe
from gem.blame import boundary
from gem.core import Env, Wrapper
from gem.errors import (
    ConfigurationError,
    ResetNeededError,
    UnknownEnvError,
    UnknownParameterError,
    UnreachableError,
)
from gem.executors.held import HeldEnv
from gem.seeding import env_seed
from gem.trajectory import Failure
from gem.vector import AutoresetMode, SyncVectorEnv, make_vec

EASY = "game:GuessTheNumber-v0-easy"


class Countdown(Env):
    """Ends after `length` steps; raises when told to."""

    def __init__(self, length: int = 2, *, seed: int | None = None) -> None:
        super().__init__(seed=seed)
        self.length = length
        self.left = 0
        self.broken_resets = 0
        self.closed = 0

    def reset(self, seed: int | None = None, **options: Any) -> tuple[str, dict[str, Any]]:
        if self.broken_resets:
            self.broken_resets -= 1
            raise OSError("no such world")
        super().reset(seed=seed)
        self.left = options.get("length", self.length)
        return f"start {self.rng.randrange(10**6)}", {"episode": self.episode_key[1]}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if action == "crash":
            raise RuntimeError("out of memory")
        self.left -= 1
        return f"left {self.left}", 0.5, self.left == 0, False, {"left": self.left}

    def close(self) -> None:
        self.closed += 1


def vector(n: int = 3, *, seed: int | None = 7, **options: Any) -> SyncVectorEnv:
    return SyncVectorEnv([Countdown] * n, seed=seed, **options)


def transcript(env: SyncVectorEnv, index: int) -> list[Any]:
    """Return what environment `index` shows under random play, autoresets included."""
    observations, _ = env.reset()
    seen: list[Any] = [observations[index]]
    for _ in range(25):
        actions = [each.sample_random_action() for each in env.envs]
        observations, rewards, terminated, truncated, infos = env.step(actions)
        seen.append(
            (
                observations[index],
                rewards[index],
                terminated[index],
                truncated[index],
                infos[index],
            )
        )
    return seen


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
@pytest.mark.parametrize("env_id", [EASY, "game:Mastermind-v0-random", "game:Wordle-v0-easy"])
def test_an_episode_does_not_depend_on_the_number_of_environments(
    env_id: str, autoreset: str
) -> None:
    options: Any = {"autoreset": autoreset, "seed": 5}
    alone = transcript(make_vec(env_id, **options), 0)
    assert transcript(make_vec(env_id, num_envs=4, **options), 0) == alone
    assert transcript(make_vec(env_id, num_envs=64, **options), 0) == alone
    third = transcript(make_vec(env_id, num_envs=4, **options), 3)
    assert third == transcript(make_vec(env_id, num_envs=7, **options), 3)
    assert third != alone


def test_the_seed_of_make_vec_fixes_everything_and_reset_overrides_it() -> None:
    first, _ = make_vec(EASY, num_envs=3, seed=5).reset()
    again = make_vec(EASY, num_envs=3)
    assert again.reset(seed=5)[0] == first
    five: Any = np.int64(5)
    assert make_vec(EASY, num_envs=3, seed=five).reset()[0] == first
    targets = [env.unwrapped.target for env in again.envs]  # type: ignore[attr-defined]
    for i, target in enumerate(targets):
        single: Any = gem.make(EASY)
        single.reset(seed=env_seed(5, i))
        assert single.target == target


def test_resets_without_a_seed_go_on_to_the_next_episode() -> None:
    env = vector()
    assert [info["episode"] for info in env.reset()[1]] == [0, 0, 0]
    assert [info["episode"] for info in env.reset()[1]] == [1, 1, 1]
    assert [info["episode"] for info in env.reset(seed=7)[1]] == [0, 0, 0]


def test_seeds_may_be_given_one_by_one() -> None:
    env = vector(seed=None)
    observations, _ = env.reset(seed=[3, 3, 4])
    assert observations[0] == observations[1] == Countdown().reset(seed=3)[0]
    assert observations[2] == Countdown().reset(seed=4)[0]
    assert env.reset(seed=np.array([3, 4, 4]))[0][1:] == [observations[2]] * 2  # type: ignore[arg-type]
    assert env.reset(seed=[None, 3, 3])[1][0] == {"episode": 1}
    assert env.reset(seed=np.int64(7))[0] == vector().reset()[0]  # type: ignore[arg-type]


def test_values_come_as_lists_and_arrays() -> None:
    env = vector()
    observations, infos = env.reset()
    assert isinstance(observations, list)
    assert isinstance(infos, list)
    observations, rewards, terminated, truncated, infos = env.step(["a"] * 3)
    assert observations == ["left 1"] * 3
    assert (rewards.dtype, terminated.dtype, truncated.dtype) == (np.float64, np.bool_, np.bool_)
    assert rewards.tolist() == [0.5] * 3
    assert infos == [{"left": 1}] * 3


def test_same_step_keeps_the_last_observation_and_info() -> None:
    env = vector()
    env.reset()
    env.step(["a"] * 3)
    observations, rewards, terminated, _, infos = env.step(["a"] * 3)
    assert terminated.all()
    assert rewards.tolist() == [0.5] * 3
    for i in range(3):
        assert observations[i].startswith("start ")
        assert infos[i] == {"episode": 1, "final_obs": "left 0", "final_info": {"left": 0}}
    assert not env.step(["a"] * 3)[2].any()


def test_next_step_ignores_the_action_after_the_end() -> None:
    env = vector(1, autoreset=AutoresetMode.NEXT_STEP)
    env.reset()
    env.step(["a"])
    observations, _, terminated, _, infos = env.step(["a"])
    assert (observations, terminated.tolist(), infos) == (["left 0"], [True], [{"left": 0}])
    observations, rewards, terminated, _, infos = env.step(["crash"])
    assert observations[0].startswith("start ")
    assert (rewards.tolist(), terminated.tolist(), infos) == ([0.0], [False], [{"episode": 1}])
    assert env.step(["a"])[0] == ["left 1"]


def test_without_autoreset_the_caller_resets_what_has_ended() -> None:
    env = vector(autoreset="disabled")
    env.reset()
    env.step({1: "a"})
    assert env.step({1: "a"})[2].tolist() == [True]
    with pytest.raises(ResetNeededError, match=r"environments \[1\].*reset\(indices=\[1\]\)"):
        env.step(["a"] * 3)
    # Refused as a whole: the others were not stepped.
    assert env.step({0: "a"})[0] == ["left 1"]
    _, infos = env.reset(indices=[1])
    assert infos == [{"episode": 1}]
    assert env.step(["a"] * 3)[0] == ["left 0", "left 1", "left 1"]


def test_selected_environments_answer_in_the_order_of_the_mapping() -> None:
    env = vector()
    env.reset()
    env.step({2: "a"})
    observations, rewards, *_ = env.step({2: "a", 0: "b"})
    assert observations[1] == "left 1"
    assert rewards.shape == (2,)
    assert env.envs[1].left == 2  # type: ignore[attr-defined]
    assert env.step({np.int64(1): "a"})[0] == ["left 1"]  # type: ignore[dict-item]


@pytest.mark.parametrize(
    "actions", [["a"] * 3, ("a",) * 3, np.array(["a"] * 3), np.array(["a"] * 3, dtype=object)]
)
def test_actions_may_be_any_sequence_of_strings(actions: Any) -> None:
    env = vector()
    env.reset()
    assert env.step(actions)[0] == ["left 1"] * 3


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ("abc", "one action per environment, not a single string: 'abc'"),
        (b"abc", "not a single string"),
        (["a"], "needs 3 actions, got 1"),
        (["a", "b", None], "action of environment 2 must be a str, got NoneType"),
        (np.zeros(3), "must be a str, got float"),
        ({3: "a"}, "indices go from 0 to 2"),
        ({-1: "a"}, "indices go from 0 to 2"),
        ({"0": "a"}, "indices go from 0 to 2"),
    ],
)
def test_wrong_actions_are_refused_before_any_environment_steps(actions: Any, message: str) -> None:
    env = vector()
    env.reset()
    with pytest.raises(ConfigurationError, match=message):
        env.step(actions)
    assert [each.left for each in env.envs] == [2, 2, 2]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seed": [1]}, "seed must be an integer, None, or 3 seeds"),
        ({"seed": "123"}, "seed must be an integer"),
        ({"seed": 1.5}, "seed must be an integer"),
        ({"seed": ["a", "b", "c"]}, "seed must be an integer"),
        ({"indices": [5]}, "indices go from 0 to 2"),
        ({"indices": [1, 1]}, "twice"),
    ],
)
def test_wrong_reset_arguments_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        vector().reset(**arguments)


def test_options_reach_every_reset() -> None:
    env = vector()
    env.reset(length=9)
    assert env.step(["a"] * 3)[0] == ["left 8"] * 3
    with pytest.raises(UnknownParameterError, match="no option 'idx'"):
        make_vec(EASY).reset(idx=3)

    class Plain(Countdown):
        def reset(self, seed: int | None = None) -> Any:  # type: ignore[override]
            return super().reset(seed)

    # As in threads and processes, not a failure of the environment.
    with pytest.raises(UnknownParameterError, match="'idx'"):
        SyncVectorEnv([Plain]).reset(idx=3)


def test_what_a_refused_reset_was_given_is_forgotten() -> None:
    class Choosy(Countdown):
        def reset(self, seed: int | None = None, **options: Any) -> tuple[str, dict[str, Any]]:
            if self.left == 0 and self._episode == 0:
                raise ConfigurationError("no second episode")
            return super().reset(seed, **options)

    env = SyncVectorEnv([Choosy], seed=7)
    env.reset(length=1)
    with pytest.raises(ConfigurationError, match="no second episode"):
        env.step(["a"])
    with pytest.raises(ResetNeededError):
        env.step(["a"])
    env.envs[0].left = 1  # type: ignore[attr-defined]
    assert env.reset(length=1)[1] == [{"episode": 1}]


@pytest.mark.parametrize("autoreset", ["same_step", "next_step", "disabled"])
def test_an_environment_that_raises_loses_its_own_episode_only(autoreset: str) -> None:
    env = vector(autoreset=autoreset)
    env.reset()
    observations, rewards, terminated, truncated, infos = env.step(["a", "crash", "a"])
    assert observations[0] == observations[2] == "left 1"
    assert rewards.tolist() == [0.5, 0.0, 0.5]
    assert terminated.tolist() == [False] * 3
    assert truncated.tolist() == [False, True, False]
    failure = infos[1]["failure"]
    assert isinstance(failure, Failure)
    assert failure.cause == "environment"
    assert failure.message == "environment 1 failed in step(): RuntimeError: out of memory"
    assert "failure" not in infos[0]
    if autoreset == "disabled":
        env.reset(indices=[1])
    elif autoreset == "next_step":
        assert env.step({1: "ignored"})[4] == [{"episode": 1}]
    assert env.step({1: "a"})[0] == ["left 1"]


def test_a_reset_that_fails_is_tried_again_with_the_same_seed() -> None:
    env = vector()
    broken: Any = env.envs[1]
    broken.broken_resets = 1
    observations, infos = env.reset(seed=9)
    assert infos[1]["failure"].message.startswith("environment 1 failed in reset(): OSError")
    assert observations[1] == ""
    observations, rewards, _, truncated, infos = env.step(["a"] * 3)
    assert observations[0] == "left 1"
    assert observations[1] == vector(seed=9).reset()[0][1]
    assert (rewards[1], truncated[1], infos[1]) == (0.0, False, {"episode": 0})


def test_a_reset_that_fails_is_tried_again_with_the_same_options() -> None:
    env = vector(2)
    broken: Any = env.envs[1]
    broken.broken_resets = 2
    env.reset(length=1)
    for _ in range(2):
        env.step({1: "a"})
    _, _, terminated, _, infos = env.step(["a", "a"])
    assert terminated.tolist() == [True, True]
    assert [info["final_obs"] for info in infos] == ["left 0", "left 0"]
    # The options were those of one episode.
    assert env.step(["a", "a"])[0] == ["left 1", "left 1"]


def test_a_vector_goes_on_after_an_interruption() -> None:
    class Interrupted(Countdown):
        def step(self, action: str) -> Any:
            if action == "Ctrl-C":
                signal.raise_signal(signal.SIGINT)
            return super().step(action)

    env = SyncVectorEnv([Countdown, Interrupted, Countdown], seed=7)
    first, _ = env.reset(seed=7)
    with pytest.raises(KeyboardInterrupt):
        env.step(["a", "Ctrl-C", "a"])
    assert env.reset(seed=7)[0] == first
    assert env.step(["a"] * 3)[0] == ["left 1"] * 3


class Unsteady(Countdown):
    """Its resets fail after they have begun the next episode."""

    def reset(self, seed: int | None = None, **options: Any) -> tuple[str, dict[str, Any]]:
        broken, self.broken_resets = self.broken_resets, 0
        shown = super().reset(seed, **options)
        if broken:
            raise OSError("the world is not there")
        return shown


def test_a_reset_without_a_seed_that_fails_skips_no_episode() -> None:
    env = SyncVectorEnv([Unsteady], seed=7, autoreset="next_step")
    env.reset()
    env.step(["a"])
    env.step(["a"])
    env.envs[0].broken_resets = 1  # type: ignore[attr-defined]
    assert "failure" in env.step(["ignored"])[4][0]
    assert env.step(["ignored"])[4] == [{"episode": 1}]


def test_in_a_thread_too_and_the_place_of_the_environment_is_known() -> None:
    held = HeldEnv(Unsteady)
    held.reset(7)
    held.run(lambda env: setattr(env, "broken_resets", 1))
    with pytest.raises(OSError, match="not there"):
        held.reset(None)
    # Of an environment that takes its place, because its reset does not return.
    assert held.after == (7, 0)
    assert held.reset(None)[1] == {"episode": 1}
    assert held.after == (7, 1)


def test_a_failing_autoreset_keeps_the_end_of_the_episode_before() -> None:
    env = vector(1)
    env.reset()
    env.step(["a"])
    env.envs[0].broken_resets = 2  # type: ignore[attr-defined]
    _, rewards, terminated, truncated, infos = env.step(["a"])
    assert (rewards[0], terminated[0], truncated[0]) == (0.5, True, False)
    assert infos[0]["final_obs"] == "left 0"
    assert "failed in reset()" in infos[0]["failure"].message
    _, _, _, truncated, infos = env.step(["ignored"])
    assert truncated[0]
    assert "failed in reset()" in infos[0]["failure"].message
    assert env.step(["ignored"])[0][0].startswith("start ")


def test_steps_before_the_first_reset_are_refused() -> None:
    with pytest.raises(ResetNeededError, match=r"\[0, 1, 2\]"):
        vector().step(["a"] * 3)


def test_parameters_of_one_environment_win_over_common_ones_and_are_left_alone() -> None:
    own: Any = ({"max_number": 5}, {})
    common = {"max_number": 9, "max_turns": 3}
    env = make_vec([EASY, "game:GuessTheNumber-v0"], vec_kwargs=own, **common)
    env.reset(seed=0)
    assert [e.unwrapped.max_number for e in env.envs] == [5, 9]  # type: ignore[attr-defined]
    assert [e.unwrapped.max_turns for e in env.envs] == [3, 3]  # type: ignore[attr-defined]
    assert own == ({"max_number": 5}, {})
    assert common == {"max_number": 9, "max_turns": 3}


def test_a_seed_among_the_own_parameters_is_kept() -> None:
    env = make_vec("game:Wordle-v0", num_envs=2, vec_kwargs=[{"seed": 3}, {}], seed=5)
    env.reset()
    assert [e.episode_key for e in env.envs] == [(3, 0), (env_seed(5, 1), 0)]


class Tagged(Wrapper):
    """Marks the observation of each reset."""

    def reset(self, seed: int | None = None, **options: Any) -> Any:
        observation, info = super().reset(seed=seed, **options)
        return f"tagged {observation}", info


def test_wrappers_go_around_each_environment() -> None:
    env = make_vec(EASY, num_envs=2, wrappers=[Tagged, Tagged], seed=0)
    assert all(str(o).startswith("tagged tagged You are") for o in env.reset()[0])
    assert env.envs[0].env is not env.envs[1].env  # type: ignore[attr-defined]


def test_vectors_are_silent_picklable_and_closable(capfd: pytest.CaptureFixture[str]) -> None:
    env = gem.make_vec([EASY] * 3, wrappers=[Tagged], seed=3)
    env.reset()
    env.step([e.sample_random_action() for e in env.envs])
    copy = pickle.loads(pickle.dumps(env))
    for _ in range(10):
        actions = [e.sample_random_action() for e in env.envs]
        assert repr(copy.step(actions)) == repr(env.step(actions))
    env.close()
    env.close()
    assert capfd.readouterr() == ("", "")


def test_closing_reaches_every_environment_even_if_one_raises(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Stuck(Countdown):
        def close(self) -> None:
            raise OSError("stuck")

    with SyncVectorEnv([Countdown, Stuck, Countdown]) as env:
        pass
    assert "OSError: stuck" in caplog.text
    assert [e.closed for e in env.envs] == [1, 0, 1]  # type: ignore[attr-defined]


class Counted(Countdown):
    """Counts those that are made and those that are closed."""

    made = closings = 0

    def __init__(self) -> None:
        super().__init__()
        if Counted.made == 2:
            raise ConfigurationError("no room for a third one")
        Counted.made += 1

    def close(self) -> None:
        Counted.closings += 1


@pytest.mark.parametrize("by_id", [True, False])
def test_environments_made_before_one_that_cannot_be_made_are_closed(
    monkeypatch: pytest.MonkeyPatch, by_id: bool
) -> None:
    monkeypatch.setattr(Counted, "made", 0)
    monkeypatch.setattr(Counted, "closings", 0)
    monkeypatch.setattr(gem.executors.recipe, "make", lambda id, **kwargs: Counted())
    with pytest.raises(ConfigurationError, match="no room for a third one"):
        make_vec("test:Counted-v0", num_envs=3) if by_id else SyncVectorEnv([Counted] * 3)
    assert (Counted.made, Counted.closings) == (2, 2)


@pytest.mark.parametrize("call", ["reset", "step"])
def test_wrong_configuration_is_raised_by_reset_and_by_step(call: str) -> None:
    class Misused(Countdown):
        def reset(self, seed: int | None = None, **options: Any) -> Any:
            if call == "reset":
                raise ConfigurationError("no such level")
            return super().reset(seed=seed, **options)

        def step(self, action: str) -> Any:
            raise ConfigurationError("no such level")

    env = SyncVectorEnv([Countdown, Misused])
    with pytest.raises(ConfigurationError, match="no such level"):
        env.reset()
        env.step(["a", "a"])


def test_a_failure_in_a_vector_is_blamed_on_what_failed() -> None:
    class Searching(Countdown):
        def step(self, action: str) -> Any:
            with boundary("tool"):
                raise UnreachableError("the search server is down")

    env = SyncVectorEnv([Countdown, Searching])
    env.reset()
    assert env.step(["a", "a"])[4][1]["failure"].cause == "tool"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: make_vec([]), ConfigurationError, "at least one environment"),
        (lambda: make_vec(EASY, num_envs=0), ConfigurationError, "at least one environment"),
        (lambda: make_vec([EASY], num_envs=2), ConfigurationError, "num_envs=2.*1 ids"),
        (lambda: make_vec([EASY], vec_kwargs=[{}, {}]), ConfigurationError, "1, got 2"),
        (lambda: make_vec(EASY, autoreset="sometimes"), ConfigurationError, "'sometimes'"),
        (
            lambda: make_vec(EASY, seed=cast(Any, "5")),
            ConfigurationError,
            "seed must be an integer",
        ),
        (lambda: make_vec("game:Guess"), UnknownEnvError, "did you mean"),
        (lambda: make_vec(EASY, size=3), UnknownParameterError, "'size'"),
        (lambda: SyncVectorEnv([]), ConfigurationError, "at least one environment"),
        (lambda: make_vec(EASY, num_workers=2), ConfigurationError, "'sync' has no workers"),
        (lambda: make_vec(EASY, step_timeout_s=2.0), ConfigurationError, "'sync' has no time"),
        (
            lambda: make_vec(EASY, vectorization_mode="thread", step_timeout_s=float("nan")),
            ConfigurationError,
            "step_timeout_s must be a number above 0, got nan",
        ),
        (
            lambda: make_vec(EASY, num_workers=2, vectorization_mode="thread"),
            ConfigurationError,
            "'thread' has no workers",
        ),
        (
            lambda: make_vec(EASY, vectorization_mode="async"),
            ConfigurationError,
            "Gymnasium's 'async' is 'thread'",
        ),
    ],
)
def test_wrong_arguments_are_named(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
