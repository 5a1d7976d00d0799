"""The `gem` table of a verl configuration, and which verl configurations can work with GEM.

Users add keys with hydra's plus sign, `+gem.turn_tokens=64`; all have defaults.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gem.errors import ConfigurationError
from gem.tables import setting
from gem.training.settings import Settings as BaseSettings

GEM_MODES = ("gem_sync", "gem_colocate_async")
"""Values of `trainer.v1.trainer_mode` that `gem_verl.trainer` registers."""

MODES = ("sync", "colocate_async", *GEM_MODES)
"""Values of `trainer.v1.trainer_mode` that work with GEM rollouts."""

_UNSUITABLE = {"separate_async": "it computes advantages and their statistics on parts of a batch"}
_SUGGESTION = "set trainer.v1.trainer_mode=gem_sync"


@dataclass(frozen=True)
class Settings(BaseSettings):
    """Keys of the `gem` table; `record_dir` needs a `gem_*` trainer mode."""

    poll_interval_s: float = setting(
        "how often a `gem_*` trainer looks for finished episodes (verl: 2 s)", 0.1, above=0
    )

    @property
    def sends_episodes(self) -> bool:
        """Whether agent loops hand over whole episodes, not only their numbers."""
        return self.record_dir is not None and self.record != "metrics"

    @classmethod
    def from_config(cls, config: Any) -> Settings:
        """Read the `gem` table of a whole verl configuration.

        Raises:
            ConfigurationError: A key is unknown or its value is of the wrong type or range.
        """
        return cls.from_mapping(config.get("gem") or {})


def check_rows(config: Any, agent: str) -> None:
    """Refuse several training rows per episode in a trainer that would tear them apart.

    Args:
        config: A whole verl configuration.
        agent: Name of the agent loop.

    Raises:
        ConfigurationError: The trainer does not know which rows belong to an episode.
    """
    settings, mode = Settings.from_config(config), config.trainer.v1.trainer_mode
    if (agent == "gem_turns" or not settings.one_row) and mode not in GEM_MODES:
        shown = f"context {settings.context!r} and thinking {settings.thinking!r}"
        reason = f"agent loop {agent!r} with {shown} makes one training row per turn"
        raise ConfigurationError(f"{reason}, which trainer_mode={mode} tears apart; {_SUGGESTION}")


def check_config(config: Any) -> Settings:
    """Return the settings of a verl configuration that GEM rollouts can work with.

    Raises:
        ConfigurationError: The combination would train on something else than asked for; the
            message says why and what to choose instead.
    """
    settings = Settings.from_config(config)
    trainer, algorithm = config.trainer, config.algorithm
    mode = trainer.v1.trainer_mode
    if not trainer.use_v1:
        reason = "verl's legacy trainer replaces the rewards of turns by one number per episode"
        raise ConfigurationError(f"trainer.use_v1=False: {reason}; leave trainer.use_v1=True")
    if mode not in MODES:
        reason = _UNSUITABLE.get(mode, "it is not known to gem-verl")
        raise ConfigurationError(f"trainer_mode={mode}: {reason}; choose one of {', '.join(MODES)}")
    check_rows(config, config.actor_rollout_ref.rollout.agent.default_agent_loop)
    estimator = str(algorithm.adv_estimator)
    if mode not in GEM_MODES:
        if settings.record_dir is not None:
            reason = f"gem.record_dir: trainer_mode={mode} cannot record"
            raise ConfigurationError(f"{reason}; {_SUGGESTION}")
        correction = algorithm.get("rollout_correction") or {}
        if correction.get("rollout_rs") and estimator.startswith("gem_"):
            reason = "rollout_rs removes tokens from the mask by which turns are found"
            raise ConfigurationError(f"algorithm.rollout_correction.{reason}; {_SUGGESTION}")
    if estimator == "gem_gae" and not (mode in GEM_MODES and config.critic.enable):
        reason = "algorithm.adv_estimator=gem_gae needs the critic's values"
        raise ConfigurationError(f"{reason}: {_SUGGESTION} and critic.enable=True")
    return settings
