"""Settings of the adapter, the table `gem` of SkyRL's configuration; what can work with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gem.errors import ConfigurationError
from gem.estimators import estimator
from gem.tables import setting
from gem_train import settings

_OWN = "it would change what GEM's advantages are made of, or which rows are trained on"
NO_VALUES = "a turn without tokens has a row of its own, in which SkyRL computes no value"
"""Why there is no critic where an episode has several rows."""
REFUSED = {
    "trainer.algorithm.zero_variance_filter": False,
    "trainer.algorithm.dynamic_sampling.type": None,
    "trainer.algorithm.advantage_batch_normalize": False,
    "trainer.fully_async.sample_full_batch": False,
    "trainer.fully_async.simulate_training": False,
    "generator.merge_stepwise_output": False,
    "generator.vision_language_generator": False,
}
"""Settings of SkyRL and the only value that works with GEM's rows and advantages."""


@dataclass(frozen=True)
class Settings(settings.Settings):
    """The keys of every adapter, and those of this one."""

    advantage: str = setting(
        "name of an estimator of `gem.estimators`", "rebn", check=settings.check_offered
    )
    response_tokens: int = setting(
        "most tokens appended to a fresh prompt, which has at most `trainer.max_prompt_length`",
        1024,
        least=1,
    )


def read(config: Any) -> Settings:
    """Return the settings of a whole configuration of SkyRL.

    Raises:
        ConfigurationError: A key is unknown, a value has the wrong type or range, or SkyRL's
            settings would train on something else than was asked for; the message names the key.
    """
    found = Settings.from_mapping(dict(config.gem))
    for key, value in REFUSED.items():
        if (given := _value(config, key)) != value:
            raise ConfigurationError(f"{key}: {_OWN}; set it to {value!r}, got {given!r}")
    samples, tasks = config.generator.n_samples_per_prompt, config.trainer.train_batch_size
    settings.check_group_size(found.advantage, "generator.n_samples_per_prompt", samples)
    critic = bool(config.trainer.critic.model.path)
    if critic != estimator(found.advantage).needs_critic:
        need = "no critic: leave out" if critic else "a critic: set"
        raise ConfigurationError(
            f"gem.advantage={found.advantage} needs {need} trainer.critic.model.path"
        )
    if critic and config.generator.step_wise_trajectories:
        raise ConfigurationError(
            f"gem.advantage={found.advantage}: {NO_VALUES}; set "
            "generator.step_wise_trajectories=false"
        )
    place = config.trainer.placement
    ranks = place.policy_num_nodes * place.policy_num_gpus_per_node
    ranks //= config.trainer.policy.sequence_parallel_size
    if tasks * samples % ranks:
        raise ConfigurationError(
            f"trainer.train_batch_size: {tasks} tasks with {samples} episodes each do not divide "
            f"among {ranks} ranks, and SkyRL would leave out what is over"
        )
    return found


def check_tasks(config: Any, tasks: int) -> None:
    """Refuse a dataset whose last batch would be smaller than the others.

    Args:
        config: SkyRL's.
        tasks: Rows of the dataset.

    Raises:
        ConfigurationError: The message says which size fits.
    """
    size = config.trainer.train_batch_size
    if not tasks or tasks % size:
        raise ConfigurationError(
            f"data.train_data: {tasks} tasks are no multiple of trainer.train_batch_size={size}, "
            f"and SkyRL would leave out the rest; make {tasks // size * size or size} of them"
        )


def comparable(config: Any) -> bool:
    """Whether the engine's log-probabilities are of the distribution that the trainer computes.

    By default vLLM reports those at temperature 1, before any candidate is left out; with
    `logprobs_mode=processed_logprobs` those of the distribution that it samples from.
    """
    sampling = config.generator.sampling_params
    engine = config.generator.inference_engine.engine_init_kwargs
    if dict(engine).get("logprobs_mode") == "processed_logprobs":
        return bool(sampling.top_k == -1 and sampling.top_p == 1.0 and sampling.min_p == 0.0)
    return bool(sampling.temperature == 1.0)


def _value(config: Any, key: str) -> Any:
    for name in key.split("."):
        config = getattr(config, name)
    return config
