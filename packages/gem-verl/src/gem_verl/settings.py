"""The `gem` table of a verl configuration, and which verl configurations can work with GEM.

Users add keys with hydra's plus sign, `+gem.turn_tokens=64`; all have defaults.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gem.errors import ConfigurationError
from gem.rollout import Budget
from gem.tables import setting
from gem.training.settings import Settings as BaseSettings

GEM_MODES = ("gem_sync", "gem_colocate_async")
"""Values of `trainer.v1.trainer_mode` that `gem_verl.trainer` registers."""

MODES = ("sync", "colocate_async", *GEM_MODES)
"""Values of `trainer.v1.trainer_mode` that work with GEM rollouts."""


@dataclass(frozen=True)
class Settings(BaseSettings):
    """Keys of the `gem` table; `record_dir` needs a `gem_*` trainer mode."""

    poll_interval_s: float = setting(
        "how often a `gem_*` trainer looks for finished episodes (verl: 2 s)", 0.1, above=0
    )

    @classmethod
    def from_config(cls, config: Any) -> Settings:
        """Read the `gem` table of a whole verl configuration.

        Raises:
            ConfigurationError: A key is unknown or its value is of the wrong type or range.
        """
        return cls.from_mapping(config.get("gem") or {})

    def budget(self, config: Any) -> Budget:
        """Return the limits of an episode, of which verl's own keys set the lengths."""
        rollout = config.actor_rollout_ref.rollout
        return Budget(
            turn_tokens=min(self.turn_tokens or rollout.response_length, rollout.response_length),
            response_tokens=rollout.response_length,
            prompt_tokens=rollout.prompt_length,
            turns=self.turns,
        )


def rows_per_turn(config: Any, agent: str | None = None) -> bool:
    """Whether an episode may become several training rows.

    Args:
        config: A whole verl configuration.
        agent: Name of the agent loop; by default the configured one.
    """
    agent = agent or config.actor_rollout_ref.rollout.agent.default_agent_loop
    return agent == "gem_turns" or Settings.from_config(config).context != "chat"


def check_config(config: Any) -> Settings:
    """Return the settings of a verl configuration that GEM rollouts can work with.

    Raises:
        ConfigurationError: The combination would train on something else than asked for; the
            message says why and what to choose instead.
    """
    settings = Settings.from_config(config)
    trainer, algorithm = config.trainer, config.algorithm
    mode = trainer.v1.trainer_mode
    estimator = str(algorithm.adv_estimator)
    if not trainer.use_v1:
        raise ConfigurationError(
            "trainer.use_v1=False: verl's legacy trainer replaces the reward of each turn by one "
            "number per episode; leave trainer.use_v1=True"
        )
    if mode not in MODES:
        reason = (
            "it computes advantages on parts of a batch, so that statistics over the whole batch "
            "are not what they say"
            if mode == "separate_async"
            else "it is not known to gem-verl"
        )
        raise ConfigurationError(
            f"trainer.v1.trainer_mode={mode}: {reason}; choose one of {', '.join(MODES)}"
        )
    own = mode in GEM_MODES
    suggestion = "set trainer.v1.trainer_mode=gem_sync"
    if settings.record_dir is not None and not own:
        raise ConfigurationError(f"gem.record_dir: trainer_mode={mode} cannot record; {suggestion}")
    if rows_per_turn(config) and not own:
        raise ConfigurationError(
            f"one training row per turn needs to know which rows belong to an episode, which "
            f"trainer_mode={mode} does not pass on; {suggestion}"
        )
    if estimator == "gem_gae" and not (own and config.critic.enable):
        raise ConfigurationError(
            f"algorithm.adv_estimator=gem_gae needs the critic's values: {suggestion} and "
            "critic.enable=True"
        )
    correction = algorithm.get("rollout_correction") or {}
    if correction.get("rollout_rs") and estimator.startswith("gem_") and not own:
        raise ConfigurationError(
            "algorithm.rollout_correction.rollout_rs removes tokens from the mask by which turns "
            f"are found; {suggestion}"
        )
    return settings
