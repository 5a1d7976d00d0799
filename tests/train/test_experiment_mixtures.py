"""Several environments in a run: their tasks, in which order and with which parameters."""

from __future__ import annotations

import copy
import math
import statistics
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import table

from gem.errors import ConfigurationError, UnknownParameterError
from gem.tasks import Task, TaskSet
from gem_train import entries
from gem_train.experiment.estimate import Shaping, turn_advantages
from gem_train.experiment.hardware import Hardware
from gem_train.experiment.metrics import PART, episode_metrics, sampled_metrics
from gem_train.experiment.mixtures import SEEDS, EnvPart, Mixture, Stage, parse_tasks, run_tasks
from gem_train.experiment.runspec import RunSpec
from gem_train.experiment.tasksets import DatasetRow, dataset_rows
from gem_train.packed import PackedTrajectory
from gem_train.preflight import check, environments
from gem_train.table import Elsewhere
from gem_train.testing.golden import golden_batch, of_two_environments

GUESS = "game:GuessTheNumber-v0-easy"
EASY: dict[str, Any] = {"id": GUESS, "name": "easy", "params": {"max_number": 5}}
HARD: dict[str, Any] = {"id": GUESS, "name": "hard", "weight": 3}
SPEC: dict[str, Any] = {
    "name": "mixture",
    "env": [EASY, HARD],
    "policy": {"model": "tiny", "prompt_tokens": 64, "response_tokens": 256, "turn_tokens": 8},
    "algorithm": {"advantage": "rebn"},
    "optimizer": {"lr": 1e-3},
    "training": {"iterations": 3, "tasks": 8},
}


def with_env(*env: dict[str, Any], **training: int) -> dict[str, Any]:
    data = copy.deepcopy(SPEC)
    data["env"] = [*env]
    data["training"] |= training
    return data


@given(
    st.lists(st.sampled_from([0.5, 1, 1.5, 2, 3, 7, 0.1]), min_size=1, max_size=6),
    st.integers(1, 200),
)
@settings(deadline=None)
def test_shares_are_exact_after_each_period_and_never_ahead_by_a_task(
    weights: list[float], n: int
) -> None:
    parts = tuple(EnvPart(f"e{i}", weight=weight) for i, weight in enumerate(weights))
    mixture = Mixture(parts, n, 4)
    drawn = Counter[str]()
    for place, task in enumerate(mixture, 1):
        drawn[task.env_id] += 1
        for part in parts:
            share = place * part.weight / sum(weights)
            assert drawn[part.id] < share + 1
            if place % mixture.period == 0:
                assert drawn[part.id] == pytest.approx(share)


def test_a_batch_is_interleaved_and_every_environment_has_seeds_of_its_own() -> None:
    spec = RunSpec.from_mapping(SPEC)
    first, second = spec.train_tasks(0), spec.train_tasks(1)
    assert [t.name for t in first] == ["hard", "easy", "hard", "hard"] * 2
    assert [t.seed for t in first + second if t.name == "easy"] == [0, 1, 2, 3]
    assert [t.seed for t in first if t.name == "hard"] == [SEEDS + i for i in range(6)]
    assert first[1] == Task(GUESS, 0, {"max_number": 5}, "easy")
    assert list(spec.task_set) == [t for k in range(3) for t in spec.train_tasks(k)]


def test_fewer_tasks_an_iteration_than_environments_keep_the_shares() -> None:
    spec = RunSpec.from_mapping(with_env(EASY, HARD, iterations=8, tasks=1))
    names = [task.name for k in range(8) for task in spec.train_tasks(k)]
    assert Counter(names) == {"hard": 6, "easy": 2}


