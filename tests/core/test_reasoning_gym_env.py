"""ReasoningGym: every generator, one stream of items, scoring that cannot harm or hang."""

from __future__ import annotations

import json
import os
import pickle
import random
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
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
from gem.workers.pool import Reply

# Looked for, not imported: it runs in a process of its own.
pytestmark = pytest.mark.skipif(
    find_spec("reasoning_gym") is None, reason="needs the extra reasoning-gym"
)
# Of these the package records no answer; the score of an answer is computed.
WITHOUT_ANSWER = {"boxnet", "graph_color", "rubiks_cube", "rush_hour"}


def first(env: Any, **options: Any) -> str:
    return str(env.reset(**options)[0])


def scored(env: ReasoningGymEnv, answer: str) -> Any:
    env.reset(idx=0)
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
    worker.pool().close()
    assert items() == here
    assert random.getstate() == before
    assert repr(np.random.get_state(legacy=True)) == before_np


def test_the_stream_goes_on_with_another_data_set_after_size_items() -> None:
    env = ReasoningGymEnv("chain_sum", size=5, dataset_seed=10, eval=True)
    stream = [first(env) for _ in range(15)]
    assert len(set(stream)) == 15
    # The next data set has the seed of the first one plus the number of items shown.
    larger = ReasoningGymEnv("chain_sum", size=15, dataset_seed=10, eval=True)
    assert [first(larger) for _ in range(15)] == stream
    shuffled = ReasoningGymEnv("chain_sum", size=5, dataset_seed=10, seed=1)
    walked = [first(shuffled) for _ in range(15)]
    assert [sorted(walked[i : i + 5]) for i in (0, 5, 10)] == [
        sorted(stream[i : i + 5]) for i in (0, 5, 10)
    ]
    assert walked != stream
    assert {first(shuffled, seed=seed) for seed in range(60)} == set(stream[:5])
    assert first(shuffled, idx=12) == stream[12]


def test_data_sets_of_adjacent_seeds_share_no_item() -> None:
    questions = []
    for dataset_seed in (41, 42, 43, 44):
        env = ReasoningGymEnv("chain_sum", size=40, dataset_seed=dataset_seed)
        questions += [first(env, idx=i) for i in range(40)]
    assert len(set(questions)) == len(questions)
    default = ReasoningGymEnv("chain_sum", size=2_000_000)
    default.reset(idx=0)
    assert default._item()["seed"] == 42
    with pytest.raises(ConfigurationError, match="at most 1000000 with dataset_seed=43, got 1000"):
        ReasoningGymEnv("chain_sum", size=1_000_001, dataset_seed=43)


def test_the_seed_of_the_first_reset_is_not_taken_for_that_of_the_data_set() -> None:
    with pytest.warns(UserWarning, match="rg:gcd: seed=10 chooses where .* dataset_seed=42"):
        env = gem.make("rg:gcd", seed=10)
    assert first(env) == first(ReasoningGymEnv("gcd"), seed=10)
    gem.make("rg:gcd", seed=10, dataset_seed=42)


def test_a_copy_continues_the_stream() -> None:
    env = ReasoningGymEnv("gcd", size=4, dataset_seed=42, seed=3)
    first(env)
    copies = [env.spawn(same_state=True), pickle.loads(pickle.dumps(env))]
    expected = [env.step("\\boxed{1}"), *(first(env) for _ in range(9))]
    for copy in copies:
        assert [copy.step("\\boxed{1}"), *(first(copy) for _ in range(9))] == expected


def test_a_wrong_answer_earns_nothing_unless_partial_credit_is_asked_for() -> None:
    gold = ReasoningGymEnv("chain_sum")
    gold.reset(idx=0)
    right = gold.oracle_action().removeprefix("\\boxed{").removesuffix("}")
    said = f"it is {right}, I think"
    _, reward, _, _, info = scored(ReasoningGymEnv("chain_sum"), said)
    assert (reward, info["correct"], info["format_error"]) == (0.0, False, False)
    _, reward, _, _, info = scored(ReasoningGymEnv("chain_sum", partial_credit=True), said)
    assert 0.0 < reward < 1.0
    assert (info["score"], info["correct"]) == (reward, False)
    gold.reset(idx=0)
    info = gold.step(right)[4]
    assert (info["format_error"], info["score"]) == (True, 0.0)


