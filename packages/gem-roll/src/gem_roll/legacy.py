"""The names of gem-llm 0.0.4 that ROLL imports, so that ROLL's own environments run beside GEM's.

gem-llm and gem-core are both imported as `gem`, so ROLL finds gem-core; `install` adds what ROLL
imports of the other, with the behaviour of version 0.0.4 that ROLL relies on. It must run before
ROLL's modules are imported, in every process that plays ROLL's environments, which this does:

    train_env_manager: {worker_cls: gem_roll.legacy_worker.LegacyEnvironmentWorker}

Not included is `gem.tools.search_tool`: GEM's own environments have that tool.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

from gem.core import Env
from gem.grading import qa
from gem.grading.formats import ANSWER_TAG, BOXED, FENCED_CODE
from gem_math import grading
from gem_sandbox import Limits, resolve
from gem_sandbox.grading import code
from gem_train.imports import after_import

TERMINAL_STATE = "<｜TERMINAL_STATE｜>"
"""Observation after the last turn."""


class LegacyEnv(Env):
    """`gem.Env` as ROLL's environments call it unbound, often without its `__init__`."""

    def reset(self, seed: int | None = None, **_: Any) -> tuple[str, dict[str, Any]]:
        """Seed the global generators, from which ROLL's environments draw."""
        if seed is not None:
            random.seed(seed)
            np.random.seed(seed % 2**32)
        return "", {}


class DatasetEnv(LegacyEnv):
    """What the environments of data sets have in common: a question an episode."""

    def __init__(self, **given: Any) -> None:
        """Load the data set `dataset_name`, if no `dataset` is given, and shuffle it by `seed`."""
        from datasets import load_dataset

        dataset = given["dataset"] or load_dataset(given["dataset_name"])
        if hasattr(dataset, "keys"):
            [split] = [given["split"]] if given["split"] else [*dataset.keys()]
            dataset = dataset[split]
        self.given, self.seed, self.idx, self.epoch = given, given["seed"], 0, 0
        self.question_key = given["question_key"]
        self.answer_key = given.get("answer_key") or given["test_key"]
        self.dataset = dataset.shuffle(seed=self.seed)

    def reset(self, seed: int | None = None, **_: Any) -> tuple[str, dict[str, Any]]:
        """Ask the question that belongs to the seed, or the next one."""
        if seed is not None:
            # Of the seed alone: other threads draw from the global generator meanwhile.
            self.idx = random.Random(seed).randrange(len(self.dataset))
        row = self.dataset[self.idx % len(self.dataset)]
        self.idx += 1
        self.first_obs, self.answer = row[self.question_key], row[self.answer_key]
        return self.first_obs, {}


class MathEnv(DatasetEnv):
    """Base class of `roll_math`, which extracts answers itself."""

    @staticmethod
    def check_correct(model_answer: str, gt_answer: Any) -> bool:
        """Whether an extracted answer means the same as the right one, or one of several."""
        return grading.grade(model_answer, gt_answer).correct

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

    def __init__(self, **given: Any) -> None:
        """Load the data set and put the instruction around its questions."""
        super().__init__(**given)
        key, cached = self.question_key, given["load_from_cache_file"]
        self.dataset = self.dataset.map(
            lambda row: {key: self.PROMPT.format(row[key])}, load_from_cache_file=cached
        )
        self.extractor = (BOXED if given["extract_boxed"] else ANSWER_TAG).extract

    @staticmethod
    def check_correct(model_answer: str, gt_answer: Any) -> bool:
        """Whether an extracted answer is the right one, or one of several."""
        golds = gt_answer if isinstance(gt_answer, list) else [gt_answer]
        return qa.grade(model_answer, [str(gold) for gold in golds]).correct


class CodeEnv(DatasetEnv):
    """Base class of `roll_code`."""

    def _check_correct(self, model_code: str) -> bool:
        runner, most = _runner(self.given["sandbox_type"]), self.given["max_tests"]
        return code.grade(model_code, self.answer, runner=runner, max_tests=most).correct


extract_last_boxed_answer, extract_code_from_model = BOXED.extract, FENCED_CODE.extract


def run_python(code: str, sandbox_type: str, stdin: str | None = None, timeout: float = 10) -> Any:
    """Run a program; return whether it succeeded, and what it wrote on stdout and stderr."""
    result = resolve(_runner(sandbox_type)).run(code, stdin or "", Limits(cpu_s=timeout))
    return result.exit_code == 0 and not result.limit_hit, result.stdout, result.stderr


def _runner(sandbox_type: str) -> str:
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
        self.timeout, self.sandbox_type = timeout, sandbox_type
        self.keep_error_last_line = keep_error_last_line


class ToolEnvWrapper(LegacyEnv):
    """Base class of ROLL's own: asks the tools before the environment, and counts."""

    def __init__(self, env: Any, tools: Sequence[Any], **given: Any) -> None:
        """Keep environment and tools, and of `given` what calls earn and how many there may be."""
        self.env, self.tools, self.given = env, tools, given
        self.counts = {"tool_use_counter": 0, "tool_success_counter": 0, "use_tool": False}

    def reset(self, seed: int | None = None, **_: Any) -> tuple[str, dict[str, Any]]:
        """Reset the environment; the observation ends with the tools' instructions."""
        self.counts = {"tool_use_counter": 0, "tool_success_counter": 0, "use_tool": False}
        observation, info = self.env.reset(seed=seed)
        texts = [tool.instruction_string() for tool in self.tools]
        heading = ["Available tools:"] if len(texts) > 1 else []
        return "\n".join([observation, *heading, *texts]), info | self.counts

    def step(self, action: str, verbose: bool = False) -> Any:
        """Call the first tool that the action calls; without a call, step the environment."""
        most, counts = self.given.get("max_tool_uses", 10), self.counts
        # In every step, a tool's or not: ROLL shows what follows in the role of a tool.
        counts["use_tool"] = True
        called = failed = False
        for tool in self.tools if most is None or counts["tool_use_counter"] < most else ():
            called, failed, said, parsed = tool.execute_action(action)
            if called and not failed:
                break
        if not called:
            *result, info = self.env.step(action)
            return *result, info | counts
        counts["tool_use_counter"] += 1
        counts["tool_success_counter"] += not failed
        if counts["tool_use_counter"] == most:
            said += (
                "\n\nReached the maximum number of tool use. Please output final answer directly."
            )
        reward = self.given.get("tool_reward", 0.0)
        reward += 0.0 if failed else self.given.get("tool_success_reward", 0.0)
        info = {"parsed_action": parsed, "tool_type": tool.tool_type}
        return said, reward, False, False, info | counts


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
        after_import(f"roll.pipeline.agentic.env.{name}", lambda m: setattr(m, "Env", LegacyEnv))
