"""GEM environments in the tinker cookbook: `dataset_builder=gem_tinker.cookbook:GemDatasetBuilder`.

Works in any chz launcher of the cookbook. The conversation is a `gem.rollout` transcript: the next
prompt is the previous one, the sampled ids and what the environment said, so that the cookbook
makes one datum of an episode. The cookbook's own trainer adds an episode's rewards up; advantages
per turn come from `gem_tinker.cookbook_train`.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gem_tinker import check_cookbook

try:
    import chz
except ImportError:
    # It comes with the cookbook: the message says how to install that.
    check_cookbook()
    raise

import tinker
from tinker_cookbook.completers import TokenCompleter
from tinker_cookbook.eval.evaluators import SamplingClientEvaluator
from tinker_cookbook.exceptions import AllTrajectoriesFailedError
from tinker_cookbook.rl import types as rl
from tinker_cookbook.rl.metric_util import RLTestSetEvaluator
from tinker_cookbook.rl.rollout_strategy import RolloutResult, RolloutStrategy
from tinker_cookbook.rl.rollouts import do_single_rollout
from tinker_cookbook.tokenizer_utils import get_tokenizer

from gem.errors import ConfigurationError
from gem.rollout import Budget, ChatFormat, Sample
from gem.rollout.environment import STEP_TIMEOUT_S, EnvFailedError, ThreadedEnv
from gem.rollout.play import Episode
from gem.tasks import Task, TaskSet
from gem.training.settings import MAX_FAILED_FRACTION, check_failures
from gem.trajectory import Failure, Trajectory

check_cookbook()


class GemEnv(rl.Env):  # type: ignore[misc]
    """One episode of a task. It ends early where a whole turn no longer fits into the budget."""

    def __init__(self, task: Task, dataset: GemDatasetBuilder, group: int = 0) -> None:
        self.task = task
        self.dataset = dataset
        self.group = group
        self.episode = Episode(
            task, dataset.chat, context=dataset.context, budget=dataset.budget, group=group
        )
        self._env = ThreadedEnv(task.make, dataset.step_timeout_s)

    async def initial_observation(self) -> tuple[tinker.ModelInput, list[int]]:
        """Reset the environment.

        Raises:
            EnvFailedError: It raised, took too long, or its first prompt is too long.
        """
        try:
            self.episode.begin(*await self._env.reset(self.task.seed))
            failure = self.episode.trajectory.failure
            if failure is not None:
                raise EnvFailedError(failure.message, failure.cause)
        except EnvFailedError:
            self.close()
            raise
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
        try:
            step = await self._env.step(text)
        except EnvFailedError:
            self.close()
            raise
        self.episode.advance(step)
        turn = self.episode.trajectory.turns[-1]
        request = self.episode.request
        if request is not None and request.max_tokens < self.dataset.turn_tokens:
            # The cookbook samples whole turns only.
            self.episode.request = None
            self.episode.trajectory.end = "token_budget"
        done = self.episode.request is None
        if done:
            self.close()
        observation, stop = (tinker.ModelInput.empty(), []) if done else self._next()
        numbers = {k: float(v) for k, v in turn.info.items() if isinstance(v, bool | int | float)}
        return rl.StepResult(
            reward=turn.reward,
            episode_done=done,
            next_observation=observation,
            next_stop_condition=stop,
            metrics=numbers,
            logs={"action": text},
        )

    def again(self) -> GemEnv:
        """Return the same episode, not yet begun, with an environment of its own."""
        return GemEnv(self.task, self.dataset, self.group)

    def close(self) -> None:
        """Close the environment, in a thread."""
        self._env.close()

    def _next(self) -> tuple[tinker.ModelInput, list[int]]:
        assert self.episode.request is not None
        ids = self.episode.request.prompt_ids
        return tinker.ModelInput.from_ints(ids), sorted(self.dataset.chat.stop_ids)


@dataclass(frozen=True)
class Played(rl.Trajectory):  # type: ignore[misc]
    """A cookbook trajectory that knows the GEM trajectory it came from."""

    episode: Trajectory = field(default_factory=lambda: Trajectory(Task("", 0)))


@dataclass(frozen=True)
class LeaveOut(RolloutStrategy):  # type: ignore[misc]
    """Tries an episode whose environment failed again, then leaves it out and counts it.

    For `rollout_error_tolerance`. Whatever else fails stops the run.
    """

    retries: int = 1
    episodes: int | None = None
    """Of a batch, if too many failed ones are to stop the run; see `end_batch`."""
    limit: float = MAX_FAILED_FRACTION
    """Largest share of failed episodes in a batch."""
    failures: list[Failure] = field(default_factory=list, compare=False)
    """Of the episodes that were left out so far, in this batch."""

    async def execute(
        self, env_group_builder: rl.EnvGroupBuilder, policy: TokenCompleter
    ) -> RolloutResult:
        """Play the episodes of a group."""
        envs = await env_group_builder.make_envs()
        played = await asyncio.gather(*(self._play(policy, env) for env in envs))
        good = [(t, env) for t, env in zip(played, envs, strict=True) if isinstance(t, Played)]
        errors = [t for t in played if isinstance(t, rl.RolloutError)]
        if not good:
            raise AllTrajectoriesFailedError(
                f"all {len(envs)} episodes of {env_group_builder} failed, the first: "
                f"{errors[0].error_message}"
            )
        return RolloutResult([t for t, _ in good], [env for _, env in good], errors)

    async def _play(self, policy: TokenCompleter, env: GemEnv) -> rl.Trajectory | rl.RolloutError:
        failed: EnvFailedError | None = None
        for attempt in range(self.retries + 1):
            playing = env if attempt == 0 else env.again()
            try:
                trajectory = await do_single_rollout(policy, playing)
            except EnvFailedError as error:
                failed = error
            else:
                return _played(trajectory, playing.episode.trajectory)
            finally:
                playing.close()
        assert failed is not None
        return self.leave_out(failed.failure(self.retries + 1))

    def leave_out(self, failure: Failure) -> rl.RolloutError:
        """Count a failed episode; return what the cookbook's metrics count.

        Raises:
            gem.errors.RolloutError: It is one too many.
        """
        self.failures.append(failure)
        if self.episodes is not None:
            failed = len(self.failures)
            valid = [False] * failed + [True] * (self.episodes - failed)
            check_failures(valid, self.limit, self.failures)
        return rl.RolloutError(error_type=EnvFailedError.__name__, error_message=str(failure))

    def end_batch(self, played: int) -> list[Failure]:
        """Return the failures of a batch with so many valid episodes; count anew.

        Raises:
            gem.errors.RolloutError: Too many episodes are missing.
        """
        for _ in range((self.episodes or 0) - played - len(self.failures)):
            self.leave_out(Failure("engine", "the cookbook lost the episode", 1))
        failures = list(self.failures)
        self.failures.clear()
        return failures


def _played(trajectory: rl.Trajectory, episode: Trajectory) -> Played:
    """Join what the cookbook knows of an episode, the log-probabilities, to what GEM knows."""
    samples = [transition.ac for transition in trajectory.transitions]
    episode.turns = [
        replace(turn, logprobs=list(sample.logprobs))
        for turn, sample in zip(episode.turns, samples, strict=True)
    ]
    return Played(
        trajectory.transitions, trajectory.final_ob, trajectory.stop_reason, episode=episode
    )


@dataclass(frozen=True)
class GemGroupBuilder(rl.EnvGroupBuilder):  # type: ignore[misc]
    """The episodes of one task."""

    task: Task
    dataset: GemDatasetBuilder
    """How to play."""
    size: int
    group: int = 0

    async def make_envs(self) -> Sequence[rl.Env]:
        """Return `size` episodes of the task."""
        return [GemEnv(self.task, self.dataset, self.group) for _ in range(self.size)]

    def logging_tags(self) -> list[str]:
        """Group metrics by environment."""
        return ["gem", self.task.env_id]


@dataclass(frozen=True)
class GemDataset(rl.RLDataset):  # type: ignore[misc]
    """Batches of consecutive tasks."""

    tasks: TaskSet
    dataset: GemDatasetBuilder
    """How to play."""
    groups_per_batch: int
    group_size: int

    def get_batch(self, index: int) -> Sequence[rl.EnvGroupBuilder]:
        """Return batch `index`: the tasks `index * groups_per_batch` and following."""
        first = index * self.groups_per_batch
        tasks = self.tasks[first : first + self.groups_per_batch]
        return [
            GemGroupBuilder(task, self.dataset, self.group_size, group)
            for group, task in enumerate(tasks)
        ]

    def __len__(self) -> int:
        return len(self.tasks) // self.groups_per_batch


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
    step_timeout_s: float | None = STEP_TIMEOUT_S

    async def __call__(self) -> tuple[rl.RLDataset, rl.RLDataset | None]:
        """Return the training set, and the test set if there is one.

        Raises:
            ConfigurationError: A task set is malformed or has less than a batch.
        """
        train = TaskSet.parse(self.train)
        if len(train) < self.groups_per_batch:
            raise ConfigurationError(
                f"train: {self.train!r} has n={len(train)} tasks, fewer than "
                f"groups_per_batch={self.groups_per_batch}"
            )
        test = None if self.test is None else self.test_set(self.test)
        return GemDataset(train, self, self.groups_per_batch, self.group_size), test

    def test_set(self, uri: str) -> GemDataset:
        """Return a task set as one batch with an episode a task."""
        tasks = TaskSet.parse(uri)
        return GemDataset(tasks, self, len(tasks), 1)

    def evaluator(self, uri: str, name: str, retries: int = 1) -> RLTestSetEvaluator:
        """Return what evaluates on a task set.

        Args:
            uri: `gem:<environment id>?n=<episodes>&seed=...`
            name: Prefix of its metrics.
            retries: Further attempts after an environment failed.
        """
        return RLTestSetEvaluator(
            self.test_set(uri), self.turn_tokens, name=name, strategy=LeaveOut(retries)
        )

    @property
    def budget(self) -> Budget:
        """The limits of an episode."""
        return Budget(self.turn_tokens, self.response_tokens, self.prompt_tokens, self.turns)

    @property
    def chat(self) -> ChatFormat:
        """The model's chat format, made once in a process."""
        return _chat(self.model_name, self.system_prompt)


@chz.chz
class GemEvaluatorBuilder:
    """One more task set to evaluate on, for `evaluator_builders`."""

    dataset: GemDatasetBuilder
    """How to play."""
    tasks: str
    """What to play: `gem:...?n=64&seed=...`"""
    name: str
    """Prefix of its metrics."""

    def __call__(self) -> SamplingClientEvaluator:
        """Return the evaluator."""
        return self.dataset.evaluator(self.tasks, self.name)


@functools.lru_cache(maxsize=8)
def _chat(model_name: str, system_prompt: str | None) -> ChatFormat:
    return ChatFormat(get_tokenizer(model_name), system_prompt=system_prompt)
