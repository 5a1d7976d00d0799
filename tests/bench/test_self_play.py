"""The reference trainer trains all seats of a game; trainers that cannot say so by name."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gem.__main__ import main as gem_command
from gem.errors import ConfigurationError
from gem.replay import match_difference
from gem_train import preflight
from gem_train.experiment.hardware import CPU
from gem_train.experiment.runspec import RunSpec
from gem_train.record import EpisodeRecord, read_run

torch = pytest.importorskip("torch", reason="the reference trainer needs torch")
pytest.importorskip("gem_cpu.small", reason="makes the model to train")

from gem_bench import reference  # noqa: E402
from gem_bench.adapters import compile_launch  # noqa: E402
from gem_bench.checkpoints import Checkpoints  # noqa: E402
from gem_bench.models import resolved  # noqa: E402

# Knows nothing: what it says is illegal.
NEWBORN = "small?vocabulary=320&hidden=32&layers=1&episodes=32&careful_steps=1&steps=1&batch=2"
ALL = {"seat": "all", "on_illegal": "random"}

Make = Callable[..., RunSpec]


@pytest.fixture
def poker(make_spec: Make, tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Make an experiment with hands of Kuhn poker against itself."""

    def make(params: dict[str, Any] | None = None, **changes: Any) -> RunSpec:
        policy = {"model": NEWBORN, "prompt_tokens": 900, "response_tokens": 800, "turn_tokens": 12}
        env = {"id": "multi:KuhnPoker-v0", "params": ALL if params is None else params}
        return resolved(make_spec(env=env, policy=policy, **changes))

    return make


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path_factory.getbasetemp() / "self-play-models"
    monkeypatch.setenv("GEM_CACHE", str(folder))


def episodes(folder: Path, iteration: int) -> list[EpisodeRecord]:
    return list(read_run(folder).episodes("train", {iteration}))


