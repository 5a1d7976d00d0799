"""ReasoningGym: every generator, one stream of items, scoring that cannot harm or hang."""

from __future__ import annotations

import json
import os
import pickle
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import forked

import gem
from gem.envs import reasoning_gym_worker as worker
from gem.envs.dataset_ids import GENERATORS
from gem.envs.reasoning_gym import ReasoningGymEnv
from gem.errors import ConfigurationError, MissingExtraError

# Looked for, not imported: it runs in a process of its own.
pytestmark = pytest.mark.skipif(
    find_spec("reasoning_gym") is None, reason="needs the extra reasoning-gym"
)
# Of these the package records no answer; the score of an answer is computed.
WITHOUT_ANSWER = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}


def first(env: Any, **options: Any) -> str:
    return str(env.reset(**options)[0])


def scored(env: ReasoningGymEnv, answer: str, idx: int = 0) -> Any:
    env.reset(idx=idx)
    return env.step(f"\\boxed{{{answer}}}")


def test_every_generator_of_the_installed_package_has_an_id() -> None:
    with pytest.raises(ConfigurationError, match="no generator 'none'") as raised:
        first(ReasoningGymEnv("none"))
    installed = str(raised.value).split("it has ")[1].split(", ")
    # Two generators are younger than the oldest release that is supported.
    assert set(installed) | {"coin_flip", "path_star"} == set(GENERATORS)
    assert gem.list_envs("rg:") == sorted(f"rg:{name}" for name in GENERATORS)


def test_ids_are_known_without_importing_the_package() -> None:
    code = (
        "import sys, gem; gem.make('rg:chain_sum').reset(seed=0); "
        "print(len(gem.list_envs('rg:')), 'reasoning_gym' in sys.modules, 'sympy' in sys.modules)"
    )
    told = os.popen(f'"{sys.executable}" -c "{code}"').read()
    assert told.split() == [str(len(GENERATORS)), "False", "False"]


def test_every_generator_asks_for_a_box_and_scores_the_recorded_answer() -> None:
    unsolved = set()
    for name in GENERATORS:
        env = gem.make(f"rg:{name}", timeout_s=60)
        observation = first(env, seed=7)
        assert observation.endswith(env.answer_format.instruction), name
        try:
            answer = env.oracle_action()
        except NotImplementedError:
            unsolved.add(name)
            answer = "\\boxed{x}"
        _, reward, terminated, truncated, info = env.step(answer)
        assert (terminated, truncated, info["score"]) == (True, False, reward), name
        assert info["correct"] is (reward == 1.0), name
        assert info["correct"] is (name not in unsolved), name
    assert unsolved == WITHOUT_ANSWER


def test_items_are_the_same_in_another_process_and_no_global_generator_is_used() -> None:
    def items() -> list[Any]:
        envs = [gem.make(f"rg:{name}") for name in GENERATORS]
        return [(first(env, idx=3), worker.item(env._item())["answer"]) for env in envs]

    before, before_np = random.getstate(), repr(np.random.get_state(legacy=True))
    here = items()
    worker._helper._stop()
    assert items() == here
    assert random.getstate() == before
    assert repr(np.random.get_state(legacy=True)) == before_np


def test_the_stream_goes_on_with_another_data_set_after_size_items() -> None:
    env = ReasoningGymEnv("chain_sum", size=5, dataset_seed=10, eval=True)
    stream = [first(env) for _ in range(15)]
    assert len(set(stream)) == 15
    # The next data set has the seed of the first one plus the number of items shown.
    later = ReasoningGymEnv("chain_sum", size=5, dataset_seed=15, eval=True)
    assert [first(later) for _ in range(5)] == stream[5:10]
    shuffled = ReasoningGymEnv("chain_sum", size=5, dataset_seed=10, seed=1)
    walked = [first(shuffled) for _ in range(15)]
    assert [sorted(walked[i : i + 5]) for i in (0, 5, 10)] == [
        sorted(stream[i : i + 5]) for i in (0, 5, 10)
    ]
    assert walked != stream
    assert {first(shuffled, seed=seed) for seed in range(60)} == set(stream[:5])
    assert first(shuffled, idx=12) == stream[12]


