"""What GRPOConfig has no place for, and which values of GRPOConfig can work with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from gem.tables import setting
from gem_train.experiment.filtering import Filtering
from gem_train.settings import Refusal, Settings, check_group_size, check_offered, refuse_values

NO_CRITIC = "TRL's GRPOTrainer has no critic"
ONE_ROW = "TRL's batches have one row per episode, it makes several"

UNUSED = {
    "scale_rewards": "gem.advantage computes the advantages, and gem.group_std=False leaves out "
    "the division",
    "multi_objective_aggregation": "rewards are added up before gem.advantage sees them",
    "max_tool_calling_iterations": "of TRL's own tool loop; GEM's is gem.turns",
    "log_completions": "its table would have TRL's advantages, not those trained on; GEM's record "
    "has the episodes (gem.record_dir)",
}
"""Fields of GRPOConfig that have no effect here or a wrong one, and what has instead."""

FILLED_UP = "rows without tokens fill up TRL's batch and would count in a mean of rows"
TOKEN_MEANS = ("dapo", "cispo", "vespo")
"""Values of `loss_type` for which rows without tokens leave the loss as it is."""

_EVALUATIONS = "it would hold in evaluations, too, which have a sampling of their own"
GENERATION = {
    **dict.fromkeys(("stop", "stop_strings"), "a turn that ends at a text would count as cut off"),
    **dict.fromkeys(
        ("stop_token_ids", "eos_token_id"), "a turn ends at the chat template's tokens"
    ),
    **dict.fromkeys(
        ("max_tokens", "max_new_tokens"), "a turn's limit is GRPOConfig.max_completion_length"
    ),
    **dict.fromkeys(("n", "num_return_sequences"), "a turn is sampled once"),
    **{
        key: f"{_EVALUATIONS}; set GRPOConfig.{key} instead"
        for key in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    },
    "do_sample": _EVALUATIONS,
    "seed": "all turns would be sampled with the same random numbers; set GRPOConfig.seed",
}
"""Keys of GRPOConfig.generation_kwargs that are refused, and why."""


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
    corrected = args.use_vllm and args.vllm_importance_sampling_correction
    wanted = gem.importance_sampling
    absent = (
        "it asks for GRPOConfig's vllm_importance_sampling_correction, which needs use_vllm; set "
        "both, or leave it False"
    )
    refuse_values(
        {"group_size": group, "importance_sampling": wanted},
        [
            ("group_size", alone, "gem.extra_batches compares the episodes of a task: 2 or more"),
            ("importance_sampling", wanted and not corrected, absent),
        ],
        "gem.",
    )
    lost = (
        "it leaves out whole episodes for which TRL's probabilities and vLLM's differ; set it to "
        "False, or ask for it with gem.importance_sampling=True"
    )
    continuous, given = args.use_transformers_continuous_batching, args.generation_kwargs or {}
    judged = "it judges an episode by its last token; leave it False"
    unread = "GEM renders conversations; use gem.template_kwargs"
    filled = gem.mask_overlong or gem.extra_batches is not None
    means = "with gem.mask_overlong or gem.extra_batches choose 'dapo' or 'cispo'"
    untried = "episodes are sampled by generate or by vLLM; leave it False"
    refused = (
        *_of_batches(args, gem, group),
        *changed(args, UNUSED),
        ("mask_truncated_completions", args.mask_truncated_completions, judged),
        ("use_transformers_continuous_batching", continuous, untried),
        *_of_episodes(args, gem.advantage),
        ("loss_type", filled and args.loss_type not in TOKEN_MEANS, f"{FILLED_UP}; {means}"),
        ("chat_template_kwargs", bool(args.chat_template_kwargs), unread),
        *(
            ("generation_kwargs", key in given, f"{why}; leave {key!r} out")
            for key, why in GENERATION.items()
        ),
        ("vllm_importance_sampling_correction", corrected and not wanted, lost),
    )
    refuse_values(vars(args), refused, "GRPOConfig.")


def check_length(args: Any, gem: GemSettings, max_steps: int, tasks: int | None = None) -> None:
    """Refuse a training that would end inside a batch, or leave the first part of its dataset.

    Args:
        args: A GRPOConfig that `check_config` accepts.
        gem: The settings.
        max_steps: Optimiser steps of the training, also where they follow from `num_train_epochs`.
        tasks: Rows of the dataset; needed with `gem.extra_batches`.

    Raises:
        ConfigurationError: The message names the key, its value, why, and what to choose instead.
    """
    name = "max_steps" if args.max_steps > 0 else "num_train_epochs"
    steps = steps_per_iteration(args)
    iterations, cut = divmod(max_steps, steps)
    needed = iterations * args.generation_batch_size // (gem.group_size or args.num_generations)
    first = 0 if tasks is None else tasks // (1 + (gem.extra_batches or 0))
    left = (
        f"with gem.extra_batches {iterations} iterations need {needed} tasks in the first part of "
        f"the dataset, which has {first}; lower it, or enlarge the dataset"
    )
    beyond = gem.extra_batches is not None and needed > first
    refuse_values(vars(args), [(name, cut > 0, _ends(steps)), (name, beyond, left)], "GRPOConfig.")


def changed(args: Any, reasons: Mapping[str, str]) -> list[Refusal]:
    """Return which fields of a configuration must keep their default.

    Args:
        args: The configuration, a dataclass.
        reasons: By the names of the fields.
    """
    defaults = {each.name: each.default for each in fields(args)}
    return [
        (name, getattr(args, name) != defaults[name], f"{why}; leave its default")
        for name, why in reasons.items()
    ]


def _ends(steps: int) -> str:
    return (
        "the run would end inside a batch of episodes; set max_steps to a multiple of "
        f"{steps}, a batch's steps"
    )


def _of_batches(args: Any, gem: GemSettings, group: int) -> list[Refusal]:
    """Return what is refused because a batch of episodes would not be trained on as a whole."""
    steps = max(steps_per_iteration(args), 1)
    passes = args.num_iterations * args.steps_per_generation
    window = args.gradient_accumulation_steps
    whole = f"the episodes of a batch must be whole groups of {group}"
    mixed = (
        "an optimiser step would mix two batches of episodes; num_iterations times this must be a "
        f"multiple of gradient_accumulation_steps, {window}"
    )
    multiple = f"it must be a multiple of {steps}, a batch's steps"
    middle = f"a run would go on inside a batch; {multiple}"
    twice = (
        "the record has one evaluation an iteration, and save_strategy='best' saves where it "
        f"evaluates; {multiple}"
    )
    gaps = "gem.record_dir records every iteration; set it to 1, and logging_strategy to 'steps'"
    any_step = "it saves inside a batch; leave it False, or make one step of a batch"
    parts = (
        "gem.extra_batches takes further tasks from the later parts of the dataset; set it to False"
    )
    recorded, logged = gem.record_dir is not None, (args.logging_strategy, args.logging_steps)
    saving, evaluating = args.save_strategy == "steps", args.eval_strategy == "steps"
    told = recorded or args.save_strategy == "best"
    played = args.num_generations_eval or group
    whole_groups = (
        f"a batch of evaluation episodes must be whole groups of {played}; set "
        "num_generations_eval=1, or a multiple"
    )
    torn = args.eval_strategy != "no" and args.per_device_eval_batch_size * args.world_size % played
    shuffled = gem.extra_batches is not None and args.shuffle_dataset

    def cuts(value: float) -> bool:
        return steps > 1 and value % steps > 0

    return [
        ("generation_batch_size", args.generation_batch_size % group > 0, whole),
        ("steps_per_generation", passes % window > 0, mixed),
        ("save_steps", saving and cuts(args.save_steps), middle),
        ("eval_steps", evaluating and told and cuts(args.eval_steps), twice),
        ("max_steps", args.max_steps > 0 and cuts(args.max_steps), _ends(steps)),
        ("enable_jit_checkpoint", args.enable_jit_checkpoint and steps > 1, any_step),
        ("per_device_eval_batch_size", bool(torn), whole_groups),
        ("logging_steps", recorded and logged != ("steps", 1), gaps),
        ("shuffle_dataset", shuffled, parts),
    ]


def _of_episodes(args: Any, advantage: str) -> list[Refusal]:
    """Return what is refused where the turns of an episode have different advantages."""
    turns = advantage not in ("grpo", "rloo")
    each = f"and {advantage!r} has one for each turn"
    other = "or gem.advantage 'grpo' or 'rloo'"
    flat = (
        f"it gives all tokens of a row the mean of its advantages, {each}; choose 'token', {other}"
    )
    sign = f"it weighs an episode by its advantage's sign, {each}; choose another one, {other}"
    masked = f"it leaves out episodes by their advantage's sign, {each}; choose None, {other}"
    off_policy = args.off_policy_mask_threshold is not None
    return [
        ("importance_sampling_level", turns and args.importance_sampling_level == "sequence", flat),
        ("loss_type", turns and args.loss_type == "vespo", sign),
        ("off_policy_mask_threshold", turns and off_policy, masked),
    ]
