"""Levels L0 to L3 for Tinker: a real run against the reference, both with the same adapter.

A Tinker server trains low-rank adapters only, and begins with random ones that no client can
choose. So Tinker runs first, and the reference begins with the adapter that the server made.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gem.record import read_run

pytest.importorskip("gem_bench.runspec", reason="needs the development environment: make env-dev")
from gem_bench.audit import audit, judge, lines
from gem_bench.conformance import RELATIVE, compare_runs
from gem_bench.runspec import load_spec
from gem_cpu.tinker_server import initial_adapter

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "recipes" / "guess-easy-greedy.toml"
SAMPLED = ROOT / "recipes" / "guess-easy.toml"
SETTINGS = [
    "policy.lora_rank=8",
    # Below every gradient norm of this run: clipping is part of what is compared.
    "optimizer.grad_clip=0.04",
]
TIMEOUT_S = 900

pytestmark = pytest.mark.slow


def run(trainer: str, folder: Path, *settings: str, recipe: Path = RECIPE) -> Path:
    """Run a recipe through `gem-bench`, recording the trainer's own rows."""
    command = [sys.executable, "-m", "gem_bench", "run", str(recipe), "--to", trainer, "--cpu"]
    command += ["--out", str(folder), "--timeout", str(TIMEOUT_S)]
    for setting in [*SETTINGS, *settings]:
        command += ["--set", setting]
    result = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "GEM_RECORD_ROWS": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S + 60,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return folder


@pytest.fixture(scope="module")
def tinker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run("tinker", tmp_path_factory.mktemp("tinker") / "run")


@pytest.fixture(scope="module")
def reference(tinker: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reference")
    adapter = initial_adapter(tinker / "server", folder / "adapter")
    return run("reference", folder / "run", f"policy.lora_init={adapter}")


def findings(reference: Path, other: Path) -> list[str]:
    algorithm = load_spec(RECIPE).algorithm
    return [str(f) for f in compare_runs(read_run(reference), read_run(other), algorithm)]


def test_tinker_conforms_to_the_reference_with_the_same_adapter(
    reference: Path, tinker: Path
) -> None:
    found = findings(reference, tinker)
    assert not found, "\n".join(found[:20])
    # A flat line is drawn alike by trainers that learn nothing.
    assert len({m["return_mean"] for m in read_run(reference).metrics}) > 3


def test_every_gradient_is_the_reference_s(reference: Path, tinker: Path) -> None:
    """Norms before clipping depend on all earlier updates, clipped ones included."""
    expected = [m["grad_norm"] for m in read_run(reference).metrics]
    assert min(expected) > 0.04
    assert [m["grad_norm"] for m in read_run(tinker).metrics] == pytest.approx(
        expected, rel=RELATIVE
    )


def test_sampler_and_trainer_agree_in_every_iteration(tinker: Path) -> None:
    differences = [m["logprob_difference_max"] for m in read_run(tinker).metrics]
    assert len(differences) == 10
    assert max(differences) < 1e-4


def test_the_reference_would_have_made_the_same_of_a_sampled_run(tmp_path: Path) -> None:
    folder = run("tinker", tmp_path / "run", "training.iterations=6", recipe=SAMPLED)
    adapter = initial_adapter(folder / "server", tmp_path / "adapter")
    audits = list(audit(read_run(folder), lora_init=str(adapter)))
    assert len(audits) == 6
    found = judge(audits)
    assert not found, "\n".join([*lines(audits), *map(str, found)])


def test_a_reference_with_another_adapter_is_told_apart(tinker: Path, tmp_path: Path) -> None:
    other = run("reference", tmp_path / "run", "training.iterations=1")
    assert any(found.startswith("L2") for found in findings(other, tinker))
