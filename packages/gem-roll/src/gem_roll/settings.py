"""What `custom_envs.<tag>.gem` says, and which of ROLL's own keys can work with it."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gem.advantage import ADVANTAGES
from gem.errors import ConfigurationError
from gem.rollout.play import Budget
from gem.tables import setting
from gem.training.settings import Settings, check_estimator, check_group_size, refuse_values

MANAGER = "gem_roll.env_manager.GemEnvManager"
"""`env_manager_cls` of an environment that GEM plays."""
ONE_ROW = "ROLL's batches have one row an episode, it makes several"
TOGETHER = ("advantage", "max_failed_fraction", "record_dir")
"""Settings that all training environments of a run share."""


@dataclass(frozen=True)
class GemSettings(Settings):
    """The table `gem` of an environment in ROLL's `custom_envs`."""

    advantage: str = setting("estimator of `gem.advantage`", "rebn", choices=ADVANTAGES)
    prompt_tokens: int = setting("most tokens of a fresh prompt", 1024, least=1)
    response_tokens: int | None = setting(
        "most tokens appended to a fresh prompt; by default the rest of sequence_length",
        None,
        least=1,
    )
    first_seed: int = setting(
        "task j of iteration k has seed `first_seed + k * groups + j`; ROLL's own are random", 0
    )
    temperature: float | None = setting(
        "sampling temperature instead of generating_args', for evaluations; 0 is greedy",
        None,
        least=0,
    )

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
        others = {key: environment.get(key) for key in THEIRS}
        why = "is not GEM's; in its place: "
        refuse_values(others, [(k, others[k] is not None, why + THEIRS[k]) for k in THEIRS], above)
        prefix = f"{above}gem."
        found = cls.from_mapping(dict(environment.get("gem") or {}), prefix)
        refused = (
            *found.several_rows(ONE_ROW),
            ("seed", found.seed is not None, "ROLL's requests to an engine carry no seed"),
        )
        refuse_values(vars(found), refused, prefix)
        return found

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
_OURS = "GEM's advantages take the place of the function of ROLL that applies it"
_LOST = "it takes episodes out of a batch: statistics would be those of the rest"
_GROUP_FILTER = "roll.pipeline.agentic.agentic_pipeline.GroupFilter"
_REFUSED: tuple[tuple[str, tuple[Any, ...], str], ...] = (
    ("advantage_clip", (None,), _OURS),
    ("whiten_advantages", (False,), _OURS),
    ("whiten_rewards", (False,), _OURS),
    ("is_pure_opd", (False,), _OURS),
    ("use_opd", (False,), _OURS),
    ("reward_clip", (None,), "GEM's advantages are of the environment's rewards"),
    ("reward_normalization.norm_mean_type", (None,), "GEM's estimators normalise; use identity"),
    ("reward_normalization.norm_std_type", (None,), "GEM's estimators normalise; use identity"),
    ("add_token_level_kl", (False,), "a penalty on tokens is no reward of a turn; use_kl_loss"),
    ("async_generation_ratio", (0,), "episodes of older weights were never tried"),
    ("train_env_manager.group_size_redundancy", (0,), _LOST),
    ("train_env_manager.group_filter_cls", (_GROUP_FILTER,), _LOST),
    ("train_env_manager.llm_proxy.proxy_type", ("policy",), "only the policy's tokens are exact"),
    ("val_env_manager.llm_proxy.proxy_type", ("policy",), "only the policy's tokens are exact"),
    ("actor_infer.generating_args.stop_strings", (None,), "a turn ends at the template's token"),
    ("actor_infer.generating_args.num_beams", (1,), "beams are not samples of the policy"),
)
"""Key of ROLL's configuration, values that go with GEM's advantages, why others do not."""


def check_config(config: Any) -> dict[str, GemSettings]:
    """Refuse what would train on something else than the settings say, before anything is loaded.

    Args:
        config: ROLL's `AgenticConfig`.

    Returns:
        The settings of each environment that GEM plays, by tag, training's first.

    Raises:
        ConfigurationError: The message names the key, why, and its value.
    """
    values = {key: operator.attrgetter(key)(config) for key, _, _ in _REFUSED}
    refuse_values(values, [(key, values[key] not in fit, why) for key, fit, why in _REFUSED])
    train, val = config.train_env_manager, config.val_env_manager
    found: dict[str, GemSettings] = {}
    for tag in dict.fromkeys([*train.tags, *val.tags]):
        environment = config.custom_envs[tag]
        if environment.get("env_manager_cls") == MANAGER:
            found[tag] = GemSettings.of(tag, environment)
            tokens = found[tag].prompt_tokens + (found[tag].response_tokens or 1)
            long = f"custom_envs.{tag}.gem allows episodes of {tokens} tokens"
            too_long = tokens > config.sequence_length
            refuse_values(vars(config), [("sequence_length", too_long, long)])
        elif tag in train.tags:
            raise ConfigurationError(
                f"custom_envs.{tag}.env_manager_cls: only {MANAGER} makes rows with turns, got "
                f"{environment.get('env_manager_cls')!r}; ROLL's own pipeline trains on others"
            )
    first = found[train.tags[0]]
    shared = [{name: getattr(found[tag], name) for name in TOGETHER} for tag in train.tags]
    if any(each != shared[0] for each in shared):
        raise ConfigurationError(
            f"custom_envs: all training environments of a run must have the same gem.advantage, "
            f"gem.max_failed_fraction and gem.record_dir, got {shared}"
        )
    check_estimator(first.advantage, "adv_estimator", config.adv_estimator)
    check_group_size(first.advantage, "train_env_manager.group_size", train.group_size)
    slots = train.num_env_groups * train.group_size
    left = f"no multiple of num_env_groups * group_size = {slots}: some would be left over"
    refuse_values(
        vars(config), [("rollout_batch_size", config.rollout_batch_size % slots > 0, left)]
    )
    return found
