"""Training with a judge: what becomes of rewards, failures and a second run from the cache."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import judges
import pytest
from chat_server import Answer, Stub

import gem
from gem.core import Env, Info, Observation, Step
from gem.errors import ConfigurationError, JudgeError, RolloutError
from gem_judge import VARIABLE, Item, judge_of
from gem_judge.named import FILE
from gem_judge.store import Store
from gem_train.experiment.runspec import RunSpec
from gem_train.record import RunRecord, read_run
from gem_train.resuming import check_same

pytest.importorskip("torch", reason="the reference trainer needs torch")
pytest.importorskip("gem_cpu.tiny_model", reason="makes the model to train")

from gem_bench import reference

ID = "test:Judged-v0"
TIMINGS = {"time_s", "rollout_s", "update_s", "tokens_per_s"}


class Judged(Env):
    """Asks its judge about every text that is not empty."""

    def __init__(self, judge: str = "main", seed: int | None = None) -> None:
        super().__init__(seed=seed)
        self.judge = judge

    def reset(self, seed: int | None = None, **options: Any) -> tuple[Observation, Info]:
        super().reset(seed=seed)
        self.question = f"Say something, number {self.rng.randrange(100_000)}."
        return self.question, {}

    def step(self, action: str) -> Step:
        verdict = judge_of(self.judge).verdict(Item(self.question, f"said: {action}", "a word"))
        return "", verdict.score, True, False, {"success": verdict.correct, **verdict.info}


gem.register(ID, Judged)


stub = judges.served(judges.parity)


@pytest.fixture
def judged(make_spec: Callable[..., RunSpec], stub: Stub) -> Callable[..., RunSpec]:
    """A small experiment with a judge; keywords change the judge."""

    def make(**changed: Any) -> RunSpec:
        main = judges.settings(stub, **{"timeout_s": 20.0, **changed})
        return make_spec(env={"id": ID, "params": {"judge": "main"}}, judge={"main": main})

    return make


def numbers(run: RunRecord) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k not in TIMINGS} for line in run.metrics]


def test_a_judged_run_records_verdicts_and_is_bit_equal_from_its_cache(
    judged: Callable[..., RunSpec], stub: Stub, tmp_path: Path
) -> None:
    first, again = tmp_path / "first", tmp_path / "again"
    reference.train(judged(), first, device="cpu")
    assert os.environ.get(VARIABLE) is None
    run = read_run(first)
    for line in run.metrics:
        assert line["judge/score"] == line["return_mean"]
        assert line["judge/disagreement"] == line["judge/unjudged"] == 0
        assert line["judge/chars"] > 6
    cache = first / "judges.sqlite"
    lines = Store(cache).verdicts("main")
    rewards = [e.trajectory.rewards[0] for e in run.episodes()]
    assert {0.0, 1.0} == {*rewards}
    assert sorted(line["score"] for line in lines) == sorted(rewards) and len(lines) == 16
    assert str(stub.url) in (first / FILE).read_text()
    asked = len(stub.requests)
    stub.close()

    spec = judged(cache=str(cache), cache_only=True)
    reference.train(spec, again, device="cpu")
    assert numbers(read_run(again)) == numbers(run)
    assert (again / "episodes.jsonl").read_text() == (first / "episodes.jsonl").read_text()
    assert len(stub.requests) == asked


def test_a_dead_judge_makes_all_episodes_void(
    judged: Callable[..., RunSpec], stub: Stub, tmp_path: Path
) -> None:
    stub.answer = judges.down
    with pytest.raises(RolloutError, match=r"8 of 8 episodes .* failed.*grader 8 \(.*503"):
        reference.train(judged(), tmp_path, device="cpu")


def test_episodes_that_a_judge_cannot_grade_are_in_no_statistic(
    judged: Callable[..., RunSpec], make_spec: Callable[..., RunSpec], stub: Stub, tmp_path: Path
) -> None:
    def answer(number: int, body: dict[str, Any]) -> Answer:
        found = judges.parity(number, body)
        # The judge is gone for all answers that would be wrong.
        return judges.down(number, body) if "false" in found.body else found

    stub.answer = answer
    spec = judged().to_mapping()
    spec["training"]["max_failed_fraction"] = 0.99
    reference.train(RunSpec.from_mapping(spec), tmp_path, device="cpu")
    for line in read_run(tmp_path).metrics:
        assert line["failed_grader"] == line["failed_episodes"] > 0
        assert line["return_mean"] == line["judge/score"] == 1.0


def test_a_model_that_is_swapped_in_the_middle_ends_the_run(
    judged: Callable[..., RunSpec], stub: Stub, tmp_path: Path
) -> None:
    def answer(number: int, body: dict[str, Any]) -> Answer:
        found = judges.parity(number, body)
        changed = (tmp_path / "metrics.jsonl").exists()  # after the first iteration
        return Answer(found.body.replace(judges.MODEL, "other")) if changed else found

    stub.answer = answer
    with pytest.raises(JudgeError, match="'other' answers"):
        reference.train(judged(), tmp_path, device="cpu")
    assert len(read_run(tmp_path).metrics) == 1


def test_a_judge_that_does_not_agree_with_its_labels_is_not_trained_with(
    judged: Callable[..., RunSpec], stub: Stub, tmp_path: Path
) -> None:
    labelled = tmp_path / "labelled.jsonl"
    lines = [
        {"question": "Q?", "answer": f"said: {n}", "reference": "x", "label": n % 2 == 0}
        for n in range(100)
    ]
    labelled.write_text("\n".join(map(json.dumps, lines)))
    spec = judged(calibration=str(labelled), allow_uncalibrated=False)
    with pytest.raises(JudgeError, match=r"kappa with .*labelled.jsonl is .*below least_kappa"):
        reference.train(spec, tmp_path / "run", device="cpu")
    assert not (tmp_path / "run" / "episodes.jsonl").exists()


def test_judges_and_the_environments_that_ask_them_belong_together(
    judged: Callable[..., RunSpec], make_spec: Callable[..., RunSpec], stub: Stub
) -> None:
    spec = judged()
    assert RunSpec.from_mapping(spec.to_mapping()) == spec
    assert "judge" not in make_spec().to_mapping()
    main = judges.settings(stub)
    env = {"id": ID, "params": {"judge": "main"}}
    with pytest.raises(
        ConfigurationError, match=r"there is no table \[judge.main\]; there is none"
    ):
        make_spec(env=env)
    with pytest.raises(ConfigurationError, match=r"no environment has params.judge = 'other'"):
        make_spec(env=env, judge={"main": main, "other": main})
    with pytest.raises(ConfigurationError, match="unknown key 'judge.main.vote'; did you mean"):
        make_spec(env=env, judge={"main": {**main, "vote": 3}})
    with pytest.raises(ConfigurationError, match="judge.main.calibration: a judge needs"):
        make_spec(env=env, judge={"main": {**main, "allow_uncalibrated": False}})
    with pytest.raises(ConfigurationError, match="is not 'rules'"):
        make_spec(env={"id": ID, "params": {"judge": "rules"}}, judge={"rules": main})


def test_a_run_goes_on_at_another_address_and_not_with_another_model(
    judged: Callable[..., RunSpec],
) -> None:
    before = {"spec": judged().to_mapping()}
    check_same("x", before, {"spec": judged(url="http://b/v1", budget_calls=9).to_mapping()})
    with pytest.raises(ConfigurationError, match="spec.judge.main.model"):
        check_same("x", before, {"spec": judged(model="judge-2").to_mapping()})
