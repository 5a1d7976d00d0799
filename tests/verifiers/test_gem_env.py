"""GEM's environments in verifiers (`gem_env`): the same episodes there and back, and `vf-eval`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chat_server import Answer, Stub, said

import gem
from gem.core import Step
from gem.errors import UnknownEnvError, UnknownParameterError
from gem_serve.conversation import AgentProgramError

IDS = (
    "game:GuessTheNumber-v0-easy",
    "game:GuessTheNumber-v0-hard",
    "game:Mastermind-v0-easy",
    "game:Mastermind-v0",
    "game:Minesweeper-v0-easy",
    "game:Wordle-v0",
    "game:Hangman-v0-easy",
    "game:Sudoku-v0-easy",
    "game:TowerofHanoi-v0-easy",
    "game:FifteenPuzzle-v0-easy",
    "game:Game2048-v0-easy",
    "game:Sokoban-v0-easy",
    "game:Crosswords-v0-easy",
    "game:WordSearch-v0-easy",
    "game:TowerofHanoi-v0",
    "game:Sudoku-v0",
    "game:Hangman-v0",
    "game:Minesweeper-v0",
    "game:Game2048-v0",
    "game:FifteenPuzzle-v0",
)
POLICIES: dict[str, Callable[[gem.Env], str]] = {
    "oracle": lambda env: env.oracle_action(),
    "random": lambda env: env.sample_random_action(),
}
MOST_TURNS = 25


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("id", IDS)
def test_an_episode_through_verifiers_is_the_same_episode(id: str, policy: str) -> None:
    """Observations, ends and the sum of rewards; verifiers' reward comes with the last step."""
    seeds = {"taskset.seeds": 2, "taskset.first_seed": 40}
    # Long games end by a limit, which both sides have.
    limit = {"max_turns": MOST_TURNS}
    there = gem.make("verifiers:gem_env", **limit, **{"taskset.env_id": id, **seeds})
    direct = gem.make(id)
    for row in range(2):
        observation, info = direct.reset(seed=40 + row)
        assert there.reset(idx=row) == (observation, {"idx": row, "name": f"{id}#{40 + row}"})
        steps: list[Step] = []
        total = 0.0
        for turn in range(1, MOST_TURNS + 1):
            action = POLICIES[policy](direct)
            observation, reward, terminated, truncated, info = direct.step(action)
            total += reward
            ours = there.step(action)
            steps.append(ours)
            if terminated or truncated or turn == MOST_TURNS:
                break
            assert ours == (observation, 0.0, False, False, {})
        assert steps[-1][1] == pytest.approx(total, abs=1e-12)
        told = steps[-1][4]
        assert told["metric.turns"] == turn
        assert told["metric.truncated"] == float(not terminated)
        assert steps[-1][2:4] == ((True, False) if terminated or truncated else (False, True))
        if terminated:
            assert told["success"] is bool(info.get("success", reward > 0))
    there.close()
    direct.close()


class Breaks(gem.Env):
    """Breaks in its second turn."""

    def reset(self, seed: int | None = None, **options: Any) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return "go", {}

    def step(self, action: str) -> Step:
        if action == "break":
            raise RuntimeError("the board is gone")
        if action == "picture":
            return [{"type": "image", "image": b""}], 0.0, False, False, {}
        return "again", 0.5, False, False, {}


gem.register("test:Breaks", Breaks)


@pytest.mark.parametrize(
    ("action", "told"), [("break", "the board is gone"), ("picture", "images cannot be shown")]
)
def test_an_environment_that_breaks_in_verifiers_is_void(action: str, told: str) -> None:
    with gem.make("verifiers:gem_env", **{"taskset.env_id": "test:Breaks"}) as env:
        env.reset(seed=0)
        assert env.step("on")[1:4] == (0.0, False, False)
        with pytest.raises(AgentProgramError, match=told):
            env.step(action)


def test_a_wrong_id_or_parameter_ends_before_any_episode() -> None:
    with pytest.raises(UnknownEnvError, match="unknown environment id"):
        gem.make("verifiers:gem_env", **{"taskset.env_id": "game:Nothing"})
    with pytest.raises(UnknownParameterError, match="'turns'"):
        gem.make("verifiers:gem_env", **{"taskset.parameters": '{"turns": 1}'})


def bisects(number: int, body: dict[str, Any]) -> Answer:
    """Guess the middle of what the conversation leaves possible; each seed the same."""
    low, high = 1, 10
    for message, answer in zip(body["messages"][1::2], body["messages"][2::2], strict=False):
        guess = int("".join(filter(str.isdigit, message["content"])))
        low, high = (guess + 1, high) if "higher" in answer["content"] else (low, guess - 1)
    reply = json.loads(said(f"\\boxed{{{(low + high) // 2}}}").body)
    reply |= {"id": "1", "object": "chat.completion", "created": 1, "model": "m"}
    reply["choices"][0]["index"] = 0
    reply["usage"]["total_tokens"] = 15
    return Answer(json.dumps(reply))


def test_vf_eval_plays_an_environment_and_writes_each_turn_s_reward(
    server: Stub, tmp_path: Path
) -> None:
    server.answer = bisects
    command = [
        *(str(Path(sys.executable).with_name("vf-eval")), "gem_env"),
        *("--env.taskset.env-id", "game:GuessTheNumber-v0-easy"),
        *("--env.taskset.parameters", '{"max_turns": 6}'),
        *("-n", "5", "-r", "2", "--model", "m", "--no-rich", "--no-push"),
        *("--client.base-url", server.url, "--client.api-key-var", "GEM_NO_KEY"),
    ]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [file] = tmp_path.rglob("*.jsonl")
    lines = map(json.loads, file.read_text().splitlines())
    traces = [trace for line in lines for trace in line["traces"]]
    assert len(traces) == 10
    for trace in traces:
        rewards = trace["info"]["turn_rewards"]
        assert len(rewards) == trace["metrics"]["turns"] <= 4
        assert trace["rewards"]["gem"]["score"] == sum(rewards) > 0
        assert trace["metrics"]["success"] == 1.0
