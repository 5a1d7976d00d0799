"""What an experiment begins with: the success of its model before training."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gem
from gem_bench.__main__ import main

pytest.importorskip("torch", reason="plays with a model")
pytest.importorskip("gem_cpu.tiny_model", reason="has the model")

from gem_bench.runspec import load_spec
from gem_bench.start import measure

RECIPE = Path(__file__).parents[2] / "recipes" / "guess-easy.toml"


def test_the_tiny_model_begins_between_a_random_and_a_good_player() -> None:
    found = measure(load_spec(RECIPE, ()), episodes=200)
    landmarks = load_spec(RECIPE, ()).landmarks
    assert landmarks["random"] - 0.06 < found.success.mean < landmarks["consistent"] - 0.16
    assert found.success.low is not None and found.success.low < found.success.mean
    assert found.success.n == 200
    assert found.format_errors < 0.05
    assert found.model.endswith("tiny")


def test_the_landmarks_of_the_recipe_are_what_such_players_reach() -> None:
    spec = load_spec(RECIPE, ())
    env: Any = gem.make(spec.env[0].id, **spec.env[0].params)
    rng = random.Random(0)
    players: dict[str, Callable[[], str]] = {
        "random": lambda: f"\\boxed{{{rng.randint(1, 10)}}}",
        "consistent": lambda: f"\\boxed{{{rng.randint(env.unwrapped.low, env.unwrapped.high)}}}",
        "oracle": lambda: env.oracle_action(),
    }
    assert set(spec.landmarks) == set(players)
    for name, play in players.items():
        won = 0
        for seed in range(1000):
            env.reset(seed=seed)
            ended, reward = False, 0.0
            while not ended:
                _, reward, terminated, truncated, _ = env.step(play())
                ended = terminated or truncated
            won += reward == 1.0
        # Three standard errors.
        assert abs(won / 1000 - spec.landmarks[name]) < 0.048, name


def test_the_command_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["start", str(RECIPE), "--episodes", "8", "--set", "name=other"]) == 0
    assert capsys.readouterr().out.startswith("other: start success 0.")
