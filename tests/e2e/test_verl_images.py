"""Real verl trains the tiny model that sees on pictures in several turns, as the reference does."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("torchvision") is None:
    pytest.skip("needs torchvision: make e2e-vision", allow_module_level=True)
for package in ("torch", "transformers", "PIL"):
    pytest.importorskip(package, reason="needs the development environment: make env-dev")

import breaks  # noqa: E402
from locks import one_at_a_time  # noqa: E402

from gem_bench.conformance import common_spec, compare_runs  # noqa: E402
from gem_bench.conformance_run import run_with_rows  # noqa: E402
from gem_bench.models import resolved  # noqa: E402
from gem_train.experiment.hardware import CPU  # noqa: E402
from gem_train.experiment.runspec import RunSpec  # noqa: E402
from gem_train.record import read_run  # noqa: E402

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 900
CLOSE = 1e-3
STEPS, TASKS, TURNS = 3, 4, 3

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * TIMEOUT_S)]

SPEC: dict[str, Any] = {
    "name": "vision-greedy",
    "seed": 3,
    "env": [
        {
            "id": "game:Sokoban-v0-easy",
            # A reply without an action ends nothing, so that an untrained model has several turns.
            "params": {"modality": "image", "max_turns": TURNS, "format_error_ends": False},
        }
    ],
    "policy": {
        "model": "tiny-vl",
        "prompt_tokens": 512,
        "response_tokens": 512,
        "turn_tokens": 8,
    },
    "sampling": {"temperature": 1.0, "top_k": 1},
    "algorithm": {"advantage": "rebn", "gamma": 0.9},
    "optimizer": {"lr": 1e-3},
    "training": {"iterations": STEPS, "tasks": TASKS, "group_size": 1},
}


SAMPLED = {"sampling": {"temperature": 1.0}}
"""Changes of the experiment: the engine's log-probabilities are those of the whole distribution."""


def start(
    trainer: str, folder: Path, changes: Mapping[str, Any] | None = None, **environment: str
) -> Any:
    """Run the experiment with a trainer, recording its own rows; return the outcome."""
    path = [environment.pop("PYTHONPATH", ""), os.environ.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    with one_at_a_time(trainer), pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        for name, value in environment.items():
            patch.setenv(name, value)
        return run_with_rows(
            resolved(RunSpec.from_mapping({**SPEC, **(changes or {})})),
            trainer=trainer,
            run_dir=folder,
            hardware=CPU,
            timeout_s=TIMEOUT_S,
        )


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {name: tmp_path_factory.mktemp(name) / "run" for name in ("reference", "verl")}
    for name, folder in made.items():
        outcome = start(name, folder)
        assert outcome.status == "finished", outcome.message
    return made


def test_verl_and_the_reference_are_the_same_on_images(folders: dict[str, Path]) -> None:
    reference, other = (read_run(folders[name]) for name in ("reference", "verl"))
    findings = compare_runs(reference, other, common_spec(reference, other).algorithm)
    assert not findings, "\n".join(map(str, findings[:20]))


def test_the_learner_agrees_with_the_server(tmp_path: Path) -> None:
    outcome = start("verl", tmp_path / "run", SAMPLED)
    assert outcome.status == "finished", outcome.message
    train = [m for m in read_run(tmp_path / "run").metrics if m["split"] == "train"]
    print([m["logprob_difference_max"] for m in train])
    assert [m["iteration"] for m in train] == list(range(STEPS))
    assert all(m["logprob_difference_max"] < CLOSE for m in train)
    assert all(m["grad_norm"] > 0 and not m["failed_episodes"] for m in train)


def test_episodes_have_a_picture_in_each_turn(folders: dict[str, Path]) -> None:
    episodes = list(read_run(folders["verl"]).episodes())
    assert len(episodes) == STEPS * TASKS
    for episode in episodes:
        assert [len(turn.images) for turn in episode.trajectory.turns] == [1] * TURNS
        [row] = episode.trajectory.training_rows()
        assert len(row.images) == TURNS
        # What verl trained on, read back from it.
        [trained] = episode.rows or ()
        assert [*trained.prompt_ids, *trained.response_ids] == row.ids


@pytest.mark.breaks
@pytest.mark.parametrize("name", breaks.IMAGES)
def test_a_broken_verl_is_stopped(name: str, tmp_path: Path) -> None:
    outcome = start(
        "verl",
        tmp_path / "run",
        VERL_USE_EXTERNAL_MODULES="breaks",
        GEM_BREAK=name,
        PYTHONPATH=str(ROOT / "tests" / "conformance"),
    )
    assert outcome.status != "finished"
    log = (tmp_path / "run" / "trainer.log").read_text(errors="replace")
    said = re.search(r"the engine read (\d+) prompt tokens, but the prompt has (\d+)", log)
    assert said is not None, log[-4000:]
    read, sent = map(int, said.groups())
    assert ("more" if read > sent else "fewer") == breaks.IMAGES[name][1]
