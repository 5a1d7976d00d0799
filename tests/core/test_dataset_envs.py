"""What holds for every data set task: order, items, one copy of the data, snapshots, errors."""

from __future__ import annotations

import inspect
import json
import pickle
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import gem
from gem.envs.dataset_ids import DATASETS
from gem.envs.datasets import DatasetEnv
from gem.envs.qa import QaEnv, RuleTaker
from gem.errors import (
    ConfigurationError,
    DataError,
    ResetNeededError,
    UnknownParameterError,
    UnreachableError,
)
from gem.grading.formats import BOXED, THINK_BOXED
from gem.registry import spec
from gem_math.env import MathEnv, MathVisualEnv
from gem_sandbox.env import CodeEnv

ROWS = [{"problem": f"Question {i}?", "answer": [f"a{i}", f"b{i}"]} for i in range(7)]
OFFLINE = {"source": "sample"}


def make(env_id: str, **parameters: Any) -> Any:
    runner = {"runner": "subprocess"} if "CodeEnv" in spec(env_id).entry_point else {}
    return gem.make(env_id, **{**OFFLINE, **runner, **parameters})


def indices(env: Any, count: int, **first: Any) -> list[int]:
    return [env.reset(**(first if i == 0 else {}))[1]["index"] for i in range(count)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    return file


@pytest.mark.parametrize("env_id", ["math:GSM8K", "qa:HotpotQA", "logic:RuleTaker-d1"])
def test_a_split_is_refused_where_there_are_none(env_id: str, path: Path) -> None:
    for source in (str(path), f"file:{path}", "sample", ROWS):
        env = make(env_id, source=source, split="test")
        with pytest.raises(ConfigurationError, match="split='test', but the source .* no splits"):
            env.reset(seed=0)
    # Its registration has the split `train`.
    make("logic:RuleTaker-d1").reset(seed=0)
    assert len(make("code:CodeContest").unwrapped.table) > 0


def test_every_id_of_the_original_is_registered() -> None:
    counts = {family: len(gem.list_envs(f"{family}:")) for family in ("math", "code", "qa")}
    assert counts == {"math": 7, "code": 3, "qa": 2}
    assert len(gem.list_envs("logic:")) == 5
    assert len(gem.list_envs("eval:")) == 14
    assert set(DATASETS) <= set(gem.list_envs())


@pytest.mark.parametrize("env_id", DATASETS)
def test_every_task_can_be_solved_offline_from_what_its_prompt_says(env_id: str) -> None:
    env = make(env_id)
    observation, info = env.reset(seed=1)
    text = observation if isinstance(observation, str) else observation[-1]["text"]
    # The last thing that the prompt says is how the grader reads the answer.
    assert text.endswith(env.answer_format.instruction)
    index = info["index"]
    assert info == {"index": index}
    observation, reward, terminated, truncated, info = env.step(env.oracle_action())
    assert (observation, reward, terminated, truncated) == ("", 1.0, True, False)
    flags = {"correct": True, "success": True, "format_error": False, "invalid_action": False}
    assert {**info, **flags, "index": index} == info
    assert isinstance(info["reason"], str)


@pytest.mark.parametrize("env_id", DATASETS)
def test_a_reply_without_an_answer_is_a_format_error(env_id: str) -> None:
    env = make(env_id)
    for parameters, reward in (
        ({}, -0.1 if "code" in spec(env_id).kwargs["sample"] else 0.0),
        (
            {"format_error_reward": -0.5},
            -0.5,
        ),
    ):
        env = make(env_id, **parameters)
        env.reset(seed=0)
        assert env.step("I do not know.")[:4] == ("", reward, True, False)
    env.reset()
    info = env.step("")[4]
    assert (info["format_error"], info["correct"], info["success"]) == (True, False, False)


@pytest.mark.parametrize("env_id", DATASETS)
def test_making_an_environment_needs_neither_network_nor_data(
    env_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    runner = {"runner": "subprocess"} if "CodeEnv" in spec(env_id).entry_point else {}
    env = gem.make(env_id, **runner)
    with pytest.raises(ImportError, match=r"pip install 'gem-core\[data\]'.*source='sample'"):
        env.reset(seed=0)


def test_an_unreachable_hub_is_an_error_at_the_first_reset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    datasets = pytest.importorskip("datasets")

    def refuse(name: str, **_: Any) -> Any:
        raise ConnectionError(name)

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    with pytest.raises(UnreachableError, match="axon-rl/GSM-8k.*source='sample'"):
        gem.make("math:GSM8K").reset()


def test_ids_load_the_split_and_columns_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "search-eval"
    folder.mkdir()
    for split in ("nq", "tq"):
        row = {"problem": f"Which split? ({split})", "answer": [split]}
        (folder / f"{split}.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: default\n  data_files:\n"
        "  - {split: nq, path: nq.jsonl}\n  - {split: tq, path: tq.jsonl}\n---\n",
        encoding="utf-8",
    )
    for env_id, split in (("eval:NaturalQuestions", "nq"), ("eval:TriviaQA", "tq")):
        env = gem.make(env_id, source=f"hub:{folder}")
        assert f"({split})" in env.reset(seed=0)[0]
        assert env.step(f"<answer>{split}</answer>")[1] == 1.0


def test_resets_walk_a_permutation_and_then_another_one() -> None:
    env = QaEnv(ROWS, seed=3)
    walked = indices(env, 21)
    epochs = [walked[i : i + 7] for i in (0, 7, 14)]
    assert all(sorted(epoch) == list(range(7)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1
    # A pure function of seed and epoch.
    assert indices(QaEnv(ROWS), 21, seed=3) == walked
    assert indices(env.spawn(seed=3), 21) == walked
    assert indices(QaEnv(ROWS), 21, seed=4) != walked


def test_seeds_choose_every_item_alike() -> None:
    env = QaEnv(ROWS)
    drawn = [env.reset(seed=seed)[1]["index"] for seed in range(1400)]
    # Binomial with mean 200 and standard deviation 13.1: five of them either way.
    assert all(134 < drawn.count(index) < 266 for index in range(7))


def test_evaluation_walks_the_items_in_order() -> None:
    assert indices(QaEnv(ROWS, eval=True), 9) == [0, 1, 2, 3, 4, 5, 6, 0, 1]
    env = QaEnv(ROWS, eval=True)
    assert [env.reset(seed=seed)[1]["index"] for seed in range(7)] == list(range(7))
    assert indices(env, 3, seed=5) == [5, 6, 0]
    assert spec("eval:AMC").kwargs["eval"] is True


def test_idx_shows_a_row_as_loaded_and_does_not_advance_the_walk() -> None:
    env, other = QaEnv(ROWS, seed=1), QaEnv(ROWS, seed=1)
    expected = indices(other, 5)
    walked = []
    for _ in range(5):
        observation, info = env.reset(idx=6)
        assert (info["index"], observation.startswith("Question 6?")) == (6, True)
        assert env.step("<answer>b6</answer>")[1] == 1.0
        walked.append(env.reset()[1]["index"])
    assert walked == expected
    assert env.reset(seed=0, idx=2)[1]["index"] == 2
    for idx in (7, -1, 1.0, "0"):
        with pytest.raises(ConfigurationError, match="idx must be an integer from 0 to 6, got"):
            env.reset(idx=idx)
    with pytest.raises(UnknownParameterError, match="no option 'index'; it has 'idx'"):
        env.reset(index=2)


def test_all_environments_of_a_process_share_one_table(path: Path) -> None:
    envs = [QaEnv(path) for _ in range(8)]
    threads = [threading.Thread(target=env.reset, kwargs={"seed": 0}) for env in envs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(env.table) for env in envs}) == 1


def test_snapshots_and_pickles_hold_no_data(path: Path) -> None:
    rows = [{"problem": f"{i} " + "x" * 10_000, "answer": str(i)} for i in range(20)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    for source in (str(path), rows):
        env = QaEnv(source, seed=2)
        env.reset()
        assert len(env.snapshot()) < 10_000
    assert len(pickle.dumps(QaEnv(path))) < 10_000


@pytest.mark.parametrize("in_memory", [False, True])
def test_a_snapshot_continues_the_episode_and_the_walk(path: Path, in_memory: bool) -> None:
    source: Any = ROWS if in_memory else path
    env = QaEnv(source, seed=2)
    indices(env, 3)
    fresh = QaEnv(source)
    fresh.restore(env.snapshot())
    copies = [env.spawn(same_state=True), pickle.loads(pickle.dumps(env)), fresh]
    action = env.oracle_action()
    expected = env.step(action), indices(env, 9)
    for copy in copies:
        assert copy.oracle_action() == action
        assert (copy.step(action), indices(copy, 9)) == expected


def test_a_spawned_environment_needs_a_reset() -> None:
    env = QaEnv(ROWS)
    env.reset(seed=0)
    with pytest.raises(ResetNeededError, match=r"reset\(\)"):
        env.spawn().step("<answer>x</answer>")


def test_steps_need_a_running_episode_and_text() -> None:
    env = QaEnv(ROWS)
    for call in (lambda: env.step("x"), env.render, env.oracle_action, env.sample_random_action):
        with pytest.raises(ResetNeededError, match=r"reset\(\)"):
            call()
    env.reset(seed=0)
    with pytest.raises(TypeError, match="action must be a str, got NoneType"):
        env.step(None)  # type: ignore[arg-type]
    env.step("x")
    with pytest.raises(ResetNeededError, match=r"reset\(\)"):
        env.step("x")
    assert env.render().startswith(f"QaEnv, item {env.index}\nQuestion {env.index}?")


def test_after_a_reset_that_fails_no_episode_runs() -> None:
    env = QaEnv([*ROWS, {"problem": 3, "answer": "x"}])
    env.reset(seed=0)
    with pytest.raises(DataError):
        env.reset(idx=7)
    with pytest.raises(ResetNeededError):
        env.step("<answer>x</answer>")


def test_a_missing_column_and_a_wrong_value_are_named(path: Path) -> None:
    env = QaEnv(path, question_column="query")
    message = r"rows\.jsonl, row 0: no column 'query'; it has 'problem', 'answer'"
    with pytest.raises(DataError, match=message):
        env.reset(idx=0)
    env = QaEnv([{"problem": 3, "answer": "x"}])
    with pytest.raises(DataError, match="row 0, column 'problem': int, expected str"):
        env.reset(idx=0)


@pytest.mark.parametrize("env_id", DATASETS)
def test_the_answer_and_the_data_set_are_there_for_evaluation(env_id: str) -> None:
    env = make(env_id, wrappers=["episode_tracking"]).unwrapped
    with pytest.raises(ResetNeededError):
        _ = env.answer
    env.reset(seed=3)
    assert env.answer == env.table[env.index][env.answer_column]
    assert len(env.table) > env.index


def test_the_answer_format_writes_the_prompt_and_reads_the_reply() -> None:
    for given in (THINK_BOXED, "think_boxed"):
        env = QaEnv(ROWS, answer_format=given)
        assert env.reset(idx=0)[0].endswith(THINK_BOXED.instruction)
        assert env.step("<think>a1?</think> \\boxed{a0}")[1] == 1.0
        env.reset(idx=0)
        assert env.step("\\boxed{a0}")[4]["format_error"]
    env = QaEnv(ROWS, answer_format=BOXED)
    env.reset(idx=0)
    assert env.step("\\boxed{a0}")[1] == 1.0


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"eval": 1}, "eval must be True or False, got 1"),
        ({"format_error_reward": "0"}, "format_error_reward must be a finite number, got '0'"),
        (
            {"format_error_reward": float("nan")},
            "format_error_reward must be a finite number, got nan",
        ),
        ({"answer_format": "box"}, "answer_format must be one of 'boxed', .*got 'box'"),
        ({"answer_format": None}, "answer_format must be one of .*got None"),
        ({"source": 3}, "source must be a URI, a path, .*DataFrame, got int"),
        ({"source": b"x"}, "source must be .*got bytes"),
        ({"sample": "GSM8K"}, "sample must be one of .*'gsm8k'.*got 'GSM8K'"),
        ({"split": 0}, "split must be a name, got 0"),
        ({"question_column": None}, "question_column must be a name, got None"),
        ({"seed": "1"}, "seed must be an integer"),
    ],
)
def test_impossible_parameters_are_refused_at_construction(
    parameters: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        QaEnv(**{"source": ROWS, **parameters})


@pytest.mark.parametrize("kind", [MathEnv, MathVisualEnv, QaEnv, RuleTaker, CodeEnv])
def test_a_constructor_has_all_parameters_of_a_data_set_and_its_own_defaults(kind: Any) -> None:
    given = inspect.signature(kind).parameters
    hidden = {"answer_column"} if kind is CodeEnv else set()
    assert given.keys() >= inspect.signature(DatasetEnv).parameters.keys() - hidden
    assert not hidden & given.keys()
    env = kind("sample")
    for name in ("split", "question_column", "answer_format", "eval", "format_error_reward"):
        assert getattr(env, name) == given[name].default
    assert env.source == f"sample:{given['sample'].default}"


def test_unknown_keywords_are_named() -> None:
    with pytest.raises(UnknownParameterError, match="no parameter 'spilt'.*split"):
        gem.make("qa:HotpotQA", spilt="train")


def test_the_info_repeats_what_the_data_says_in_a_few_words() -> None:
    row = {
        "problem": "1 + 1?",
        "answer": "2",
        "level": 3,
        "subject": "Sums",
        "solution": "2" * 99,
    }
    env = gem.make("math:GSM8K", source=[row])
    env.reset(seed=0)
    info = env.step(r"\boxed{2}")[4]
    items = {name: value for name, value in info.items() if name.startswith("item.")}
    assert items == {"item.level": 3, "item.subject": "Sums"}
