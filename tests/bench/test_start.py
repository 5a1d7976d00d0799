"""What an experiment begins with: the success of its model before training."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gem
from gem_bench.__main__ import main

pytest.importorskip("torch", reason="plays with a model")
pytest.importorskip("gem_cpu.tiny_model", reason="has the model")

from gem_bench.runspec import load_spec
from gem_bench.start import Start, as_text, asked, measure
from gem_bench.stats import Estimate
from gem_train.experiment.runspec import EvalPart

SPLIT = Path(__file__).parents[2] / "recipes" / "regimes" / "hard.toml"
CURRICULUM = Path(__file__).parents[2] / "recipes" / "curricula" / "sokoban.toml"
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


def begun(**fields: Any) -> Start:
    success = Estimate(fields.pop("sampled", 0.3), None, None, "none", 1)
    known = {"greedy": 0.3, "asked": [], "stages": [], "format_errors": 0.0, "making_s": 0.0}
    return Start(name="x", model="m", parameters=1, success=success, **{**known, **fields})


def test_a_model_whose_most_likely_answers_are_right_is_warned_about() -> None:
    assert begun(sampled=0.3, greedy=0.55).warnings == []
    [warning] = begun(sampled=0.3, greedy=0.65).warnings
    assert "greedy 0.65, sampled 0.30" in warning
    assert "sharpening" in warning


def test_what_is_cloned_trained_and_held_out_is_compared() -> None:
    found = {each.name: each for each in asked(load_spec(SPLIT, ()))}
    assert [*found] == ["cloned", "trained", "greedy", "held-out"]
    assert [each.held_out for each in found.values()] == [False, False, False, True]
    assert found["trained"].shared == {"cloned": 0.0}
    assert found["greedy"].shared["trained"] > 0.5
    assert found["held-out"].shared == {"cloned": 0.0, "trained": 0.0}
    assert begun(asked=[*found.values()]).warnings == []


def test_an_evaluation_may_be_called_like_what_it_is_compared_with() -> None:
    spec = load_spec(RECIPE, ())
    env = spec.env[0]
    same = EvalPart(name="trained", id=env.id, params=env.params, seed=env.seed, episodes=8)
    trained, again = asked(replace(spec, eval=(same,)))
    assert trained.shared == {}
    assert again.shared == {"trained": 1.0}


def test_an_evaluation_that_asks_what_was_trained_is_not_held_out() -> None:
    spec = load_spec(SPLIT, ())
    greedy, held_out = spec.eval
    part = [{"name": "questions", "first": 0.5}]
    leaking = replace(held_out, params={**held_out.params, "wrappers": part})
    [warning] = begun(asked=asked(replace(spec, eval=(greedy, leaking)))).warnings
    assert warning.startswith("evaluation 'held-out' is not held out: ")
    assert warning.endswith("of its questions are also trained")


def test_it_is_said_that_only_the_first_tasks_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gem_bench.start._MOST_ASKED", 8)
    text = as_text(begun(asked=asked(load_spec(SPLIT, ()))))
    assert "in the first 8 of 640 tasks" in text


def test_a_model_is_measured_at_each_stage_beside_the_player_that_it_was_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The player always does the right thing; a model of one step knows nothing."""
    monkeypatch.setenv("GEM_CACHE", str(tmp_path))
    model = "small?competent=1.0&episodes=64&careful_steps=0&steps=1&hidden=32"
    spec = load_spec(
        CURRICULUM, [f'policy.model="{model}"', "env.schedule.0.params={ num_boxes = 2 }"]
    )
    found = measure(spec, episodes=32)
    assert [stage.player for stage in found.stages] == [1.0] * len(found.stages)
    assert [stage.success < 0.5 for stage in found.stages] == [True] * len(found.stages)
    assert [stage.changed for stage in found.stages][:2] == [{}, {"num_boxes": 2}]
    assert len(found.stages) == 1 + len(spec.env[0].schedule)
    text = as_text(found)
    assert (
        f"stage 0: success {found.stages[0].success:.2f}, the player that it was shown 1.00" in text
    )
    assert "stage 1 (num_boxes 2): success " in text


def test_a_model_that_was_shown_nothing_has_no_player() -> None:
    plain = load_spec(RECIPE, ())
    assert measure(plain, episodes=2).stages == []
    harder = "env.schedule=[{ iteration = 1, params = { max_turns = 2 } }]"
    before, after = measure(load_spec(RECIPE, [harder]), episodes=64).stages
    assert before.player is after.player is None
    assert before.success > after.success
    assert "the player" not in as_text(begun(stages=[before, after]))


def test_the_command_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["start", str(RECIPE), "--episodes", "8", "--set", "name=other"]) == 0
    assert capsys.readouterr().out.startswith("other: start success 0.")