def test_parameters_change_with_the_iteration() -> None:
    stages = [
        {"iteration": 1, "params": {"max_number": 7}},
        {"iteration": 2, "params": {"max_turns": 3}},
    ]
    data = with_env({**EASY, "schedule": stages}, HARD)
    spec = RunSpec.from_mapping(data)
    found = [next(t.params for t in spec.train_tasks(k) if t.name == "easy") for k in range(3)]
    assert found == [{"max_number": 5}, {"max_number": 7}, {"max_number": 7, "max_turns": 3}]
    assert {str(t.params) for k in range(3) for t in spec.train_tasks(k) if t.name == "hard"} == {
        "{}"
    }
    # One environment may have a schedule, too; its tasks have no name.
    data["env"] = {"id": GUESS, "schedule": stages[:1]}
    tasks = RunSpec.from_mapping(data).train_tasks(2)
    assert tasks[0] == Task(GUESS, 16, {"max_number": 7})
    assert RunSpec.from_mapping(data).to_mapping()["env"] == {
        "id": GUESS,
        "params": {},
        "seed": 0,
        "schedule": ({**stages[0], "success": None},),
    }


def test_parameters_change_with_the_success_rate() -> None:
    stages = [
        {"success": 0.5, "params": {"max_number": 7}},
        {"success": 0.5, "params": {"max_number": 9}},
        {"iteration": 5, "params": {"max_turns": 3}},
    ]
    spec = RunSpec.from_mapping(with_env({**EASY, "schedule": stages}, HARD, iterations=7))
    rates = [0.4, 0.5, None, 0.6, 0.9, 1.0]

    def at(iteration: int, known: list[float | None]) -> Any:
        tasks = spec.train_tasks(iteration, {"easy": known[:iteration]})
        assert [t.seed for t in tasks] == [t.seed for t in spec.train_tasks(iteration)]
        [found] = {str(sorted(t.params.items())) for t in tasks if t.name == "easy"}
        return found

    def shown(**params: int) -> str:
        return str(sorted(params.items()))

    # 0.5 is reached in iteration 1, and again in iteration 3 with the parameters since then.
    assert [at(k, rates) for k in range(7)] == [
        *[shown(max_number=5)] * 2,
        *[shown(max_number=7)] * 2,
        shown(max_number=9),
        *[shown(max_number=9, max_turns=3)] * 2,
    ]
    # What begins later waits for what comes before it.
    assert at(6, [0.4] * 6) == shown(max_number=5)
    assert {t.params["max_number"] for t in environments(spec) if t.name == "easy"} == {5, 7, 9}


def test_only_where_tasks_are_chosen_during_the_run() -> None:
    stage = {"success": 0.5, "params": {"max_turns": 3}}
    spec = RunSpec.from_mapping(with_env(EASY, {**HARD, "schedule": [stage]}))
    before = table("x", {**entries.tasks(Elsewhere("a file"))})
    with pytest.raises(ConfigurationError, match=r"env.1.schedule.0.success: .* got 0.5"):
        before.refuse(before.run(spec, Path(), Hardware()))
    before.refuse(before.run(RunSpec.from_mapping(SPEC), Path(), Hardware()))


def test_a_uri_says_the_same_tasks() -> None:
    params = {"text": "ä & b=c", "deep": {"x": [1]}}
    stage = Stage(2, params={"x": 1})
    parts = (EnvPart("a", params, 3, "näme/1", 0.1, (stage,)), EnvPart("b", weight=0.2))
    mixture = Mixture(parts, 30, 4)
    assert parse_tasks(mixture.uri) == mixture
    assert not set(mixture.uri) & set(" #'\"{}\\")
    assert list(run_tasks(mixture.uri, 5, 6)) == list(replace(mixture, n=30, batch=6))
    assert parse_tasks("gem:a?n=2") == TaskSet("a", 2)
    assert run_tasks("gem:a?n=2&seed=1", 5, 6) == TaskSet("a", 30, 1)


