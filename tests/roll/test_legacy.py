"""The names of gem-llm 0.0.4 that ROLL imports, and ROLL's own environments that run with them."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gem_roll import legacy
from gem_roll.legacy import CodeEnv, LegacyEnv, MathEnv, QaEnv, ToolEnvWrapper

ROWS = [
    {
        "question": f"question {k}",
        "answer": [f"answer {k}", "another"],
        "problem": f"problem {k}",
        "tests": '{"inputs": ["1\\n", "2\\n"], "outputs": ["2\\n", "4\\n"]}',
    }
    for k in range(40)
]


GIVEN: dict[str, Any] = {
    "dataset_name": "", "split": None, "seed": 0, "load_from_cache_file": True,
    "extract_boxed": False, "question_key": "question", "answer_key": "answer",
}  # fmt: skip
"""ROLL gives all of them by keyword, and more."""


@pytest.fixture
def dataset() -> Any:
    """A data set of 40 rows."""
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    return datasets.Dataset.from_list(ROWS)


class Other:
    """The second base class of an environment of ROLL's."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.state = self.reset()

    def reset(self, seed: int | None = None) -> int:
        return self.size


def test_env_is_a_mixin_that_needs_no_state_of_its_own() -> None:
    class Mixed(LegacyEnv, Other):
        def __init__(self) -> None:  # as ROLL's: never calls that of Env
            Other.__init__(self, 3)

        def reset(self, seed: int | None = None, **_: Any) -> Any:
            LegacyEnv.reset(self, seed)
            return Other.reset(self, seed)

    assert (Mixed().state, Mixed().reset(7)) == (3, 3)


def test_reset_seeds_the_global_generators_from_which_roll_draws() -> None:
    drawn = []
    for _ in range(2):
        LegacyEnv.reset(LegacyEnv(), 5)
        drawn.append((random.random(), np.random.random()))
    assert drawn[0] == drawn[1]
    LegacyEnv.reset(LegacyEnv(), None)
    assert (random.random(), np.random.random()) != drawn[0]


def test_math_grades_an_answer_that_is_extracted_already() -> None:
    assert MathEnv.check_correct("1/2", "0.5")
    assert MathEnv.check_correct("3", ["2", "3"])
    assert not MathEnv.check_correct("4", 5)


def test_qa_draws_by_seed_and_walks_on_without_one(dataset: Any) -> None:
    first, second = (QaEnv(**GIVEN, dataset=dataset) for _ in range(2))
    assert first.reset(seed=9) == second.reset(seed=9)
    assert len({first.reset(seed=s)[0] for s in range(20)}) > 5
    assert first.reset(seed=9)[0].startswith("For any question, always reason")
    assert first.extractor("<answer> answer 1 </answer>") == "answer 1"
    assert QaEnv.check_correct("The Answer 1!", ["answer 1", "x"])
    assert len({second.reset()[0] for _ in range(40)}) == 40


def test_qa_may_ask_for_a_box(dataset: Any) -> None:
    boxed = QaEnv(**{**GIVEN, "dataset": dataset, "extract_boxed": True})
    assert boxed.extractor(r"so \boxed{1} and then \boxed{2}") == "2"
    assert boxed.extractor("none") is None


def test_code_runs_the_tests_of_its_row(dataset: Any) -> None:
    env = CodeEnv(
        dataset_name="", dataset=dataset, split=None, seed=0, question_key="problem",
        test_key="tests", sandbox_type="none", max_tests=5, max_workers=1,
    )  # fmt: skip
    assert env.reset(seed=1)[0].startswith("problem")
    assert env._check_correct("print(2 * int(input()))")
    assert not env._check_correct("print(3 * int(input()))")


def test_a_split_is_chosen_by_name_or_because_it_is_the_only_one(dataset: Any) -> None:
    for split in ("train", None):
        env = QaEnv(**{**GIVEN, "dataset": {"train": dataset}, "split": split})
        assert len(env.dataset) == 40
    with pytest.raises(ValueError, match="too many values"):
        QaEnv(**GIVEN, dataset={"train": dataset, "test": dataset})


def test_programs_and_texts_are_read_as_before() -> None:
    assert legacy.extract_code_from_model("```python\na\n```\n```python\nb\n```") == "b"
    assert legacy.extract_code_from_model("no code") is None
    assert legacy.run_python("print(input())", "none", "x") == (True, "x\n", "")
    ok, _, stderr = legacy.run_python("1 / 0", "none")
    assert not ok and "ZeroDivisionError" in stderr


class Calculator(legacy.BaseTool):
    """Understands `add`, fails at `bad`, leaves the rest to the environment."""

    tool_type = "calculator"

    def instruction_string(self) -> str:
        return "say add"

    def execute_action(self, action: str) -> tuple[bool, bool, str, str]:
        return action in ("add", "bad"), action == "bad", f"did {action}", action


class Echo(LegacyEnv):
    def reset(self, seed: int | None = None, **_: Any) -> tuple[str, dict[str, Any]]:
        return "begin", {"env_instruction": "none"}

    def step(self, action: str) -> Any:
        return action, 1.0, True, False, {"success": True}


