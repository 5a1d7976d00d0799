"""The names of gem-llm 0.0.4 that ROLL imports, so that ROLL's own environments run beside GEM's.

gem-llm and gem-core are both imported as `gem`, so ROLL finds gem-core; `install` adds what ROLL
imports of the other, with the behaviour of version 0.0.4 that ROLL relies on. It must run before
ROLL's modules are imported, in every process that plays ROLL's environments, which this does:

    train_env_manager: {worker_cls: gem_roll.legacy_worker.LegacyEnvironmentWorker}

Not included is `gem.tools.search_tool`: GEM's own environments have that tool.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

from gem.core import Env
from gem.grading import code, math, qa
from gem.grading.formats import BOXED
from gem.sandbox import Limits, resolve
from gem.training.imports import after_import

TERMINAL_STATE = "<｜TERMINAL_STATE｜>"
"""Observation after the last turn."""


class LegacyEnv(Env):
    """`gem.Env` as ROLL's environments call it unbound, often without its `__init__`."""

    def __init__(self) -> None:
        """Set nothing: there is no state."""

    def reset(self, seed: int | None = None, **_: Any) -> tuple[str, dict[str, Any]]:
        """Seed the global generators, from which ROLL's environments draw."""
        if seed is not None:
            random.seed(seed)
            np.random.seed(seed % 2**32)
        return "", {}


class DatasetEnv(LegacyEnv):
    """What the environments of data sets have in common: a question an episode."""

    def __init__(
        self, dataset_name: str = "", split: str | None = None, dataset: Any = None, **given: Any
    ) -> None:
        """Load the data set, if none is given, and shuffle it by `seed`."""
        if dataset is None:
            from datasets import load_dataset

            dataset = load_dataset(dataset_name)
        if hasattr(dataset, "keys"):
            [only] = [split] if split else list(dataset.keys())
            dataset = dataset[only]
        self.seed: int = given.get("seed", 0)
        self.dataset_name, self.dataset = dataset_name, dataset.shuffle(seed=self.seed)
        self.question_key, self.answer_key = given["question_key"], given["answer_key"]
        self.idx = self.epoch = 0

    def reset(self, seed: int | None = None, **_: Any) -> tuple[str, dict[str, Any]]:
        """Ask the question that belongs to the seed, or the next one."""
        if seed is not None:
            # Of the seed alone: other threads draw from the global generator meanwhile.
            self.idx = random.Random(seed).randrange(len(self.dataset))
        elif self.idx == len(self.dataset):
            self.epoch, self.idx = self.epoch + 1, 0
            self.dataset = self.dataset.shuffle(seed=self.seed + self.epoch)
        row = self.dataset[self.idx]
        self.idx += 1
        self.first_obs, self.answer = row[self.question_key], row[self.answer_key]
        return self.first_obs, {}


class MathEnv(DatasetEnv):
    """Base class of `roll_math`, which extracts answers itself."""

    @staticmethod
    def check_correct(model_answer: str, gt_answer: Any) -> bool:
        """Whether an extracted answer means the same as the right one, or one of several."""
        return math.grade(model_answer, gt_answer).correct

    def close(self) -> None:
        """End the process that grades, which ROLL's class starts."""
        self.mp_pool.close()  # type: ignore[attr-defined]


class QaEnv(DatasetEnv):
    """Base class of `roll_qa`."""

    PROMPT = (
        "For any question, always reason through your thought process using:\n"
        "<think> your reasoning here </think>\nThen, provide your final answer using:\n"
        "<answer> your answer here </answer>\n\nQuestion: {}\n"
    )

    def __init__(self, *, extract_boxed: bool = False, **given: Any) -> None:
        """Load the data set and put the instruction around its questions."""
        super().__init__(**given)
        key, cached = self.question_key, given.get("load_from_cache_file", True)
        self.dataset = self.dataset.map(
            lambda row: {key: self.PROMPT.format(row[key])}, load_from_cache_file=cached
        )
        self.extractor = extract_last_boxed_answer if extract_boxed else extract_last_tagged_answer

    @staticmethod
    def check_correct(model_answer: str, gt_answer: Any) -> bool:
        """Whether an extracted answer is the right one, or one of several."""
        golds = gt_answer if isinstance(gt_answer, list) else [gt_answer]
        return qa.grade(model_answer, [str(gold) for gold in golds]).correct


class CodeEnv(DatasetEnv):
    """Base class of `roll_code`."""

    def __init__(self, *, test_key: str, sandbox_type: str, max_tests: int, **given: Any) -> None:
        """Load the data set."""
        super().__init__(answer_key=test_key, **given)
        self.sandbox_type, self.max_tests = sandbox_type, max_tests

    def _check_correct(self, model_code: str) -> bool:
        tests = json.loads(self.answer) if isinstance(self.answer, str) else self.answer
        executor = _executor(self.sandbox_type)
        return code.grade(model_code, tests, executor=executor, max_tests=self.max_tests).correct


def extract_last_boxed_answer(solution: str) -> str | None:
    r"""Return the content of the last `\boxed{}`."""
    return BOXED.extract(solution)


