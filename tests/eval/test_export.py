"""`gem eval export`: what is in a row, and that datasets reads it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import pytest
from chat_server import Stub, said

import gem
from gem.__main__ import guarded
from gem.tasks import Task
from gem.trajectory import Failure, Trajectory, Turn
from gem_box.sample import write_sample
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


def atif(folder: Path, *words: str) -> dict[str, Any]:
    """The trajectories of a record, by file."""
    out = folder.with_name(f"{folder.name}.atif")
    assert main(["export", str(folder), "--format", "atif", *words]) == 0
    return {path.name: json.loads(path.read_text()) for path in sorted(out.iterdir())}


def test_a_trajectory_of_atif_has_the_replies_the_calls_and_what_they_earned(
    tmp_path: Path,
) -> None:
    found = atif(write(tmp_path / "run"))
    # The third episode is void.
    assert list(found) == ["000000.json", "000001.json"]
    won = found["000000.json"]
    session = won["session_id"]
    assert session and session == found["000001.json"]["session_id"]
    about = {"stop_reason": "stop"}
    assert won == {
        "schema_version": "ATIF-v1.7",
        "session_id": session,
        "trajectory_id": f"{session}-0",
        "agent": {
            "name": "gem",
            "version": gem.__version__,
            "model_name": "openai:m",
            "tool_definitions": TOOLS,
        },
        "steps": [
            {"step_id": 1, "source": "system", "message": "Play."},
            {"step_id": 2, "source": "user", "message": "1 + 1?"},
            {
                "step_id": 3,
                "source": "agent",
                "message": "Let me add.",
                "reasoning_content": "hm",
                "llm_call_count": 1,
                "tool_calls": [
                    {"tool_call_id": "c1", "function_name": "add", "arguments": {"a": 1}}
                ],
                "observation": {"results": [{"source_call_id": "c1", "content": "It is 2."}]},
                "extra": {"reward": 0.0, "info": {"success": False}, **about},
            },
            {
                "step_id": 4,
                "source": "agent",
                "message": "2",
                "llm_call_count": 1,
                "extra": {"reward": 1.0, "info": {"success": True}, **about},
            },
        ],
        "final_metrics": {
            "total_steps": 4,
            "extra": {"success": True, "return": 1.0, "end": "terminated"},
        },
        "extra": {
            "task": {"env_id": "x", "seed": 7, "params": {"level": 2, "wrappers": ["a:B"]}},
            "split": "eval:x",
            "iteration": 0,
            "sample": 3,
        },
    }
    assert found["000001.json"]["steps"][-1]["message"] == "5 ?"


def tokens(folder: Path) -> Path:
    """A training record of an episode whose third turn has a prompt of its own."""
    recorder = Recorder(folder)
    recorder.start({"kind": "run", "trainer": "reference"})

    def turn(context: list[int], response: list[int], fresh: bool, **more: Any) -> Turn:
        logprobs = [-0.5] * len(response)
        return Turn(
            "see", context, fresh, response, logprobs, "do", 0.5, False, False, "stop", **more
        )

    turns = [turn([1, 2], [3], True), turn([4], [], False), turn([8, 9], [7, 7], True)]
    episode = Trajectory(Task("x", 7), turns, end="turn_budget", final_observation="the last")
    recorder.episodes(4, [episode], advantages=[[0.0] * 3])
    return folder


def test_a_trajectory_of_atif_has_the_tokens_of_training(tmp_path: Path) -> None:
    [found] = atif(tokens(tmp_path / "run")).values()
    first, *replies = found["steps"]
    assert first == {"step_id": 1, "source": "user", "message": "see"}
    wanted: list[tuple[list[int], list[int]]] = [
        ([1, 2], [3]),
        ([1, 2, 3, 4], []),
        ([8, 9], [7, 7]),
    ]
    for step, (prompt, response) in zip(replies, wanted, strict=True):
        assert step["metrics"] == {
            "prompt_tokens": len(prompt),
            "completion_tokens": len(response),
            "prompt_token_ids": prompt,
            "completion_token_ids": response,
            "logprobs": [-0.5] * len(response),
        }
    answers = [step["observation"]["results"] for step in replies]
    assert answers == [[{"content": "see"}], [{"content": "see"}], [{"content": "the last"}]]
    assert found["final_metrics"]["total_prompt_tokens"] == 8
    assert found["final_metrics"]["total_completion_tokens"] == 3
    assert (found["extra"]["split"], found["extra"]["iteration"]) == ("train", 4)
    assert found["agent"]["model_name"] == "reference"


def test_atif_of_successes_only_and_never_into_a_folder_with_something(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path / "run")
    assert list(atif(folder, "--only", "success")) == ["000000.json"]
    words = ["export", str(folder), "--format", "atif"]
    assert guarded(lambda: main(words)) == 2
    assert "run.atif exists; choose another folder" in capsys.readouterr().err
    empty = Recorder(tmp_path / "empty")
    empty.start({"kind": "evaluation"})
    assert guarded(lambda: main(["export", str(tmp_path / "empty"), *words[2:]])) == 2
    assert "no valid episode" in capsys.readouterr().err
    pictures = Recorder(tmp_path / "pictures")
    pictures.start({"kind": "evaluation"})
    shown, _ = gem.make("image:Bars-v0").reset(seed=0)
    turn = Turn(shown, [], True, [], None, "x", 0.0, True, False, "stop")
    text = replace(turn, observation="words")
    episodes = [Trajectory(Task("x", 1), [each]) for each in (text, turn)]
    pictures.episodes(0, episodes, split="eval:x")
    assert guarded(lambda: main(["export", str(tmp_path / "pictures"), *words[2:]])) == 2
    assert "shows images" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"run", "run.atif", "empty", "pictures"}


HARBOR = Path(__file__).parents[2] / ".venvs" / "harbor" / "bin" / "python"


@pytest.mark.nightly
@pytest.mark.skipif(not HARBOR.exists(), reason="needs Harbor: make env-harbor")
def test_harbor_reads_the_trajectories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_sample(tmp_path / "tasks")
    write(tmp_path / "run")
    tokens(tmp_path / "trained")
    words = [f"harbor:{tmp_path / 'tasks'}?image=host", "--model", "oracle", "--episodes", "3"]
    assert main([*words, "--out", str(tmp_path / "terminal")]) == 0
    files = []
    for name in ("run", "trained", "terminal"):
        found = atif(tmp_path / name)
        files += [tmp_path / f"{name}.atif" / each for each in found]
    assert len(files) == 2 + 1 + 3
    for file in files:
        command = [HARBOR, "-m", "harbor.utils.trajectory_validator", file]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    # The validator refuses what is not right.
    broken = json.loads(files[0].read_text())
    broken["steps"][-1]["step_id"] = 9
    files[0].write_text(json.dumps(broken))
    command = [HARBOR, "-m", "harbor.utils.trajectory_validator", files[0]]
    assert subprocess.run(command, capture_output=True, check=False).returncode
