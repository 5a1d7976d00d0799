"""oat's arguments and GEM's beside them, and which of them can work together."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, Optional

import tyro
from oat.algorithms.ppo import PPOArgs
from oat.args import default_args_validation

from gem.errors import ConfigurationError
from gem.rollout import Budget
from gem.rollout.environment import STEP_TIMEOUT_S
from gem.tasks import TaskSet
from gem.training.settings import MAX_FAILED_FRACTION
from gem.training.tasksets import Source, parse_sources

FORWARD_TOKENS = 8192
"""Default of `Args.gem_forward_tokens`."""


@dataclass
class Args(PPOArgs):  # type: ignore[misc]
    """oat's arguments with other defaults for four of them, and GEM's."""

    # Tasks to train on: gem:<environment id>?seed=...&<parameter>=<value>; n is not looked at.
    gem_tasks: str = ""
    # Task sets to evaluate on, separated by spaces: gem:...?n=64#name=...&temperature=...
    gem_eval: str = ""
    # Estimator of gem.advantage; gae needs --critic_type ppo.
    gem_advantage: Literal["reinforce", "rebn", "grpo", "rloo", "gae"] = "rebn"
    # Mean over the sampled tokens of an optimiser step, or sum over tokens and mean over rows.
    gem_loss_aggregation: Literal["token-mean", "row-mean-token-sum"] = "token-mean"
    # What the policy is shown: chat, concat, concat_with_action, window:<k>.
    gem_context: str = "chat"
    # Text of a system message before everything else.
    gem_system_prompt: Optional[str] = None  # noqa: UP045 (tyro on Python 3.10)
    # Most turns of an episode, besides the environment's own limit.
    gem_turns: Optional[int] = None  # noqa: UP045
    # Further attempts, each with a new environment, after an environment failed.
    gem_retries: int = 1
    # Limit of one environment reset or step in seconds; None for no limit.
    gem_step_timeout_s: Optional[float] = STEP_TIMEOUT_S  # noqa: UP045
    # Seed every sampled turn on its own, so that a run can be repeated.
    gem_seed: Optional[int] = None  # noqa: UP045
    # Share of failed episodes in a batch above which the run stops.
    gem_max_failed_fraction: float = MAX_FAILED_FRACTION
    # Most tokens, padding included, in one forward pass of the learner; at least one row.
    gem_forward_tokens: int = FORWARD_TOKENS
    # Folder for gem.training.record files.
    gem_record_dir: Optional[str] = None  # noqa: UP045

    # Episodes of each task.
    num_samples: int = 1
    # Weight of the KL penalty (k3) to the initial policy.
    beta: float = 0.0
    # Named by --gem_tasks and --gem_eval instead.
    prompt_data: str = ""
    oracle: str = ""

    @property
    def iterations(self) -> int:
        """Batches to train on."""
        return int(self.max_train) // int(self.rollout_batch_size)

    @property
    def episodes(self) -> int:
        """Episodes of an iteration."""
        return int(self.rollout_batch_size) * int(self.num_samples)

    @property
    def minibatches(self) -> int:
        """Optimiser steps of a pass over a batch."""
        return self.episodes // int(self.train_batch_size)

    @property
    def learners(self) -> int:
        """Data-parallel ranks."""
        gpus = int(self.gpus)
        return (gpus if self.collocate or gpus == 1 else (gpus + 1) // 2) * int(self.num_groups)

    def train_tasks(self) -> TaskSet:
        """All tasks of the run, `rollout_batch_size` an iteration."""
        first = TaskSet.parse(self.gem_tasks)
        n = self.iterations * int(self.rollout_batch_size)
        return TaskSet(first.env_id, n, first.seed, first.params)

    def sources(self) -> list[Source]:
        """What is evaluated on.

        Raises:
            ConfigurationError: One is malformed, or two have the same name.
        """
        return parse_sources(self.gem_eval.split(), "--gem_eval")

    def budget(self, *, evaluation: bool = False) -> Budget:
        """Limits of an episode."""
        turn = self.eval_generate_max_length if evaluation else self.generate_max_length
        room = int(self.max_model_len) - int(self.prompt_max_length)
        return Budget(min(int(turn), room), room, int(self.prompt_max_length), self.gem_turns)


REFUSED: dict[str, str] = {
    "whiten_adv": "--gem_advantage rebn normalises once, over all turns of all ranks",
    "whiten_rewards": "--gem_advantage rebn normalises once, over all turns of all ranks",
    "reward_scale": "scale rewards in the environment (gem.wrappers)",
    "kl_penalty_coef": "a KL penalty is a term of the loss here: --beta",
    "non_stop_penalty": "rewards are the environment's",
    "non_stop_fixed_reward": "rewards are the environment's",
    "reinforce_update": "oat 0.2 divides by zero with it; with one optimiser step a batch the "
    "clipped surrogate has REINFORCE's gradient",
    "ignore_no_eos": "every sampled token is trained on",
    "asynchronous": "every batch is sampled by the policy that it trains",
    "sync_params_every": "every batch is sampled by the policy that it trains",
    "num_gpus_per_actor": "oat's multi-turn learner knows actors of one GPU only",
    "train_batch_size_per_device": "--gem_forward_tokens decides how many rows are one forward",
    "num_prompt_epoch": "--max_train says how many tasks are trained on; seeds never repeat",
    "max_sgd_steps": "a batch is trained on as a whole",
    "max_queries": "--max_train says how many tasks are trained on",
    "max_epochs": "--num_ppo_epochs is the number of passes over a batch",
    "buffer_clear_every": "every batch is trained on once",
    "eval_n": "an evaluation plays every task once; name more seeds in --gem_eval",
    "apply_chat_template": "the model's chat template is always applied",
    "prompt_data": "--gem_tasks names what is trained on",
    "eval_data": "--gem_eval names what is evaluated on",
    "oracle": "rewards are the environment's",
    "online_evaluation": "--gem_eval names what is evaluated on",
    "best_of_n_eval": "--gem_eval names what is evaluated on",
    "dump_all_buffer": "--gem_record_dir keeps the episodes",
    "dump_replay_every": "--gem_record_dir keeps the episodes",
    "launch_type": "Launchpad's processes are the only kind that oat works with",
}
"""Flags of oat that must keep their defaults, and why."""


def parse(argv: Sequence[str]) -> Args:
    """Read the command line, as oat does, and check it.

    Args:
        argv: Flags; `_` and `-` are the same in their names.

    Raises:
        ConfigurationError: A flag does not go with GEM or with another; the message names it.
    """
    with warnings.catch_warnings():
        # oat has text fields whose default is none.
        warnings.filterwarnings("ignore", message="The field .* is annotated with type")
        args = tyro.cli(Args, args=list(argv), prog="python -m gem_oat")
    check(args)
    return prepare(args)


def check(args: Args) -> None:
    """Refuse flags that would train on something else than they say.

    Raises:
        ConfigurationError: The message names the flag, its value, and what to do instead.
    """
    defaults = {field.name: field.default for field in fields(Args)}
    for name, reason in REFUSED.items():
        if getattr(args, name) != defaults[name]:
            raise ConfigurationError(
                f"--{name} {getattr(args, name)}: {reason}; leave it at {defaults[name]!r}"
            )
    if not args.gem_tasks:
        raise ConfigurationError("--gem_tasks is missing: gem:<environment id>?seed=0&...")
    for name in ("gem_retries", "gem_seed", "beta"):
        if (getattr(args, name) or 0) < 0:
            raise ConfigurationError(f"--{name} must be at least 0, got {getattr(args, name)}")
    for name in ("gem_turns", "gem_step_timeout_s", "gem_forward_tokens", "num_samples"):
        value = getattr(args, name)
        if value is not None and value <= 0:
            raise ConfigurationError(f"--{name} must be above 0, got {value}")
    if not 0 <= args.gem_max_failed_fraction <= 1:
        raise ConfigurationError(
            f"--gem_max_failed_fraction must be within [0, 1], got {args.gem_max_failed_fraction}"
        )
    _check_lengths(args)
    _check_batches(args)
    _check_advantage(args)
    args.train_tasks()
    args.sources()


def prepare(args: Args) -> Args:
    """Fill in what oat derives from other flags."""
    args.algo = "PPO"
    args.rollout_batch_size_per_device = args.rollout_batch_size // args.learners
    # From these two and the number of tasks oat counts the optimiser steps that its learning rate
    # is scheduled over.
    args.max_epochs = args.num_ppo_epochs * args.num_samples
    prepared: Args = default_args_validation(args)
    # oat stops once it has counted more episodes.
    prepared.max_queries = prepared.iterations * prepared.episodes
    return prepared


def _check_lengths(args: Args) -> None:
    if args.max_model_len is None:
        raise ConfigurationError(
            "--max_model_len is missing: the longest episode in tokens, first prompt included"
        )
    if args.prompt_max_length >= args.max_model_len:
        raise ConfigurationError(
            f"--prompt_max_length {args.prompt_max_length} leaves no token for the response: "
            f"--max_model_len is {args.max_model_len}"
        )
    args.budget()
    args.budget(evaluation=True)


def _check_batches(args: Args) -> None:
    size, ranks, default = args.rollout_batch_size, args.learners, PPOArgs()
    if size % ranks:
        raise ConfigurationError(
            f"--rollout_batch_size {size}: tasks do not divide over {ranks} learners"
        )
    per_device = args.rollout_batch_size_per_device
    if per_device not in (default.rollout_batch_size_per_device, size // ranks):
        raise ConfigurationError(
            f"--rollout_batch_size_per_device {per_device}: it is --rollout_batch_size over the "
            f"number of learners, {size // ranks}; leave it out"
        )
    if args.iterations < 1:
        raise ConfigurationError(
            f"--max_train {args.max_train} is less than one iteration (--rollout_batch_size {size})"
        )
    if args.train_batch_size < 1 or args.episodes % args.train_batch_size:
        raise ConfigurationError(
            f"--train_batch_size {args.train_batch_size}: an iteration has {args.episodes} "
            "episodes (--rollout_batch_size * --num_samples), which do not divide into such steps"
        )
    if args.train_batch_size % ranks:
        raise ConfigurationError(
            f"--train_batch_size {args.train_batch_size} does not divide over {ranks} learners"
        )


def _check_advantage(args: Args) -> None:
    name = args.gem_advantage
    if (name == "gae") != (args.critic_type == "ppo"):
        needed = "--critic_type ppo, which makes the critic" if name == "gae" else "no critic"
        raise ConfigurationError(
            f"--gem_advantage {name} needs {needed}; got --critic_type {args.critic_type}"
        )
    if name in ("grpo", "rloo") and args.num_samples < 2:
        raise ConfigurationError(
            f"--gem_advantage {name} compares the episodes of a task: --num_samples must be at "
            "least 2"
        )
    if args.tis_c is not None and args.temperature != 1:
        raise ConfigurationError(
            f"--temperature {args.temperature}: vLLM reports log-probabilities at temperature 1, "
            "which --tis_c would compare with others; set --tis_c None"
        )
    if not math.isfinite(args.temperature) or args.temperature <= 0:
        raise ConfigurationError(
            f"--temperature must be above 0, got {args.temperature}; --top_k 1 is greedy"
        )


def shown(args: Args) -> dict[str, Any]:
    """Return GEM's own arguments, for the record."""
    return {f.name: getattr(args, f.name) for f in fields(args) if f.name.startswith("gem_")}
