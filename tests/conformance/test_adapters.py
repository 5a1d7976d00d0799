"""Levels L0 to L3 with low-rank adapters: real runs against the reference with the same adapter.

A Tinker server trains adapters only, and begins with random ones that no client can choose. So the
trainer runs first, TRL likewise, and the reference begins with the adapter that it made.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import breaks
import pytest

from gem_train.record import read_run

pytest.importorskip("gem_bench.runspec", reason="needs the development environment: make env-dev")
from gem_bench.audit import audit, judge, lines
from gem_bench.conformance import RELATIVE, compare_runs
from gem_bench.runspec import load_spec
from gem_cpu.tinker_server import initial_adapter

GREEDY, SAMPLED = "guess-easy-greedy", "guess-easy"
CLIP = 0.01
SETTINGS = (
    "policy.lora_rank=8",
    # Below every gradient norm of this run, whatever adapter it begins with: clipping is part of
    # what is compared.
    f"optimizer.grad_clip={CLIP}",
)
TRAINERS = ("tinker", "trl")

pytestmark = pytest.mark.slow
Run = Callable[..., Path]
Keep = Callable[[str, str], None]


def beginning(folder: Path, unpacked: Path) -> Path:
    """Return the folder of the adapter that a run began with."""
    server = folder / "server"
    return initial_adapter(server, unpacked) if server.exists() else folder / "adapter"


@pytest.fixture(scope="module", params=TRAINERS)
def trained(
    request: pytest.FixtureRequest, run: Run, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    """A trainer's name and the folder of its run."""
    folder = tmp_path_factory.mktemp(request.param) / "run"
    return request.param, run(request.param, folder, GREEDY, *SETTINGS)


@pytest.fixture(scope="module")
def reference(
    trained: tuple[str, Path], run: Run, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("reference")
    adapter = beginning(trained[1], folder / "adapter")
    settings = [*SETTINGS, f"policy.lora_init={adapter}"]
    return run("reference", folder / "run", GREEDY, *settings)


def findings(reference: Path, other: Path, name: str = GREEDY, *settings: str) -> list[str]:
    recipe = Path(__file__).parents[2] / "recipes" / f"{name}.toml"
    algorithm = load_spec(recipe, settings).algorithm
    return [str(f) for f in compare_runs(read_run(reference), read_run(other), algorithm)]


def test_a_trainer_conforms_to_the_reference_with_the_same_adapter(
    reference: Path, trained: tuple[str, Path], keep: Keep
) -> None:
    trainer, folder = trained
    found = findings(reference, folder)
    assert not found, "\n".join(found[:20])
    # A flat line is drawn alike by trainers that learn nothing.
    assert len({m["return_mean"] for m in read_run(reference).metrics}) > 3
    keep(trainer, "L0 to L3 with adapters")


def test_every_gradient_is_the_reference_s(reference: Path, trained: tuple[str, Path]) -> None:
    """Norms before clipping depend on all earlier updates, clipped ones included."""
    expected = [m["grad_norm"] for m in read_run(reference).metrics]
    assert min(expected) > CLIP
    assert [m["grad_norm"] for m in read_run(trained[1]).metrics] == pytest.approx(
        expected, rel=RELATIVE
    )


def test_a_reference_with_another_adapter_is_told_apart(
    trained: tuple[str, Path], run: Run, tmp_path: Path
) -> None:
    other = run("reference", tmp_path / "run", GREEDY, *SETTINGS, "training.iterations=1")
    assert any(found.startswith("L2") for found in findings(other, trained[1]))


def test_a_server_s_sampler_and_trainer_agree_in_every_iteration(
    trained: tuple[str, Path],
) -> None:
    metrics = read_run(trained[1]).metrics
    differences = [m["logprob_difference_max"] for m in metrics if "logprob_difference_max" in m]
    assert len(differences) == (10 if trained[0] == "tinker" else 0)  # TRL's model samples itself
    assert max(differences, default=0) < 1e-4


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("recipe", "settings"),
    [
        ("self-play/kuhn-seat-greedy", ()),
        ("self-play/kuhn-all-greedy", ("algorithm.advantage=rebn", "algorithm.normalise=role")),
    ],
)
def test_a_server_learns_a_game_as_the_reference(
    recipe: str, settings: tuple[str, ...], run: Run, tmp_path: Path
) -> None:
    """From one seat, and all seats with the statistics of each role."""
    settings = (*SETTINGS, *settings)
    theirs = run("tinker", tmp_path / "run", recipe, *settings)
    adapter = beginning(theirs, tmp_path / "adapter")
    ours = run("reference", tmp_path / "ours", recipe, *settings, f"policy.lora_init={adapter}")
    found = findings(ours, theirs, recipe, *settings)
    assert not found, "\n".join(found[:20])
    assert len({m["grad_norm"] for m in read_run(ours).metrics}) > 3


