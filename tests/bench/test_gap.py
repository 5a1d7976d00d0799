"""The gap between a sampler's log-probabilities and the trainer's is measured as it is."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from gem_train.experiment.runspec import RunSpec
from gem_train.record import EPISODES, RUN, read_run

pytest.importorskip("torch", reason="the reference trainer needs torch")
pytest.importorskip("transformers", reason="the reference trainer needs it")
tiny_model = pytest.importorskip("gem_cpu.tiny_model", reason="makes the model to train")

from gem_bench import reference  # noqa: E402
from gem_bench.gap import gaps, main  # noqa: E402


def trained(folder: Path, **tables: dict[str, Any]) -> Path:
    """Train with the reference for two iterations of eight episodes."""
    model = str(tiny_model.ensure())
    data: dict[str, Any] = {
        "name": "test",
        "env": {
            "id": "game:GuessTheNumber-v0-easy",
            "params": {"hint": "range", "prompt": "short", "soft_reward": True},
        },
        "policy": {
            "model": model,
            **{"prompt_tokens": 40, "response_tokens": 128, "turn_tokens": 8},
        },
        "algorithm": {"advantage": "rebn", "gamma": 0.9},
        "optimizer": {"lr": 1e-3},
        "training": {"iterations": 2, "tasks": 4, "group_size": 2},
        **tables,
    }
    spec = RunSpec.from_mapping(data)
    reference.train(spec, folder, device="cpu")
    (folder / RUN).write_text(json.dumps({"spec": spec.to_mapping(), "model": model}))
    return folder


def shift(folder: Path, by: float | None) -> None:
    """Let the record say that the sampler's log-probabilities were others, or not known."""
    path = folder / EPISODES
    episodes = [json.loads(line) for line in path.read_text().splitlines()]
    for episode in episodes:
        for turn in episode["trajectory"]["turns"]:
            turn["logprobs"] = None if by is None else [p + by for p in turn["logprobs"]]
    path.write_text("".join(f"{json.dumps(episode)}\n" for episode in episodes))


def test_without_another_engine_there_is_no_gap_and_the_update_is_the_same(tmp_path: Path) -> None:
    found = list(gaps(read_run(trained(tmp_path / "run"))))
    assert [gap.iteration for gap in found] == [0, 1]
    for gap in found:
        assert None not in (gap.mean, gap.largest, gap.ratio, gap.kl)
        assert gap.mean <= gap.largest < 1e-4 and abs(gap.ratio - 1) < 1e-5 and abs(gap.kl) < 1e-8
        assert gap.loss[0] == pytest.approx(gap.loss[1], abs=1e-6)
        assert gap.grad_norm[0] == pytest.approx(gap.grad_norm[1], rel=1e-4)
        # The reference has found the same while it trained.
        assert gap.own == pytest.approx(gap.largest, abs=1e-6)


def test_a_sampler_that_is_too_sure_is_told_by_every_number(tmp_path: Path) -> None:
    folder = trained(tmp_path / "run")
    shift(folder, 0.1)
    for gap in gaps(read_run(folder)):
        assert gap.mean == pytest.approx(0.1, abs=1e-4)
        assert gap.largest == pytest.approx(0.1, abs=1e-3)
        assert gap.ratio == pytest.approx(math.exp(-0.1), abs=1e-4)
        assert gap.kl == pytest.approx(math.exp(-0.1) - 1 + 0.1, abs=1e-5)


def test_without_a_samplers_log_probabilities_the_update_is_compared_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = trained(tmp_path / "run")
    shift(folder, None)
    [first, _] = gaps(read_run(folder))
    assert (first.mean, first.largest, first.ratio, first.kl) == (None,) * 4
    assert first.grad_norm[0] == pytest.approx(first.grad_norm[1], rel=1e-4)
    assert main([str(folder)]) == 0
    assert re.search(r"\| - \| - \| [0-9.e-]+ \| - \| - \|", capsys.readouterr().out)


def test_a_run_in_bf16_is_replayed_in_bf16(tmp_path: Path) -> None:
    """How much two passes in bf16 differ depends on the processor; fp32 always differs."""
    part = {"iterations": 1, "tasks": 4, "group_size": 2, "precision": "bf16"}
    folder = trained(tmp_path / "run", training=part)
    [same] = gaps(read_run(folder))
    run = json.loads((folder / RUN).read_text())
    run["spec"]["training"]["precision"] = "fp32"
    (folder / RUN).write_text(json.dumps(run))
    [other] = gaps(read_run(folder))
    assert same.mean is not None and other.mean is not None
    assert same.mean < 0.05
    assert other.mean > 1e-5


def test_the_command_prints_a_line_an_iteration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = trained(tmp_path / "some run")
    assert main([str(folder), "--iterations", "1"]) == 0
    head, rule, line = capsys.readouterr().out.splitlines()
    assert line.startswith("| some run | 0 | ")
    assert head.count("|") == rule.count("|") == line.count("|")


def test_greedy_samples_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = trained(tmp_path / "run", sampling={"top_k": 1})
    assert main([str(folder)]) == 2
    assert "sampling.top_k" in capsys.readouterr().err
