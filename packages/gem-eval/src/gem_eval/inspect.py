"""Every environment as a task of inspect-ai: `inspect eval gem_eval/env -T id=game:Sudoku-v0-easy`.

inspect-ai finds this module by its entry point; nothing else of gem-eval needs it. A sample is a
task of GEM, an epoch one of its episodes. The solver plays the turns, in the executors of
`gem.executors`; the scorers only read what it left in the sample's store:

- `gem:rewards`: of each turn; `gem:success`: after the last turn.
- `gem:end`: how the episode ended; None if a limit of inspect-ai cut it.
- `gem:waits_for`: `environment` or `model`, what the episode waited for last.
- `gem:failure`: why the environment failed.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

from inspect_ai import Task as InspectTask
from inspect_ai import task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ChatMessageSystem, ChatMessageUser
from inspect_ai.scorer import (
    Metric,
    SampleScore,
    Score,
    Scorer,
    Target,
    Value,
    mean,
    metric,
    scorer,
    stderr,
)
from inspect_ai.solver import Generate, Solver, TaskState, solver

from gem.contract import succeeded
from gem.core import Observation
from gem.errors import ConfigurationError
from gem.executors.asynchronous import AsyncEnv
from gem.executors.held import STEP_TIMEOUT_S, EnvFailedError
from gem.executors.named import check_name
from gem.tasks import Task
from gem_bench.stats import mean_over_tasks, over_tasks
from gem_eval.tasks import parse_tasks


@task
def env(
    id: str,
    n: int | None = None,
    seed: int | None = None,
    turns: int | None = None,
    system: str | None = None,
    executor: str = "thread",
    step_timeout_s: float = STEP_TIMEOUT_S,
) -> InspectTask:
    """Make the task of an environment: `n` samples with consecutive seeds.

    Args:
        id: An environment id, or a task URI, `gem:<id>?<parameter>=<value>`.
        n: Samples, where the URI has no `n`; by default 32.
        seed: First seed, where the URI has none; by default 0.
        turns: Most turns, besides the environment's own limit.
        system: A system message that begins each conversation.
        executor: Where environments run, see `gem.executors.named.make_executor`.
        step_timeout_s: Limit of one `reset` or `step` of an environment, in seconds.

    Raises:
        ConfigurationError: `id` names no single environment, or the executor is unknown.
    """
    parts = parse_tasks([id], episodes=n, seed=seed)
    if len(parts) != 1:
        raise ConfigurationError(f"id={id!r} has {len(parts)} environments; a task has one")
    check_name(executor)
    [part] = parts
    samples = [
        Sample(
            id=sample_id(part.name, each.seed),
            input=f"seed {each.seed} of {part.name}",
            metadata=each.to_dict(),
        )
        for each in part.tasks
    ]
    return InspectTask(
        dataset=MemoryDataset(samples, name=part.name),
        solver=episode(turns, system, executor, step_timeout_s),
        scorer=[success(), episode_return()],
        display_name=part.name,
    )


def sample_id(name: str, seed: int) -> str:
    """Return the id of the sample with this seed of the environment `name`."""
    return f"{name}/{seed}"


@solver
def episode(
    turns: int | None = None,
    system: str | None = None,
    executor: str = "thread",
    step_timeout_s: float = STEP_TIMEOUT_S,
) -> Solver:
    """Play the episode of a sample; the arguments are those of `env`.

    The reply that exceeded a limit of inspect-ai (`--token-limit`, ...) is not played.

    Raises:
        EnvFailedError: The environment failed: an error of the sample, never a score.
    """

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        played = Task.from_dict(state.metadata)
        store = state.store
        rewards: list[float] = []
        state.messages = [] if system is None else [ChatMessageSystem(content=system)]
        world = AsyncEnv(played, step_timeout_s, executor)
        end = None
        try:
            store.set("gem:waits_for", "environment")
            observation, _ = await world.reset(played.seed)
            while end is None:
                store.set("gem:waits_for", "model")
                state.messages.append(ChatMessageUser(content=_text(observation, played)))
                state = await generate(state)
                if state.output.stop_reason == "model_length":
                    if not rewards:
                        message = f"the first prompt is too long: {state.output.error}"
                        raise EnvFailedError(message, "budget")
                    end = "token_budget"
                    break
                store.set("gem:waits_for", "environment")
                result = await world.step(state.output.completion)
                observation, reward, terminated, truncated, info = result
                rewards.append(reward)
                store.set("gem:rewards", list(rewards))
                store.set("gem:success", succeeded(reward, terminated, info))
                if terminated or truncated:
                    end = "terminated" if terminated else "truncated"
                elif turns is not None and len(rewards) >= turns:
                    end = "turn_budget"
            store.set("gem:end", end)
            store.set("gem:final_observation", _text(observation, played))
        except EnvFailedError as error:
            store.set("gem:failure", str(error))
            raise
        finally:
            await world.aclose()
        return state

    return solve


@metric(scores="unreduced")
def interval(share: bool = True) -> Metric:
    """95 % confidence interval of a mean over tasks, as `gem eval` has it; NaN with one task.

    It is computed from all epochs of every sample, so inspect-ai shows it apart from the metrics of
    the samples' means.

    Args:
        share: Of values within [0, 1], such as success (`gem_bench.stats.over_tasks`); else of any
            (`mean_over_tasks`).
    """

    def compute(scores: list[SampleScore]) -> Value:
        tasks: dict[Any, list[float]] = defaultdict(list)
        for each in scores:
            tasks[each.sample_id].append(each.score.as_float())
        values = list(tasks.values())
        found = over_tasks(values) if share else mean_over_tasks(values)
        ends = {"low": found.low, "high": found.high}
        return {name: math.nan if end is None else end for name, end in ends.items()}

    return compute


@scorer(metrics=[mean(), stderr(), interval()])
def success() -> Scorer:
    """Whether the episode succeeded, by what the environment says: 1 or 0."""

    async def score(state: TaskState, target: Target) -> Score:
        _check(state)
        return Score(value=float(state.store.get("gem:success", False)), **_about(state))

    return score


@scorer(metrics=[mean(), stderr(), interval(share=False)], name="return")
def episode_return() -> Scorer:
    """The sum of the episode's rewards."""

    async def score(state: TaskState, target: Target) -> Score:
        _check(state)
        return Score(value=sum(state.store.get("gem:rewards", [])), **_about(state))

    return score


def _check(state: TaskState) -> None:
    """Refuse an episode whose result nobody knows.

    Raises:
        EnvFailedError: Its environment failed, or a limit cut it while its environment worked.
    """
    failure = state.store.get("gem:failure")
    if failure is None and state.store.get("gem:end") is None:
        if state.store.get("gem:waits_for") == "model":
            return
        failure = "a limit cut the episode while its environment worked"
    if failure is not None:
        raise EnvFailedError(failure)


def _about(state: TaskState) -> dict[str, Any]:
    rewards = state.store.get("gem:rewards", [])
    return {
        "explanation": state.store.get("gem:final_observation"),
        "metadata": {"rewards": rewards, "end": state.store.get("gem:end", "limit")},
    }


def _text(observation: Observation, played: Task) -> str:
    if isinstance(observation, str):
        return observation
    if any(part.get("type") != "text" for part in observation):
        raise ConfigurationError(f"{played.env_id} shows images; models are asked by text only")
    return "".join(part.get("text", "") for part in observation)
