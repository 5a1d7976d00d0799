"""A real run of the trainer on its own launcher: what is recorded, and what stops it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from gem_skyrl.launch import CONFIG, adapter
from gem_train.experiment.hardware import CPU
from gem_train.experiment.runspec import RunSpec
from gem_train.record import read_run
from gem_train.testing.conformance import difference


def run(
    spec: RunSpec, folder: Path, files: Mapping[str, str] | None = None, path: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run the trainer as gem-bench does, with other `files` and a further folder of modules."""
    made = adapter.compile(spec, run_dir=folder, hardware=CPU)
    folder.mkdir()
    for name, text in {**made.files, **(files or {})}.items():
        (folder / name).write_text(text)
    return subprocess.run(
        [sys.executable, *made.argv[1:]],
        env={"GEM_RECORD_ROWS": "1", "PYTHONPATH": ":".join([*sys.path, path]), **made.env},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_run_leaves_a_whole_record(spec: RunSpec, tmp_path: Path) -> None:
    done = run(spec, tmp_path / "run")
    assert done.returncode == 0, done.stderr
    record = read_run(tmp_path / "run")
    iterations = [m for m in record.metrics if m["split"] == "train"]
    assert [m["iteration"] for m in iterations] == [0, 1, 2]
    assert all(m["grad_norm"] > 0 and m["episodes"] == 8 for m in iterations)
    evaluations = [m["iteration"] for m in record.metrics if m["split"] == "eval:same"]
    assert evaluations == [0, 2, 3]
    for iteration in range(3):
        played = list(record.episodes("train", {iteration}))
        rows = [episode.rows or [] for episode in played]
        assert difference(rows, [e.trajectory for e in played], spec.algorithm) is None


def test_the_same_seed_gives_the_same_run(spec: RunSpec, tmp_path: Path) -> None:
    metrics = []
    for name in ("a", "b"):
        assert run(spec, tmp_path / name).returncode == 0
        found = read_run(tmp_path / name).metrics
        metrics.append([{k: v for k, v in m.items() if k != "time_s"} for m in found])
    assert metrics[0] == metrics[1]


def test_a_run_that_code_ends_early_ends_with_an_error(spec: RunSpec, tmp_path: Path) -> None:
    (tmp_path / "leaving.py").write_text(
        "import sys\n"
        "from gem_skyrl.trainer import GemTrainer\n"
        "class Leaving(GemTrainer):\n"
        "    def evaluate(self, step):\n"
        "        step < 2 or sys.exit(0)\n"
    )
    made = adapter.compile(spec, run_dir=tmp_path / "run", hardware=CPU)
    config = json.loads(made.files[CONFIG]) | {"trainer": "leaving:Leaving"}
    done = run(spec, tmp_path / "run", {CONFIG: json.dumps(config)}, str(tmp_path))
    assert done.returncode == 1
    assert "the run ended after 2 of 3 iterations" in done.stderr


def test_a_run_whose_episodes_all_fail_ends_and_says_why(spec: RunSpec, tmp_path: Path) -> None:
    short = replace(spec, policy=replace(spec.policy, prompt_tokens=1))
    done = run(short, tmp_path / "run")
    assert done.returncode == 1
    assert "4 of 4 episodes of this batch failed" in done.stderr, done.stderr
