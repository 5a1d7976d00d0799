"""Real TRL on an environment that asks a judge over HTTP: rewards, void episodes, ends of a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import judges
import pytest
from chat_server import Stub
from real_runs import TIMEOUT_S, log, started

from gem_judge.store import Store
from gem_train.launch import Launch
from gem_train.record import read_run
from gem_trl.launch import adapter

pytest.importorskip("gymnasium", reason="the environment is one of Gymnasium")
pytestmark = pytest.mark.slow

ENV = "gym:judged_gym:test/Say-v0"
Compile = Callable[..., Launch]


stub = judges.served(judges.parity)


@pytest.fixture
def run(
    compiled: Compile, stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, Path]]:
    """Train three iterations; return the exit status and the folder."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "shared"))

    def run(name: str, **changed: Any) -> tuple[int, Path]:
        main = judges.settings(stub, **{"timeout_s": 20.0, **changed})
        env = {"id": ENV, "params": {"judge": "main"}}
        folder = tmp_path / name
        launch = compiled(adapter, folder, env=env, judge={"main": main}, eval=())
        with started(launch, folder) as process:
            return process.wait(TIMEOUT_S), folder

    return run


def test_rewards_are_the_judge_s_and_the_same_from_its_cache(
    run: Callable[..., tuple[int, Path]], stub: Stub
) -> None:
    status, first = run("first")
    assert status == 0, log(first)[-4000:]
    record = read_run(first)
    rewards = []
    for episode in record.episodes():
        [turn] = episode.trajectory.turns
        rewards.append(turn.reward)
        assert episode.rows is not None
        [row] = episode.rows
        assert row.response_ids == turn.response_ids  # sampled tokens are trained tokens
    assert {0.0, 1.0} == {*rewards}
    scores = [line["score"] for line in Store(first / "judges.sqlite").verdicts("main")]
    assert sorted(scores) == sorted(rewards)
    for line in record.metrics:
        assert line["judge/score"] == line["return_mean"]
    asked = len(stub.requests)

    status, again = run("again", cache=str(first / "judges.sqlite"), cache_only=True)
    assert status == 0, log(again)[-4000:]
    assert [e.fingerprint for e in read_run(again).episodes()] == [
        e.fingerprint for e in record.episodes()
    ]
    assert len(stub.requests) == asked


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (judges.down, "8 of 8 episodes"),
        (judges.slow, "8 of 8 episodes"),
        (judges.silent, "fails at a plain question"),
        (judges.swapped, "'judge-2' answers"),
    ],
)
def test_a_judge_that_fails_never_pays_and_ends_the_run(
    run: Callable[..., tuple[int, Path]], stub: Stub, rule: judges.Rule, said: str
) -> None:
    stub.answer = rule
    status, folder = run("run", timeout_s=1.0 if rule is judges.slow else 3.0)
    assert status != 0 and said in log(folder), log(folder)[-4000:]
    lines = Store(folder / "judges.sqlite").verdicts("main")
    assert all(line["score"] is None for line in lines if rule is not judges.swapped)


def test_a_judge_that_disagrees_with_its_labels_trains_nobody(
    run: Callable[..., tuple[int, Path]], stub: Stub, tmp_path: Path
) -> None:
    stub.answer = judges.flattering
    labelled = judges.labelled(tmp_path)
    status, folder = run("run", allow_uncalibrated=False, calibration=labelled)
    assert status != 0 and "is 0.00 (0.00 to 0.00), below least_kappa" in log(folder)
    assert not list(Store(folder / "judges.sqlite").verdicts("main"))