def extract_last_tagged_answer(model_response: str) -> str | None:
    """Return the content of the last `<answer></answer>`."""
    found = re.findall(r"<answer>(.*?)</answer>", model_response, re.DOTALL)
    return found[-1].strip() if found else None


def extract_code_from_model(model_response: str) -> str | None:
    """Return the content of the last block of code."""
    found = re.findall(r"```(?:\w+)?\n(.*?)```", model_response, re.DOTALL)
    return found[-1].strip() if found else None


def run_python(
    code: str, sandbox_type: str, stdin: str | None = None, timeout: float = 10
) -> tuple[bool, str, str]:
    """Run a program; return whether it succeeded, and what it wrote on stdout and stderr."""
    result = resolve(_executor(sandbox_type)).run(code, stdin or "", Limits(wall_s=timeout))
    return result.exit_code == 0 and not result.limit_hit, result.stdout, result.stderr


def _executor(sandbox_type: str) -> str:
    # `none` ran programs as the user who trains; so does `subprocess`, but within limits.
    return "subprocess" if sandbox_type == "none" else sandbox_type


class BaseTool:
    """Base class of ROLL's tools."""

    def __init__(self, num_workers: int = 1) -> None:
        self.num_workers = num_workers


class PythonCodeTool(BaseTool):
    """Base class of ROLL's `python_code`, which replaces all other methods."""

    tool_type = "python_code"

    def __init__(self, timeout: int, sandbox_type: str, keep_error_last_line: bool) -> None:
        super().__init__()
        self.timeout, self.sandbox_type = timeout, sandbox_type
        self.keep_error_last_line = keep_error_last_line


class ToolEnvWrapper(LegacyEnv):
    """Base class of ROLL's own: asks the tools before the environment, and counts."""

    def __init__(self, env: Any, tools: Sequence[Any], **given: Any) -> None:
        """Keep environment and tools, and of `given` what calls earn and how many there may be."""
        self.env, self.tools = env, tools
        self.earned = given.get("tool_reward", 0.0), given.get("tool_success_reward", 0.0)
        self.most = given.get("max_tool_uses", 10)
        self.uses = self.successes = 0

    def reset(self, seed: int | None = None, **_: Any) -> tuple[str, dict[str, Any]]:
        """Reset the environment; the observation ends with the tools' instructions."""
        self.uses = self.successes = 0
        observation, info = self.env.reset(seed=seed)
        texts = [tool.instruction_string() for tool in self.tools]
        heading = ["Available tools:"] if len(texts) > 1 else []
        return "\n".join([observation, *heading, *texts]), info | self._counts(False)

    def step(self, action: str, verbose: bool = False) -> Any:
        """Call the first tool that the action calls; without a call, step the environment."""
        called = failed = False
        for tool in self.tools if self.most is None or self.uses < self.most else ():
            called, failed, said, parsed = tool.execute_action(action)
            if called and not failed:
                break
        if not called:
            *result, info = self.env.step(action)
            return *result, info | self._counts(True)
        self.uses, self.successes = self.uses + 1, self.successes + (not failed)
        if self.uses == self.most:
            said += (
                "\n\nReached the maximum number of tool use. Please output final answer directly."
            )
        info = {"parsed_action": parsed, "tool_type": tool.tool_type}
        reward = self.earned[0] + (0.0 if failed else self.earned[1])
        return said, reward, False, False, info | self._counts(True)

    def _counts(self, stepped: bool) -> dict[str, Any]:
        counts = {"tool_use_counter": self.uses, "tool_success_counter": self.successes}
        # Of every step, a tool's or not: ROLL shows what follows in the role of a tool.
        return counts | {"use_tool": stepped}


MODULES = {
    "gem.envs.math_env": "MathEnv",
    "gem.envs.qa_env": "QaEnv",
    "gem.envs.code_env": "CodeEnv",
    "gem.tools.base_tool": "BaseTool",
    "gem.tools.python_code_tool": "PythonCodeTool",
    "gem.tools.tool_env_wrapper": "ToolEnvWrapper",
    "gem.utils": "",
    "gem.utils.constants": "TERMINAL_STATE",
    "gem.utils.parsing": "extract_last_boxed_answer extract_code_from_model",
    "gem.utils.sandbox": "run_python",
}
"""Modules of gem-llm, and what ROLL imports of each."""

CALLERS = "cli_env.env deepeyes.env frozen_lake.env gem.math_env gem.qa_env sokoban.env webshop.env"
"""Modules of ROLL's environments that call methods of `gem.Env` unbound."""


def install() -> None:
    """Add the modules; where ROLL calls methods of `gem.Env` unbound, they become LegacyEnv's."""
    for name, members in MODULES.items():
        module = sys.modules[name] = ModuleType(name)
        module.__dict__.update({each: globals()[each] for each in members.split()}, __path__=[])
        parent, _, child = name.rpartition(".")
        setattr(import_module(parent), child, module)
    for name in CALLERS.split():
        path = f"roll.pipeline.agentic.env.{name}"
        after_import(path, lambda module: setattr(module, "Env", LegacyEnv))
