"""What `custom_envs.<tag>.gem` says, and which of ROLL's own keys can work with it."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from gem.rollout.play import Budget
from gem.tables import setting
from gem.tasks import Task
from gem_train.experiment.estimate import Shaping
from gem_train.experiment.mixtures import parse_tasks
from gem_train.settings import (
    Settings,
    check_estimator,
    check_group_size,
    check_offered,
    refuse_values,
)

MANAGER = "gem_roll.env_manager.GemEnvManager"
"""`env_manager_cls` of an environment that GEM plays."""
ONE_ROW = "ROLL's batches have one row an episode, it makes several"


@dataclass(frozen=True)
class GemSettings(Settings):
    """The table `gem` of an environment in ROLL's `custom_envs`."""

    advantage: str = setting("name of an estimator", "rebn", check=check_offered)
    prompt_tokens: int = setting("most tokens of a fresh prompt", 1024, least=1)
    response_tokens: int | None = setting("most after it; by default the rest", None, least=1)
    first_seed: int = setting("seed of the first task; ROLL's own seeds are random", 0)
    tasks: str | None = setting(
        "task set or mixture that is played instead, gem:...; env_type and env_config say nothing",
        None,
        check=parse_tasks,
    )
    temperature: float | None = setting("by default ROLL's; 0 is greedy", None, least=0)

    @classmethod
    def of(cls, tag: str, environment: Mapping[str, Any]) -> GemSettings:
        """Read the settings of an environment.

        Args:
            tag: Its name in `custom_envs`.
            environment: The keys below it.

        Raises:
            ConfigurationError: A key is unknown, its value is wrong, or ROLL cannot do it.
        """
        above = f"custom_envs.{tag}."
        theirs = [k for k in THEIRS if environment.get(k) is not None]
        why = "is not GEM's; in its place: "
        refuse_values(environment, [(k, True, why + THEIRS[k]) for k in theirs], above)
        prefix = f"{above}gem."
        found = cls.from_mapping(dict(environment.get("gem") or {}), prefix)
        refused = (
            *found.several_rows(ONE_ROW),
            ("seed", found.seed is not None, "ROLL's requests to an engine carry no seed"),
        )
        refuse_values(vars(found), refused, prefix)
        return found

    def task(self, number: int, env_type: str, params: Mapping[str, Any]) -> Task:
        """Return a task of the environment, or of `tasks`.

        Args:
            number: Place of the task in the run.
            env_type: Id of the environment.
            params: Its parameters.
        """
        if self.tasks is None:
            return Task(env_type, self.first_seed + number, params)
        tasks = parse_tasks(self.tasks)
        # ROLL may hand out episodes after the last batch, which it does not train on.
        return tasks[number % len(tasks)]

    def budget(self, config: Any) -> Budget:
        """Return the limits of an episode, with those of ROLL's `AgenticConfig`."""
        response = self.response_tokens or config.sequence_length - self.prompt_tokens
        turn = config.actor_infer.generating_args.max_new_tokens
        return self.limits(self.prompt_tokens, response, turn)


THEIRS = {
    "agent_system_template": "gem.system_prompt",
    "agent_template": "nothing: an observation is a whole message",
    "max_steps": "gem.turns",
    "max_tokens_per_step": "gem.turn_tokens",
    "tool_wrapper": "env_config.tools",
}
"""Keys of ROLL's own environment managers, and what says the same here."""
OFF = {
    "GEM's advantages take the place of the function of ROLL that applies it": "advantage_clip "
    "whiten_advantages whiten_rewards is_pure_opd use_opd",
    "GEM's advantages are of the environment's rewards, and normalise themselves": "reward_clip "
    "reward_normalization.norm_mean_type reward_normalization.norm_std_type add_token_level_kl",
    "episodes of older weights were never tried": "async_generation_ratio",
    "it leaves out the slowest episodes of a batch": "train_env_manager.group_size_redundancy",
    "a turn ends at the chat template's token": "actor_infer.generating_args.stop_strings",
}
"""Why keys of ROLL's configuration must be off, and the keys."""
ONLY = {
    "train_env_manager.group_filter_cls": "roll.pipeline.agentic.agentic_pipeline.GroupFilter",
    "train_env_manager.llm_proxy.proxy_type": "policy",
    "val_env_manager.llm_proxy.proxy_type": "policy",
    "actor_infer.generating_args.num_beams": 1,
}
"""Keys that would take episodes out of a batch, or train on what the policy did not sample, and the
value that does neither."""


def check_config(config: Any) -> dict[str, GemSettings]:
    """Refuse what would train on something else than the settings say, before anything is loaded.

    Args:
        config: ROLL's `AgenticConfig`.

    Returns:
        The settings of each environment that GEM plays, by tag, training's first.

    Raises:
        ConfigurationError: The message names the key, why, and its value.
    """
    off = {key: why for why, keys in OFF.items() for key in keys.split()}
    values = {key: operator.attrgetter(key)(config) for key in [*off, *ONLY]}
    refuse_values(values, [(key, bool(values[key]), why) for key, why in off.items()])
    refuse_values(values, [(key, values[key] != v, f"GEM needs {v!r}") for key, v in ONLY.items()])
    train, envs = config.train_env_manager, config.custom_envs
    tags = [*train.tags, *config.val_env_manager.tags]
    classes = {tag: envs[tag].get("env_manager_cls") for tag in tags}
    theirs = [tag for tag in tags if classes[tag] != MANAGER]
    why = f"only {MANAGER} makes rows with turns"
    train_only = [(tag, tag in train.tags, why) for tag in theirs]
    refuse_values(classes, train_only, "env_manager_cls of custom_envs.")
    found = {tag: GemSettings.of(tag, envs[tag]) for tag in tags if tag not in theirs}
    shaping = (each.name for each in fields(Shaping))
    recorded = ("record_dir", "record", "info_metrics")
    for name in ("advantage", *shaping, "max_failed_fraction", *recorded):
        shared = [getattr(found[tag], name) for tag in train.tags]
        why = "training environments of a run have the same"
        refuse_values({name: shared}, [(name, any(v != shared[0] for v in shared), why)], "gem.")
    advantage = found[train.tags[0]].advantage
    check_estimator(advantage, "adv_estimator", config.adv_estimator)
    check_group_size(advantage, "train_env_manager.group_size", train.group_size)
    slots = train.num_env_groups * train.group_size
    tokens = max(each.prompt_tokens + (each.response_tokens or 1) for each in found.values())
    left = f"no multiple of num_env_groups * group_size = {slots}: some would be left over"
    refused = (
        ("rollout_batch_size", config.rollout_batch_size % slots > 0, left),
        ("sequence_length", config.sequence_length < tokens, f"episodes may have {tokens} tokens"),
    )
    refuse_values(vars(config), refused)
    return found