@pytest.mark.nightly
@pytest.mark.parametrize("trainer", TRAINERS)
def test_the_reference_would_have_made_the_same_of_a_sampled_run(
    trainer: str, run: Run, keep: Keep, tmp_path: Path
) -> None:
    settings = [*SETTINGS, "training.iterations=6", "optimizer.lr=1e-4"]
    folder = run(trainer, tmp_path / "run", SAMPLED, *settings)
    check_sampled(folder, tmp_path / "adapter")
    keep(trainer, "sampled audit")


@pytest.mark.parametrize(
    ("trainer", "extra"),
    [
        pytest.param("trl", 2, marks=pytest.mark.nightly),
        pytest.param("trl", 0, marks=pytest.mark.nightly),
        pytest.param("tinker", 2, marks=pytest.mark.nightly),
    ],
)
def test_dynamic_sampling_trains_on_the_groups_that_the_reference_chooses(
    trainer: str, extra: int, run: Run, tmp_path: Path
) -> None:
    size = ["training.group_size=4", f"training.extra_batches={extra}", "training.iterations=6"]
    settings = [*SETTINGS, *size, "algorithm.advantage=grpo", "optimizer.lr=1e-4"]
    folder = run(trainer, tmp_path / "run", SAMPLED, *settings)
    check_sampled(folder, tmp_path / "adapter")
    episodes = list(read_run(folder).episodes())
    for line in read_run(folder).metrics:
        played = [e for e in episodes if e.iteration == line["iteration"]]
        groups: dict[int, list[float]] = {}
        for episode in played:
            groups.setdefault(episode.trajectory.group, []).append(episode.trajectory.total_reward)
        different = [group for group, returns in groups.items() if len(set(returns)) > 1]
        trained = {episode.trajectory.group for episode in played if episode.rows}
        assert trained == set(different[:16])
        assert line["played_groups"] == len(groups)
        assert line["equal_groups"] == len(groups) - len(different)
        enough = [len(different) >= 16, len(groups) == 16 * (1 + extra)]
        assert any(enough)


@pytest.mark.nightly
@pytest.mark.parametrize("trainer", TRAINERS)
def test_overlong_episodes_are_left_out_of_the_loss(trainer: str, run: Run, tmp_path: Path) -> None:
    """The reference says which these are, and what that makes of loss and gradient."""
    overlong = ["training.mask_overlong=true", "policy.turn_tokens=5", "training.iterations=6"]
    folder = run(trainer, tmp_path / "run", SAMPLED, *SETTINGS, *overlong, "optimizer.lr=1e-4")
    check_sampled(folder, tmp_path / "adapter")
    assert all(0 < line["overlong_rate"] < 1 for line in read_run(folder).metrics)
    for episode in read_run(folder).episodes():
        assert bool(episode.rows) == (episode.trajectory.length_stops == 0)


@pytest.mark.breaks
@pytest.mark.parametrize("name", breaks.OVERLONG)
def test_overlong_rows_in_the_loss_are_noticed(name: str, run: Run, tmp_path: Path) -> None:
    tmp_path.joinpath("sitecustomize.py").write_text("import breaks\n")
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parent)])
    overlong = ["training.mask_overlong=true", "policy.turn_tokens=5", "training.iterations=6"]
    settings = [*SETTINGS, *overlong, "optimizer.lr=1e-4"]
    folder = run("trl", tmp_path / "run", SAMPLED, *settings, GEM_BREAK=name, PYTHONPATH=path)
    adapter = beginning(folder, tmp_path / "adapter")
    found = judge(list(audit(read_run(folder), lora_init=str(adapter))))
    assert {each.level for each in found} == {breaks.OVERLONG[name][1]}


def check_sampled(folder: Path, unpacked: Path) -> None:
    """Audit a run of six iterations, with the adapter that it began with."""
    adapter = beginning(folder, unpacked)
    audits = list(audit(read_run(folder), lora_init=str(adapter)))
    assert len(audits) == 6
    found = judge(audits)
    assert not found, "\n".join([*lines(audits), *map(str, found)])
