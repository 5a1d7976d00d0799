"""Running recipes with real trainers.

`GEM_PERTURB=<seed>` lets every run begin with weights that differ from the shipped ones by no more
than rounding: what holds with one seed and not with another depends on the machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from locks import one_at_a_time

from gem_train.experiment.hardware import CPU

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 900
PERTURBED = os.environ.get("GEM_PERTURB", "")
WITH_VLLM = {"trl with vLLM": ROOT / ".venvs" / "openrlhf" / "bin" / "python"}
"""Trainers that sample with vLLM where it is installed, and the Python of where it is."""


@pytest.fixture(scope="session")
def begin_with(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What runs begin with: the tiny model, perturbed if asked for."""
    if not PERTURBED:
        return "tiny"
    from gem_bench.noise import perturbed_copy
    from gem_cpu import tiny_model

    folder = tmp_path_factory.mktemp("perturbed") / "tiny"
    return str(perturbed_copy(tiny_model.ensure(), folder, seed=int(PERTURBED)))


@pytest.fixture(scope="session")
def run(begin_with: str) -> Callable[..., Path]:
    """Run a recipe with a trainer, recording its own rows; returns the folder.

    The first word of `trainer` names the adapter.

    `run(trainer, folder, recipe, *settings, executor=..., **environment)`; settings are
    `key=value`, `executor` is where environments run.
    """

    from gem_bench.conformance_run import run_with_rows
    from gem_bench.runspec import load_spec

    def start(
        trainer: str,
        folder: Path,
        recipe: str,
        *settings: str,
        executor: str | None = None,
        **environment: str,
    ) -> Path:
        path = ROOT / "recipes" / f"{recipe}.toml"
        spec = load_spec(path, settings)
        if spec.policy.model == "tiny":
            spec = load_spec(path, [f"policy.model={begin_with}", *settings])
        with one_at_a_time(trainer), pytest.MonkeyPatch.context() as patch:
            patch.chdir(ROOT)
            for name, value in environment.items():
                patch.setenv(name, value)
            outcome = run_with_rows(
                spec,
                trainer=trainer.split()[0],
                run_dir=folder,
                hardware=replace(CPU, executor=executor),
                timeout_s=TIMEOUT_S,
                python=WITH_VLLM.get(trainer),
            )
        assert outcome.status == "finished", outcome.message
        return folder

    return start


@pytest.fixture(scope="session")
def compare() -> Callable[[Path, Path], list[Any]]:
    """Compare a run with the reference's: `compare(reference, other)`."""
    from gem_bench.conformance import common_spec, compare_runs
    from gem_train.record import read_run

    def findings(*folders: Path) -> list[Any]:
        reference, other = map(read_run, folders)
        return compare_runs(reference, other, common_spec(reference, other).algorithm)

    return findings
