"""Batches that are sampled with earlier weights (`training.staleness`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gem.errors import ConfigurationError
from gem_train.experiment.runspec import RunSpec
from gem_train.record import read_run

torch = pytest.importorskip("torch", reason="the reference trainer needs torch")

from gem_bench import reference  # noqa: E402
from gem_bench.behaviour import Behaviour  # noqa: E402
from gem_bench.replay import experiment  # noqa: E402

Make = Callable[..., RunSpec]


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_a_batch_is_sampled_with_the_weights_of_so_many_iterations_ago(staleness: int) -> None:
    policy = torch.nn.Linear(2, 2)
    behaviour, after = Behaviour(policy, staleness), []
    for iteration in range(6):
        after.append(policy.weight.detach().clone())
        sampled, version = behaviour.at(iteration)
        assert version == max(0, iteration - staleness)
        assert torch.equal(sampled.weight, after[version])
        assert torch.equal(policy.weight, after[-1])
        with torch.no_grad():
            policy.weight += 1.0
    assert len(behaviour.versions) <= staleness + 1


def versions(folder: Path) -> dict[int, set[Any]]:
    """Return the policy versions of the training episodes of each iteration."""
    found: dict[int, set[Any]] = {}
    for episode in read_run(folder).episodes():
        if episode.split == "train":
            found.setdefault(episode.iteration, set()).add(episode.trajectory.policy_version)
    return found


def test_every_episode_says_which_weights_sampled_it(make_spec: Make, tmp_path: Path) -> None:
    spec = make_spec(training__iterations=4, training__staleness=2)
    reference.train(spec, tmp_path, device="cpu")
    assert versions(tmp_path) == {0: {(0, 0)}, 1: {(0, 0)}, 2: {(0, 0)}, 3: {(1, 1)}}


def test_log_probabilities_are_those_of_the_older_policy(
    make_spec: Make, learner_of: Callable[..., Any], tmp_path: Path
) -> None:
    """The first batches are sampled by the initial policy, whatever has been learned since."""
    spec = make_spec(training__iterations=3, training__staleness=5, optimizer__lr=0.02)
    reference.train(spec, tmp_path, device="cpu")
    initial = learner_of(spec)
    for episode in read_run(tmp_path).episodes():
        rows = reference.training_rows([episode.trajectory])
        with torch.no_grad():
            found, _ = reference.token_statistics(initial.policy, rows, 1.0)
        drawn = torch.tensor([p for row in rows for p in row.drawn])
        torch.testing.assert_close(found, drawn, rtol=0, atol=1e-4)


def test_a_run_without_staleness_is_the_same_as_ever(make_spec: Make, tmp_path: Path) -> None:
    curves = []
    for name, changes in (("plain", {}), ("stale", {"training__staleness": 1})):
        reference.train(
            make_spec(training__iterations=3, optimizer__lr=0.02, **changes),
            tmp_path / name,
            device="cpu",
        )
        curves.append([line["grad_norm"] for line in read_run(tmp_path / name).metrics])
    # The first batch is the same; the second is sampled with the initial weights.
    assert curves[0][0] == curves[1][0]
    assert curves[0][1:] != curves[1][1:]
    assert versions(tmp_path / "plain") == {i: {(i, i)} for i in range(3)}


def test_a_correction_weighs_what_the_older_policy_sampled(make_spec: Make, tmp_path: Path) -> None:
    curves = []
    for name, changes in (("without", {}), ("with", {"algorithm__tis_clip": 1.2})):
        spec = make_spec(
            training__iterations=3, training__staleness=1, optimizer__lr=0.02, **changes
        )
        reference.train(spec, tmp_path / name, device="cpu")
        curves.append([line["loss"] for line in read_run(tmp_path / name).metrics])
    assert curves[0][0] == pytest.approx(curves[1][0], abs=1e-5)
    assert curves[0][1] != pytest.approx(curves[1][1], rel=1e-2)


def test_a_replay_knows_one_policy(make_spec: Make, tmp_path: Path) -> None:
    reference.train(make_spec(training__staleness=1), tmp_path, device="cpu")
    with pytest.raises(ConfigurationError, match=r"training\.staleness: .* got 1"):
        experiment(read_run(tmp_path))