def test_a_right_answer_in_another_notation_earns_the_library_s_share() -> None:
    env = ReasoningGymEnv("spiral_matrix")
    env.reset(idx=0)
    numbers = env.oracle_action().removeprefix("\\boxed{").removesuffix("}").split()
    _, reward, _, _, info = scored(env, f"[{', '.join(numbers)}]")
    assert (reward, info["correct"]) == (0.1, False)


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


@pytest.mark.parametrize("answer", ["", "\x00", "\ud800", "{}", "9" * 1_000_000, "[" * 5000])
def test_any_answer_is_scored(answer: str) -> None:
    for name in ("chain_sum", "n_queens", "countdown"):
        _, reward, terminated, _, info = scored(ReasoningGymEnv(name), answer)
        assert 0.0 <= reward < 1.0
        assert terminated
        assert isinstance(info["reason"], str)


def test_many_threads_share_a_few_processes() -> None:
    def play(seed: int) -> float:
        env = ReasoningGymEnv("gcd")
        env.reset(seed=seed)
        return env.step(env.oracle_action())[1]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(play, range(12))) == [1.0] * 12
    assert 1 <= len(worker.pool().pids()) <= worker.pool().workers


def test_while_the_scoring_of_one_answer_hangs_others_are_scored() -> None:
    hanging, env = ReasoningGymEnv("simple_integration", timeout_s=8), ReasoningGymEnv("gcd")
    first(hanging, idx=0)
    # Days of work for the library, in a formula that is small enough to be let through.
    answer = "\\boxed{((a+b+c+d+e+f+g+h)*x)**60}"
    with ThreadPoolExecutor(2) as pool:
        # So that the second process need not be started while the first one hangs.
        list(pool.map(lambda i: first(ReasoningGymEnv("futoshiki"), idx=i), range(2)))
        step = pool.submit(hanging.step, answer)
        first(env, idx=0)
        assert env.step(env.oracle_action())[1] == 1.0
        assert not step.done()
        _, reward, _, _, info = step.result()
    assert (reward, info["reason"]) == (0.0, "timeout")


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("countdown", "9**9**9**9"),
        ("puzzle24", "9**9**9**9"),
        ("simple_integration", "9**9**9**9"),
        ("simple_integration", "((x**99)**99)**99"),
        ("polynomial_multiplication", "(9**99)**99"),
        ("coin_flip", "1e9999999999"),
        ("coin_flip", "1e9_999_999_999"),
        ("rubiks_cube", "U99999999999"),
        ("rush_hour", "A+99999999999"),
    ],
)
def test_enormous_computations_are_refused_before_they_begin(name: str, answer: str) -> None:
    _, reward, _, _, info = scored(ReasoningGymEnv(name), answer)
    assert reward == 0.0
    assert info["reason"] not in ("timeout", "crash", "different")


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
    before = worker.pool().pids()
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    assert first(env, seed=1) == text
    assert not set(worker.pool().pids()) & set(before)


def test_an_answer_is_not_wrong_because_the_process_was_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env = ReasoningGymEnv("gcd")
    first(env, seed=1)
    answer = env.oracle_action()
    pool, killed = worker.pool(), []
    call = pool.call

    def call_and_kill(*args: Any, timeout_s: float) -> Reply:
        if killed:
            return call(*args, timeout_s=timeout_s)
        killed.append(args)
        return Reply(None, "crash")

    monkeypatch.setattr(pool, "call", call_and_kill)
    assert env.step(answer)[1] == 1.0
    assert killed[0][1] == answer.removeprefix("\\boxed{").removesuffix("}")


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "reasoning_gym").mkdir()
    (tmp_path / "reasoning_gym" / "__init__.py").write_text("raise ImportError('not here')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(worker, "pool", cache(worker.pool.__wrapped__))
    with pytest.raises(MissingExtraError, match=r"pip install 'gem-core\[reasoning-gym\]'"):
        first(ReasoningGymEnv("gcd"))
    worker.pool().close()


def test_the_info_has_the_numbers_of_the_item() -> None:
    env = gem.make("rg:chain_sum", config={"min_terms": 4, "max_terms": 4})
    env.reset(seed=0)
    assert env.step(env.oracle_action())[4]["item.num_terms"] == 4
