"""The report as a page: its tables, and which episodes can be read."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from gem.__main__ import guarded
from gem.tasks import Task
from gem.trajectory import Failure, Trajectory, Turn
from gem_eval.cli import main
from gem_train.record import Recorder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two environments: of "x" 40 episodes fail, 20 succeed, 5 are void; "y" has one of each."""
    recorder = Recorder(tmp_path / "run")
    parts = {"x": [False] * 40 + [True] * 20 + [None] * 5, "y": [False, True, None]}
    about = {"kind": "evaluation", "trainer": "openai:m", "parts": [f"eval:{p}" for p in parts]}
    recorder.start(about)
    for env_id, outcomes in parts.items():
        for seed, success in enumerate(outcomes):
            task = Task(env_id, seed)
            turn = Turn(
                "<b>ask</b>", [], True, [], None, "reply", 0.0, True, False, "stop",
                {"success": success},
            )  # fmt: skip
            episode = Trajectory(task, [turn], end="terminated" if success else "truncated")
            if success is None:
                episode = Trajectory(task, end="failed", failure=Failure("engine", "gone", 1))
            notes = [{"sample": 0, "calls": [{"reasoning": "perhaps </script>"}]}]
            recorder.episodes(0, [episode], split=f"eval:{env_id}", notes=notes)
    return tmp_path / "run"


def page(*words: object) -> tuple[str, dict[str, Any]]:
    out = Path(str(words[0])).parent / "page.html"
    assert main(["report", *map(str, words), "--out", str(out)]) == 0
    html = out.read_text()
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', html)
    assert found is not None
    return html, json.loads(found[1])


def test_a_page_has_the_table_and_every_episode_with_its_reasoning(folder: Path) -> None:
    html, data = page(folder)
    text = unescape(re.sub("<[^>]+>", " ", html))
    assert "openai:m" in text
    assert re.search(r"x\s+60\s+60\s+5\s+0\.333", text)
    assert "68 of 68 recorded episodes" in text
    assert len(data["episodes"]) == 68
    assert [e["env"] for e in data["episodes"]] == ["x"] * 65 + ["y"] * 3
    turn = data["episodes"][0]["turns"][0]
    assert (turn["observation"], turn["text"]) == ("<b>ask</b>", "reply")
    assert turn["thought"] == "perhaps </script>"
    ends = {e["end"] for e in data["episodes"]}
    assert ends == {"terminated", "truncated", "failed: engine"}


def test_a_small_page_has_failures_first_and_all_environments(folder: Path) -> None:
    html, data = page(folder, "--episodes", 16)
    won = {env: [e["success"] for e in data["episodes"] if e["env"] == env] for env in "xy"}
    assert (len(won["x"]), sum(won["x"])) == (8, 2)
    assert (len(won["y"]), sum(won["y"])) == (3, 1)
    assert "11 of 68 recorded episodes" in html
    assert page(folder, "--episodes", 0)[1]["episodes"] == []


def test_two_evaluations_are_compared_on_the_page(folder: Path, tmp_path: Path) -> None:
    other = Recorder(tmp_path / "other")
    other.start({"kind": "evaluation", "trainer": "openai:m"})
    turn = Turn("o", [], True, [], None, "a", 1.0, True, False, "stop", {"success": True})
    other.episodes(0, [Trajectory(Task("x", 0), [turn])], split="eval:x", notes=[{"sample": 0}])
    html, data = page(folder, tmp_path / "other")
    assert "x: gained the seeds 0" in html
    labels = [group["label"] for group in data["groups"]]
    assert labels == [f"openai:m ({folder})", f"openai:m ({tmp_path / 'other'})"]
    # With nothing in common there is nothing to compare, but both are shown.
    other = Recorder(tmp_path / "third")
    other.start({"kind": "evaluation", "trainer": "openai:m"})
    other.episodes(0, [Trajectory(Task("z", 0), [turn])], split="eval:z", notes=[{"sample": 0}])
    assert "detectable" not in page(folder, tmp_path / "third")[0]


def test_a_page_that_cannot_be_written_is_told(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert guarded(lambda: main(["report", str(folder), "--out", "/dev/full/page.html"])) == 2
    assert "cannot write /dev/full/page.html" in capsys.readouterr().err