def verified(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    capsys.readouterr()
    return gem_command(["replay", str(folder), "--verify"]), capsys.readouterr().out


@pytest.mark.parametrize(
    "algorithm",
    [
        {"advantage": "rae"},
        {"advantage": "rebn", "normalise": "role"},
        {"advantage": "grpo"},
        {"advantage": "rloo"},
        {"advantage": "gae"},
    ],
    ids=str,
)
def test_all_seats_are_trained(
    algorithm: dict[str, Any], poker: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = poker(algorithm=algorithm)
    reference.train(spec, tmp_path, device="cpu")
    run = read_run(tmp_path)
    assert [line["episodes"] for line in run.metrics] == [16, 16]
    # A newborn's moves are all illegal: replaced by those of the seed, the same in a group.
    compares = algorithm["advantage"] in ("grpo", "rloo")
    assert all((line["grad_norm"] > 0) != compares for line in run.metrics)
    for iteration in (0, 1):
        recorded = episodes(tmp_path, iteration)
        assert [r.trajectory.agent for r in recorded] == ["first", "second"] * 8
        assert [r.trajectory.group for r in recorded] == [k // 4 for k in range(16)]
        for one, two in zip(recorded[::2], recorded[1::2], strict=True):
            assert one.trajectory.match == two.trajectory.match
            both = {"first": one.trajectory, "second": two.trajectory}
            assert match_difference(both) is None
    assert verified(tmp_path, capsys) == (0, "32 of 32 episodes are the same again\n")


def test_an_agent_without_a_turn_trains_nothing_and_breaks_nothing(
    poker: Make, tmp_path: Path
) -> None:
    spec = poker({"seat": "all"}, algorithm={"advantage": "rae"})
    learner = reference.train(spec, tmp_path, device="cpu")
    recorded = episodes(tmp_path, 0)
    assert all(r.trajectory.rewards == [-1.0] for r in recorded[::2])
    assert all(r.trajectory.valid and not r.trajectory.turns for r in recorded[1::2])
    first = [r.advantages for r in recorded[::2]]
    # A = -1 - b with b = 0, -0.05, -0.0975, ...
    assert [a for [a] in first] == pytest.approx([-(0.95**k) for k in range(8)])
    assert list(learner.estimator_state) == ["first"]


def test_the_baselines_of_roles_are_in_the_checkpoint(poker: Make, tmp_path: Path) -> None:
    spec = poker(algorithm={"advantage": "rae"})
    whole = reference.train(spec, tmp_path / "whole", device="cpu")
    half = dataclasses.replace(spec, training=dataclasses.replace(spec.training, iterations=1))
    folder = tmp_path / "resumed"
    reference.train(half, folder, device="cpu")
    for path in ("metrics.jsonl", "episodes.jsonl", "run.json"):
        (folder / path).unlink(missing_ok=True)

    class Stop(BaseException):
        pass

    def stop(iteration: int, split: str, metrics: Any) -> None:
        if iteration == 1:
            raise Stop

    saved = Checkpoints(folder, spec, 1)
    with pytest.raises(Stop):
        reference.train(spec, folder, device="cpu", checkpoints=saved, report=stop)
    again = reference.train(spec, folder, device="cpu", checkpoints=Checkpoints(folder, spec, 1))
    assert again.estimator_state == whole.estimator_state != {}
    pairs = zip(again.policy.parameters(), whole.policy.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_a_changed_match_is_found(
    poker: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reference.train(poker(algorithm={"advantage": "rae"}), tmp_path, device="cpu")
    file = tmp_path / "episodes.jsonl"
    lines = file.read_text().splitlines()
    record = json.loads(lines[1])
    record["trajectory"]["turns"][0]["observation"] = "Your card: A."
    record.pop("fingerprint")
    file.write_text("\n".join([lines[0], json.dumps(record), *lines[2:]]) + "\n")
    status, out = verified(tmp_path, capsys)
    assert status == 1
    assert out.startswith("episode 0, multi:KuhnPoker-v0, seed 0:")
    assert "Your card: A." in out


def test_one_seat_of_a_match_against_itself_is_trained(
    poker: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = poker({"opponent": "self", "on_illegal": "random"})
    reference.train(spec, tmp_path, device="cpu")
    trained = [r.trajectory for r in episodes(tmp_path, 0)]
    assert [t.agent for t in trained] == ["first", "first", "second", "second"] * 2
    assert all(t.turns for t in trained)
    nothing = (
        "0 of 0 episodes are the same again, 16 of matches with unrecorded agents not compared"
    )
    assert verified(tmp_path, capsys) == (2, f"{nothing}\n")


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"env__params": {"seat": "all"}}, "env.params.seat: fake trains one seat"),
        ({"algorithm__advantage": "rae"}, "algorithm.advantage: fake keeps no state"),
        (
            {"eval": [{"name": "x", "id": "multi:Nim-v0", "params": {"seat": "all"}}]},
            r"eval.0.params.seat: fake trains one seat of a match; opponent=self",
        ),
    ],
)
def test_trainers_that_train_one_seat_refuse_all_by_name(
    changes: dict[str, Any],
    key: str,
    make_spec: Make,
    fake_installed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    spec = make_spec(**({"env": {"id": "multi:Nim-v0", "params": {}}} | changes))
    with pytest.raises(ConfigurationError, match=key):
        compile_launch("fake", spec, run_dir=tmp_path / "out")


def test_the_recipe_is_for_the_reference_trainer(
    fake_installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spec = RunSpec.read(Path(__file__).parents[2] / "recipes" / "self-play" / "kuhn.toml")
    preflight.check(preflight.environments(spec))
    launch = compile_launch("reference", spec, run_dir=tmp_path, hardware=CPU).launch
    assert not [each for each in launch.parity if each.status == "unmatched"]
    with pytest.raises(ConfigurationError, match="fake trains one seat"):
        compile_launch("fake", spec, run_dir=tmp_path)


@pytest.mark.parametrize("params", [{"seat": "all"}, {"opponent": "self", "seat": "second"}])
def test_a_game_with_all_seats_is_tried_before_a_run(
    params: dict[str, Any], make_spec: Make
) -> None:
    spec = make_spec(env={"id": "multi:Nim-v0", "params": params})
    preflight.check(preflight.environments(spec))
    wrong = make_spec(env={"id": "multi:Nim-v0", "params": {**params, "piles": [0]}})
    with pytest.raises(ConfigurationError, match="piles must be 2 to 6 numbers"):
        preflight.check(preflight.environments(wrong))
