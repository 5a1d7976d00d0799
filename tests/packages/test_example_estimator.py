"""The worked example of an estimator: its page shows its source, and the page's commands work."""

from __future__ import annotations

from pathlib import Path

import pytest
from examples import EXAMPLES, Example

EXAMPLE = Example("own-estimator", "own_estimator")


def test_the_page_shows_the_function_and_its_traits() -> None:
    blocks = EXAMPLE.blocks("py")
    assert len(blocks) == 2 and all(block in EXAMPLE.source for block in blocks)
    assert EXAMPLE.page in EXAMPLE.source.splitlines()[0]
    in_spec, entry_points = EXAMPLE.blocks("toml")
    assert entry_points in (EXAMPLES / EXAMPLE.name / "pyproject.toml").read_text()
    assert in_spec in (EXAMPLES / EXAMPLE.name / "train.toml").read_text()


@pytest.mark.slow
def test_it_trains_in_the_reference_and_in_trl(tmp_path: Path) -> None:
    run = EXAMPLE.installed(tmp_path)
    _, *training, compare = EXAMPLE.commands()
    for command in training:
        told = run(command)
        assert "finished: 3 of 3 iterations" in told
        assert "warning" not in told
    assert "rloo_by_turn" in (tmp_path / "runs" / "own" / "trl" / "run.json").read_text()
    assert "trl" in run(compare)


@pytest.mark.nightly
def test_it_trains_in_verl(tmp_path: Path) -> None:
    run = EXAMPLE.installed(tmp_path)
    [command] = [each for each in EXAMPLE.commands() if "trl" in each]
    told = run(["verl" if word == "trl" else word.replace("/trl", "/verl") for word in command])
    assert "finished: 3 of 3 iterations" in told
