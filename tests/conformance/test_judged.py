"""Every real trainer on an environment that asks a judge: rewards are its verdicts or nothing."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import judged_package
import judges
import pytest
from chat_server import Answer, Stub
from locks import one_at_a_time

from gem_train.experiment.hardware import CPU
from gem_train.experiment.runspec import RunSpec
from gem_train.record import read_run

pytest.importorskip("gem_bench.runspec", reason="needs the development environment: make env-dev")
from gem_bench.conformance_run import run_with_rows
from gem_bench.run import Outcome
from gem_bench.runspec import load_spec
from gem_judge.store import Store

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

ROOT = Path(__file__).parents[2]
TRAINERS = ("verl", "openrlhf", "oat", "rl2", "skyrl", "tinker")
"""TRL's runs are in tests/trl/test_judged.py."""
SETTINGS = ("training.iterations=2", "training.tasks=8", "training.group_size=1", "eval=[]")

Train = Callable[..., tuple[Outcome, Path]]


def later(rule: judges.Rule) -> judges.Rule:
    """A rule that begins with the first episode: before, the judge passes its check."""

    def answer(number: int, body: dict[str, Any]) -> Answer:
        asked = "said: " in body["messages"][-1]["content"]
        return rule(number, body) if asked else judges.truth(number, body)

    return answer


stub = judges.served(judges.parity)


@pytest.fixture
def train(stub: Stub, tmp_path: Path) -> Train:
    """Train two iterations with a rule for the judge; return what came of it and the folder."""

    def train(trainer: str, rule: judges.Rule, **judge: Any) -> tuple[Outcome, Path]:
        stub.answer = rule
        settings = (*SETTINGS, "policy.lora_rank=8") if trainer == "tinker" else SETTINGS
        told = load_spec(ROOT / "recipes" / "guess-easy.toml", settings).to_mapping()
        told["env"] = {"id": judged_package.ENV, "params": {"judge": "main"}}
        told["judge"] = {"main": judges.settings(stub, **judge)}
        spec = RunSpec.from_mapping(told)
        folder = tmp_path / "run"
        with one_at_a_time(trainer), pytest.MonkeyPatch.context() as patch:
            patch.chdir(ROOT)
            paths = (
                str(judged_package.install(tmp_path / "package")),
                os.environ.get("PYTHONPATH"),
            )
            patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
            outcome = run_with_rows(
                spec, trainer=trainer, run_dir=folder, hardware=CPU, timeout_s=900
            )
        return outcome, folder

    return train


@pytest.mark.parametrize("trainer", TRAINERS)
def test_rewards_are_the_judge_s(trainer: str, train: Train) -> None:
    outcome, folder = train(trainer, judges.parity)
    assert outcome.status == "finished", outcome.message
    record = read_run(folder)
    rewards = [turn.reward for e in record.episodes() for turn in e.trajectory.turns]
    assert len(rewards) == 16 and {*rewards} == {0.0, 1.0}
    scores = [line["score"] for line in Store(folder / "judges.sqlite").verdicts("main")]
    assert sorted(scores) == sorted(rewards)
    for line in record.metrics:
        assert line["judge/score"] == pytest.approx(line["return_mean"])


@pytest.mark.parametrize("rule", [judges.down, judges.slow, judges.garbled, judges.swapped])
@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_judge_that_fails_pays_nothing_and_ends_the_run(
    trainer: str, rule: judges.Rule, train: Train
) -> None:
    outcome, folder = train(trainer, later(rule), timeout_s=1.0 if rule is judges.slow else 3.0)
    assert outcome.status not in ("finished", "timeout"), outcome.message
    log = (folder / "trainer.log").read_text(errors="replace")
    reason = "'judge-2' answers" if rule is judges.swapped else "By cause: grader"
    assert reason in log, log[-4000:]
    given = Counter(line["score"] for line in Store(folder / "judges.sqlite").verdicts("main"))
    played = [e.trajectory for e in read_run(folder).episodes()]
    assert Counter(t.turns[0].reward for t in played if t.valid) <= given


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_judge_that_disagrees_with_its_labels_trains_nobody(
    trainer: str, train: Train, tmp_path: Path
) -> None:
    outcome, folder = train(
        trainer,
        judges.flattering,
        allow_uncalibrated=False,
        calibration=judges.labelled(tmp_path),
    )
    assert outcome.status not in ("finished", "timeout"), outcome.message
    log = (folder / "trainer.log").read_text(errors="replace")
    assert "is 0.00 (0.00 to 0.00), below least_kappa" in log, log[-4000:]
    assert not list(Store(folder / "judges.sqlite").verdicts("main"))
    assert not any(e.trajectory.valid for e in read_run(folder).episodes())
