"""`gem eval export`: what is in a row, and that datasets reads it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import datasets
import pytest
from chat_server import Stub, said

from gem.__main__ import guarded
from gem.tasks import Task
from gem.trajectory import Failure, Trajectory, Turn
from gem_eval.cli import main
from gem_train.record import EPISODES, Recorder, read_episodes

GUESS = "game:GuessTheNumber-v0-easy"
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
CALL = {"id": "c1", "name": "add", "arguments": '{"a": 1}'}


def write(folder: Path) -> Path:
    """A record of a success with a native call, a failure by text and a void episode."""
    recorder = Recorder(folder)
    settings = {"system": "Play.", "tools": "native"}
    recorder.start({"kind": "evaluation", "trainer": "openai:m", "settings": settings})

    def turn(observation: str, text: str, reward: float, over: bool = False) -> Turn:
        return Turn(
            observation, [], True, [], None, text, reward, over, False, "stop",
            {"success": bool(reward)},
        )  # fmt: skip

    native = Trajectory(
        Task("x", 7, {"level": 2, "wrappers": ["a:B"]}),
        [turn("1 + 1?", "<tool_call>...", 0.0), turn("It is 2.", "2", 1.0, True)],
    )
    calls = [{"tool_calls": [CALL], "content": "Let me add.", "reasoning": "hm"}, {}]
    notes = {"sample": 3, "calls": calls, "tools": TOOLS}
    recorder.episodes(0, [native], split="eval:x", notes=[notes])
    lost = Trajectory(Task("x", 8), [turn("2 + 2?", "5 \ud800", 0.0, True)])
    recorder.episodes(0, [lost], split="eval:x", notes=[{"sample": 0, "calls": [{}]}])
    void = Trajectory(Task("x", 9), end="failed", failure=Failure("engine", "gone", 1))
    recorder.episodes(0, [void], split="eval:x", notes=[{"sample": 0, "calls": []}])
    return folder


WON: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "Play."},
        {"role": "user", "content": "1 + 1?"},
        {
            "role": "assistant",
            "content": "Let me add.",
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "add", "arguments": '{"a": 1}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "It is 2."},
        {"role": "assistant", "content": "2"},
    ],
    "tools": json.dumps(TOOLS),
    "env_id": "x",
    "params": '{"level": 2}',
    "seed": 7,
    "sample": 3,
    "success": True,
    "return": 1.0,
    "reward": [0.0, 1.0],
    "end": "terminated",
    "model": "openai:m",
}
LOST: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "Play."},
        {"role": "user", "content": "2 + 2?"},
        {"role": "assistant", "content": "5 ?"},
    ],
    "tools": None,
    "env_id": "x",
    "params": "{}",
    "seed": 8,
    "sample": 0,
    "success": False,
    "return": 0.0,
    "reward": [0.0],
    "end": "terminated",
    "model": "openai:m",
}


def without_nones(value: Any) -> Any:
    """Parquet has every key in every message."""
    if isinstance(value, dict):
        return {k: without_nones(v) for k, v in value.items() if v is not None}
    return [without_nones(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
@pytest.mark.parametrize("only", ["success", "all"])
def test_datasets_reads_what_was_written(tmp_path: Path, form: str, only: str) -> None:
    write(tmp_path / "run")
    folder = str(tmp_path / "run")
    assert main(["export", folder, "--only", only, "--format", form]) == 0
    kind = "json" if form == "jsonl" else form
    cache = str(tmp_path / "cache")
    files = str(tmp_path / f"run.{form}")
    found = datasets.load_dataset(kind, data_files=files, split="train", cache_dir=cache)
    wanted = [WON] if only == "success" else [WON, LOST]
    assert without_nones(list(found)) == without_nones(wanted)
    assert not list(tmp_path.glob("*.partial"))


def test_json_lines_have_the_messages_as_they_were_sent(
    tmp_path: Path, server: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    server.answer = lambda number, body: said(f"\\boxed{{{number % 10}}}", reasoning=f"r{number}")
    words = [GUESS, "--model", "openai:m", "--url", server.url, "--episodes", "3"]
    assert main([*words, "--system", "Play.", "--concurrency", "1", "--out", "run"]) == 0
    assert main(["export", "run", "--reasoning", "--out", "deep/file.jsonl"]) == 0
    exported = [json.loads(line) for line in Path("deep/file.jsonl").read_text().splitlines()]
    episodes = [record.trajectory for record in read_episodes(Path("run") / EPISODES)]
    assert [row["seed"] for row in exported] == [each.task.seed for each in episodes]
    last = 0
    for row, episode in zip(exported, episodes, strict=True):
        last += len(episode.turns)
        said_last = row["messages"].pop()
        thoughts = [m.pop("reasoning_content", None) for m in row["messages"]]
        assert row["messages"] == server.requests[last - 1]["messages"]
        assert said_last["content"] == episode.turns[-1].text
        assert said_last["reasoning_content"] == f"r{last}"
        assert len([each for each in thoughts if each]) == len(episode.turns) - 1
        assert row["reward"] == episode.rewards


def test_what_cannot_be_exported_is_told_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def says(*words: object) -> str:
        assert guarded(lambda: main(["export", *map(str, words)])) == 2
        return capsys.readouterr().err

    assert "holds no run" in says(tmp_path / "nothing")
    recorder = Recorder(tmp_path / "training")
    recorder.start({"kind": "run"})
    assert "holds no evaluation" in says(tmp_path / "training")
    recorder = Recorder(tmp_path / "empty")
    recorder.start({"kind": "evaluation"})
    assert "no successful episode" in says(tmp_path / "empty", "--only", "success")
    folder = write(tmp_path / "run")
    (tmp_path / "run.jsonl").write_text("earlier")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install 'gem-eval[parquet]'" in says(folder, "--format", "parquet")
    monkeypatch.setitem(sys.modules, "inspect_ai", None)
    assert "pip install 'gem-eval[inspect]'" in says(folder, "--format", "inspect")
    assert "cannot write /dev/full/x" in says(folder, "--out", "/dev/full/x")
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"training", "empty", "run", "run.jsonl"}
    assert (tmp_path / "run.jsonl").read_text() == "earlier"
