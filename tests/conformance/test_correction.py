"""Corrections of real trainers are the reference's (`algorithm.tis_*`, `algorithm.reject_*`).

Greedy tokens are drawn with probability 1, and engines that report the probability of what was
drawn say so. Every ratio is then the token's probability before the update, far from 1, and bounds
below 1 act on many tokens: a correction that is not the same makes another gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import breaks
import pytest

from gem_train.record import read_run

pytest.importorskip("gem_bench.runspec", reason="needs the development environment: make env-dev")
from gem_bench.conformance import Finding

GREEDY = "guess-easy-greedy"
BESIDE = "training.iterations=3"
VLLM = "trl with vLLM"

pytestmark = [pytest.mark.slow]
Run = Callable[..., Path]
Compare = Callable[[Path, Path], list[Finding]]


class Case(NamedTuple):
    """Settings that are tested together."""

    keys: tuple[str, ...]
    wrong: str
    """Another value of one of them, which must tell."""
    trainers: tuple[str, ...]


# Of the untrained policy's greedy tokens a tenth has a probability of about 0.2, a third one of
# 0.53 to 0.57, the rest nearly 1; the products of rows are about 0.0001 and 0.012, their geometric
# means 0.655 and 0.669.
CASES: Mapping[str, Case] = {
    "truncated": Case(("tis_clip=0.75",), "tis_clip=0.5", ("verl", "openrlhf", VLLM)),
    "floor": Case(("tis_clip=0.9", "tis_floor=0.6"), "tis_floor=0.2", ("openrlhf", VLLM)),
    "sequence": Case(("tis_clip=0.005", "tis_level=sequence"), "tis_clip=0.2", ("verl", VLLM)),
    "masked": Case(
        ("tis_clip=0.555", "tis_floor=0.3", "tis_outside=zero"),
        "tis_outside=clip",
        ("verl", "openrlhf", VLLM),
    ),
    "masked sequence": Case(
        ("tis_clip=0.005", "tis_floor=0.00001", "tis_outside=zero", "tis_level=sequence"),
        "tis_outside=clip",
        ("verl", VLLM),
    ),
    "rejected": Case(("reject_low=0.3", "reject_high=0.555"), "reject_high=0.6", ("verl",)),
    "rejected rows": Case(
        ("reject_low=0.001", "reject_high=0.9", "reject_level=sequence"),
        "reject_low=0.00001",
        ("verl",),
    ),
    "rejected by mean": Case(
        ("reject_low=0.66", "reject_high=0.95", "reject_level=mean"), "reject_low=0.6", ("verl",)
    ),
}


def settings(*keys: str) -> tuple[str, ...]:
    return (BESIDE, *(f"algorithm.{key}" for key in keys))


@pytest.fixture(scope="module")
def reference(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    known: dict[tuple[str, ...], Path] = {}

    def of(*keys: str) -> Path:
        if keys not in known:
            folder = tmp_path_factory.mktemp("reference") / "run"
            known[keys] = run("reference", folder, GREEDY, *settings(*keys))
        return known[keys]

    return of


@pytest.mark.nightly
@pytest.mark.parametrize("name", CASES)
def test_the_settings_and_each_bound_tell(name: str, reference: Callable[..., Path]) -> None:
    keys, wrong, _ = CASES[name]
    norms = [
        read_run(folder).metrics[0]["grad_norm"]
        for folder in (reference(*keys), reference(*keys, wrong), reference())
    ]
    # The comparison of trainers allows 1e-3.
    assert min(abs(norms[0] / norm - 1) for norm in norms[1:] if norm) > 0.01


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "trainer"), [(name, each) for name, case in CASES.items() for each in case.trainers]
)
def test_a_real_trainer_corrects_as_the_reference_does(
    name: str,
    trainer: str,
    reference: Callable[..., Path],
    run: Run,
    compare: Compare,
    tmp_path: Path,
) -> None:
    keys = CASES[name].keys
    findings = compare(reference(*keys), run(trainer, tmp_path / "run", GREEDY, *settings(*keys)))
    assert not findings, "\n".join(map(str, findings[:20]))


@pytest.mark.breaks
@pytest.mark.parametrize("name", breaks.CORRECTIONS)
def test_a_correction_on_the_wrong_side_is_noticed(
    name: str, reference: Callable[..., Path], run: Run, compare: Compare, tmp_path: Path
) -> None:
    keys = CASES[breaks.CORRECTIONS[name][1]].keys
    path = str(Path(__file__).parent)
    environment = {"GEM_BREAK": name, "VERL_USE_EXTERNAL_MODULES": "breaks", "PYTHONPATH": path}
    folder = run("verl", tmp_path / "run", GREEDY, *settings(*keys), **environment)
    assert compare(reference(*keys), folder)