def test_a_copy_continues_the_stream() -> None:
    env = ReasoningGymEnv("gcd", size=4, seed=3)
    first(env)
    copies = [env.spawn(same_state=True), pickle.loads(pickle.dumps(env))]
    expected = [env.step("\\boxed{1}"), *(first(env) for _ in range(9))]
    for copy in copies:
        assert [copy.step("\\boxed{1}"), *(first(copy) for _ in range(9))] == expected


def test_scores_between_0_and_1_are_paid_and_not_correct() -> None:
    env = ReasoningGymEnv("chain_sum")
    env.reset(idx=0)
    gold = env.oracle_action().removeprefix("\\boxed{").removesuffix("}")
    _, reward, _, _, info = scored(env, f"it is {gold}, I think")
    assert 0.0 < reward < 1.0
    assert (info["score"], info["correct"], info["format_error"]) == (reward, False, False)
    env.reset(idx=0)
    info = env.step(gold)[4]
    assert (info["format_error"], info["score"]) == (True, 0.0)


def test_game_of_life_halting_is_won_by_the_right_answer_only() -> None:
    env = ReasoningGymEnv("game_of_life_halting")
    golds = set()
    for idx in range(12):
        env.reset(idx=idx)
        gold = env.oracle_action()
        golds.add(gold)
        assert env.step(gold.lower())[1] == 1.0
        for wrong in {"\\boxed{True}", "\\boxed{False}", "\\boxed{7}"} - {gold}:
            env.reset(idx=idx)
            assert env.step(wrong)[1] == 0.0
    assert len(golds) == 2


def test_an_integral_is_to_be_solved_not_named() -> None:
    env = ReasoningGymEnv("intermediate_integration", timeout_s=60)
    # The package itself records an answer to item 16 that names another integral.
    assert "Integral" not in first(env, idx=16)
    assert env.step("\\boxed{Integral(x**3*cos(x), x) + C}")[1] < 1.0
    env.reset(idx=16)
    assert "Integral" not in env.oracle_action()
    assert env.step(env.oracle_action())[1] == 1.0


def test_copying_the_string_does_not_win_string_insertion() -> None:
    env = gem.make("rg:string_insertion")
    copies = 0
    for idx in range(60):
        copied = first(env, idx=idx).split("\n\n")[-2].split(": ")[-1]
        copies += env.step(f"\\boxed{{{copied}}}")[4]["correct"]
    assert copies / 60 < 0.6


