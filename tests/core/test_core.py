"""The environment contract: seeding, snapshots, wrappers, registry, tasks."""

from __future__ import annotations

import pickle
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gem
from gem import registry
from gem.core import Env, Info, Wrapper
from gem.errors import (
    ConfigurationError,
    ResetNeededError,
    UnknownEnvError,
    UnknownParameterError,
)
from gem.seeding import env_seed, stream
from gem.tasks import Task, TaskSet


class Dice(Env):
    """Observes a throw per turn; made for these tests."""

    def __init__(self, sides: int = 6, *, seed: int | None = None) -> None:
        super().__init__(seed=seed)
        self.sides = sides
        self.turns = 0

    def reset(self, seed: int | None = None, **options: Any) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.turns = 0
        return str(self.rng.randint(1, self.sides)), {"option": options.get("option")}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.turns += 1
        return str(self.rng.randint(1, self.sides)), 0.0, False, False, {}

    def sample_random_action(self) -> str:
        return str(self.action_rng.randint(1, self.sides))


def throws(env: Env, n: int = 20) -> list[Any]:
    return [env.step("")[0] for _ in range(n)]


def test_streams_depend_on_the_key_and_nothing_else() -> None:
    assert stream(1, 23).random() == stream(1, 23).random()
    assert len({stream(*key).random() for key in [(1, 23), (12, 3), (123,), (-1, 23)]}) == 4
    # Fixed for ever: episodes of recorded seeds must stay what they were.
    assert stream(0, 0).randrange(1000) == FIRST_DRAW
    assert env_seed(0, 0) == FIRST_ENV_SEED


FIRST_DRAW = 260
FIRST_ENV_SEED = 5189873827831525459


@given(st.integers(), st.integers(0, 10_000))
def test_env_seeds_fit_a_signed_64_bit_column(seed: int, index: int) -> None:
    assert 0 <= env_seed(seed, index) < 2**63


def test_a_seed_fixes_every_later_episode() -> None:
    a, b = Dice(), Dice(seed=7)
    first = [(a.reset(seed=7)[0], throws(a)), (a.reset()[0], throws(a))]
    second = [(b.reset()[0], throws(b)), (b.reset()[0], throws(b))]
    assert first == second
    assert first[0] != first[1]


def test_an_unseeded_environment_tells_how_to_play_the_episode_again() -> None:
    env = Dice(sides=10**9)
    observation, _ = env.reset()
    seed, episode = env.episode_key
    assert episode == 0
    assert Dice(sides=10**9).reset(seed=seed)[0] == observation


def test_global_generators_are_never_touched() -> None:
    random.seed(1)
    np.random.seed(1)
    expected = random.random(), np.random.rand()
    random.seed(1)
    np.random.seed(1)
    env = Dice()
    env.reset(seed=7)
    throws(env)
    env.sample_random_action()
    assert (random.random(), np.random.rand()) == expected


def test_random_actions_do_not_change_the_episode() -> None:
    a, b = Dice(), Dice()
    a.reset(seed=3)
    b.reset(seed=3)
    b.sample_random_action()
    assert throws(a) == throws(b)


def test_an_environment_need_not_call_the_constructor_above_it() -> None:
    class Plain(gem.Env):
        def __init__(self) -> None:
            self.number = 0

        def reset(self, seed: int | None = None, **options: Any) -> tuple[str, Info]:
            super().reset(seed=seed)
            self.number = self.rng.randrange(10**9)
            return str(self.number), {}

        def step(self, action: str) -> Any:
            return "", 0.0, True, False, {}

    env, other = Plain(), Plain()
    with pytest.raises(ResetNeededError):
        _ = env.rng
    env.reset()
    other.seek(*env.episode_key)
    assert other.reset() == (str(env.number), {})
    assert env.spawn(same_state=True).reset() == other.reset()


def test_use_before_reset_says_so() -> None:
    with pytest.raises(ResetNeededError, match=r"reset\(\)"):
        _ = Dice().rng
    with pytest.raises(ResetNeededError, match=r"reset\(\)"):
        Dice().sample_random_action()


@pytest.mark.parametrize("seed", ["1", 1.5, object()])
def test_a_seed_must_be_an_integer(seed: Any) -> None:
    with pytest.raises(ConfigurationError, match="seed must be an integer"):
        Dice().reset(seed=seed)


def test_numpy_integers_are_seeds() -> None:
    assert Dice().reset(seed=np.int64(5))[0] == Dice().reset(seed=5)[0]  # type: ignore[arg-type]
    five: Any = np.int64(5)
    assert stream(five, True).random() == stream(5, 1).random()
    assert env_seed(five, np.int32(2)) == env_seed(5, 2)  # type: ignore[arg-type]
    for wrong in (5.0, "5", None):
        with pytest.raises(TypeError, match="integer"):
            stream(wrong)  # type: ignore[arg-type]


