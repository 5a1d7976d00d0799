"""Preflight: what the environments of an experiment lack is said before anything is started."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from gem.errors import ConfigurationError, MissingExtraError
from gem.tasks import Task
from gem_train import preflight
from gem_train.experiment.runspec import RunSpec

SPEC: dict[str, Any] = {
    "name": "x",
    "env": {"id": "game:GuessTheNumber-v0", "seed": 7},
    "policy": {"model": "m", "prompt_tokens": 8, "response_tokens": 8, "turn_tokens": 8},
    "algorithm": {"advantage": "rebn"},
    "optimizer": {"lr": 1e-3},
    "training": {"iterations": 1, "tasks": 2},
}
GONE = {"name": "mcp", "servers": {"gone": {"command": "no-such-command"}}}


def run(spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(spec)))
    return preflight.main(list(options))


def test_training_and_evaluations_are_begun_with_their_first_task() -> None:
    evals = [{"name": "e", "id": "game:Wordle-v0", "seed": 5, "params": {"max_turns": 3}}]
    tasks = preflight.environments(RunSpec.from_mapping({**SPEC, "eval": evals}))
    assert tasks == [
        Task("game:GuessTheNumber-v0", 7),
        Task("game:Wordle-v0", 5, {"max_turns": 3}),
    ]


def test_what_can_be_played_passes_in_silence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(SPEC, monkeypatch) == 0
    assert capsys.readouterr() == ("", "")


def test_a_package_that_a_tool_lacks_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    tool = {"name": "mcp", "servers": {"time": {"command": sys.executable}}}
    task = Task("game:GuessTheNumber-v0", 0, {"tools": [tool]})
    with pytest.raises(MissingExtraError, match=r"pip install 'gem-core\[mcp\]'"):
        preflight.check([task])


def test_what_an_evaluation_lacks_is_an_error_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    evals = [{"name": "e", "id": "game:Wordle-v0", "params": {"tools": [GONE]}}]
    assert run({**SPEC, "eval": evals}, monkeypatch) == 2
    assert "no command 'no-such-command'" in capsys.readouterr().err


def test_an_environment_that_shows_images_is_refused_by_its_id() -> None:
    task = Task("math:Geometry3K", 0, {"source": "sample"})
    with pytest.raises(ConfigurationError, match="math:Geometry3K shows images"):
        preflight.check([task])
    preflight.check([task], images=True)


@pytest.mark.parametrize("sees", [True, False, None], ids=["sees", "is blind", "is not known"])
def test_a_model_that_sees_no_images_is_named_with_the_environment(
    sees: bool | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A name on the hub tells nothing; its run stops at the first episode."""
    if sees is not None:
        part = {"vision_config": {}} if sees else {}
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "m", **part}))
    model = "on/the-hub" if sees is None else str(tmp_path)
    spec = {
        **SPEC,
        "env": {"id": "game:Sokoban-v0-easy", "params": {"modality": "image"}},
        "policy": {**SPEC["policy"], "model": model},
    }
    assert run(spec, monkeypatch, "--images") == (2 if sees is False else 0)
    said = capsys.readouterr().err
    blind = f"game:Sokoban-v0-easy shows images, and policy.model '{model}' sees none"
    assert (blind in said) == (sees is False)


@pytest.mark.parametrize("modality", ["image", "both"])
def test_a_game_that_shows_its_board_as_a_picture_is_refused_in_training_and_evaluation(
    modality: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    game = {"id": "game:Sokoban-v0-easy", "params": {"modality": modality}}
    for spec in ({**SPEC, "env": game}, {**SPEC, "eval": [{"name": "e", **game}]}):
        assert run(spec, monkeypatch) == 2
        assert "game:Sokoban-v0-easy shows images" in capsys.readouterr().err
    game["params"] = {"modality": "text"}
    assert run({**SPEC, "env": game}, monkeypatch) == 0
