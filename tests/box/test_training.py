"""Terminal tasks train: the reward moves, and the reference says the same of each update."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from boxes_attacks import write_task

from gem_train.record import read_run

pytest.importorskip("gem_bench.runspec", reason="needs the development environment: make env-dev")
pytest.importorskip("gem_cpu.small", reason="needs the development environment: make env-dev")
from gem_bench.audit import audit, judge, lines

WORDS = ("blue",)
ITERATIONS = 5
SPEC = """
name = "terminal"
seed = 0
[env]
id = "harbor:{tasks}"
[env.params]
max_turns = 2
[policy]
model = "small?competent=0.3&episodes=32&careful_steps=60&steps=40&batch=16"
prompt_tokens = 1024
response_tokens = 512
turn_tokens = 48
[sampling]
temperature = 1.0
[algorithm]
advantage = "rebn"
gamma = 1.0
[optimizer]
lr = 1e-3
beta2 = 0.99
weight_decay = 0.0
grad_clip = 1.0
[training]
iterations = {iterations}
tasks = 8
group_size = 4
"""

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An experiment with a task that a small model can learn: to write instead of to look."""
    folder = tmp_path_factory.mktemp("terminal")
    for word in WORDS:
        write_task(
            folder / "tasks" / word,
            "host",
            instruction_md=f"Write the word {word} to /app/answer.txt.\n",
            environment__Dockerfile="FROM host\nWORKDIR /app\n",
            solution__solve_sh=f"#!/bin/bash\necho {word} > answer.txt\n",
            tests__test_sh=f'#!/bin/bash\n[ "$(cat /app/answer.txt)" = {word} ]\n'
            "echo $((1 - $?)) > /logs/verifier/reward.txt\n",
        )
    path = folder / "spec.toml"
    path.write_text(SPEC.format(tasks=folder / "tasks", iterations=ITERATIONS))
    return path


def test_a_small_model_learns_a_terminal_task(spec: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gem_bench", "run", str(spec), "--cpu"]
    command += ["--out", str(tmp_path / "run"), "--to", "reference"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    record = read_run(tmp_path / "run")
    success = [each["success_rate"] for each in record.metrics]
    assert len(success) == ITERATIONS
    assert success[-1] > success[0] + 0.1, success
    audits = list(audit(record))
    assert len(audits) == ITERATIONS
    findings = judge(audits)
    assert not findings, "\n".join([*lines(audits), *map(str, findings)])
