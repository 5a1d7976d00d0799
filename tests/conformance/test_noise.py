"""What is claimed of trainers does not depend on rounding: the reference against itself.

Every run begins with weights that differ by a relative 1e-7, as if another machine had rounded
them. All levels must hold between such runs, or a trainer could fail on one machine and not on
another; and a defect must still be noticed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("gem_bench.runspec", reason="needs the development environment: make env-dev")
import breaks

from gem_bench.conformance import compare_runs
from gem_bench.noise import perturbed_copy
from gem_bench.reference import train
from gem_bench.runspec import load_spec
from gem_cpu import tiny_model
from gem_train.experiment.runspec import RunSpec
from gem_train.record import RunRecord, read_run

RECIPE = Path(__file__).parents[2] / "recipes" / "guess-easy-greedy.toml"
OFTEN = 20
"""Perturbations of the nightly run; every landing tries the first."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., RunRecord]]:
    """Train the reference greedily from weights perturbed with a seed; None: as they are."""

    def start(seed: int | None, forward_tokens: int = 65_536) -> RunRecord:
        folder = tmp_path_factory.mktemp("run")
        model = tiny_model.ensure()
        if seed is not None:
            model = perturbed_copy(model, folder / "model", seed=seed)
        mapping = load_spec(RECIPE).to_mapping()
        mapping["policy"]["model"] = str(model)
        train(RunSpec.from_mapping(mapping), folder / "run", forward_tokens=forward_tokens)
        return read_run(folder / "run")

    threads = torch.get_num_threads()
    # Tests go on side by side: threads that wait for each other cost more than they bring.
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GEM_RECORD_ROWS", "1")
        yield start
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def reference(play: Callable[..., RunRecord]) -> RunRecord:
    return play(None)


def findings(reference: RunRecord, other: RunRecord) -> list[str]:
    return [str(f) for f in compare_runs(reference, other, load_spec(RECIPE).algorithm)]


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(s, marks=pytest.mark.nightly) for s in range(1, OFTEN))]
)
def test_all_levels_hold_between_weights_that_differ_by_rounding(
    seed: int, play: Callable[..., RunRecord], reference: RunRecord
) -> None:
    other = play(seed)
    assert not findings(reference, other)
    norms = [[m["grad_norm"] for m in run.metrics] for run in (reference, other)]
    # Not only the first update, which L2 is about: rounding does not grow over the whole run.
    assert norms[1] == pytest.approx(norms[0], rel=1e-4)
    assert norms[1] != norms[0]


def test_all_levels_hold_when_an_update_adds_up_in_another_order(
    play: Callable[..., RunRecord], reference: RunRecord
) -> None:
    assert not findings(reference, play(None, forward_tokens=500))


# The reference masks by spans and samples with its own weights: the other defects need a trainer.
@pytest.mark.nightly
@pytest.mark.parametrize("name", ["gamma", "std_ddof", "reward_misplaced"])
def test_a_defect_is_noticed_from_perturbed_weights_too(
    name: str, reference: RunRecord, tmp_path: Path
) -> None:
    _, level = breaks.BREAKS[name]
    model = perturbed_copy(tiny_model.ensure(), tmp_path / "model", seed=100)
    found = broken(name, str(model), tmp_path / "run")
    assert level in {f.split()[0] for f in findings(reference, found)}


def broken(name: str, model: str, folder: Path) -> RunRecord:
    """Train the reference with a defect of `breaks`."""
    mapping: dict[str, Any] = load_spec(RECIPE).to_mapping()
    mapping["policy"]["model"] = model
    spec = folder.with_suffix(".json")
    spec.write_text(json.dumps(mapping))
    code = "import breaks; from gem_bench.reference_command import main; raise SystemExit(main())"
    ended = subprocess.run(
        [sys.executable, "-c", code, "--spec", str(spec), "--record", str(folder)],
        env={
            **os.environ,
            "GEM_BREAK": name,
            "GEM_RECORD_ROWS": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(Path(__file__).parent),
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    return read_run(folder)
