"""Settings of algorithm and optimiser in real trainers, against the reference.

Each case trains with values that change the updates: the reference's run must differ from one
without them, and every trainer that says *matched* must train as the reference does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import breaks
import pytest

from gem_train.record import read_run

pytest.importorskip("gem_bench.runspec", reason="needs the development environment: make env-dev")
from gem_bench.conformance import RELATIVE, Finding, compare_runs
from gem_bench.runspec import load_spec
from gem_cpu.tinker_server import initial_adapter

ROOT = Path(__file__).parents[2]
RECIPE, GAME = "guess-easy-greedy", "game:GuessTheNumber-v0-easy"

pytestmark = pytest.mark.slow
Run = Callable[..., Path]


class Case(NamedTuple):
    """Settings that are tested together."""

    keys: tuple[str, ...]
    """What is tested, `key=value`."""
    trainers: tuple[str, ...]
    beside: tuple[str, ...] = ()
    """Settings that they need, which the run without them has, too."""


# Several passes with a large learning rate take probability ratios out of the clip ranges.
LARGE_STEPS = ("algorithm.epochs=3", "optimizer.lr=3e-3")
PASSES = (*LARGE_STEPS, "training.iterations=3")
KL = ("algorithm.kl_coef=2.0", "training.iterations=3")

CASES: Mapping[str, Case] = {
    "cosine": Case(
        ("optimizer.schedule=cosine", "optimizer.warmup=2", "optimizer.min_lr_ratio=0.1"),
        ("trl", "verl", "openrlhf", "oat", "tinker"),
        ("training.iterations=6",),
    ),
    "linear": Case(
        ("optimizer.schedule=linear", "optimizer.warmup=2"),
        ("trl", "openrlhf", "oat", "rl2", "skyrl", "tinker"),
        ("training.iterations=6",),
    ),
    "clips": Case(
        ("algorithm.clip=0.02", "algorithm.clip_high=0.08", "algorithm.dual_clip=1.2"),
        ("trl", "verl", "openrlhf", "oat", "skyrl"),
        PASSES,
    ),
    "clip_high": Case(("algorithm.clip=0.02", "algorithm.clip_high=0.08"), ("tinker",), PASSES),
    "cispo": Case(
        ("algorithm.loss=cispo", "algorithm.clip_high=0.05"),
        ("trl", "verl", "oat", "skyrl", "tinker"),
        PASSES,
    ),
    "sequence": Case(
        ("algorithm.ratio=sequence", "algorithm.clip=0.01"), ("verl", "oat", "skyrl"), PASSES
    ),
    "sapo": Case(
        ("algorithm.loss=sapo", "algorithm.sapo_positive=2.0", "algorithm.sapo_negative=4.0"),
        ("trl", "verl", "oat"),
        # In a third iteration rounding has grown to percents of the gradient.
        (
            *LARGE_STEPS,
            "training.iterations=2",
            "algorithm.loss_aggregation=row-mean-token-mean",
        ),
    ),
    "row-mean-token-mean": Case(
        ("algorithm.loss_aggregation=row-mean-token-mean",),
        ("trl", "verl", "openrlhf", "oat", "skyrl", "tinker"),
        ("training.iterations=3",),
    ),
    "row-mean-token-sum": Case(
        ("algorithm.loss_aggregation=row-mean-token-sum",),
        ("trl", "verl", "oat", "skyrl", "tinker"),
        ("training.iterations=3",),
    ),
    "row-mean-token-sum-norm": Case(
        ("algorithm.loss_aggregation=row-mean-token-sum-norm",),
        ("trl", "verl", "oat", "skyrl", "tinker"),
        ("training.iterations=3", "policy.turn_tokens=128"),
    ),
    "turn-mean": Case(
        ("algorithm.loss_aggregation=turn-mean",), ("oat", "tinker"), ("training.iterations=3",)
    ),
    "k1": Case(("algorithm.kl_estimator=k1",), ("verl", "openrlhf", "oat", "rl2"), KL),
    "k2": Case(("algorithm.kl_estimator=k2",), ("verl", "openrlhf", "oat", "rl2"), KL),
    "KL in the reward": Case(
        ("algorithm.kl_in=reward", "algorithm.kl_estimator=k1"),
        ("verl", "openrlhf", "rl2", "skyrl"),
        KL,
    ),
    "KL of rows": Case(("algorithm.loss_aggregation=row-mean-token-mean",), ("skyrl",), KL),
    "repetition penalty": Case(
        ("sampling.repetition_penalty=1.3",),
        ("trl", "verl", "openrlhf", "oat"),
        ("training.iterations=3",),
    ),
    # The likeliest token alone is left: the same as greedy, drawn by another path of the sampler.
    "min-p": Case(
        ("sampling.min_p=1.0",),
        ("trl", "verl", "openrlhf", "oat", "rl2"),
        ("sampling.top_k=-1", "training.iterations=3"),
    ),
    "shaping": Case(
        (
            "algorithm.reward_scale=2.0",
            "algorithm.reward_clip=1.5",
            "algorithm.whiten=true",
            "algorithm.advantage_clip=1.5",
        ),
        ("trl", "verl", "openrlhf", "oat", "rl2", "skyrl", "tinker"),
        ("algorithm.advantage=reinforce", "training.iterations=3"),
    ),
}
IN_CI = [(name, "trl") for name in ("cosine", "min-p", "shaping")]


@pytest.fixture(scope="module")
def reference(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    known: dict[str, Path] = {}

    def of(name: str) -> Path:
        case = CASES[name]
        if name not in known:
            folder = tmp_path_factory.mktemp("reference") / "run"
            known[name] = run("reference", folder, RECIPE, *case.beside, *case.keys)
        return known[name]

    return of


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in dict(IN_CI) else pytest.mark.nightly)
        for name in CASES
    ],
)
def test_the_settings_change_the_updates(
    name: str, reference: Callable[[str], Path], run: Run, tmp_path: Path
) -> None:
    plain = run("reference", tmp_path / "plain", RECIPE, *CASES[name].beside)
    with_keys, without = (
        [line.get("grad_norm") for line in read_run(folder).metrics if line["split"] == "train"]
        for folder in (reference(name), plain)
    )
    apart = [abs(a / b - 1) for a, b in zip(with_keys, without, strict=True) if b]
    # The comparison of trainers allows 1e-3.
    assert max(apart) > 0.01


@pytest.mark.parametrize(
    ("name", "trainer"),
    [
        pytest.param(
            name,
            trainer,
            marks=() if (name, trainer) in IN_CI else pytest.mark.nightly,
        )
        for name, case in CASES.items()
        for trainer in case.trainers
    ],
)
def test_a_real_trainer_realises_the_settings_as_the_reference_does(
    name: str,
    trainer: str,
    reference: Callable[[str], Path],
    run: Run,
    tmp_path: Path,
) -> None:
    settings = (*CASES[name].beside, *CASES[name].keys)
    if trainer == "tinker":
        ours, theirs = with_adapters(run, tmp_path, *settings)
    else:
        ours, theirs = reference(name), run(trainer, tmp_path / "run", RECIPE, *settings)
    # OpenRLHF shows the gradient norm of an iteration's last step, not their mean.
    last_step = trainer == "openrlhf" and CASES[name].beside is PASSES
    findings = differences(ours, theirs, settings, norms=not last_step)
    assert not findings, "\n".join(map(str, findings[:20]))


@pytest.mark.nightly
@pytest.mark.parametrize("trainer", ["verl", "oat", "rl2"])
def test_a_critic_s_warm_up_leaves_the_policy_alone(trainer: str, run: Run, tmp_path: Path) -> None:
    warm = ("algorithm.advantage=gae", "algorithm.critic_warmup=2", "training.iterations=4")
    found = [
        [line for line in read_run(folder).metrics if line["split"] == "train"]
        for folder in (
            run("reference", tmp_path / "ours", RECIPE, *warm),
            run(trainer, tmp_path / "theirs", RECIPE, *warm),
        )
    ]
    for lines in found:
        assert ["grad_norm" in line for line in lines] == [False, False, True, True]
        assert lines[2]["grad_norm"] > 0
    # Critics begin with other heads, so that the policies differ after their first update.
    for ours, theirs in zip(found[0][:3], found[1][:3], strict=True):
        assert theirs["return_mean"] == pytest.approx(ours["return_mean"])
        assert theirs["sampled_tokens"] == ours["sampled_tokens"]


@pytest.mark.parametrize(
    "trainer",
    [
        "trl",
        *(
            pytest.param(name, marks=pytest.mark.nightly)
            for name in ("verl", "openrlhf", "oat", "rl2", "tinker")
        ),
    ],
)
def test_evaluations_are_sampled_as_they_say(trainer: str, run: Run, tmp_path: Path) -> None:
    """Each leaves the likeliest token alone, by another setting: all are greedy."""
    ways = ["samples=2, min_p=1.0", "samples=2, top_p=1e-6", "top_k=1", "temperature=0.0"]
    parts = ways[trainer == "tinker" :]  # its sampler has no min-p
    same = f'id="{GAME}", params={{hint="range", prompt="short"}}, episodes=5, every=3'
    evaluations = ", ".join(f'{{name="{n}", {same}, {way}}}' for n, way in enumerate(parts))
    settings = (f"eval=[{evaluations}]", "training.iterations=3")
    if trainer == "tinker":
        ours, theirs = with_adapters(run, tmp_path, *settings)
    else:
        ours = run("reference", tmp_path / "ours", RECIPE, *settings)
        theirs = run(trainer, tmp_path / "theirs", RECIPE, *settings)
    names = ("success_rate", "return_mean", "turns_mean", "tokens_per_episode", "pass_rate")
    found: list[dict[tuple[str, int], list[float | None]]] = [
        {
            (line["split"], line["iteration"]): [line.get(name) for name in names]
            for line in read_run(folder).metrics
            if line["split"].startswith("eval:")
        }
        for folder in (ours, theirs)
    ]
    assert found[1] and found[1].items() <= found[0].items()
    for (split, iteration), values in found[1].items():
        assert values[:4] == found[1]["eval:0", iteration][:4]
        assert (values[4] is None) == ("samples" not in parts[int(split[5:])])


@pytest.mark.breaks
@pytest.mark.parametrize("name", breaks.KEYS)
def test_a_defect_in_a_setting_is_noticed(
    name: str, reference: Callable[[str], Path], run: Run, tmp_path: Path
) -> None:
    case, trainer = breaks.KEYS[name][1], name.partition("_")[0]
    tmp_path.joinpath("sitecustomize.py").write_text("import breaks\n")
    path = str(Path(__file__).parent)
    environment = {"GEM_BREAK": name, "PYTHONPATH": path}
    if trainer == "verl":
        environment["VERL_USE_EXTERNAL_MODULES"] = "breaks"
    else:
        environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), path])
    settings = (*CASES[case].beside, *CASES[case].keys)
    folder = run(trainer, tmp_path / "run", RECIPE, *settings, **environment)
    assert differences(reference(case), folder, settings)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("cosine", "optimizer.warmup=3"),
        ("cosine", "optimizer.min_lr_ratio=0.0"),
        ("cosine", "optimizer.schedule=linear"),
        ("clips", "algorithm.dual_clip=8.0"),
        ("cispo", "algorithm.clip_high=0.2"),
        ("sapo", "algorithm.sapo_positive=1.0"),
        ("sapo", "algorithm.sapo_negative=2.0"),
        ("sequence", "algorithm.ratio=token"),
        ("k1", "algorithm.kl_estimator=k2"),
        ("KL in the reward", "algorithm.kl_in=loss"),
        ("KL in the reward", "algorithm.kl_estimator=k3"),
        ("k2", "algorithm.kl_estimator=k3"),
        ("turn-mean", "algorithm.loss_aggregation=token-mean"),
        ("row-mean-token-sum-norm", "algorithm.loss_aggregation=row-mean-token-sum"),
        ("repetition penalty", "sampling.repetition_penalty=1.1"),
        ("min-p", "sampling.min_p=0.0"),
        ("shaping", "algorithm.whiten=false"),
        ("shaping", "algorithm.advantage_clip=2.0"),
    ],
)
def test_another_value_of_one_setting_is_noticed(
    name: str, wrong: str, reference: Callable[[str], Path], run: Run, tmp_path: Path
) -> None:
    """A trainer that realises a setting wrongly trains as the reference does with another value."""
    settings = (*CASES[name].beside, *CASES[name].keys)
    folder = run("reference", tmp_path / "run", RECIPE, *settings, wrong)
    assert differences(reference(name), folder, settings)


def with_adapters(run: Run, folder: Path, *settings: str) -> tuple[Path, Path]:
    """Return a run of the reference, which begins with the adapter of a Tinker server, and its."""
    settings = (*settings, "policy.lora_rank=8")
    theirs = run("tinker", folder / "tinker", RECIPE, *settings)
    adapter = initial_adapter(theirs / "server", folder / "adapter")
    ours = run("reference", folder / "ours", RECIPE, *settings, f"policy.lora_init={adapter}")
    return ours, theirs


def differences(
    ours: Path, theirs: Path, settings: Sequence[str], *, norms: bool = True
) -> list[Finding]:
    """Compare two runs as if both had the settings, and the gradients of all iterations.

    The levels compare the first gradient only, and curves are equal as long as no greedy token
    changes.

    Args:
        ours: Folder of the reference's run.
        theirs: Folder of the other one.
        settings: Of both.
        norms: Whether gradient norms are means over the steps of an iteration, as the reference's.
    """
    algorithm = load_spec(ROOT / "recipes" / f"{RECIPE}.toml", settings).algorithm
    findings = compare_runs(read_run(ours), read_run(theirs), algorithm)
    if not norms:
        return [finding for finding in findings if not finding.where.startswith("grad_norm")]
    both = [
        [line.get("grad_norm") for line in read_run(folder).metrics if line["split"] == "train"]
        for folder in (ours, theirs)
    ]
    later = [
        Finding("L2", f"grad_norm of iteration {iteration}", a, b)
        for iteration, (a, b) in enumerate(zip(*both, strict=True))
        if b != pytest.approx(a, rel=RELATIVE)
    ]
    return [*findings, *later]
