"""The reference trains on an agent program as on the environment that the program plays."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from gem_train.experiment.runspec import RunSpec
from gem_train.record import RUN, RunRecord, read_run

pytest.importorskip("torch", reason="the reference trainer needs torch")
pytest.importorskip("transformers", reason="the reference trainer needs it")
tiny_model = pytest.importorskip("gem_cpu.tiny_model", reason="makes the model to train")

from gem_bench import reference  # noqa: E402
from gem_bench.audit import audit, judge  # noqa: E402

PROGRAM = Path(__file__).parents[1] / "shared" / "agents" / "guess.py"


def trained(folder: Path, id: str, params: dict[str, Any]) -> RunRecord:
    spec = RunSpec.from_mapping(
        {
            "name": "agent",
            "env": {"id": id, "params": params},
            "policy": {
                "model": str(tiny_model.ensure()),
                **{"prompt_tokens": 40, "response_tokens": 128, "turn_tokens": 8},
            },
            # The program's reward comes with its last turn.
            "algorithm": {"advantage": "grpo", "gamma": 1.0},
            "optimizer": {"lr": 1e-3},
            "training": {"iterations": 3, "tasks": 4, "group_size": 4},
        }
    )
    reference.train(spec, folder)
    meta = {"spec": spec.to_mapping(), "model": spec.policy.model}
    (folder / RUN).write_text(json.dumps(meta))
    return read_run(folder)


def test_a_program_trains_token_for_token_as_what_it_plays(tmp_path: Path) -> None:
    game = {"hint": "range", "prompt": "short"}
    run = trained(tmp_path / "agent", f"agent:{sys.executable} {PROGRAM}", {})
    direct = trained(tmp_path / "game", "game:GuessTheNumber-v0-easy", game)
    pairs = list(zip(run.episodes(), direct.episodes(), strict=True))
    assert len(pairs) == 48
    for ours, theirs in pairs:
        assert ours.trajectory.failure is None
        rows, others = (e.trajectory.training_rows() for e in (ours, theirs))
        assert [row.ids for row in rows] == [row.ids for row in others]
        assert [row.mask for row in rows] == [row.mask for row in others]
        assert ours.trajectory.total_reward == theirs.trajectory.total_reward
        assert ours.advantages == theirs.advantages
    assert len({e.trajectory.total_reward for e, _ in pairs}) > 1
    assert [m["loss"] for m in run.metrics] == [m["loss"] for m in direct.metrics]
    # What was sampled is what was trained: the reference computes it again from the record.
    audits = list(audit(run))
    assert len(audits) == 3
    assert judge(audits) == []