def test_tools_come_before_the_environment_and_are_counted() -> None:
    env = ToolEnvWrapper(
        Echo(), [Calculator()], tool_reward=0.25, tool_success_reward=0.5, max_tool_uses=2
    )
    observation, info = env.reset(seed=1)
    assert observation == "begin\nsay add"
    counted = {"tool_use_counter": 0, "tool_success_counter": 0, "use_tool": False}
    assert info == {"env_instruction": "none"} | counted
    said, reward, terminated, truncated, info = env.step("add")
    assert (said, reward, terminated, truncated) == ("did add", 0.75, False, False)
    assert (info["tool_type"], info["tool_success_counter"]) == ("calculator", 1)
    said, reward, *_ = env.step("bad", verbose=False)
    assert said.startswith("did bad\n\nReached the maximum") and reward == 0.25
    said, reward, terminated, _, info = env.step("add")  # the tools are used up
    assert (said, reward, terminated) == ("add", 1.0, True)
    assert info == {
        "success": True,
        "tool_use_counter": 2,
        "tool_success_counter": 1,
        # Of every step, not only of a tool's.
        "use_tool": True,
    }


def test_several_tools_are_announced() -> None:
    env = ToolEnvWrapper(Echo(), [Calculator(), Calculator()])
    assert env.reset()[0] == "begin\nAvailable tools:\nsay add\nsay add"


def run(program: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **environment},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_every_name_can_be_imported_after_install() -> None:
    lines = [f"from {name} import {', '.join(m.split())}" for name, m in NAMES.items() if m]
    program = "\n".join(["from gem_roll import legacy", "legacy.install()", *lines])
    run(program + "\nimport gem.tools.tool_env_wrapper as t; assert t.ToolEnvWrapper")


NAMES = {
    # As ROLL's sources have them, apart from gem.tools.search_tool.
    "gem": "Env register make",
    "gem.core": "Env",
    "gem.envs.math_env": "MathEnv",
    "gem.envs.qa_env": "QaEnv",
    "gem.envs.code_env": "CodeEnv",
    "gem.utils.constants": "TERMINAL_STATE",
    "gem.utils.parsing": "extract_last_boxed_answer extract_code_from_model",
    "gem.utils.sandbox": "run_python",
    "gem.tools.base_tool": "BaseTool",
    "gem.tools.python_code_tool": "PythonCodeTool",
    "gem.tools.tool_env_wrapper": "ToolEnvWrapper",
}


ROLLS = """
from gem_roll import legacy
legacy.install()
import gem, roll.pipeline.agentic.env
from datasets import Dataset
from roll.pipeline.agentic.env_manager.traj_env_manager import TrajEnvManager
from roll.pipeline.agentic.env.gem.math_env import MathEnv
from roll.pipeline.agentic.tools.tool_env_wrapper import tool_wrapper
lakes = [gem.make(env_id="frozen_lake", size=4, is_slippery=False) for _ in range(2)]
maps = [lake.reset(seed=3)[0] for lake in lakes]
assert maps[0] == maps[1] != lakes[0].reset(seed=4)[0]
observation, reward, terminated, truncated, info = lakes[0].step("<answer>Right</answer>")
assert info["metrics"]["action_is_valid"]
rows = Dataset.from_list([{"question": f"q{k}", "answer": [f"a{k}"]} for k in range(40)])
qa = gem.make(env_id="roll_qa", dataset=rows)
asked = qa.reset(seed=7)
assert asked == gem.make(env_id="roll_qa", dataset=rows).reset(seed=7) != qa.reset(seed=8)
assert qa.step(f"<answer>{qa.answer[0]}</answer>")[1] == 1.0
tests = Dataset.from_list([{"problem": "p", "tests": '{"inputs": ["1"], "outputs": ["2"]}'}])
code = gem.make(env_id="roll_code", dataset=tests, sandbox_type="none")
code.reset(seed=1)
assert code.step("```python\\nprint(2 * int(input()))\\n```")[1] == 1.0
assert MathEnv.check_correct("1/2", "0.5") and not MathEnv.check_correct("1", "2")
tools = [{"tool_id": "python_code", "tool_args": {"timeout": 5}}]
wrapped = tool_wrapper(gem.make(env_id="roll_qa", dataset=rows), {"max_tool_uses": 2}, tools)
assert wrapped.reset(seed=7)[1]["metrics"]["tool_use_counter"] == 0
said, *_, info = wrapped.step("<code>print(1 + 1)</code>")
assert said.startswith("Code execution result: 2") and info["metrics"]["tool_success_counter"] == 1
"""


def test_rolls_own_environments_run_beside_gems(home: Path, imported: Any, tmp_path: Path) -> None:
    path = os.pathsep.join(filter(None, [str(home), os.environ.get("PYTHONPATH")]))
    run(ROLLS, PYTHONPATH=path, ROLL_LOG_DIR=str(tmp_path))
