"""A run's audit finds what its trainer did differently from the reference, and nothing else."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gem.errors import ConfigurationError
from gem_train.experiment.runspec import RunSpec
from gem_train.record import EPISODES, METRICS, RUN, RunRecord, read_run

torch = pytest.importorskip("torch", reason="the reference trainer needs torch")
pytest.importorskip("transformers", reason="the reference trainer needs it")
tiny_model = pytest.importorskip("gem_cpu.tiny_model", reason="makes the model to train")

from safetensors.torch import save_file  # noqa: E402

from gem_bench import reference  # noqa: E402
from gem_bench.audit import MULTIPLE, TELLING, Audit, audit, judge, lines, pooled, telling  # noqa: E402
from gem_bench.noise import perturbed_copy  # noqa: E402

SPEC: dict[str, Any] = {
    "name": "test",
    "env": {
        "id": "game:GuessTheNumber-v0-easy",
        "params": {"hint": "range", "prompt": "short"},
    },
    "policy": {"prompt_tokens": 40, "response_tokens": 128, "turn_tokens": 8},
    "algorithm": {"advantage": "rebn", "gamma": 0.9},
    "optimizer": {"lr": 1e-3},
    "training": {"iterations": 3, "tasks": 16, "group_size": 2},
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., RunRecord]:
    """Trains with the reference and returns the record, which may tell another story."""
    model = str(tiny_model.ensure())

    def changed(changes: dict[str, Any]) -> dict[str, Any]:
        data = json.loads(json.dumps(SPEC))
        data["policy"]["model"] = model
        for name, value in changes.items():
            table, _, key = name.partition("__")
            data.setdefault(table, {})[key] = value
        return RunSpec.from_mapping(data).to_mapping()

    def train(told: dict[str, Any] | None = None, **changes: Any) -> RunRecord:
        """Train with `changes`; the record says that it was with `told`."""
        folder = tmp_path_factory.mktemp("run")
        spec = changed(changes)
        reference.train(RunSpec.from_mapping(spec), folder)
        meta = {"spec": changed(changes | (told or {})), "model": model}
        (folder / RUN).write_text(json.dumps(meta))
        return read_run(folder)

    return train


def levels(run: RunRecord) -> set[str]:
    return {finding.level for finding in judge(list(audit(run)))}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        pytest.param(
            {"optimizer__schedule": "cosine", "optimizer__warmup": 1}, marks=pytest.mark.nightly
        ),
        {"algorithm__clip_high": 0.3, "algorithm__ratio": "sequence", "algorithm__epochs": 2},
        pytest.param(
            {"algorithm__whiten": True, "algorithm__reward_scale": 2.0}, marks=pytest.mark.nightly
        ),
    ],
    ids=["plain", "schedule", "sequence", "shaping"],
)
def test_the_references_own_run_is_followed_exactly(
    settings: dict[str, Any], recorded: Callable[..., RunRecord]
) -> None:
    audits = list(audit(recorded(**settings)))
    assert judge(audits) == []
    assert len(telling(audits)) == 3
    for each in audits:
        assert each.logprob_difference is not None
        assert each.logprob_difference <= 3 * each.logprob_noise < TELLING
        assert each.loss[0] == pytest.approx(each.loss[1], abs=1e-7)
        assert each.grad_norm[0] == pytest.approx(each.grad_norm[1], rel=1e-5)
        assert each.surprisal_z != 0 and each.stop_z != 0


@pytest.mark.parametrize("temperature", [0.5, pytest.param(2.0, marks=pytest.mark.nightly)])
def test_a_sampler_at_another_temperature_is_found(
    recorded: Callable[..., RunRecord], temperature: float
) -> None:
    run = recorded(
        {"sampling__temperature": 1.0}, sampling__temperature=temperature, training__tasks=64
    )
    first = next(audit(run))
    assert first.surprisal_z is not None
    assert abs(first.surprisal_z) > 4 and (first.surprisal_z > 0) == (temperature > 1)


def test_other_advantages_are_found(recorded: Callable[..., RunRecord]) -> None:
    assert "L2" in levels(recorded({"algorithm__gamma": 0.9}, algorithm__gamma=0.5))


def test_weights_that_do_not_reach_the_sampler_are_found(
    recorded: Callable[..., RunRecord],
) -> None:
    """The policy that sampled never changes, although the record tells of updates."""
    run = recorded({"optimizer__lr": 1e-2}, optimizer__lr=1e-12)
    audits = list(audit(run))
    told = {f.where for f in judge(audits) if f.level == "L1"}
    assert "log-probabilities of iteration 0" not in told
    assert "log-probabilities of iteration 1" in told


def test_weights_that_are_late_by_a_hundredth_of_an_update_are_found(
    recorded: Callable[..., RunRecord],
) -> None:
    run = recorded({"optimizer__lr": 1e-3}, optimizer__lr=0.99e-3)
    assert any(finding.where.startswith("log-probabilities") for finding in judge(list(audit(run))))


def test_a_run_from_weights_that_differ_by_rounding_is_not_told_apart(
    recorded: Callable[..., RunRecord], tmp_path: Path
) -> None:
    model = perturbed_copy(tiny_model.ensure(), tmp_path / "model", seed=1)
    run = recorded({"policy__model": str(tiny_model.ensure())}, policy__model=str(model))
    audits = list(audit(run))
    assert judge(audits) == []
    # The floor is no larger than it must be: what rounding does is a good part of it.
    assert max(a.logprob_difference or 0.0 for a in audits) > audits[-1].logprob_noise / MULTIPLE


def test_weights_that_cannot_be_perturbed_are_no_perturbed_copy(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    with pytest.raises(ConfigurationError, match="has no weights"):
        perturbed_copy(model, tmp_path / "first", seed=1)
    save_file({"w": torch.ones(8, dtype=torch.bfloat16)}, model / "model.safetensors")
    with pytest.raises(ConfigurationError, match="weights in torch.bfloat16 cannot change"):
        perturbed_copy(model, tmp_path / "second", seed=1)
    save_file({"w": torch.ones(8)}, model / "model.safetensors")
    perturbed_copy(model, tmp_path / "third", seed=1)
    # Files of another model may come first when the copy is loaded.
    with pytest.raises(FileExistsError):
        perturbed_copy(model, tmp_path / "third", seed=1)


def test_updates_that_amplify_rounding_are_not_the_trainers_fault(
    recorded: Callable[..., RunRecord],
) -> None:
    audits = list(audit(recorded(optimizer__lr=1.0, training__iterations=4)))
    assert len(telling(audits)) < 4
    first, *others = judge(audits)
    assert first.where.startswith("noise floor of log-probabilities in iteration")
    assert not [f for f in others if f.where.startswith(("log-prob", "loss", "grad_norm"))]


def test_a_loss_that_is_another_is_found(recorded: Callable[..., RunRecord]) -> None:
    run = recorded()
    path = run.folder / METRICS
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[1]["loss"] += 0.01
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    [finding] = judge(list(audit(read_run(run.folder))))
    assert (finding.level, finding.where) == ("L2", "loss of iteration 1")


def test_a_record_that_is_cut_off_is_refused(recorded: Callable[..., RunRecord]) -> None:
    run = recorded(training__tasks=2)
    path = run.folder / EPISODES
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:6]))
    replay = audit(run)
    assert next(replay).iteration == 0
    with pytest.raises(ConfigurationError, match="lacks 2 training episodes of iteration 1"):
        next(replay)
    path.unlink()
    with pytest.raises(ConfigurationError, match="lacks 4 training episodes of iteration 0"):
        next(audit(run))
    # As if a trainer had gone on from a checkpoint with a record of its own.
    path = run.folder / METRICS
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))
    with pytest.raises(ConfigurationError, match="begins with iteration 1, but a replay with"):
        next(audit(read_run(run.folder)))
    (run.folder / METRICS).unlink()
    with pytest.raises(ConfigurationError, match="has no training iteration"):
        next(audit(read_run(run.folder)))


@pytest.mark.parametrize("name", ["loss", "grad_norm", "logprob_difference", "surprisal_z"])
def test_what_is_no_number_is_a_finding(name: str) -> None:
    fine = Audit(0, (0.1, 0.1), (0.2, 0.2), 0.0, 1e-6, 0.0, 0.1, 0.1, None)
    assert judge([fine] * 5) == []
    value = (math.nan, 0.1) if name in ("loss", "grad_norm") else math.nan
    assert judge([replace(fine, **{name: value})] * 5)
    assert judge([])


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"algorithm__advantage": "gae"}, "cannot be replayed"),
        ({"algorithm__kl_coef": 0.1}, "cannot be replayed"),
        ({"training__precision": "bf16"}, "audit the same experiment in fp32"),
    ],
)
def test_what_cannot_be_replayed_is_refused(
    recorded: Callable[..., RunRecord], told: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        next(audit(recorded(told, training__iterations=1, training__tasks=2)))


def test_a_run_with_adapters_is_replayed_from_the_same_ones(
    recorded: Callable[..., RunRecord],
) -> None:
    run = recorded(policy__lora_rank=4, training__iterations=2)
    meta = json.loads((run.folder / RUN).read_text())
    with pytest.raises(ConfigurationError, match="name the folder that holds it"):
        next(audit(run))
    (run.folder / RUN).write_text(json.dumps({**meta, "trainer": "reference"}))
    assert judge(list(audit(read_run(run.folder)))) == []


def test_a_record_without_its_experiment_is_refused(tmp_path: Path) -> None:
    (tmp_path / RUN).write_text("{}")
    (tmp_path / METRICS).write_text("")
    with pytest.raises(ConfigurationError, match="holds no experiment"):
        next(audit(read_run(tmp_path)))


def test_the_table_names_every_iteration_followed(recorded: Callable[..., RunRecord]) -> None:
    table = list(lines(list(audit(recorded(training__iterations=2)))))
    assert [line.split()[0] for line in table[:-1]] == ["iteration", "0", "1", "audited"]
    assert "tokens with a log-probability below -10 were drawn" in table[-1]


def test_standard_normal_numbers_pool_to_one() -> None:
    assert pooled([1.0, None, 1.0, 1.0, 1.0]) == 2.0
    assert pooled([None]) is None


@pytest.mark.parametrize("record", ["sample:2", "metrics"])
def test_a_record_that_lacks_episodes_is_refused(
    recorded: Callable[..., RunRecord], monkeypatch: pytest.MonkeyPatch, record: str
) -> None:
    monkeypatch.setenv("GEM_RECORD", record)
    run = recorded(training__iterations=1, training__tasks=2)
    with pytest.raises(ConfigurationError, match="training episodes of iteration 0"):
        next(audit(run))


def test_a_run_whose_samples_could_not_be_checked_is_a_finding() -> None:
    unknown = Audit(0, (0.1, 0.1), (0.2, 0.2), None, 1e-6, 0.0, None, None, None)
    [finding] = judge([unknown] * 6)
    assert (finding.level, finding.where, finding.found) == ("L1", "samples", "nothing")
    # One of the two is enough: not every engine returns log-probabilities.
    assert judge([replace(unknown, surprisal_z=0.1, stop_z=0.1)] * 6) == []
    assert judge([replace(unknown, logprob_difference=0.0)] * 6) == []


def test_an_iteration_without_the_log_probabilities_of_the_others_is_a_finding() -> None:
    fine = Audit(0, (0.1, 0.1), (0.2, 0.2), 0.0, 1e-6, 0.0, 0.1, 0.1, None)
    [finding] = judge([fine] * 5 + [replace(fine, iteration=5, logprob_difference=None)])
    assert (finding.level, finding.where) == ("L1", "log-probabilities of iteration 5")
