"""Settings of adapters: how they play episodes, and the share of failed ones that they accept.

- `Settings`: the keys of every adapter; `DatasetSettings`: also those of trainers that read tasks
  from a file.
- `refuse_values`: settings of a trainer, or of a RunSpec, that cannot work.
- `check_estimator`, `check_group_size`: does the trainer's configuration suit the estimator?
- `check_failures`, `check_episodes`: did too many episodes of a batch fail?
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

from gem import tables
from gem.errors import ConfigurationError, RolloutError
from gem.estimators import estimator
from gem.executors.held import STEP_TIMEOUT_S
from gem.executors.named import check_name
from gem.rollout.match import play_all
from gem.rollout.play import Budget, Sampler, play
from gem.rollout.prompting import Prompting
from gem.rollout.tokens import ChatFormat
from gem.tables import setting
from gem.tasks import Task
from gem.trajectory import Failure, Trajectory
from gem_train.experiment.estimate import Shaping
from gem_train.experiment.metrics import check_info_names
from gem_train.experiment.runspec import MAX_FAILED_FRACTION
from gem_train.packed import check_record

logger = logging.getLogger(__name__)

SettingsT = TypeVar("SettingsT", bound="Settings")
NO_STATE = "rebn with normalise=role compares within roles without one"
Refusal: TypeAlias = tuple[str, bool, str]
"""Name of a setting, whether its value is refused, and why."""


def check_offered(name: str, no_critic: str = "") -> None:
    """Make sure that an estimator is known and that a trainer without state can use it.

    Args:
        name: Name of an estimator.
        no_critic: Why the trainer has no critic; empty if it has one.

    Raises:
        ConfigurationError: The estimator is unknown, keeps a state from batch to batch, or needs
            a critic that the trainer does not have.
    """
    chosen = estimator(name)
    if chosen.keeps_state:
        raise ConfigurationError(f"{name} keeps a state from batch to batch; {NO_STATE}")
    if chosen.needs_critic and no_critic:
        raise ConfigurationError(f"{name} needs a critic; {no_critic}")


class MayFail(Protocol):
    """An episode of a batch, such as `gem.trajectory.Trajectory`."""

    @property
    def failure(self) -> Failure | None:
        """Why the episode failed; None if it did not."""


@dataclass(frozen=True)
class Settings(Prompting, Shaping):
    """How an adapter plays episodes; a subclass may add keys, declared with `setting`."""

    turn_tokens: int | None = setting(
        "most tokens sampled in one turn; by default all that fit into the response", None, least=1
    )
    turns: int | None = setting(
        "most turns of an episode, besides the environment's own limit", None, least=1
    )
    retries: int = setting(
        "further attempts after an environment failed, each with a new environment", 1, least=0
    )
    step_timeout_s: float | None = setting(
        "limit of one environment reset or step in seconds; None for no limit",
        STEP_TIMEOUT_S,
        above=0,
    )
    executor: str | None = setting(
        "where environments run: `thread`, `process:8`, `ray:64`, `remote:<address>`; by default "
        "what GEM_EXECUTOR says, else `thread`",
        None,
        check=check_name,
    )
    seed: int | None = setting(
        "if set, every sampled turn has its own seed, so that the order of requests has no effect",
        None,
        least=0,
    )
    max_failed_fraction: float = setting(
        "share of failed episodes in a batch above which the run stops",
        MAX_FAILED_FRACTION,
        least=0,
        most=1,
    )
    info_metrics: str = setting(
        "numbers in the environments' `info` that are metrics, separated by spaces",
        "",
        check=lambda names: check_info_names(names.split()),
    )
    record_dir: str | None = setting("folder for `gem_train.record` files", None)
    record: str | None = setting(
        "episodes in the record: `all`, `sample:<n>` of every batch, or none with `metrics`; by "
        "default all of a batch below 100 MB, else sample:16, or what GEM_RECORD says",
        None,
        check=check_record,
    )

    @classmethod
    def from_mapping(
        cls: type[SettingsT], table: Mapping[str, Any], prefix: str = "gem."
    ) -> SettingsT:
        """Make and check the settings of a table.

        Args:
            table: Keys and values.
            prefix: What messages put before a key.

        Raises:
            ConfigurationError: A key is unknown, or its value has the wrong type or range.
        """
        settings = tables.build(cls, table, prefix)
        settings.check(prefix)
        return settings

    def check(self, prefix: str = "gem.") -> None:
        """Raise `ConfigurationError` if a value has the wrong type or range.

        Args:
            prefix: What messages put before a key.
        """
        tables.check(self, prefix)

    @property
    def recorded(self) -> dict[str, Any]:
        """Arguments of `gem_train.recording.RunRecording`: which episodes and metrics it keeps."""
        return {"record": self.record, "info": self.info_metrics.split()}

    def limits(self, prompt: int, response: int, turn: int | None = None) -> Budget:
        """Return the limits of an episode.

        Args:
            prompt: Most tokens of a fresh prompt.
            response: Most tokens appended to a fresh prompt.
            turn: Most tokens of a turn by the trainer's own setting; None if it has none.
        """
        sampled = min(self.turn_tokens or response, turn or response, response)
        return Budget(sampled, response, prompt, self.turns)

    async def play(
        self, task: Task, sampler: Sampler, chat: ChatFormat, budget: Budget, *, group: int = 0
    ) -> Trajectory:
        """Play an episode as the settings say; a failed one is logged and returned.

        Args:
            task: The task.
            sampler: The trainer's engine; an object of its own for each episode.
            chat: Token layout of a conversation.
            budget: Limits of the episode.
            group: Number that the episodes of a task share.

        Raises:
            RolloutError: The sampler raised it.
        """
        trajectory = await play(task, sampler, chat, **self._given(budget, group))
        _warn([trajectory])
        return trajectory

    async def play_all(
        self, task: Task, sampler: Sampler, chat: ChatFormat, budget: Budget, *, group: int = 0
    ) -> list[Trajectory]:
        """Play an episode, or with `seat=all` a match: a trajectory for each agent; see `play`."""
        played = await play_all(task, sampler, chat, **self._given(budget, group))
        _warn(played)
        return played

    def _given(self, budget: Budget, group: int) -> dict[str, Any]:
        """Return the keywords of `gem.rollout.play`."""
        same = ("context", "retries", "step_timeout_s", "executor")
        return {"budget": budget, "group": group, **{name: getattr(self, name) for name in same}}


def _warn(played: Iterable[Trajectory]) -> None:
    for trajectory in played:
        if trajectory.failure is not None:
            logger.warning("episode of %s is void: %s", trajectory.task, trajectory.failure)


@dataclass(frozen=True)
class DatasetSettings(Settings):
    """Settings of a trainer that reads its tasks from a file and computes no turn advantages."""

    advantage: str | None = setting(
        "estimator of `gem.estimators`; None leaves the trainer's own in place",
        None,
        check=check_offered,
    )
    prompt_tokens: int = setting("most tokens of a fresh prompt", 1024, least=1)
    task_order: str = setting(
        "`file` plays the rows in their order, which the trainer always shuffles",
        "shuffled",
        choices=("shuffled", "file"),
    )

    def __post_init__(self) -> None:
        self.check()

    def check(self, prefix: str = "gem.") -> None:
        """Raise `ConfigurationError` if a value is wrong or has no effect."""
        super().check(prefix)
        why = "the trainer's own estimators do not use it; choose a gem.advantage"
        unused = [(name, self.advantage is None, why) for name in self.changed]
        refuse_values(vars(self), unused, prefix)

    def check_left_out(self, trajectory: Trajectory, trainer: str) -> None:
        """Stop at a failed training episode if nothing would leave it out of the batch.

        Args:
            trajectory: An episode played for training.
            trainer: Name of the trainer, for the message.

        Raises:
            RolloutError: The episode failed, and the trainer's own estimators are used or no
                episode may fail.
        """
        if trajectory.failure is None:
            return
        reason = f"episode of {trajectory.task} is void: {trajectory.failure}"
        if self.advantage is None:
            raise RolloutError(
                f"{reason}; {trainer}'s own estimators would take it for one of reward 0"
            )
        if self.max_failed_fraction == 0:
            raise RolloutError(f"{reason}; gem.max_failed_fraction is 0")


def refuse_values(values: Mapping[str, Any], found: Iterable[Refusal], prefix: str = "") -> None:
    """Raise for the first setting whose value is refused; what comes after it is not looked at.

    Args:
        values: Of all settings, by name.
        found: What was examined.
        prefix: What the message puts before a name.

    Raises:
        ConfigurationError: A value is refused; the message has the name, the reason and the value.
    """
    for name, refused, reason in found:
        if refused:
            raise ConfigurationError(f"{prefix}{name}: {reason}, got {values[name]!r}")


def check_estimator(advantage: str, key: str, found: str) -> None:
    """Make sure that the trainer has a critic if, and only if, the estimator needs one.

    Args:
        advantage: Name of an estimator.
        key: The trainer's setting that decides whether there is a critic.
        found: Its value: `gae` with a critic, `reinforce` without.

    Raises:
        ConfigurationError: It has another value than the estimator needs.
    """
    needed = "gae" if estimator(advantage).needs_critic else "reinforce"
    if found != needed:
        reason = "creates the critic" if needed == "gae" else "creates no critic"
        raise ConfigurationError(
            f"gem.advantage={advantage} needs {key}={needed}, which {reason} (the computation is "
            f"GEM's); got {found}"
        )


def check_group_size(advantage: str, key: str, size: int) -> None:
    """Make sure that an estimator that compares the episodes of a task has several of them.

    Args:
        advantage: Estimator of `gem.advantage`.
        key: The trainer's setting of the number of episodes.
        size: Its value.

    Raises:
        ConfigurationError: There is only one.
    """
    if estimator(advantage).compares == "group" and size < 2:
        raise ConfigurationError(
            f"gem.advantage={advantage} compares the episodes of a task: {key} must be at least 2, "
            f"got {size}"
        )


def check_episodes(
    episodes: Iterable[MayFail],
    limit: float = MAX_FAILED_FRACTION,
    lost: Sequence[Failure] = (),
    *,
    of: int | None = None,
    batch: str = "this batch",
) -> None:
    """Raise if too many episodes of a batch failed.

    Args:
        episodes: The batch: trajectories, or what a rank knows of other ranks' episodes.
        limit: Largest share of failed episodes with which training goes on.
        lost: Failures of episodes without a trajectory.
        of: Number of episodes of a batch that is not complete: failures that are too many stop
            it without the rest, which is taken to be valid.
        batch: Name of the batch in the message.

    Raises:
        RolloutError: Too many episodes failed, or all. The message lists the causes.
    """
    failures = [*(episode.failure for episode in episodes), *lost]
    valid = [failure is None for failure in failures]
    rest = 0 if of is None else of - len(valid)
    check_failures(valid + [True] * rest, limit, failures, batch=batch)


def check_failures(
    valid: Sequence[bool],
    limit: float = MAX_FAILED_FRACTION,
    failures: Iterable[Failure | None] = (),
    *,
    batch: str = "this batch",
) -> int:
    """Return the number of failed episodes in a batch; raise if there are too many.

    Args:
        valid: For each episode of the batch, whether it did not fail.
        limit: Largest share of failed episodes with which training goes on.
        failures: Known failures; None is ignored.
        batch: Name of the batch in the message.

    Raises:
        RolloutError: Too many episodes failed, or all. The message lists the causes.
    """
    failed = sum(not each for each in valid)
    # The quotient is the float that a limit such as 0.29 is; the product need not be the count.
    if failed == len(valid) or failed / len(valid) > limit:
        raise RolloutError(
            f"{failed} of {len(valid)} episodes of {batch} failed; at most a share of "
            f"{limit:g} may. {failure_reasons(failures) or 'The reasons are in the log.'}"
        )
    return failed


def failure_reasons(failures: Iterable[Failure | None]) -> str:
    """Return the number of failures by cause as text, with a message for each cause; may be empty.

    Args:
        failures: Failures of a batch; None is ignored.
    """
    messages: dict[str, list[str]] = {}
    for failure in failures:
        if failure is not None:
            messages.setdefault(failure.cause, []).append(failure.message)
    causes = (f"{cause} {len(each)} ({each[0]})" for cause, each in messages.items())
    return f"By cause: {', '.join(causes)}." if messages else ""
