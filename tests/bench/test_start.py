"""What an experiment begins with: the success of its model before training."""

from __future__ import annotations

from pathlib import Path

import pytest

from gem_bench.__main__ import main

pytest.importorskip("torch", reason="plays with a model")
pytest.importorskip("gem_cpu.tiny_model", reason="has the model")

from gem_bench.runspec import load_spec
from gem_bench.start import measure

RECIPE = Path(__file__).parents[2] / "recipes" / "guess-easy.toml"


def test_the_tiny_model_begins_between_a_random_and_a_good_player() -> None:
    found = measure(load_spec(RECIPE, ()), episodes=200)
    # Random guesses win 34 %, consistent ones 76 % (the recipe).
    assert 0.28 < found.success.mean < 0.6
    assert found.success.low is not None and found.success.low < found.success.mean
    assert found.success.n == 200
    assert found.format_errors < 0.05
    assert found.model.endswith("tiny")


def test_the_command_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["start", str(RECIPE), "--episodes", "8", "--set", "name=other"]) == 0
    assert capsys.readouterr().out.startswith("other: start success 0.")