@pytest.mark.parametrize("query", ["", "?n=1&batch=1", "?m=1", "?n=0&batch=1&env=[]", "?n=1&n=1"])
def test_a_malformed_uri_is_refused(query: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_tasks(f"gem:mixture{query}")


def test_a_spec_of_several_environments_reads_back() -> None:
    spec = RunSpec.from_mapping(SPEC)
    assert RunSpec.from_mapping(spec.to_mapping()) == spec
    assert [env["seed"] for env in spec.to_mapping()["env"]] == [0, SEEDS]


def test_a_spec_of_one_environment_is_what_it_was() -> None:
    data = {**SPEC, "env": {"id": GUESS, "params": {"max_turns": 3}, "seed": 7}}
    spec = RunSpec.from_mapping(data)
    assert spec.to_mapping()["env"] == data["env"]
    assert spec.task_set == TaskSet(GUESS, 24, 7, {"max_turns": 3})
    assert RunSpec.from_mapping({**data, "env": [data["env"]]}) == spec


SAME = {"id": GUESS, "name": "again", "params": {"max_number": 5}}
LATER = {"id": GUESS, "name": "later", "schedule": [{"iteration": 2, "params": {"max_number": 5}}]}


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ([], "env: at least one environment is needed"),
        (
            [{**EASY, "wight": 2}, HARD],
            r"unknown key 'env\[0\].wight'; did you mean env\[0\].weight",
        ),
        ([EASY, {"name": "x"}], r"missing key 'env\[1\].id'"),
        ([EASY, 3], r"env\[1\] must be a table, got 3"),
        ([{**EASY, "weight": 0}, HARD], r"env\[0\].weight must be above 0, got 0.0"),
        ([{**EASY, "name": " "}, HARD], r"env\[0\].name: must not be empty"),
        ([EASY, {**HARD, "name": "easy"}], r"env\[0\] and env\[1\] are both called 'easy'"),
        (
            [EASY, HARD, SAME],
            r"env\[0\] and env\[2\] are the same .* in iteration 0; give one a la",
        ),
        ([EASY, LATER], r"env\[0\] and env\[1\] are the same .* in iteration 2;"),
        (
            [EASY, {**HARD, "weight": 100}],
            r"env\[0\].weight: none of the 24 tasks of this run .* is of 'easy'.*, got 1",
        ),
        (
            [{**EASY, "schedule": [{"iteration": 3}]}, HARD],
            r"env\[0\].schedule\[0\].iteration: the run has the iterations 0 to 2, got 3",
        ),
        (
            [{**EASY, "schedule": [{"iteration": 0}]}, HARD],
            r"env\[0\].schedule\[0\].iteration must be at least 1, got 0",
        ),
        (
            [{**EASY, "schedule": [{"iteration": 1, "parms": {}}]}, HARD],
            r"unknown key 'env\[0\].schedule\[0\].parms'",
        ),
        (
            [EASY, {**HARD, "schedule": [{"params": {}}]}],
            r"env\[1\].schedule\[0\]: either `iteration` or `success` says when it begins",
        ),
        (
            [EASY, {**HARD, "schedule": [{"success": 0.5, "iteration": 1}]}],
            r"env\[1\].schedule\[0\]: either `iteration` or `success` says when it begins",
        ),
        (
            [{**EASY, "schedule": [{"success": 1.5}]}, HARD],
            r"env\[0\].schedule\[0\].success must be at most 1, got 1.5",
        ),
        (
            [{**EASY, "schedule": [{"iteration": 2}, {"iteration": 1}]}, HARD],
            r"env\[0\].schedule: iterations must ascend, got \[2, 1\]",
        ),
    ],
)
def test_environments_that_do_not_fit_are_refused(env: list[Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        RunSpec.from_mapping(with_env(*env))


def test_a_schedule_s_unknown_parameter_is_found_before_the_run() -> None:
    stage = {"iteration": 2, "params": {"max_numbr": 7}}
    spec = RunSpec.from_mapping(with_env(EASY, {**HARD, "schedule": [stage]}))
    with pytest.raises(UnknownParameterError, match="max_numbr"):
        check(environments(spec))
    with pytest.raises(UnknownParameterError, match="max_numbr"):
        list(dataset_rows([spec.task_set.uri], evaluation=False))


def test_the_rows_of_a_dataset_are_the_run_s_tasks() -> None:
    spec = RunSpec.from_mapping(SPEC)
    rows = [
        DatasetRow.decode(row.encode())
        for row in dataset_rows([spec.task_set.uri], evaluation=False)
    ]
    assert [row.task for row in rows] == [t for k in range(3) for t in spec.train_tasks(k)]


def test_an_episode_keeps_the_name_of_its_environment() -> None:
    episode = golden_batch()[0]
    assert episode.environment == "" and "name" not in episode.task.to_dict()
    episode.task = replace(episode.task, name="easy")
    assert type(episode).from_json(episode.to_json()).environment == "easy"
    packed = PackedTrajectory.from_bytes(PackedTrajectory.of(episode).data)
    assert packed.environment == packed.unpack().environment == "easy"


def test_metrics_of_each_environment_are_those_of_its_valid_episodes() -> None:
    batch = golden_batch()
    assert not any(PART.fullmatch(name) for name in episode_metrics(batch))
    for index, trajectory in enumerate(batch):
        trajectory.task = replace(trajectory.task, name="even/v0" if index % 2 == 0 else "odd")
    metrics = episode_metrics(batch)
    found = {name: v for name, v in metrics.items() if PART.fullmatch(name)}
    assert found == pytest.approx(
        {
            "env/even/v0/share": 4 / 7,
            "env/even/v0/success_rate": 0.75,
            "env/even/v0/return_mean": (1 + 1 + 1.75 + 0) / 4,
            "env/even/v0/turns_mean": (3 + 1 + 3 + 4) / 4,
            "env/odd/share": 3 / 7,
            "env/odd/success_rate": 0.0,
            "env/odd/return_mean": (0.15 + 0.625 + 0) / 3,
            "env/odd/turns_mean": (2 + 3 + 2) / 3,
        }
    )
    match = PART.fullmatch("env/even/v0/share")
    assert match is not None and match["name"] == "even/v0"


def test_an_evaluation_with_several_episodes_of_a_task_counts_the_tasks_that_one_solved() -> None:
    batch = golden_batch()

    for index, trajectory in enumerate(batch):
        trajectory.task = Task("game:GuessTheNumber-v0", index)
    assert sampled_metrics(batch) == {}
    # Two tasks; the only success of the second one is in no episode that counts.
    solved = [t.success and t.valid for t in batch]
    for trajectory, success in zip(batch, solved, strict=True):
        trajectory.task = Task("game:GuessTheNumber-v0", 0 if success else 1)
    assert 0 < sum(solved) < len(batch)
    assert sampled_metrics(batch) == {"pass_rate": 0.5}
    for trajectory in batch:
        trajectory.task = Task("multi:TicTacToe-v0", 0, {"seat": "all"})
    assert sampled_metrics(batch) == {}


def test_numbers_of_an_environment_s_info_are_metrics_of_the_episodes_that_have_them() -> None:
    batch = golden_batch()
    for index, trajectory in enumerate(batch):
        if index % 2 == 0:
            bad = {"said": "no number", "bad": math.inf, "large": 10**400}
            trajectory.turns[0].info.update(moves=9)
            trajectory.turns[-1].info.update(moves=float(index), won=True, **bad)
    asked = ("moves", "won", "said", "bad", "large", "absent")
    found = episode_metrics(batch, info=asked)
    even = [index for index, each in enumerate(batch) if each.valid and index % 2 == 0]
    share = len(even) / sum(each.valid for each in batch)
    assert {name: found[name] for name in found if name.startswith("info/")} == pytest.approx(
        {
            "info/moves": statistics.fmean(even),
            "info/moves/share": share,
            "info/won": 1.0,
            "info/won/share": share,
            "info/said/share": 0.0,
            "info/bad/share": 0.0,
            "info/large/share": 0.0,
            "info/absent/share": 0.0,
        }
    )
    packed = [PackedTrajectory.of(each) for each in batch]
    assert episode_metrics(packed, info=asked) == found
    assert episode_metrics(batch).keys() == found.keys() - {n for n in found if n[:5] == "info/"}


def test_rebn_within_an_environment_does_not_see_the_others() -> None:
    batch = of_two_environments(golden_batch())
    within, _ = turn_advantages("rebn", batch, Shaping(normalise="environment"), gamma=0.9)
    small, _ = turn_advantages("rebn", batch[:4], gamma=0.9)
    large, _ = turn_advantages("rebn", batch[4:], gamma=0.9)
    assert within == small + large
    # Over the whole batch the differences between small rewards are lost.
    together, _ = turn_advantages("rebn", batch, gamma=0.9)
    assert np.ptp(np.concatenate(together[:4])) < 0.005
    assert np.ptp(np.concatenate(within[:4])) > 2
