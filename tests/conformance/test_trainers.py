"""Real trainers against the reference: a greedy fp32 run each (L0 to L3), and broken ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import breaks
import pytest
from trainers import TRAINERS

from gem_train.experiment.metrics import PART
from gem_train.record import read_run

pytest.importorskip("gem_bench.runspec", reason="needs the development environment: make env-dev")
from gem_bench.conformance import Finding

GREEDY, MIXTURE = "guess-easy-greedy", "mixture-guess"
SEAT, SEATS = "self-play/kuhn-seat-greedy", "self-play/kuhn-all-greedy"
SELF_PLAY = ("verl", "oat", "rl2")
BY_ROLE = ("algorithm.advantage=rebn", "algorithm.normalise=role")

pytestmark = pytest.mark.slow
Run = Callable[..., Path]
Keep = Callable[[str, str], None]
Compare = Callable[[Path, Path], list[Finding]]


@pytest.fixture(scope="session")
def reference(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run("reference", tmp_path_factory.mktemp("reference") / "run", GREEDY)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_real_trainer_conforms_to_the_reference(
    trainer: str, reference: Path, run: Run, compare: Compare, keep: Keep, tmp_path: Path
) -> None:
    findings = compare(reference, run(trainer, tmp_path / "run", GREEDY))
    assert not findings, "\n".join(map(str, findings[:20]))
    train = [m for m in read_run(reference).metrics if m["split"] == "train"]
    # A flat line is drawn alike by trainers that learn nothing.
    assert len({m["return_mean"] for m in train}) > 3
    keep(trainer, "L0 to L3")


@pytest.fixture(scope="session")
def mixed(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run("reference", tmp_path_factory.mktemp("mixed") / "run", MIXTURE)


@pytest.mark.parametrize(
    "trainer",
    ["trl", *(pytest.param(t, marks=pytest.mark.nightly) for t in ("verl", "openrlhf", "oat"))],
)
def test_a_real_trainer_learns_several_environments_as_the_reference(
    trainer: str, mixed: Path, run: Run, compare: Compare, tmp_path: Path
) -> None:
    """The whole curve and that of each environment, one of which changes during the run."""
    folder = run(trainer, tmp_path / "run", MIXTURE)
    findings = compare(mixed, folder)
    assert not findings, "\n".join(map(str, findings[:20]))
    ours, theirs = (by_environment(each) for each in (mixed, folder))
    assert {name.split("/")[1] for metrics in ours for name in metrics} == {
        "near",
        "exact",
        "growing",
    }
    assert len({tuple(metrics.values()) for metrics in ours}) > 3
    assert theirs == [pytest.approx(metrics) for metrics in ours]


def by_environment(folder: Path) -> list[dict[str, float]]:
    """Return the metrics of single environments, in each iteration."""
    train = [m for m in read_run(folder).metrics if m["split"] == "train"]
    return [{k: v for k, v in each.items() if PART.fullmatch(k)} for each in train]


@pytest.fixture(scope="session")
def seated(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run("reference", tmp_path_factory.mktemp("seated") / "run", SEAT)


@pytest.mark.parametrize(
    "trainer",
    ["trl", *(pytest.param(t, marks=pytest.mark.nightly) for t in TRAINERS[:4])],
)
def test_a_real_trainer_learns_a_seat_of_a_game_as_the_reference(
    trainer: str, seated: Path, run: Run, compare: Compare, tmp_path: Path
) -> None:
    findings = compare(seated, run(trainer, tmp_path / "run", SEAT))
    assert not findings, "\n".join(map(str, findings[:20]))
    train = [m for m in read_run(seated).metrics if m["split"] == "train"]
    assert len({m["return_mean"] for m in train}) > 3


@pytest.mark.nightly
@pytest.mark.parametrize("trainer", SELF_PLAY)
def test_a_real_trainer_learns_all_seats_of_a_game_as_the_reference(
    trainer: str, run: Run, compare: Compare, tmp_path: Path
) -> None:
    """With baselines of roles where the trainer keeps them, else with statistics of each role."""
    how = () if trainer == "verl" else BY_ROLE
    ours = run("reference", tmp_path / "reference", SEATS, *how)
    theirs = run(trainer, tmp_path / "run", SEATS, *how)
    findings = compare(ours, theirs)
    assert not findings, "\n".join(map(str, findings[:20]))
    curve = by_agent(ours)
    # The sum over both agents hardly changes, what each of them gets does.
    assert len({returns["first"] for returns in curve}) > 3
    assert by_agent(theirs) == [pytest.approx(returns) for returns in curve]


def by_agent(folder: Path) -> list[dict[str, float]]:
    """Return the mean return of each agent, in each iteration."""
    found: dict[int, dict[str, list[float]]] = {}
    for each in read_run(folder).episodes():
        if each.split == "train":
            returns = found.setdefault(each.iteration, {})
            returns.setdefault(str(each.trajectory.agent), []).append(each.trajectory.total_reward)
    return [
        {agent: sum(values) / len(values) for agent, values in returns.items()}
        for _, returns in sorted(found.items())
    ]


@pytest.mark.breaks
@pytest.mark.parametrize("name", breaks.BREAKS)
def test_a_broken_trainer_does_not(
    name: str, reference: Path, run: Run, compare: Compare, tmp_path: Path
) -> None:
    """The same run of real verl with one defect built in is told apart at the right level."""
    folder = run(
        "verl",
        tmp_path / "run",
        GREEDY,
        VERL_USE_EXTERNAL_MODULES="breaks",
        GEM_BREAK=name,
        PYTHONPATH=str(Path(__file__).parent),
    )
    level = breaks.BREAKS[name][1]
    found = {f.level for f in compare(reference, folder)}
    assert level in found, f"found {sorted(found)}"
    if level == "L3":
        assert found == {"L3"}


@pytest.mark.breaks
@pytest.mark.parametrize("name", breaks.OPENRLHF)
def test_a_broken_openrlhf_does_not(
    name: str, reference: Path, run: Run, compare: Compare, tmp_path: Path
) -> None:
    """The same for OpenRLHF; it has no way to load a module, but every Python does."""
    tmp_path.joinpath("sitecustomize.py").write_text("import breaks\n")
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parent)])
    folder = run("openrlhf", tmp_path / "run", GREEDY, GEM_BREAK=name, PYTHONPATH=path)
    assert {f.level for f in compare(reference, folder)} == {breaks.OPENRLHF[name][1]}
    train = [m for m in read_run(folder).metrics if m["split"] == "train"]
    # So does whoever only looks at the metrics.
    assert train[0]["logprob_difference_max"] < 1e-4
    assert train[-1]["logprob_difference_max"] > 0.01


@pytest.mark.breaks
@pytest.mark.parametrize("name", breaks.RL2)
def test_a_broken_rl2_does_not(
    name: str, reference: Path, run: Run, compare: Compare, tmp_path: Path
) -> None:
    tmp_path.joinpath("sitecustomize.py").write_text("import breaks\n")
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parent)])
    folder = run("rl2", tmp_path / "run", GREEDY, GEM_BREAK=name, PYTHONPATH=path)
    assert {f.level for f in compare(reference, folder)} == {breaks.RL2[name][1]}


@pytest.mark.breaks
@pytest.mark.parametrize("name", breaks.OAT)
def test_a_broken_oat_does_not(
    name: str, reference: Path, run: Run, compare: Compare, tmp_path: Path
) -> None:
    tmp_path.joinpath("sitecustomize.py").write_text("import breaks\n")
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parent)])
    folder = run("oat", tmp_path / "run", GREEDY, GEM_BREAK=name, PYTHONPATH=path)
    assert {f.level for f in compare(reference, folder)} == {breaks.OAT[name][1]}
    train = [m for m in read_run(folder).metrics if m["split"] == "train"]
    assert train[0]["logprob_difference_max"] < 1e-4
    assert train[-1]["logprob_difference_max"] > 0.01


@pytest.mark.breaks
@pytest.mark.parametrize(
    ("trainer", "name"),
    [*(("trl", name) for name in breaks.TRL), *(("trl with vLLM", n) for n in breaks.TRL_VLLM)],
)
def test_a_broken_trl_does_not(
    trainer: str, name: str, reference: Path, run: Run, compare: Compare, tmp_path: Path
) -> None:
    tmp_path.joinpath("sitecustomize.py").write_text("import breaks\n")
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parent)])
    folder = run(trainer, tmp_path / "run", GREEDY, GEM_BREAK=name, PYTHONPATH=path)
    level = (breaks.TRL | breaks.TRL_VLLM)[name][1]
    # The first level that can see it does, and none before it.
    assert min(f.level for f in compare(reference, folder)) == level
