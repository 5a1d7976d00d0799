"""Schedules of the learning rate are those of transformers."""

from __future__ import annotations

import pytest

from gem.errors import ConfigurationError
from gem_train.experiment.runspec import RunSpec
from gem_train.experiment.schedule import Schedule

STEPS = 20
ALL = [
    Schedule(lr=2.0, schedule=name, warmup=warmup, min_lr_ratio=least)
    for name in ("constant", "linear", "cosine")
    for warmup in (0, 1, 5)
    for least in (0.0, 0.25)
    if not (least and name != "cosine")
]


@pytest.mark.parametrize("schedule", ALL, ids=str)
def test_factors_are_those_of_transformers(schedule: Schedule) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    least = {"min_lr_rate": schedule.min_lr_ratio} if schedule.min_lr_ratio else {}
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
    theirs = transformers.get_scheduler(
        schedule.hugging_face,
        optimizer,
        num_warmup_steps=schedule.warmup,
        num_training_steps=STEPS,
        scheduler_specific_kwargs=least,
    )
    for step in range(STEPS):
        [lr] = theirs.get_last_lr()
        assert lr == pytest.approx(2.0 * schedule.factor(step, STEPS), abs=1e-12)
        optimizer.step()
        theirs.step()


def test_a_linear_schedule_may_end_above_0() -> None:
    schedule = Schedule(lr=1.0, schedule="linear", warmup=2, min_lr_ratio=0.5)
    assert [schedule.factor(step, 6) for step in range(7)] == [0, 0.5, 1, 0.875, 0.75, 0.625, 0.5]


SPEC = {
    "name": "guess",
    "env": {"id": "game:GuessTheNumber-v0-easy"},
    "policy": {"model": "m", "prompt_tokens": 100, "response_tokens": 50, "turn_tokens": 10},
    "algorithm": {"advantage": "rebn"},
    "optimizer": {"lr": 1e-3},
    "training": {"iterations": 4, "tasks": 8},
}


@pytest.mark.parametrize(
    ("part", "values", "said"),
    [
        ("optimizer", {"warmup": 4}, r"optimizer\.warmup must be below .* run, 4, got 4"),
        ("optimizer", {"min_lr_ratio": 0.1}, r"optimizer\.min_lr_ratio: means nothing"),
        ("algorithm", {"dual_clip": 1.2}, r"algorithm\.dual_clip must be above .* 1\.2, got 1\.2"),
        ("algorithm", {"dual_clip": 3.0, "loss": "cispo"}, r"algorithm\.dual_clip: means nothing"),
        (
            "training",
            {"extra_batches": 1},
            r"extra_batches: .*group_size must be 2",
        ),
        ("algorithm", {"group_std": False}, r"algorithm\.group_std: means nothing to .* 'rebn'"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    part: str, values: dict[str, object], said: str
) -> None:
    RunSpec.from_mapping(SPEC)
    with pytest.raises(ConfigurationError, match=said):
        RunSpec.from_mapping({**SPEC, part: {**SPEC[part], **values}})