class Counting(Wrapper):
    """Counts steps; its own state must survive snapshots."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self.counted = 0

    def step(self, action: str) -> Any:
        self.counted += 1
        return super().step(action)


@pytest.mark.parametrize("wrap", [lambda e: e, Counting, lambda e: Counting(Counting(e))])
def test_snapshot_restore_and_spawn_continue_bit_for_bit(wrap: Any) -> None:
    env = wrap(Dice(sides=10**6))
    env.reset(seed=1)
    throws(env, 3)
    state = env.snapshot()
    child = env.spawn(same_state=True)
    expected = throws(env), env.reset()[0]
    assert (throws(child), child.reset()[0]) == expected
    env.restore(state)
    assert (throws(env), env.reset()[0]) == expected
    other = wrap(Dice())
    other.restore(state)
    assert throws(other) == expected[0]


def test_what_cannot_be_restored_leaves_the_episode_as_it_is() -> None:
    env = Dice(sides=4)
    env.reset(seed=3)
    with pytest.raises(pickle.UnpicklingError):
        env.restore(b"cut off")
    assert (env.episode_key, env.sides) == ((3, 0), 4)


def test_a_spawned_sibling_keeps_parameters_and_has_its_own_seed() -> None:
    env = Counting(Dice(sides=10**6))
    env.reset(seed=1)
    sibling = env.spawn(seed=2)
    assert sibling.sides == 10**6
    with pytest.raises(ResetNeededError):
        _ = sibling.rng
    assert sibling.reset()[0] == Dice(sides=10**6).reset(seed=2)[0]
    with pytest.raises(ConfigurationError, match="takes no seed"):
        env.spawn(same_state=True, seed=2)


@pytest.mark.parametrize("wrappers", [(), ("episode_tracking", "checked")])
@pytest.mark.parametrize("env_id", ["game:Wordle-v0", "math:GSM8K"])
def test_a_spawned_sibling_cannot_be_stepped_before_its_reset(env_id: str, wrappers: Any) -> None:
    options = {} if env_id.startswith("game:") else {"source": "sample"}
    env = gem.make(env_id, wrappers=wrappers, **options)
    env.reset(seed=1)
    with pytest.raises(ResetNeededError):
        env.spawn().step("")
    assert env.spawn(same_state=True).step("")[4]["format_error"]


def test_wrappers_look_attributes_up_when_asked() -> None:
    env = Counting(Counting(Dice()))
    env.reset(seed=1, option="passed on")
    throws(env, 2)
    assert env.turns == 2
    assert env.unwrapped.turns == 2  # type: ignore[attr-defined]
    assert env.counted == env.env.counted == 2
    assert env.reset(option="passed on")[1] == {"option": "passed on"}
    assert env.sample_random_action() in set("123456")
    with pytest.raises(AttributeError, match="nonsense"):
        _ = env.nonsense
    assert pickle.loads(pickle.dumps(env)).turns == env.turns


def test_class_attributes_are_the_inner_environments() -> None:
    class Hard(Dice):
        oracle_success = 0.25
        note = "mine"

    env = Counting(Counting(Hard()))
    assert (env.oracle_success, env.note) == (0.25, "mine")
    assert gem.make("game:Game2048-v0", wrappers=["episode_tracking"]).oracle_success == 0.25


@pytest.fixture
def dice_id() -> Any:
    gem.register("test:Dice-v0", Dice, sides=8)
    yield "test:Dice-v0"
    del registry._registry["test:Dice-v0"]


def test_make_uses_the_ids_parameters_and_overrides(dice_id: str) -> None:
    assert gem.make(dice_id).unwrapped.sides == 8  # type: ignore[attr-defined]
    env = gem.make(dice_id, sides=3, seed=5)
    assert env.spec is not None
    assert (env.spec.id, dict(env.spec.kwargs)) == (dice_id, {"sides": 3, "seed": 5})
    assert env.reset()[0] == Dice(sides=3).reset(seed=5)[0]
    assert dice_id in gem.list_envs("test:")


def test_wrong_ids_and_parameters_are_named(dice_id: str) -> None:
    with pytest.raises(UnknownEnvError, match="did you mean test:Dice-v0") as caught:
        gem.make("test:dice-v0")
    assert "\\'" not in str(caught.value)
    with pytest.raises(UnknownParameterError, match="no parameter 'side'.*sides"):
        gem.make(dice_id, side=3)
    with pytest.raises(ConfigurationError, match="module:Class"):
        gem.register("test:Other-v0", "no_colon_here")


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The registry as in a process that has just begun; returns what adds an installed package."""
    monkeypatch.setattr(registry, "_registry", {})
    monkeypatch.setattr(registry, "_registered_by_hand", set())
    monkeypatch.setattr(registry, "_loaded", set())
    installed: list[Any] = []
    monkeypatch.setattr(registry, "entry_points", lambda group: installed * (group == "gem.envs"))

    def install(function: Any) -> None:
        installed.append(SimpleNamespace(name="x", value="x:y", load=lambda: function))

    return install


