"""Worlds of others through whole trainers: an agent program, and verifiers in its own environment.

Each run is sampled, and audited: the reference computes loss and gradient again from the recorded
tokens, which are those that the trainer trained on.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gem_train.record import read_run

pytest.importorskip("gem_bench.runspec", reason="needs the development environment: make env-dev")
from gem_bench.audit import audit, judge, lines

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "shared" / "agents" / "guess.py"
VERIFIERS = ROOT / ".venvs" / "verifiers" / "bin" / "python"
TIMEOUT_S = 900
SPEC = """
name = "bridge"
[env]
{env}
[policy]
model = "tiny"
prompt_tokens = 40
response_tokens = 128
turn_tokens = 8
[algorithm]
advantage = "grpo"
[optimizer]
lr = 1e-4
[training]
iterations = 4
tasks = 8
group_size = 4
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def verifiers() -> Iterator[str]:
    """The address of a server of `verifiers:gem_env`, in the environment of verifiers."""
    command = [str(VERIFIERS), "-m", "gem", "serve", "--port", "0", "--allow-parameters"]
    with subprocess.Popen(
        [*command, "--ids", "verifiers:gem_env"], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        found = re.search(r"http://[\d.]+:\d+", server.stdout.readline())
        assert found is not None
        yield found[0]
        server.terminate()


def env_of(world: str, request: pytest.FixtureRequest) -> str:
    if world == "agent":
        return f'id = "agent:{sys.executable} {PROGRAM}"'
    url = request.getfixturevalue("verifiers")
    parameters = """'{"hint": "range", "prompt": "short"}'"""
    return (
        f'id = "remote:{url}/verifiers:gem_env"\n[env.params]\n"taskset.parameters" = {parameters}'
    )


@pytest.mark.parametrize("world", ["agent", "verifiers"])
@pytest.mark.parametrize(
    "trainer", ["reference", "trl", pytest.param("verl", marks=pytest.mark.nightly)]
)
def test_what_was_sampled_is_what_was_trained(
    trainer: str, world: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    spec, folder = tmp_path / "spec.toml", tmp_path / "run"
    spec.write_text(SPEC.format(env=env_of(world, request)))
    command = [sys.executable, "-m", "gem_bench", "run", str(spec), "--to", trainer, "--cpu"]
    done = subprocess.run(
        [*command, "--out", str(folder), "--timeout", str(TIMEOUT_S)],
        cwd=ROOT,
        env={**os.environ, "GEM_RECORD_ROWS": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S + 60,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    run = read_run(folder)
    episodes = [e.trajectory for e in run.episodes()]
    assert len(episodes) == 128
    assert all(episode.valid for episode in episodes)
    assert len({episode.total_reward for episode in episodes}) > 1
    audits = list(audit(run))
    assert len(audits) == 4
    findings = judge(audits)
    assert not findings, "\n".join([*lines(audits), *map(str, findings)])
