"""The reference with dynamic sampling and overlong filtering, and audits of its runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gem
from gem.envs.games.guess_the_number import GuessTheNumber
from gem.errors import RolloutError
from gem_train.experiment.filtering import Filtered
from gem_train.experiment.runspec import RunSpec
from gem_train.record import read_run

torch = pytest.importorskip("torch", reason="the reference trainer needs torch")
tiny_model = pytest.importorskip("gem_cpu.tiny_model", reason="makes the model to train")

from gem_bench import reference  # noqa: E402
from gem_bench.audit import audit, judge  # noqa: E402

FRAGILE, EASY = "test:FragileGuess", "test:EasyGuess"


class Fragile(GuessTheNumber):
    """Breaks at some guesses."""

    def step(self, action: str) -> Any:
        if any(digit in action for digit in "389"):
            raise OSError("broken")
        return super().step(action)


class Easy(GuessTheNumber):
    """Pays for every answer."""

    def step(self, action: str) -> Any:
        observation, _, _, _, info = super().step(action)
        return observation, 1.0, True, False, info


gem.register(EASY, Easy, max_number=10, max_turns=4)
gem.register(FRAGILE, Fragile, max_number=10, max_turns=4)

Train = Callable[..., tuple[RunSpec, Path]]


@pytest.fixture
def train(tmp_path: Path) -> Train:
    """Train; keywords are keys of the RunSpec's training."""

    def start(
        env: str = "game:GuessTheNumber-v0-easy", turn_tokens: int = 8, **training: Any
    ) -> tuple[RunSpec, Path]:
        data = {
            "name": "test",
            "env": {"id": env, "params": {"hint": "range", "prompt": "short"}},
            "policy": {
                "model": str(tiny_model.ensure()),
                "prompt_tokens": 40,
                "response_tokens": 128,
                "turn_tokens": turn_tokens,
            },
            "algorithm": {"advantage": "grpo"},
            "optimizer": {"lr": 1e-4},
            "training": {"iterations": 3, "tasks": 6, "group_size": 3, **training},
        }
        spec = RunSpec.from_mapping(data)
        folder = tmp_path / "run"
        reference.train(spec, folder, device="cpu")
        (folder / "run.json").write_text(
            json.dumps({"spec": spec.to_mapping(), "model": spec.policy.model})
        )
        return spec, folder

    return start


def test_groups_with_one_return_are_replaced_by_further_tasks(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEM_RECORD_ROWS", "1")
    _, folder = train(extra_batches=3)
    run = read_run(folder)
    played: dict[int, list[Any]] = {}
    for episode in run.episodes():
        played.setdefault(episode.iteration, []).append(episode)
    seeds = [
        episode.trajectory.task.seed
        for episodes in played.values()
        for episode in episodes[::3]  # a group's first
    ]
    assert len(set(seeds)) == len(seeds) > 18
    assert sum(line["equal_groups"] for line in run.metrics) > 0
    for line in run.metrics:
        episodes = played[line["iteration"]]
        assert line["episodes"] == len(episodes) == 3 * line["played_groups"]
        assert line["trained_groups"] == 6
        # Over all that was played, or the success rate would tend to one half.
        won = sum(episode.trajectory.success for episode in episodes)
        assert line["success_rate"] == pytest.approx(won / len(episodes))
        for begin in range(0, len(episodes), 3):
            group = episodes[begin : begin + 3]
            assert len({episode.trajectory.group for episode in group}) == 1
            same = len({episode.trajectory.total_reward for episode in group}) == 1
            trained = [bool(episode.rows) for episode in group]
            assert trained in ([True] * 3, [False] * 3)
            assert not (same and trained[0])
            if not trained[0]:
                assert all(a == 0 for episode in group for a in episode.advantages)
        assert sum(bool(episode.rows) for episode in episodes) == 18


def test_without_extra_batches_what_is_left_is_trained_on(train: Train) -> None:
    _, folder = train(extra_batches=0)
    metrics = read_run(folder).metrics
    assert {line["played_groups"] for line in metrics} == {6}
    assert min(line["trained_groups"] for line in metrics) < 6


@pytest.mark.parametrize("extra", [0, 2])
def test_an_audit_knows_what_was_trained_on(train: Train, extra: int) -> None:
    _, folder = train(FRAGILE, extra_batches=extra, max_failed_fraction=0.9)
    run = read_run(folder)
    assert sum(line["failed_episodes"] for line in run.metrics) > 0
    assert not judge(list(audit(run)))


def test_an_audit_notices_a_filter_that_takes_failed_episodes_for_0(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = reference.filtered

    def wrong(episodes: Any, most: int, shaping: Any) -> Filtered:
        class Zero:
            valid = True

            def __init__(self, episode: Any) -> None:
                self.group = episode.group
                self.rewards = episode.rewards if episode.valid else [0.0]

        return right([Zero(episode) for episode in episodes], most, shaping)  # type: ignore[misc]

    monkeypatch.setattr(reference, "filtered", wrong)
    _, folder = train(FRAGILE, extra_batches=0, max_failed_fraction=0.9)
    assert "L2" in {finding.level for finding in judge(list(audit(read_run(folder))))}


def test_a_policy_that_always_wins_ends_the_run_with_the_reason(train: Train) -> None:
    """Nothing can be learned; no update is made up."""
    with pytest.raises(RolloutError, match=r"training\.extra_batches: none of 12 groups"):
        train(EASY, extra_batches=1)


CUT = 5
"""Tokens of a turn, so few that some guesses are not ended."""


def test_overlong_episodes_are_in_the_statistics_and_not_in_the_loss(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEM_RECORD_ROWS", "1")
    _, folder = train(turn_tokens=CUT, mask_overlong=True)
    run = read_run(folder)
    played = list(run.episodes())
    for episode in played:
        assert bool(episode.rows) == (episode.trajectory.length_stops == 0)
    assert any(any(e.advantages) for e in played if e.trajectory.length_stops)
    assert all(0 < line["overlong_rate"] < 1 for line in run.metrics)
    assert not judge(list(audit(run)))


def test_an_audit_notices_overlong_episodes_in_the_loss(train: Train) -> None:
    spec, folder = train(turn_tokens=CUT)
    told = replace(spec, training=replace(spec.training, mask_overlong=True))
    (folder / "run.json").write_text(
        json.dumps({"spec": told.to_mapping(), "model": spec.policy.model})
    )
    assert "L2" in {finding.level for finding in judge(list(audit(read_run(folder))))}
