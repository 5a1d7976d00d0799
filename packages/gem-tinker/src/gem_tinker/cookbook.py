"""GEM environments in the tinker cookbook: `dataset_builder=gem_tinker.cookbook:GemDatasetBuilder`.

Works in any chz launcher of the cookbook. The conversation is a `gem.rollout` transcript: the next
prompt is the previous one, the sampled ids and what the environment said, so that the cookbook
makes one datum of an episode. The cookbook's own trainer adds an episode's rewards up; advantages
per turn come from `gem_tinker.cookbook_train`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from gem_tinker import check_cookbook

check_cookbook()  # Before the imports: its message says how to install what they need.

import chz
import tinker
from tinker_cookbook.completers import TokenCompleter
from tinker_cookbook.exceptions import AllTrajectoriesFailedError
from tinker_cookbook.rl import metric_util, rollout_strategy
from tinker_cookbook.rl import types as rl
from tinker_cookbook.rl.rollouts import do_single_rollout
from tinker_cookbook.tokenizer_utils import get_tokenizer

from gem.blame import boundary
from gem.errors import ConfigurationError
from gem.executors.asynchronous import AsyncEnv
from gem.executors.held import STEP_TIMEOUT_S, EnvFailedError
from gem.rollout import (
    Budget,
    ChatFormat,
    Episode,
    Prompting,
    Sample,
    check_logprobs,
    together,
)
from gem.tasks import Task
from gem.trajectory import Failure, Trajectory
from gem_train import settings
from gem_train.experiment.mixtures import Tasks, parse_tasks


class GemEnv(rl.Env):  # type: ignore[misc]
    """One episode of a task. It ends early where a whole turn no longer fits into the budget."""

    def __init__(self, task: Task, dataset: GemDatasetBuilder, group: int = 0) -> None:
        self.task = task
        self.dataset = dataset
        self.episode = dataset.episode(task, group)
        self._env = AsyncEnv(task, dataset.step_timeout_s, dataset.executor)

    async def initial_observation(self) -> tuple[tinker.ModelInput, list[int]]:
        """Reset the environment.

        Raises:
            EnvFailedError: It raised, took too long, or its first prompt is too long.
        """
        self.episode.begin(*await self._env.reset(self.task.seed))
        failure = self.episode.trajectory.failure
        if failure is not None:
            self.close()
            raise EnvFailedError(failure.message, failure.cause)
        return self._next()

    async def step(
        self, action: rl.Action, *, extra: rl.ActionExtra | None = None
    ) -> rl.StepResult:
        """Take the sampled ids of a turn.

        Raises:
            EnvFailedError: The environment raised or took too long.
            gem.errors.RolloutError: More was sampled than a turn may have.
        """
        cut = (extra or {}).get("stop_reason") == "length"
        text = self.episode.receive(Sample(list(action), None, "length" if cut else "stop"))
        self.episode.advance(await self._env.step(text))
        trajectory, request = self.episode.trajectory, self.episode.request
        if request is not None and request.max_tokens < self.dataset.turn_tokens:
            # The cookbook samples whole turns only.
            self.episode.request = None
            trajectory.end = "token_budget"
        turn = trajectory.turns[-1]
        observation, stop = self._next()
        return rl.StepResult(
            reward=turn.reward,
            episode_done=self.episode.request is None,
            next_observation=observation,
            next_stop_condition=stop,
            metrics={k: float(v) for k, v in turn.info.items() if isinstance(v, int | float)},
            logs={"action": text},
        )

    def close(self) -> None:
        """Close the environment, in a thread."""
        self._env.close()

    def _next(self) -> tuple[tinker.ModelInput, list[int]]:
        """Return the next prompt and the tokens at which a turn ends; close if it is over."""
        request = self.episode.request
        if request is None:
            self.close()
            return tinker.ModelInput.empty(), []
        return tinker.ModelInput.from_ints(request.prompt_ids), sorted(self.dataset.chat.stop_ids)


@dataclass(frozen=True)
class Played(rl.Trajectory):  # type: ignore[misc]
    """A cookbook trajectory that knows the GEM trajectory it came from."""

    episode: Trajectory = field(kw_only=True)


@dataclass(frozen=True)
class LeaveOut(rollout_strategy.RolloutStrategy):  # type: ignore[misc]
    """Tries an episode whose environment failed again, then leaves it out and counts it.

    For `rollout_error_tolerance`. Whatever else fails stops the run.
    """

    retries: int = 1
    episodes: int | None = None
    """Of a batch, if too many failed ones are to stop the run; see `end_batch`."""
    limit: float = settings.Settings.max_failed_fraction
    """Largest share of failed episodes in a batch."""
    failures: list[Failure] = field(default_factory=list, compare=False)
    """Of the episodes that were left out so far, in this batch."""

    async def execute(
        self, env_group_builder: rl.EnvGroupBuilder, policy: TokenCompleter
    ) -> rollout_strategy.RolloutResult:
        """Play the episodes of a group."""
        envs = await env_group_builder.make_envs()
        played = await together([self._play(policy, env) for env in envs])
        good = {env: t for env, t in zip(envs, played, strict=True) if isinstance(t, Played)}
        errors = [t for t in played if isinstance(t, rl.RolloutError)]
        if not good:
            found = f"all episodes of {env_group_builder} failed: {errors[0].error_message}"
            raise AllTrajectoriesFailedError(found)
        return rollout_strategy.RolloutResult([*good.values()], [*good], errors)

    async def _play(self, policy: TokenCompleter, env: GemEnv) -> Played | rl.RolloutError:
        attempts = 0
        while True:
            try:
                return _played(await do_single_rollout(policy, env), env.episode.trajectory)
            except EnvFailedError as error:
                attempts += 1
                if attempts > self.retries:
                    self.leave_out(error.failure(attempts))
                    return rl.RolloutError(type(error).__name__, str(self.failures[-1]))
            finally:
                env.close()
            env = GemEnv(env.task, env.dataset, env.episode.trajectory.group)

    def leave_out(self, *failures: Failure) -> None:
        """Count failed episodes.

        Raises:
            gem.errors.RolloutError: It is one too many.
        """
        self.failures.extend(failures)
        if self.episodes is not None:
            settings.check_episodes([], self.limit, self.failures, of=self.episodes)

    def end_batch(self, played: int) -> list[Failure]:
        """Return the failures of a batch with so many valid episodes; count anew.

        Raises:
            gem.errors.RolloutError: Too many episodes are missing.
        """
        missing = (self.episodes or 0) - played - len(self.failures)
        self.leave_out(*[Failure("engine", "the cookbook lost the episode", 1)] * missing)
        failures = list(self.failures)
        self.failures.clear()
        return failures


class GemEvaluator(metric_util.RLTestSetEvaluator):  # type: ignore[misc]
    """The cookbook's evaluator, whose `LeaveOut` counts the failures of one evaluation."""

    async def __call__(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate.

        Raises:
            gem.errors.RolloutError: Too many episodes failed.
        """
        self.strategy.failures.clear()
        metrics: dict[str, float] = await super().__call__(*args, **kwargs)
        return metrics


def _played(found: rl.Trajectory, episode: Trajectory) -> Played:
    """Join what the cookbook knows of an episode, the log-probabilities, to what GEM knows.

    Raises:
        gem.errors.RolloutError: They are none.
    """
    for transition in found.transitions:
        with boundary("engine"):
            check_logprobs(transition.ac.logprobs)
    episode.turns = [
        replace(turn, logprobs=list(transition.ac.logprobs))
        for turn, transition in zip(episode.turns, found.transitions, strict=True)
    ]
    return Played(found.transitions, found.final_ob, found.stop_reason, episode=episode)


@dataclass(frozen=True)
class GemGroupBuilder(rl.EnvGroupBuilder):  # type: ignore[misc]
    """The episodes of one task."""

    task: Task
    dataset: GemDatasetBuilder
    """How to play, and how many episodes."""
    group: int = 0

    async def make_envs(self) -> Sequence[rl.Env]:
        """Return `group_size` episodes of the task."""
        return [GemEnv(self.task, self.dataset, self.group) for _ in range(self.dataset.group_size)]

    def logging_tags(self) -> list[str]:
        """Group metrics by environment."""
        return ["gem", self.task.env_id]


@dataclass(frozen=True)
class GemDataset(rl.RLDataset):  # type: ignore[misc]
    """Batches of consecutive tasks."""

    tasks: Tasks
    dataset: GemDatasetBuilder
    """How to play, and the size of a batch."""

    def get_batch(self, index: int) -> Sequence[rl.EnvGroupBuilder]:
        """Return batch `index`: the tasks `index * groups_per_batch` and following."""
        size = self.dataset.groups_per_batch
        tasks = self.tasks[index * size : (index + 1) * size]
        return [GemGroupBuilder(task, self.dataset, group) for group, task in enumerate(tasks)]

    def __len__(self) -> int:
        return len(self.tasks) // self.dataset.groups_per_batch


@chz.chz
class GemDatasetBuilder(rl.RLDatasetBuilder):  # type: ignore[misc]
    """The dataset; `turn_tokens` must be the launcher's `max_tokens`."""

    model_name: str
    train: str
    """`gem:<environment id>?n=<tasks>&seed=...&<parameter>=<value>`"""
    turn_tokens: int
    test: str | None = None
    """A task set to evaluate on."""
    groups_per_batch: int = 16
    group_size: int = 8
    prompt_tokens: int = 1024
    response_tokens: int = 4096
    turns: int | None = None
    context: str = "chat"
    system_prompt: str | None = None
    template_kwargs: Mapping[str, Any] | None = None
    thinking: str = "keep"
    step_timeout_s: float | None = STEP_TIMEOUT_S
    executor: str | None = None
    info_metrics: str = ""

    async def __call__(self) -> tuple[rl.RLDataset, rl.RLDataset | None]:
        """Return the training set, and the test set if there is one.

        Raises:
            ConfigurationError: A task set is malformed or has less than a batch.
        """
        train, size = parse_tasks(self.train), self.groups_per_batch
        if len(train) < size:
            raise ConfigurationError(f"train: n={len(train)} is less than groups_per_batch={size}")
        return GemDataset(train, self), None if self.test is None else self.test_set(self.test)

    def test_set(self, uri: str) -> GemDataset:
        """Return a task set as one batch with an episode a task."""
        tasks = parse_tasks(uri)
        return GemDataset(tasks, chz.replace(self, groups_per_batch=len(tasks), group_size=1))

    def evaluator(
        self,
        uri: str,
        name: str,
        retries: int = 1,
        limit: float = settings.Settings.max_failed_fraction,
    ) -> GemEvaluator:
        """Return what evaluates on a task set.

        Args:
            uri: `gem:<environment id>?n=<episodes>&seed=...`
            name: Prefix of its metrics.
            retries: Further attempts after an environment failed.
            limit: Largest share of failed episodes.
        """
        tasks = self.test_set(uri)
        strategy = LeaveOut(retries, len(tasks.tasks), limit)
        return GemEvaluator(tasks, self.turn_tokens, name=name, strategy=strategy)

    def episode(self, task: Task, group: int) -> Episode:
        """Return an episode that has not begun."""
        budget = Budget(self.turn_tokens, self.response_tokens, self.prompt_tokens, self.turns)
        return Episode(task, self.chat, context=self.context, budget=budget, group=group)

    @property
    def chat(self) -> ChatFormat:
        """The model's chat format, made once in a process."""
        prompting = {key.name: getattr(self, key.name) for key in fields(Prompting)}
        return _chat(self.model_name, json.dumps(prompting))


@chz.chz
class GemEvaluatorBuilder:
    """One more task set to evaluate on, for `evaluator_builders`."""

    dataset: GemDatasetBuilder
    """How to play."""
    tasks: str
    """What to play: `gem:...?n=64&seed=...`"""
    name: str
    """Prefix of its metrics."""

    def __call__(self) -> GemEvaluator:
        """Return the evaluator."""
        return self.dataset.evaluator(self.tasks, self.name)


@functools.lru_cache(maxsize=8)
def _chat(model_name: str, prompting: str) -> ChatFormat:
    return Prompting(**json.loads(prompting)).chat_format(get_tokenizer(model_name))
