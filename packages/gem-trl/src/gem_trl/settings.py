"""What GRPOConfig has no place for, and which values of GRPOConfig can work with it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from gem.tables import setting
from gem_train.experiment.filtering import Filtering
from gem_train.settings import Settings, check_group_size, check_offered, refuse_values

NO_CRITIC = "TRL's GRPOTrainer has no critic"
ONE_ROW = "TRL's batches have one row per episode, it makes several"


@dataclass(frozen=True)
class GemSettings(Settings, Filtering):
    """How episodes are played, and what becomes of their rewards.

    With `extra_batches` = k the dataset to train on has `k + 1` parts of one size; further batches
    are in the later ones, which training must not reach.
    """

    advantage: str = setting(
        "name of an estimator that needs no critic",
        "rebn",
        check=partial(check_offered, no_critic=NO_CRITIC),
    )
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
        no_seeds = "TRL's engines take no seed for a turn; set GRPOConfig's"
        refused = (
            *self.several_rows(ONE_ROW),
            ("seed", self.seed is not None, no_seeds),
        )
        refuse_values(vars(self), refused, prefix)


def steps_per_iteration(args: Any) -> int:
    """Return the number of optimiser steps that TRL makes of a batch of episodes.

    Args:
        args: A GRPOConfig that `check_config` accepts.
    """
    return int(args.num_iterations * args.steps_per_generation // args.gradient_accumulation_steps)


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
    alone = gem.extra_batches is not None and group < 2
    refuse_values(
        {"group_size": group},
        [("group_size", alone, "gem.extra_batches compares the episodes of a task: 2 or more")],
        "gem.",
    )
    steps = max(steps_per_iteration(args), 1)
    passes = args.num_iterations * args.steps_per_generation
    window = args.gradient_accumulation_steps
    corrected = args.use_vllm and args.vllm_importance_sampling_correction
    whole = f"the episodes of a batch must be whole groups of {group}"
    mixed = (
        "an optimiser step would mix two batches of episodes; num_iterations times this must be a "
        f"multiple of gradient_accumulation_steps, {window}"
    )
    middle = f"a run would go on inside a batch; it must be a multiple of {steps}, a batch's steps"
    gaps = "gem.record_dir records every iteration; set it to 1, and logging_strategy to 'steps'"
    lost = (
        "it leaves out whole episodes for which TRL's probabilities and vLLM's differ; set it to "
        "False, or ask for it with gem.importance_sampling=True"
    )
    saving, logged = args.save_strategy == "steps", (args.logging_strategy, args.logging_steps)
    continuous = args.use_transformers_continuous_batching
    judged = "it judges an episode by its last token; leave it False"
    level, advantage = args.importance_sampling_level, gem.advantage
    spread = level == "sequence" and advantage not in ("grpo", "rloo")
    flat = "it gives all tokens of a row the mean of its advantages, and "
    flat += (
        f"{advantage!r} has one for each turn; choose 'token', or gem.advantage 'grpo' or 'rloo'"
    )
    unread = "GEM renders conversations; use gem.template_kwargs"
    stops = "a turn that ends at a text would count as cut off; leave 'stop' and 'stop_strings' out"
    stopping = {"stop", "stop_strings"} & set(args.generation_kwargs or ())
    untried = "episodes are sampled by generate or by vLLM; leave it False"
    refused = (
        ("generation_batch_size", args.generation_batch_size % group > 0, whole),
        ("steps_per_generation", passes % window > 0, mixed),
        ("save_steps", saving and args.save_steps % steps > 0, middle),
        ("logging_steps", gem.record_dir is not None and logged != ("steps", 1), gaps),
        ("mask_truncated_completions", args.mask_truncated_completions, judged),
        ("use_transformers_continuous_batching", continuous, untried),
        ("importance_sampling_level", spread, flat),
        ("chat_template_kwargs", bool(args.chat_template_kwargs), unread),
        ("generation_kwargs", bool(stopping), stops),
        ("vllm_importance_sampling_correction", corrected and not gem.importance_sampling, lost),
    )
    refuse_values(vars(args), refused, "GRPOConfig.")
