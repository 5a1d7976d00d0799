"""Tools through whole trainers: greedy runs of the recipes, and what they recorded."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gem import tools
from gem.replay import difference
from gem.tools import ToolCall, ToolResult
from gem_sandbox.tool import PythonTool
from gem_train.record import EpisodeRecord, read_run

pytest.importorskip("gem_bench.runspec", reason="needs the development environment: make env-dev")
from gem_bench.conformance import compare_runs
from gem_bench.models import resolve_model
from gem_bench.runspec import load_spec
from gem_cpu.servers import time_server
from gem_cpu.tool_lessons import LESSONS

ROOT = Path(__file__).parents[2]
TOOLS = tuple(LESSONS)
TRAINERS = ("verl",)
TIMEOUT_S = 900
BOX = re.compile(r"\\boxed\{ *(.*?) *\}")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    with time_server() as address:
        yield address


def recipe(tool: str) -> Path:
    return ROOT / "recipes" / f"tools-{tool}.toml"


def settings(tool: str, url: str) -> list[str]:
    """Nothing is random, few episodes, large steps: every trainer must do the same."""
    changes = ["sampling.top_k=1", "training.tasks=16", "training.group_size=1"]
    changes += ["training.iterations=3", "optimizer.lr=1e-3"]
    if tool == "mcp":
        changes.append(f"env.params.wrappers.0.tools.0.servers.time.url={url}")
    return changes


def run(trainer: str, tool: str, url: str, folder: Path) -> Path:
    command = [
        sys.executable,
        "-m",
        "gem_bench",
        "run",
        str(recipe(tool)),
        "--to",
        trainer,
        "--cpu",
    ]
    command += ["--out", str(folder), "--timeout", str(TIMEOUT_S)]
    for change in settings(tool, url):
        command += ["--set", change]
    result = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "GEM_RECORD_ROWS": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S + 60,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return folder


@pytest.fixture(scope="session")
def reference(url: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("reference")
    return {tool: run("reference", tool, url, folder / tool) for tool in TOOLS}


def first_batch(folder: Path) -> list[EpisodeRecord]:
    return [e for e in read_run(folder).episodes() if e.split == "train" and e.iteration == 0]


def success_rate(folder: Path) -> float:
    return float(read_run(folder).metrics[0]["success_rate"])


@pytest.mark.parametrize("tool", TOOLS)
def test_the_policy_calls_the_tool_and_is_paid_for_its_answer(
    tool: str, reference: dict[str, Path]
) -> None:
    lesson = LESSONS[tool]
    episodes = [e.trajectory for e in first_batch(reference[tool])]
    assert len(episodes) == 16
    assert all(episode.valid for episode in episodes)
    asked = [t for t in episodes if t.turns[-1].info["tool_success_counter"] > 0]
    # How often the most likely reply asks differs between the tools: 5 to 16 of 16.
    assert len(asked) >= 4
    for episode in asked:
        call, answer = episode.turns[0], episode.turns[-1]
        assert (call.info["use_tool"], call.info["tool_type"], call.reward) == (True, tool, 0.0)
        if episode.total_reward:
            told = lesson.told.search(str(answer.observation))
            given = BOX.search(answer.text)
            assert told is not None and given is not None and told[1] == given[1]
    assert sum(t.total_reward for t in asked) >= len(asked) * 3 / 4
    assert all(t.total_reward == 0 for t in episodes if t not in asked)


@pytest.mark.parametrize("tool", TOOLS)
def test_without_the_tools_answer_nothing_is_earned(
    tool: str,
    reference: dict[str, Path],
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from dataclasses import replace

    from gem_bench.reference import train

    spec = load_spec(recipe(tool), settings(tool, url))
    spec = replace(
        spec,
        policy=replace(spec.policy, model=resolve_model(spec.policy.model)),
        training=replace(spec.training, iterations=1),
    )

    def silent(self: tools.Tool, call: ToolCall) -> ToolResult:
        return ToolResult("The tool says nothing.", ok=True)

    kind = {"python": PythonTool, "search": tools.SearchTool, "mcp": tools.MCPTool}[tool]
    monkeypatch.setattr(kind, "execute", silent)
    train(spec, tmp_path / "silent", device="cpu")
    episodes = [e.trajectory for e in first_batch(tmp_path / "silent")]
    assert sum(t.turns[-1].info["tool_use_counter"] > 0 for t in episodes) >= 4
    # By chance one in fifty guesses of a week is right.
    assert success_rate(tmp_path / "silent") <= 1 / 8
    assert success_rate(reference[tool]) >= 1 / 4


@pytest.mark.parametrize("tool", TOOLS)
def test_recorded_episodes_are_the_same_when_played_again(
    tool: str, reference: dict[str, Path]
) -> None:
    for episode in first_batch(reference[tool])[:4]:
        assert difference(episode.trajectory) is None


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("tool", TOOLS)
def test_a_real_trainer_conforms_to_the_reference(
    tool: str, trainer: str, reference: dict[str, Path], url: str, tmp_path: Path
) -> None:
    folder = run(trainer, tool, url, tmp_path / "run")
    algorithm = load_spec(recipe(tool)).algorithm
    findings = compare_runs(read_run(reference[tool]), read_run(folder), algorithm)
    assert not findings, "\n".join(map(str, findings[:20]))
    assert success_rate(folder) == success_rate(reference[tool])
