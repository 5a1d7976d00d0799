"""What is said when an installation does not work, and a machine that is not ROLL's alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gem.errors import ConfigurationError


def doctor(**environment: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k not in ("GEM_ROLL_HOME", "RAY_ADDRESS")}
    return subprocess.run(
        [sys.executable, "-m", "gem_roll.doctor"], env={**env, **environment},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def test_the_doctor_says_that_there_is_no_checkout() -> None:
    done = doctor()
    assert done.returncode == 1
    assert "PROBLEM  ROLL is not installed, GEM_ROLL_HOME is not set: git clone" in done.stdout


def test_the_doctor_is_content_with_a_sound_installation(
    home: Path, imported: Any, tmp_path: Path
) -> None:
    done = doctor(GEM_ROLL_HOME=str(home), ROLL_LOG_DIR=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert f"ROLL: commit 8eb27cc in {home}; gem-roll" in done.stdout
    assert "ROLL can be imported, and GEM's pipeline with it" in done.stdout


@pytest.mark.parametrize(
    ("address", "joined", "refused"),
    [(None, True, True), (None, False, False), ("auto", True, False)],
)
def test_a_ray_cluster_of_others_is_refused(
    address: str | None,
    joined: bool,
    refused: bool,
    imported: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ROLL makes its listener only in a cluster that it started itself."""
    pipeline = imported("gem_roll.pipeline")
    monkeypatch.setattr(pipeline.initialize, "log_monitor_listener", None if joined else object())
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if address is not None:
        monkeypatch.setenv("RAY_ADDRESS", address)
    if refused:
        with pytest.raises(ConfigurationError, match="joined a Ray cluster .*RAY_ADDRESS=auto"):
            pipeline.check_cluster()
    else:
        pipeline.check_cluster()


@pytest.mark.parametrize(("size", "refused"), [(24, False), (20, True)])
def test_roll_itself_says_whether_it_would_change_a_batch(
    size: int, refused: bool, imported: Any
) -> None:
    """`adjust_batch` of ROLL's class, with a worker that takes 8 and 12 rows at once."""
    pipeline = imported("gem_roll.pipeline")
    training = SimpleNamespace(per_device_train_batch_size=2, gradient_accumulation_steps=4)
    config = SimpleNamespace(
        rollout_batch_size=size,
        adv_estimator="reinforce",
        actor_train=SimpleNamespace(training_args=training, infer_batch_size=12),
    )
    made = pipeline.GemAgenticPipeline.__new__(pipeline.GemAgenticPipeline)
    made.pipeline_config, made.actor_train = config, SimpleNamespace(dp_size=1)
    if refused:
        with pytest.raises(ConfigurationError, match=r"copy or delete episodes: .*got 20"):
            made._check_whole_batch()
    else:
        made._check_whole_batch()
