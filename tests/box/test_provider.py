"""Real Harbor, with a box as its environment: its verdicts on task folders are ours."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from boxes_attacks import write_task

import gem
from gem.json_lines import read_json
from gem_box.env import HarborEnv
from gem_box.sample import write_sample

ROOT = Path(__file__).parents[2]
HARBOR = ROOT / ".venvs" / "harbor" / "bin" / "harbor"

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(not HARBOR.exists(), reason="needs Harbor: make env-harbor"),
]


def rewards(tasks: Path, agent: str, folder: Path) -> dict[str, float | None]:
    """Return what Harbor's own agent earns of each task; None where Harbor has no reward."""
    command = [HARBOR, "run", "-p", tasks, "-a", agent, "-o", folder, "--job-name", agent]
    command += ["--env", "gem_box.provider:BoxEnvironment", "-n", "2", "-y", "--quiet"]
    env = {**os.environ, "HARBOR_TELEMETRY": "off", "GEM_BOX_IMAGE": "host"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, float | None] = {}
    for path in sorted((folder / agent).glob("*/result.json")):
        trial = read_json(path)
        verdict = trial["verifier_result"]
        found[trial["task_name"]] = verdict["rewards"]["reward"] if verdict else None
    return found


def ours(tasks: Path, solves: bool) -> dict[str, float]:
    found = {}
    with gem.make(f"harbor:{tasks}?eval=true&image=host") as env:
        assert isinstance(env, HarborEnv)
        for idx, task in enumerate(env.tasks):
            env.reset(seed=0, idx=idx)
            if solves:
                env.step(env.oracle_action())
            finish = '<tool_call>{"name": "finish"}</tool_call>'
            found[str(task.table("task")["name"])] = env.step(finish)[1]
    return found


@pytest.mark.parametrize(("agent", "reward"), [("oracle", 1.0), ("nop", 0.0)])
def test_harbor_gives_the_rewards_that_we_give(tmp_path: Path, agent: str, reward: float) -> None:
    tasks = tmp_path / "tasks"
    write_sample(tasks)
    partial = '#!/bin/bash\n[ "$(cat answer.txt)" = 84 ] && r=0.25 || r=-1\n'
    partial += 'echo "{\\"reward\\": $r}" > /logs/verifier/reward.json\n'
    partial += "echo 7 > /logs/verifier/reward.txt\n"
    toml = 'schema_version = "1.4"\n[task]\nname = "gem/partial"\n'
    write_task(tasks / "partial", "host", task_toml=toml, tests__test_sh=partial)
    theirs = rewards(tasks, agent, tmp_path / "jobs")
    assert len(theirs) >= 26
    assert theirs == ours(tasks, agent == "oracle")
    special = theirs.pop("gem/partial")
    assert special == (0.25 if agent == "oracle" else -1.0)
    assert set(theirs.values()) == {reward}


def test_what_harbor_has_no_reward_for_is_0_and_told(tmp_path: Path) -> None:
    toml = 'schema_version = "1.4"\n[task]\nname = "gem/silent"\n'
    silent = write_task(
        tmp_path / "tasks" / "silent", "host", task_toml=toml, tests__test_sh="true\n"
    )
    assert rewards(tmp_path / "tasks", "nop", tmp_path / "jobs") == {"gem/silent": None}
    with gem.make(f"harbor:{silent}") as env:
        env.reset(seed=0)
        _, reward, *_, info = env.step('<tool_call>{"name": "finish"}</tool_call>')
        assert (reward, info["graded"]) == (0.0, "the tests wrote no reward")
