"""The reference trainer with a model that sees: sampler and learner read the same images."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the development environment: make env-dev")
pytest.importorskip("transformers", reason="needs the development environment: make env-dev")
pytest.importorskip("gem_vision", reason="needs the extra images")

import torch

from gem import play_batch
from gem.errors import ConfigurationError, RolloutError
from gem.rollout import Request, Sample
from gem.tasks import Task
from gem.trajectory import Trajectory
from gem_bench import reference
from gem_bench.audit import audit, judge
from gem_bench.reference import Learner, token_statistics
from gem_bench.report import report
from gem_bench.rows import training_rows
from gem_bench.seeing import sampler
from gem_bench.series import load_runs
from gem_train.experiment.runspec import RunSpec, SamplingPart
from gem_train.record import read_run

CLOSE = 1e-4
ENVS = {
    # Turns with a picture in each; a reply without an action ends nothing.
    "game:Maze-v0": {"size": 3, "max_turns": 3, "modality": "both", "format_error_ends": False},
    "game:Sokoban-v0-easy": {"max_turns": 3, "modality": "image", "format_error_ends": False},
    "image:Count-v0": {},
}


def spec(**changes: Any) -> RunSpec:
    known: dict[str, Any] = {
        "name": "seeing",
        "env": [{"id": "image:Colour-v0-easy"}],
        "policy": {
            "model": "tiny-vl",
            "prompt_tokens": 512,
            "response_tokens": 512,
            "turn_tokens": 6,
        },
        "algorithm": {"advantage": "rebn"},
        "optimizer": {"lr": 1e-3},
        "training": {"iterations": 2, "tasks": 4, "group_size": 2},
    }
    from gem_bench.models import resolved

    return resolved(RunSpec.from_mapping({**known, **changes}))


@pytest.fixture(scope="module")
def learner() -> Learner:
    torch.set_num_threads(1)
    return Learner(spec(), torch.device("cpu"), 4096)


def played(learner: Learner, wrong: Any = None) -> list[Trajectory]:
    """Play all environments side by side, so that rows of the cache have other lengths."""
    generator = torch.Generator().manual_seed(1)
    made = sampler(learner.policy, learner.chat, SamplingPart(), generator, 0)
    tasks = [Task(id, seed, params) for id, params in ENVS.items() for seed in range(3)]

    def ask(requests: list[Request]) -> list[Sample]:
        return made(requests if wrong is None else wrong(requests))

    return play_batch(tasks, ask, learner.chat, budget=learner.spec.budget)


def test_the_sampler_s_log_probabilities_are_the_learner_s(learner: Learner) -> None:
    episodes = played(learner)
    assert all(each.valid for each in episodes)
    rows = training_rows(episodes)
    assert [len(row.tokens.images) for row in rows] == [3] * 6 + [1] * 3
    with torch.no_grad():
        again, _ = token_statistics(learner.policy, rows, 1.0, learner.chat)
    drawn = torch.tensor([p for row in rows for p in row.drawn])
    assert (again - drawn).abs().max() < CLOSE
    # Other pictures of the same sizes would be told apart.
    first, second, *_ = rows
    mixed = [replace(first, tokens=replace(first.tokens, images=second.tokens.images)), *rows[1:]]
    with torch.no_grad():
        turned, _ = token_statistics(learner.policy, mixed, 1.0, learner.chat)
    assert (turned - drawn).abs().max() > 100 * CLOSE


def test_positions_of_pictures_matter(learner: Learner, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = training_rows(played(learner))

    def pad(rows: Sequence[Any], device: Any, chat: Any = None) -> dict[str, Any]:
        batch = padded(rows, device, chat)
        del batch["mm_token_type_ids"]
        return batch

    padded = reference.pad
    monkeypatch.setattr(reference, "pad", pad)
    with torch.no_grad():
        wrong, _ = token_statistics(learner.policy, rows, 1.0, learner.chat)
    drawn = torch.tensor([p for row in rows for p in row.drawn])
    assert (wrong - drawn).abs().max() > 100 * CLOSE


def test_a_request_without_an_image_is_noticed(learner: Learner) -> None:
    def dropped(requests: list[Request]) -> list[Request]:
        return [replace(request, images=request.images[:-1]) for request in requests]

    with pytest.raises(RolloutError, match="an image is missing"):
        played(learner, dropped)


def test_a_request_with_an_image_expanded_twice_is_noticed(learner: Learner) -> None:
    def doubled(requests: list[Request]) -> list[Request]:
        pad = learner.chat.image_id
        found = []
        for request in requests:
            ids = [i for i in request.prompt_ids for _ in range(1 + (i == pad))]
            found.append(replace(request, prompt_ids=ids))
        return found

    with pytest.raises(RolloutError, match="expanded twice"):
        played(learner, doubled)


def test_rows_with_images_need_a_chat_format_that_shows_them(learner: Learner) -> None:
    rows = training_rows(played(learner))
    with pytest.raises(RolloutError, match="sees none"):
        token_statistics(learner.policy, rows, 1.0)


def test_a_model_that_sees_nothing_refuses_an_environment_with_images(tmp_path: Path) -> None:
    blind = spec(
        policy={"model": "tiny", "prompt_tokens": 512, "response_tokens": 64, "turn_tokens": 6}
    )
    with pytest.raises(ConfigurationError, match="image"):
        reference.train(blind, tmp_path)


def test_a_run_trains_on_images_and_plays_the_control(tmp_path: Path) -> None:
    reference.train(spec(), tmp_path / "seen")
    run = read_run(tmp_path / "seen")
    [first, *_] = run.episodes()
    [image, *_] = first.trajectory.turns[0].images
    # Files of images are kept, so the record can be audited and read on a page.
    assert image.data.startswith(b"\x89PNG")
    assert not judge(list(audit(run)))
    page = report(load_runs([tmp_path / "seen"]))
    assert b64encode(image.data).decode() in page
    control = {"id": "image:Colour-v0-easy", "params": {"wrappers": ["without_images"]}}
    reference.train(spec(env=[control]), tmp_path / "control")
    [first, *_] = read_run(tmp_path / "control").episodes()
    assert not first.trajectory.turns[0].images


def test_a_critic_sees_the_images(tmp_path: Path) -> None:
    algorithm = {"advantage": "gae", "lam": 0.95, "value_lr": 1e-3}
    learner = reference.train(spec(algorithm=algorithm), tmp_path)
    assert learner.critic is not None
