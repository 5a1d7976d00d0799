"""What GRPOConfig has no place for, and which values of GRPOConfig can work with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gem.advantage import ADVANTAGES
from gem.errors import ConfigurationError
from gem.tables import setting
from gem.training.settings import Settings, check_group_size

NO_CRITIC = "TRL's GRPOTrainer has no critic; choose rebn, grpo, rloo or reinforce"


def one_row(context: str) -> None:
    """Refuse contexts that make several training rows of an episode."""
    if context != "chat":
        raise ConfigurationError(
            f"{context!r} makes several training rows of an episode, but TRL's batches have one "
            "row per episode: only 'chat' is possible"
        )


@dataclass(frozen=True)
class GemSettings(Settings):
    """How episodes are played, and what becomes of their rewards."""

    context: str = setting("context that builds the prompts", "chat", check=one_row)
    advantage: str = setting("estimator of `gem.advantage`, but `gae`", "rebn", choices=ADVANTAGES)
    gamma: float = setting("discount per turn", 1.0, least=0, most=1)
    group_size: int | None = setting(
        "episodes of a task; by default GRPOConfig's `num_generations`, which cannot be 1",
        None,
        least=1,
    )
    prompt_tokens: int = setting("most tokens of a fresh prompt", 1024, least=1)
    response_tokens: int = setting("most tokens appended to a fresh prompt", 4096, least=1)
    importance_sampling: bool = setting(
        "whether `vllm_importance_sampling_correction`, on by default in TRL, is wanted", False
    )

    def __post_init__(self) -> None:
        self.check()

    def check(self, prefix: str = "gem.") -> None:
        """Raise `ConfigurationError` if a value is wrong or TRL cannot do it."""
        super().check(prefix)
        if self.advantage == "gae":
            raise ConfigurationError(f"{prefix}advantage=gae: {NO_CRITIC}")
        if self.seed is not None:
            raise ConfigurationError(
                f"{prefix}seed: TRL's engines take no seed for a turn; GRPOConfig's seed decides "
                f"the random numbers of a process, got {self.seed}"
            )


def steps_per_iteration(args: Any) -> int:
    """Return the number of optimiser steps that TRL makes of a batch of episodes.

    Args:
        args: A GRPOConfig that `check_config` accepts.
    """
    passes = args.num_iterations * args.steps_per_generation
    return int(passes // args.gradient_accumulation_steps)


def check_config(args: Any, gem: GemSettings) -> None:
    """Refuse a GRPOConfig that would train on something else than the settings say.

    Args:
        args: The GRPOConfig.
        gem: The settings.

    Raises:
        ConfigurationError: The message names the key, its value, why, and what to choose instead.
    """
    group = gem.group_size or args.num_generations
    check_group_size(gem.advantage, "gem.group_size", group)
    steps = steps_per_iteration(args)
    passes = args.num_iterations * args.steps_per_generation
    saved = args.save_steps if args.save_strategy == "steps" else steps
    logged = args.logging_steps if args.logging_strategy == "steps" else None
    for key, refused, reason in (
        (
            "generation_batch_size",
            args.generation_batch_size % group,
            f"the episodes of a batch must be whole groups of {group}",
        ),
        (
            "steps_per_generation",
            passes % args.gradient_accumulation_steps,
            "an optimiser step would mix two batches of episodes: num_iterations * "
            f"steps_per_generation must be a multiple of gradient_accumulation_steps, "
            f"{args.gradient_accumulation_steps}",
        ),
        (
            "save_steps",
            saved % steps,
            "a run that goes on from such a checkpoint would begin in the middle of a batch of "
            f"episodes: it must be a multiple of {steps}, the optimiser steps of a batch",
        ),
        (
            "logging_steps",
            gem.record_dir is not None and logged != 1,
            "gem.record_dir records every iteration: set logging_strategy='steps' and 1",
        ),
        (
            "mask_truncated_completions",
            args.mask_truncated_completions,
            "it judges an episode by its last token; leave it False",
        ),
        (
            "use_transformers_continuous_batching",
            args.use_transformers_continuous_batching,
            "episodes are sampled by generate or by vLLM",
        ),
        (
            "vllm_importance_sampling_correction",
            args.use_vllm and args.vllm_importance_sampling_correction != gem.importance_sampling,
            "TRL's default leaves out whole episodes of which its log-probabilities and vLLM's "
            f"disagree; set it to gem.importance_sampling, {gem.importance_sampling}",
        ),
        (
            "reward_weights",
            args.reward_weights is not None,
            "there is one reward, that of the environment",
        ),
    ):
        if refused:
            raise ConfigurationError(f"GRPOConfig.{key}: {reason}, got {getattr(args, key)!r}")
