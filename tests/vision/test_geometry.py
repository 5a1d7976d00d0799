"""Geometry3K from a folder of the user's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import gem
from gem.errors import ConfigurationError, DataError, MissingExtraError
from gem_vision.drawing import Canvas

PROBLEM: dict[str, Any] = {
    "problem_text": "Find x.",
    "choices": ["30", "40", "60", "80"],
    "answer": "D",
}


def problem(folder: Path, split: str, name: str, **changed: Any) -> Path:
    """Write a problem as the data set has them."""
    place = folder / split / name
    place.mkdir(parents=True)
    (place / "data.json").write_text(json.dumps({**PROBLEM, **changed}))
    (place / "img_diagram.png").write_bytes(Canvas(56, 28).png())
    return place


def test_problems_are_played_from_a_folder(tmp_path: Path) -> None:
    for name in ("2", "10", "3"):
        problem(tmp_path, "test", name, problem_text=f"Find {name}.")
    problem(tmp_path, "train", "1", answer="A")
    env = gem.make(f"geometry3k:{tmp_path}")
    asked = set()
    for seed in range(20):
        (text, image, _), _ = env.reset(seed=seed)
        asked.add(text["text"].splitlines()[0])
        assert "C. 60" in text["text"]
        assert image["image"] == Canvas(56, 28).png()
        assert env.step(env.oracle_action())[1] == 1.0
    assert asked == {"Find 2.", "Find 3.", "Find 10."}
    env.reset(seed=0)
    assert env.step("\\boxed{d}")[1] == 1.0
    other = gem.make(f"geometry3k:{tmp_path}?split=train")
    other.reset(seed=0)
    assert other.step("\\boxed{D}")[1] == 0.0


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=f"geometry3k:{tmp_path}/gone: .*must be a copy of"
    ):
        gem.make(f"geometry3k:{tmp_path}/gone")
    problem(tmp_path, "test", "1")
    with pytest.raises(ConfigurationError, match="train has no problems"):
        gem.make(f"geometry3k:{tmp_path}?split=train")
    with pytest.raises(ConfigurationError, match="split must be one of 'train', 'val', 'test'"):
        gem.make(f"geometry3k:{tmp_path}?split=all")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"answer": "E"}, "one of A, B, C, D as answer, got 4 and 'E'"),
        ({"choices": ["1"]}, "expected four choices"),
        ({"problem_text": None}, "problem_text must be a str"),
    ],
)
def test_a_damaged_problem_is_named(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    place = problem(tmp_path, "test", "1", **changed)
    with pytest.raises(DataError, match=said) as error:
        gem.make(f"geometry3k:{tmp_path}").reset(seed=0)
    assert str(place / "data.json") in str(error.value)


def test_a_missing_diagram_is_named(tmp_path: Path) -> None:
    place = problem(tmp_path, "test", "1")
    (place / "img_diagram.png").unlink()
    with pytest.raises(DataError, match=r"img_diagram\.png cannot be read"):
        gem.make(f"geometry3k:{tmp_path}").reset(seed=0)


def test_without_the_package_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gem.plugins.entry_points", lambda **_: ())
    with pytest.raises(MissingExtraError, match=r"gem-core\[images\]"):
        gem.make("geometry3k:somewhere")