def test_levels_and_fields_make_other_problems() -> None:
    # Terms are numbers of so many digits, one sign between two of them.
    def terms(**parameters: Any) -> list[int]:
        env = ReasoningGymEnv("chain_sum", **parameters)
        texts = [first(env, idx=i) for i in range(20)]
        return [sum(word in "+-" for word in text.split("\n\n")[0].split()) + 1 for text in texts]

    easy, hard = terms(level=0), terms(level=3)
    assert max(easy) < max(hard)
    assert set(terms(config={"min_terms": 7, "max_terms": 7})) == {7}
    assert set(terms(config={"min_terms": 7, "max_terms": 7}, level=0)) == {7}


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"level": 99}, "level of reasoning-gym 'chain_sum' must be from 0 to [0-9]+, got 99"),
        ({"config": {"terms": 3}}, "'chain_sum' has no field 'terms'; it has .*max_terms"),
        ({"config": {"min_terms": -1}}, "'chain_sum' refuses .*min_terms"),
        ({"name": "composite", "level": 1, "config": None}, "'composite' .*no levels"),
    ],
)
def test_what_a_generator_refuses_is_named_at_reset(
    parameters: dict[str, Any], message: str
) -> None:
    env = ReasoningGymEnv(**{"name": "chain_sum", **parameters})
    with pytest.raises(ConfigurationError, match=message):
        env.reset(seed=0)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"name": ""}, "name must be a name, got ''"),
        ({"size": 0}, "size must be an integer from 1"),
        ({"dataset_seed": -1}, "dataset_seed must be an integer from 0"),
        ({"level": -1}, "level must be an integer from 0"),
        ({"config": {"x": object()}}, "config must map names to plain values"),
        ({"timeout_s": 0}, "timeout_s must be a number above 0"),
    ],
)
def test_impossible_parameters_are_refused_at_construction(
    parameters: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ReasoningGymEnv(**{"name": "chain_sum", **parameters})


@pytest.mark.parametrize(
    "name",
    [
        "binary_matrix",
        "countdown",
        "intermediate_integration",
        "n_queens",
        "polynomial_multiplication",
        "puzzle24",
        "simple_integration",
        "spiral_matrix",
        "string_insertion",
    ],
)
def test_no_answer_is_run_as_code(name: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    spelled = "+".join(f"chr({ord(letter)})" for letter in f"open('{mark}', 'w')")
    env = ReasoningGymEnv(name)
    for answer in (
        f"open('{mark}', 'w').close()",
        f"[[open('{mark}', 'w')]]",
        f"__import__('pathlib').Path('{mark}').touch()",
        f"(lambda: open('{mark}', 'w'))()",
        f"x.__class__.__base__.__subclasses__() + open('{mark}', 'w')",
        # The same without quotes, which a filter of characters lets pass.
        f"exec({spelled})",
        f"(exec)({spelled})",
    ):
        env.reset(idx=1)
        _, reward, _, _, info = env.step(f"\\boxed{{{answer}}}")
        assert reward < 1.0
        assert not info["correct"]
    assert not mark.exists()


def test_an_answer_that_hangs_scores_nothing_and_the_next_is_right() -> None:
    env = ReasoningGymEnv("countdown", timeout_s=0.5)
    _, reward, _, _, info = scored(env, "9**9**9**9")
    assert (reward, info["reason"]) == (0.0, "timeout")
    env = ReasoningGymEnv("countdown")
    env.reset(idx=0)
    assert env.step(env.oracle_action())[1] == 1.0


@pytest.mark.parametrize("answer", ["", "\x00", "\ud800", "{}", "9" * 1_000_000, "[" * 5000])
def test_any_answer_is_scored(answer: str) -> None:
    for name in ("chain_sum", "n_queens", "countdown"):
        _, reward, terminated, _, info = scored(ReasoningGymEnv(name), answer)
        assert 0.0 <= reward < 1.0
        assert terminated
        assert isinstance(info["reason"], str)


def test_many_threads_share_the_one_process() -> None:
    def play(seed: int) -> float:
        env = ReasoningGymEnv("gcd")
        env.reset(seed=seed)
        return env.step(env.oracle_action())[1]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(play, range(12))) == [1.0] * 12


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork()")
def test_a_forked_process_starts_one_of_its_own() -> None:
    env = ReasoningGymEnv("gcd")
    expected = first(env, seed=1), first(env, seed=2)
    with forked(lambda: json.dumps([first(env, seed=1), first(env, seed=2)])) as answer:
        here = first(env, seed=2), first(env, seed=1)
        assert tuple(json.loads(answer())) == expected == here[::-1]


def test_a_killed_process_is_replaced() -> None:
    env = ReasoningGymEnv("gcd")
    text = first(env, seed=1)
    process = worker._helper._process
    assert process is not None
    process._child.kill()
    process._child.wait()
    assert first(env, seed=1) == text


def test_an_answer_is_not_wrong_because_the_process_was_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env = ReasoningGymEnv("gcd")
    first(env, seed=1)
    item, killed = worker.item, []

    def item_then_kill(which: dict[str, Any]) -> dict[str, Any]:
        found = item(which)
        if not killed:
            process = worker._helper._process
            assert process is not None
            killed.append(process._child.pid)
            process._child.kill()
            process._child.wait()
        return found

    answer = env.oracle_action()
    monkeypatch.setattr(worker, "item", item_then_kill)
    assert env.step(answer)[1] == 1.0
    assert killed


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "reasoning_gym").mkdir()
    (tmp_path / "reasoning_gym" / "__init__.py").write_text("raise ImportError('not here')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(worker, "_helper", worker._Helper())
    with pytest.raises(MissingExtraError, match=r"pip install 'gem-core\[reasoning-gym\]'"):
        first(ReasoningGymEnv("gcd"))
    worker._helper._stop()
