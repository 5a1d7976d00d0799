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

WORDS = ("red", "green", "blue")
ITERATIONS = 5
SPEC = """
name = "terminal"
seed = 0
[env]
id = "harbor:{tasks}"
[env.params]
max_turns = 3
[policy]
model = "small?competent=0.5&episodes=48&careful_steps=250&steps=60&batch=16"
prompt_tokens = 1024
response_tokens = 512
turn_tokens = 64
[sampling]
temperature = 1.0
[algorithm]
advantage = "rebn"
gamma = 1.0
[optimizer]
lr = 1e-4
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
    """An experiment of tasks which a small model can learn: which word to write."""
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


@pytest.mark.parametrize(
    ("trainer", "lr", "gain"),
    # TRL's updates are small enough that rounding does not grow from one to the next.
    [("reference", 5e-4, 0.1), ("trl", 1e-4, None)],
)
def test_a_small_model_trains_on_terminal_tasks(
    spec: Path, tmp_path: Path, trainer: str, lr: float, gain: float | None
) -> None:
    command = [sys.executable, "-m", "gem_bench", "run", str(spec), "--cpu"]
    command += ["--out", str(tmp_path / "run"), "--to", trainer]
    command += ["--set", f"optimizer.lr={lr}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    record = read_run(tmp_path / "run")
    success = [each["success_rate"] for each in record.metrics]
    assert len(success) == ITERATIONS
    assert any(0 < each < 1 for each in success)
    assert gain is None or success[-1] > success[0] + gain, success
    audits = list(audit(record))
    assert len(audits) == ITERATIONS
    findings = judge(audits)
    assert not findings, "\n".join([*lines(audits), *map(str, findings)])
