"""Real OpenRLHF and vLLM train on images, in episodes of several turns, and the reference does."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("torchvision") is None:
    pytest.skip("needs torchvision: make e2e-vision", allow_module_level=True)
pytest.importorskip("gem_bench.runspec", reason="needs the development environment: make env-dev")

from gem.errors import ConfigurationError
from gem_bench.conformance import common_spec, compare_runs
from gem_bench.conformance_run import run_with_rows
from gem_bench.run import Outcome
from gem_bench.runspec import load_spec
from gem_cpu.openrlhf_plugin import startup_folder
from gem_train.experiment.hardware import CPU
from gem_train.experiment.runspec import RunSpec
from gem_train.record import read_run

ROOT = Path(__file__).parents[2]
CLOSE = 1e-3
TIMEOUT_S = 900
GREEDY = (
    "sampling.top_k=1",
    "training.iterations=3",
    "training.tasks=8",
    "training.precision=fp32",
    "eval=[]",
)
SAME = '''\
"""The same four pictures in every iteration, and a reward that anything may earn."""

from gem.core import Wrapper


class Same(Wrapper):
    def reset(self, seed=None, **options):
        return super().reset(seed=None if seed is None else seed % 4, **options)

    def step(self, action):
        observation, _, *end = super().step(action)
        return observation, len(action) % 5 / 4, *end
'''
FEWER = '''\
"""Loaded by every Python: the engine is not sent the last picture of a prompt."""

from gem_train.imports import after_import


class Fewer:
    def __init__(self, engine):
        self._engine = engine

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def generate(self, ids, params, multi_modal_data):
        shown = {"image": multi_modal_data["image"][:-1]}
        return self._engine.generate(ids, params, multi_modal_data=shown)


def install(module):
    made = module.Eyes
    module.Eyes = lambda engine: made(Fewer(engine))


after_import("gem_openrlhf.images", install)
'''

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * TIMEOUT_S)]
Start = Callable[..., Outcome]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Start:
    assert (ROOT / ".venvs" / "openrlhf" / "bin" / "python").exists(), "make env-openrlhf"
    monkeypatch.chdir(ROOT)

    def run(spec: RunSpec, trainer: str, folder: Path, *paths: Path) -> Outcome:
        """Run a spec; `paths` come before those of `PYTHONPATH`, in the trainer's processes."""
        with pytest.MonkeyPatch.context() as patch:
            path = [*map(str, (startup_folder(), *paths)), os.environ.get("PYTHONPATH", "")]
            patch.setenv("PYTHONPATH", os.pathsep.join(path))
            how: dict[str, Any] = {"hardware": CPU, "timeout_s": TIMEOUT_S}
            return run_with_rows(spec, trainer=trainer, run_dir=folder, **how)

    return run


def train_metrics(folder: Path) -> list[dict[str, Any]]:
    return [m for m in read_run(folder).metrics if m["split"] == "train"]


def agree(metrics: list[dict[str, Any]]) -> None:
    """The trainer's log-probabilities are the engine's, before and after each update."""
    found = [m["logprob_difference_max"] for m in metrics]
    print("log-probabilities of trainer and engine differ by at most", found)
    assert len(found) == 3 and max(found) < CLOSE


def test_openrlhf_learns_from_images_as_the_reference(start: Start, tmp_path: Path) -> None:
    """Two turns with a picture in each, greedy: L0 to L3."""
    spec = load_spec(ROOT / "recipes" / "vision" / "series.toml", GREEDY)
    ours, theirs = tmp_path / "reference", tmp_path / "openrlhf"
    for trainer, folder in (("reference", ours), ("openrlhf", theirs)):
        outcome = start(spec, trainer, folder)
        assert outcome.status == "finished", outcome.message
    records = read_run(ours), read_run(theirs)
    findings = compare_runs(*records, common_spec(*records).algorithm)
    assert not findings, "\n".join(map(str, findings[:20]))
    agree(train_metrics(theirs))
    assert all(m["grad_norm"] > 0 for m in train_metrics(theirs))
    assert len({m["return_mean"] for m in train_metrics(theirs)}) > 1
    for episode in records[1].episodes():
        assert [len(turn.images) for turn in episode.trajectory.turns] == [1, 1]


@pytest.fixture
def same(tmp_path: Path) -> Path:
    folder = tmp_path / "modules"
    folder.mkdir()
    folder.joinpath("same_pictures.py").write_text(SAME)
    return folder


def pictures(model: str, *wrappers: Any) -> RunSpec:
    from gem_bench.models import resolved

    return resolved(
        RunSpec.from_mapping(
            {
                "name": "pictures",
                "seed": 3,
                "env": {
                    "id": "image:Colour-v0-easy",
                    "params": {"wrappers": [{"name": "series", "most": 2}, *wrappers]},
                },
                "policy": {
                    "model": model,
                    "prompt_tokens": 256,
                    "response_tokens": 256,
                    "turn_tokens": 8,
                },
                "algorithm": {"advantage": "rebn", "kl_coef": 0.01},
                "optimizer": {"lr": 1e-2},
                "training": {"iterations": 3, "tasks": 4, "group_size": 2},
            }
        )
    )


def test_new_weights_see_the_same_pictures_anew(start: Start, same: Path, tmp_path: Path) -> None:
    """vLLM would go on with what its encoder made of them by the old ones."""
    outcome = start(pictures("tiny-vl", "same_pictures:Same"), "openrlhf", tmp_path / "run", same)
    assert outcome.status == "finished", outcome.message
    metrics = train_metrics(tmp_path / "run")
    assert all(m["grad_norm"] > 0 for m in metrics)
    agree(metrics)
    shown = [
        {image.digest for turn in e.trajectory.turns for image in turn.images}
        for e in read_run(tmp_path / "run").episodes()
    ]
    first, *others = [set().union(*shown[n : n + 8]) for n in (0, 8, 16)]
    assert others == [first, first]


@pytest.mark.nightly
def test_a_picture_that_the_engine_is_not_sent_stops_the_run(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "modules"
    folder.mkdir()
    folder.joinpath("sitecustomize.py").write_text(FEWER)
    outcome = start(pictures("tiny-vl"), "openrlhf", tmp_path / "run", folder)
    assert outcome.status != "finished"
    assert not train_metrics(tmp_path / "run")


def test_a_model_that_sees_nothing_is_refused_before_the_start(
    start: Start, tmp_path: Path
) -> None:
    blind = pictures("tiny")
    with pytest.raises(ConfigurationError) as error:
        start(blind, "openrlhf", tmp_path / "run")
    assert "image:Colour-v0-easy shows images" in str(error.value)
    assert re.search(f"policy.model '{blind.policy.model}' sees none", str(error.value))
