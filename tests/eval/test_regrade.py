"""`gem eval regrade`: what a record's replies are worth in today's environments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from chat_server import Stub, said

import gem
from gem.__main__ import guarded
from gem.core import Env
from gem.tasks import Task
from gem.trajectory import Trajectory, Turn
from gem_eval.cli import main
from gem_eval.numbers import read_summary
from gem_train.record import EPISODES, Recorder, read_episodes, read_run

ENV = "test:Changing"


class Changing(Env):
    """Asks twice; right is an even seed's "yes". The class attributes are its versions."""

    even = True
    question = "yes or no?"
    turns = 2
    broken = False

    def reset(self, seed: int | None = None, **options: Any) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = self.turns
        return self.question, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self.broken:
            raise RuntimeError("the grader is away")
        self.left -= 1
        right = (self.episode_key[0] % 2 == 0) == self.even
        return "again", float(right) if not self.left else 0.25, not self.left, False, {}


@pytest.fixture(autouse=True)
def changing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gem.list_envs()  # fills the registry
    monkeypatch.setattr("gem.registry._registry", dict(gem.registry._registry))
    gem.register(ENV, Changing)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def answer(server: Stub) -> None:
    server.answer = lambda number, body: said("yes", reasoning="it is even")


def evaluate(server: Stub, *words: object) -> int:
    asked = [ENV, "--model", "openai:m", "--url", server.url, "--episodes", 5, *words]
    return guarded(lambda: main([*map(str, asked)]))


def by_key(folder: str) -> dict[tuple[int, int], Trajectory]:
    records = read_episodes(Path(folder) / EPISODES)
    return {(r.trajectory.task.seed, r.notes["sample"]): r.trajectory for r in records}


def changed(monkeypatch: pytest.MonkeyPatch, **attributes: object) -> None:
    for name, value in attributes.items():
        monkeypatch.setattr(Changing, name, value)


def test_where_nothing_changed_the_record_is_the_same_again_and_the_old_one_stays(
    server: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(server, "--out", "run", "--samples", 2) == 0
    asked = len(server.requests)
    old = {path.name: path.read_bytes() for path in Path("run").iterdir()}
    printed = capsys.readouterr().out
    assert main(["regrade", "run", "--concurrency", "3"]) == 0
    found = capsys.readouterr()
    assert found.out == printed
    assert "10 episodes: success changed in 0 (0 gained, 0 lost), return in 0" in found.err
    assert by_key("run-regraded") == by_key("run")
    notes = [
        sorted((r.trajectory.task.seed, r.notes["sample"], str(r.notes["calls"])) for r in records)
        for records in (read_episodes(Path(name, EPISODES)) for name in ("run", "run-regraded"))
    ]
    assert notes[0] == notes[1]
    assert {path.name: path.read_bytes() for path in Path("run").iterdir()} == old
    assert len(server.requests) == asked
    assert read_run("run-regraded").meta["regraded"]["folder"] == "run"
    assert guarded(lambda: main(["regrade", "run"])) == 2
    assert "holds a run already" in capsys.readouterr().err


def test_a_grader_that_changed_gives_other_results(
    server: Stub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(server, "--out", "run") == 0
    changed(monkeypatch, even=False)
    assert main(["regrade", "run", "--out", "new"]) == 0
    said_so = capsys.readouterr().err
    assert "5 episodes: success changed in 5 (2 gained, 3 lost), return in 5" in said_so
    assert "says something else" not in said_so
    assert {key[0] for key, each in by_key("new").items() if each.success} == {1, 3}


def test_what_the_model_was_not_shown_is_counted(
    server: Stub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(server, "--out", "run") == 0
    changed(monkeypatch, question="no or yes?")
    assert main(["regrade", "run", "--out", "new"]) == 0
    said_so = capsys.readouterr().err
    assert "success changed in 0" in said_so
    assert "in 5 the environment says something else" in said_so
    assert {each.turns[0].observation for each in by_key("new").values()} == {"no or yes?"}


def test_an_episode_that_goes_on_today_is_void_and_can_be_played_again(
    server: Stub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(server, "--out", "run") == 0
    changed(monkeypatch, turns=3)
    assert main(["regrade", "run", "--out", "new"]) == 0
    assert "5 are void now" in capsys.readouterr().err
    assert read_summary(Path("new")).parts[0].failed == {"engine": 5}
    asked = len(server.requests)
    assert evaluate(server, "--out", "new", "--resume") == 0
    assert len(server.requests) == asked + 15
    assert {len(each.turns) for each in by_key("new").values()} == {3}


def test_an_episode_that_ends_earlier_today_keeps_the_replies_until_then(
    server: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert evaluate(server, "--out", "run") == 0
    changed(monkeypatch, turns=1)
    assert main(["regrade", "run", "--out", "new"]) == 0
    for record in read_episodes(Path("new") / EPISODES):
        assert len(record.trajectory.turns) == len(record.notes["calls"]) == 1
        assert record.trajectory.end == "terminated"


def test_tokens_and_log_probabilities_stay_as_they_were_sampled() -> None:
    recorder = Recorder("run")
    recorder.start({"kind": "evaluation", "trainer": "m", "parts": [f"eval:{ENV}"]})
    turns = [
        Turn(Changing.question, [1, 2], True, [3, 4], [-0.5, -0.25], "yes", 9.0, False, False,
             "length"),
        Turn("again", [5], False, [6], [-1.0], "no", 9.0, True, False, "stop"),
    ]  # fmt: skip
    old = Trajectory(Task(ENV, 0), turns, policy_version=(3, 4))
    recorder.episodes(0, [old], split=f"eval:{ENV}", notes=[{"sample": 0, "calls": [{}, {}]}])
    assert main(["regrade", "run", "--out", "new"]) == 0
    (new,) = by_key("new").values()
    assert new.rewards == [0.25, 1.0]
    assert new.training_rows() == old.training_rows()
    assert [turn.stop_reason for turn in new.turns] == ["length", "stop"]
    assert new.policy_version == (3, 4)


def test_an_environment_that_fails_is_void_and_a_void_episode_stays_void(
    server: Stub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(server, "--out", "run") == 0
    changed(monkeypatch, broken=True)
    assert main(["regrade", "run", "--out", "broken"]) == 0
    assert "5 are void now" in capsys.readouterr().err
    assert read_summary(Path("broken")).parts[0].failed == {"environment": 5}
    changed(monkeypatch, broken=False)
    assert main(["regrade", "broken", "--out", "again"]) == 0
    assert "0 episodes: success changed in 0" in capsys.readouterr().err
    assert by_key("again") == by_key("broken")


@pytest.mark.parametrize("words", [("--turns", 1), ("--turns", 2)])
def test_episodes_that_a_budget_ended_end_there_again(
    server: Stub, words: tuple[object, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(server, "--out", "run", *words) == 0
    assert main(["regrade", "run", "--out", "new"]) == 0
    assert "success changed in 0 (0 gained, 0 lost), return in 0" in capsys.readouterr().err
    assert by_key("new") == by_key("run")


def test_a_folder_without_an_evaluation_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(lambda: main(["regrade", "nothing"])) == 2
    assert "holds no run" in capsys.readouterr().err
    assert not Path("nothing-regraded").exists()
