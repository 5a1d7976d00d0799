"""What an agent file says, and which OpenRLHF flags can work with it."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from gem.advantage import ADVANTAGES
from gem.errors import ConfigurationError
from gem.rollout import Budget
from gem.training import settings as common

TASK_ORDERS = ("shuffled", "file")
DEFAULT_CLIP_RANGE = (-10, 10)
"""OpenRLHF's default of `--reward.clip_range`."""


@dataclass(frozen=True)
class Settings(common.Settings):
    """Settings of an agent file; those that need the worker hook say so."""

    advantage: str | None = None
    """Estimator of `gem.advantage`; None leaves OpenRLHF's own in place. Needs the hook."""
    prompt_tokens: int = 1024
    """Most tokens of the first prompt; the rest of `--data.max_len` is for everything after."""
    top_k: int = -1
    """Number of candidates when sampling, for which OpenRLHF has no flag; -1 is all."""
    task_order: str = "shuffled"
    """`file` plays the dataset in its order, which OpenRLHF always shuffles. Needs the hook."""

    def __post_init__(self) -> None:
        self.check()

    def check(self, prefix: str = "gem.") -> None:
        """Raise `ConfigurationError` if a value is of the wrong type or range."""
        super().check(prefix)
        if self.context != "chat":
            raise ConfigurationError(
                f"gem.context={self.context!r} makes several training rows of an episode, but "
                "OpenRLHF knows one row per episode: only 'chat' is possible"
            )
        if self.advantage is not None and self.advantage not in ADVANTAGES:
            raise ConfigurationError(
                f"gem.advantage must be one of {', '.join(ADVANTAGES)}, got {self.advantage!r}"
            )
        if self.task_order not in TASK_ORDERS:
            raise ConfigurationError(
                f"gem.task_order must be one of {', '.join(TASK_ORDERS)}, got {self.task_order!r}"
            )
        if self.prompt_tokens < 1:
            raise ConfigurationError(
                f"gem.prompt_tokens must be at least 1, got {self.prompt_tokens}"
            )
        if self.top_k != -1 and self.top_k < 1:
            raise ConfigurationError(f"gem.top_k must be -1 or at least 1, got {self.top_k}")

    def needs_hook(self) -> list[str]:
        """Return the settings that work only with the worker hook."""
        asked = {
            "advantage": self.advantage is not None,
            "task_order": self.task_order != "shuffled",
            "record_dir": self.record_dir is not None,
        }
        return [name for name, needed in asked.items() if needed]

    def budget(self, max_len: int, max_new_tokens: int | None) -> Budget:
        """Return the limits of an episode.

        Args:
            max_len: OpenRLHF's `--data.max_len`.
            max_new_tokens: OpenRLHF's `--rollout.max_new_tokens`, which limits a turn.

        Raises:
            ConfigurationError: Nothing is left for the response.
        """
        response = max_len - self.prompt_tokens
        if response < 1:
            raise ConfigurationError(
                f"gem.prompt_tokens={self.prompt_tokens} leaves no token for the response: "
                f"--data.max_len is {max_len}"
            )
        turn = min(self.turn_tokens or response, max_new_tokens or response, response)
        return Budget(turn, response, self.prompt_tokens, self.turns)


def load_settings(agent_file: str | None) -> Settings | None:
    """Return the settings in an agent file; None if its executor is not GEM's.

    Args:
        agent_file: OpenRLHF's `--train.agent_func_path`.
    """
    if not agent_file:
        return None
    try:
        source = Path(agent_file).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"--train.agent_func_path: {error}") from error
    return _settings(agent_file, source)


@functools.cache
def _settings(agent_file: str, source: bytes) -> Settings | None:
    # A file that registers environments cannot be run twice in a process.
    module = ModuleType("gem_openrlhf_agent_file")
    module.__file__ = agent_file
    exec(compile(source, agent_file, "exec"), module.__dict__)
    settings = getattr(getattr(module, "AgentExecutor", None), "settings", None)
    return settings if isinstance(settings, Settings) else None


def check_flags(args: Any, settings: Settings) -> None:
    """Refuse OpenRLHF flags that would train on something else than the agent file says.

    Args:
        args: OpenRLHF's parsed command line.
        settings: Of the agent file.

    Raises:
        ConfigurationError: The message names the flag, why, and what to choose instead.
    """
    settings.budget(args.data.max_len, args.rollout.max_new_tokens)
    _check_batches(args)
    if settings.record_dir is not None:
        if not args.logger.tensorboard_dir:
            raise ConfigurationError(
                "gem.record_dir takes the trainer's metrics from its TensorBoard logger: set "
                "--logger.tensorboard_dir"
            )
        if args.logger.logging_steps != 1:
            raise ConfigurationError(
                "gem.record_dir records every iteration: --logger.logging_steps must be 1, got "
                f"{args.logger.logging_steps}"
            )
    if settings.advantage is not None:
        _check_advantage(args, settings.advantage)
        if args.algo.dynamic_filtering_enable and settings.max_failed_fraction:
            raise ConfigurationError(
                "--algo.dynamic_filtering_enable takes a failed episode for one of reward 0; "
                "with gem.max_failed_fraction=0 the run stops at the first one instead"
            )


def _check_batches(args: Any) -> None:
    if args.train.dynamic_batch_enable:
        return
    ranks = args.actor.num_nodes * args.actor.num_gpus_per_node
    ranks //= args.ds.ring_attn_size * args.ds.tensor_parallel_size
    rows = args.rollout.batch_size * args.rollout.n_samples_per_prompt
    if rows % (ranks * args.train.micro_batch_size):
        raise ConfigurationError(
            f"--train.micro_batch_size {args.train.micro_batch_size}: a batch has {rows} episodes "
            f"for {ranks} ranks, and OpenRLHF would drop those of an incomplete micro-batch"
        )


def check_dataset(args: Any, tasks: int) -> None:
    """Refuse a dataset whose last batch would be smaller than the others.

    Args:
        args: OpenRLHF's parsed command line.
        tasks: Rows of the dataset that will be used.

    Raises:
        ConfigurationError: The message says which size fits.
    """
    size = args.rollout.batch_size
    if tasks % size:
        raise ConfigurationError(
            f"--data.prompt_dataset: {tasks} tasks are no multiple of --rollout.batch_size {size}; "
            f"make {tasks // size * size or size} of them, or set --data.max_samples"
        )


def _check_advantage(args: Any, name: str) -> None:
    flags = args.algo.advantage
    needed = "gae" if name == "gae" else "reinforce"
    if flags.estimator != needed:
        reason = "creates the critic" if needed == "gae" else "creates no critic and asks nothing"
        raise ConfigurationError(
            f"gem.advantage={name!r} needs --algo.advantage.estimator {needed}, which {reason} "
            f"(the computation is GEM's); got {flags.estimator}"
        )
    if name in ("grpo", "rloo") and args.rollout.n_samples_per_prompt < 2:
        raise ConfigurationError(
            f"gem.advantage={name!r} compares the episodes of a task: "
            "--rollout.n_samples_per_prompt must be at least 2"
        )
    if flags.no_std_norm and name != "grpo":
        raise ConfigurationError(
            f"--algo.advantage.no_std_norm means nothing to gem.advantage={name!r}; it works with "
            "'grpo'"
        )
    if tuple(args.reward.clip_range) != DEFAULT_CLIP_RANGE:
        raise ConfigurationError(
            "--reward.clip_range clips the sum of an episode's rewards, which GEM's advantages "
            "do not use; clip in the environment (gem.wrappers) and leave the flag out"
        )