def test_installed_packages_add_ids_through_the_entry_point_group(fresh: Any) -> None:
    fresh(lambda: gem.register("thirdparty:Dice-v0", Dice))
    assert "thirdparty:Dice-v0" in gem.list_envs()


def test_a_built_in_id_registered_before_the_first_make_is_replaced_with_a_warning(
    fresh: Any,
) -> None:
    with pytest.warns(UserWarning, match="'game:Wordle-v0' is registered again; .*Dice.* replaces"):
        gem.register("game:Wordle-v0", Dice)
    assert isinstance(gem.make("game:Wordle-v0"), Dice)
    assert gem.make("game:Hangman-v0").reset(seed=0)[0]


def test_an_id_registered_again_is_replaced_with_a_warning(dice_id: str) -> None:
    with pytest.warns(UserWarning, match="registered again"):
        gem.register(dice_id, Dice, sides=3)
    assert gem.make(dice_id).unwrapped.sides == 3  # type: ignore[attr-defined]


def test_a_registration_by_hand_outlives_that_of_an_installed_package(fresh: Any) -> None:
    fresh(lambda: gem.register("thirdparty:Dice-v0", Dice, sides=4))
    gem.register("thirdparty:Dice-v0", Dice, sides=9)
    assert gem.make("thirdparty:Dice-v0").unwrapped.sides == 9  # type: ignore[attr-defined]


def test_a_package_that_registers_while_it_is_imported_is_not_loaded_by_that(fresh: Any) -> None:
    def half_imported() -> None:
        raise AttributeError("not defined yet")

    fresh(half_imported)
    gem.register("thirdparty:Dice-v0", Dice)  # a warning would be an error


def test_a_module_may_register_while_another_thread_loads_packages(fresh: Any) -> None:
    registered = threading.Event()

    def waits() -> None:  # as for the lock of a module that the other thread is importing
        assert others.submit(gem.register, "test:Other-v0", Dice).result(30) is None
        registered.set()
        gem.register("thirdparty:Dice-v0", Dice)

    fresh(waits)
    with ThreadPoolExecutor(1) as others:
        assert {"test:Other-v0", "thirdparty:Dice-v0"} <= set(gem.list_envs())
    assert registered.is_set()
    assert registry._registered_by_hand == {"test:Other-v0"}


def test_threads_wait_until_all_ids_are_registered(
    monkeypatch: pytest.MonkeyPatch, fresh: Any
) -> None:
    import gem.envs

    started, original = threading.Event(), gem.envs.register_all

    def slow(register: Any) -> None:
        gem.list_envs()  # a package may look at the ids while it registers its own
        started.set()
        threading.Event().wait(0.2)
        original(register)

    monkeypatch.setattr(gem.envs, "register_all", slow)
    with ThreadPoolExecutor(8) as threads:
        first = threads.submit(gem.list_envs)
        assert started.wait(30)
        others = [threads.submit(gem.list_envs, "game:") for _ in range(7)]
        assert all("game:Wordle-v0" in f.result(30) for f in [first, *others])


@given(
    st.sampled_from(["game:X-v0", "agent:python a b.py?steps=3&x=1", "remote:http://h:1/a%20b#c"]),
    st.integers(1, 99),
    st.integers(-(10**12), 10**12),
    st.dictionaries(
        st.text("abc_", min_size=1),
        st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
    ),
)
def test_task_uris_read_back(env_id: str, n: int, seed: int, params: dict[str, Any]) -> None:
    tasks = TaskSet(env_id, n, seed, params)
    assert TaskSet.parse(tasks.uri) == tasks


def test_task_sets_are_consecutive_seeds() -> None:
    tasks = TaskSet.parse("gem:game:X-v0-easy?n=3&seed=10&hint=range&max_turns=4")
    assert list(tasks) == [
        Task("game:X-v0-easy", s, {"hint": "range", "max_turns": 4}) for s in (10, 11, 12)
    ]
    assert tasks[-1].seed == 12
    assert [t.seed for t in tasks[1:]] == [11, 12]
    with pytest.raises(IndexError):
        _ = tasks[3]


def test_tasks_and_task_sets_are_members_of_sets() -> None:
    tasks = TaskSet("game:X-v0", 2, 5, {"rows": [{"a": 1}]})
    assert len({tasks, TaskSet("game:X-v0", 2, 5, {"rows": [{"a": 1}]})}) == 1
    assert len({*tasks, *tasks, Task("game:X-v0", 5)}) == 3


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("game:X-v0", "task URI is gem:"),
        ("gem:", "task URI is gem:"),
        ("gem:x?n=many", "n must be an integer"),
        ("gem:x?seed=1.5", "seed must be an integer"),
        ("gem:x?n=1&n=2", "'n' twice"),
        ("gem:x?n", "bad query field"),
        ("gem:x?n=0", "n >= 1"),
    ],
)
def test_malformed_task_uris_say_what_is_wrong(uri: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        TaskSet.parse(uri)
