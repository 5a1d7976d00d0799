"""Cheap learning curves must end where recorded ones did; with a broken advantage they do not.

Four experiments of docs/baselines.md, of one turn each, with another seed than the recorded runs.
Bounds ask for at most three quarters of what the recorded seeds learned. No curve notices a wrong
discount, which conformance does (tests/conformance).
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gem.training.record import read_run
from gem_bench.models import resolved
from gem_bench.runspec import load_spec
from gem_bench.sweep import SEED_STEP

ROOT = Path(__file__).parents[2]
SEED = 7
LAST = 10
"""Iterations at the end that count."""


@dataclass(frozen=True)
class Curve:
    """An experiment, and where it must end."""

    recipe: str
    start: float
    """Success in iteration 0, mean of the recorded seeds."""
    recorded: tuple[float, float, float]
    """The same at the end, of each seed."""
    bound: float
    """Least success at the end."""

    def end(self, folder: Path, broken: str | None = None, seed: int = SEED) -> float:
        """Train, with a defect of `breaks` if one is given; return success at the end."""
        recipe = ROOT / "recipes/baselines" / f"{self.recipe}.toml"
        seeds = (f"seed={seed}", f"env.seed={seed * SEED_STEP}")
        spec = resolved(load_spec(recipe, seeds))
        path = folder / "spec.json"
        path.write_text(json.dumps(spec.to_mapping()))
        environment: dict[str, Any] = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "GEM_RECORD": "metrics",
            "PYTHONPATH": os.pathsep.join(
                filter(None, [str(ROOT / "tests/conformance"), os.environ.get("PYTHONPATH")])
            ),
        }
        if broken is not None:
            environment["GEM_BREAK"] = broken
        code = "import breaks, sys; from gem_bench.reference_command import main; sys.exit(main())"
        arguments = ["--spec", str(path), "--record", str(folder / "run"), "--device", "cpu"]
        ended = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=1200,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr[-2000:]
        rates = [line["success_rate"] for line in read_run(folder / "run").metrics]
        end = statistics.fmean(rates[-LAST:])
        print(f"{self.recipe}, {broken or 'sound'}, seed {seed}: {rates[0]:.3f} to {end:.3f}")
        return end


CURVES = {
    curve.recipe: curve
    for curve in (
        Curve("arithmetic", 0.30, (0.952, 0.95, 0.96), 0.7),
        Curve("gcd", 0.32, (0.778, 0.79, 0.85), 0.6),
        Curve("leg-counting", 0.26, (0.864, 0.88, 0.86), 0.6),
        Curve("lcm", 0.45, (0.934, 0.898, 0.947), 0.75),
    )
}


@pytest.mark.parametrize("curve", CURVES.values(), ids=lambda curve: curve.recipe)
def test_recorded_seeds_pass_with_margin(curve: Curve) -> None:
    asked = curve.bound - curve.start
    assert all(asked <= (end - curve.start) * 3 / 4 for end in curve.recorded)


@pytest.mark.slow
@pytest.mark.parametrize("curve", CURVES.values(), ids=lambda curve: curve.recipe)
def test_a_curve_ends_where_the_recorded_ones_did(curve: Curve, tmp_path: Path) -> None:
    assert curve.end(tmp_path) >= curve.bound


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("defect", "recipe"),
    [("wrong_sign", "arithmetic"), ("off_by_one", "gcd"), ("off_by_one", "leg-counting")],
)
def test_a_broken_advantage_is_noticed(defect: str, recipe: str, tmp_path: Path) -> None:
    assert CURVES[recipe].end(tmp_path, defect) < CURVES[recipe].bound
