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
_PAID = "rewards come from the environments"
_TYPED = "SkyRL does not hand it on; put it into additional_kwargs"
UNREAD = {
    "batched": "episodes are played turn by turn",
    "max_turns": "it is of SkyRL's own generator; GEM's is gem.turns",
    "chat_template": "GEM renders conversations with the tokenizer's own template",
    "chat_template_kwargs": "GEM's are gem.template_kwargs",
    "use_conversation_multi_turn": "GEM renders conversations with the tokenizer's own template",
    "eval_n_samples_per_prompt": "an evaluation plays each task once; give it more tasks",
    "zero_reward_on_non_stop": _PAID,
    "apply_overlong_filtering": "it judges an episode by its last token",
    "sampling_params.max_generate_length": "the most tokens of a turn are gem.turn_tokens",
    "sampling_params.stop": "a turn ends at tokens of the chat template",
    "sampling_params.repetition_penalty": _TYPED,
    "eval_sampling_params.stop": "a turn ends at tokens of the chat template",
    "eval_sampling_params.repetition_penalty": _TYPED,
}
"""Settings of `generator` that GEM's generator does not read, and what has the effect instead."""
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""What of SkyRL's sampling parameters an episode has; the rest depends on the turn."""


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
    default = type(config.generator)()
    for key, instead in UNREAD.items():
        if (given := _value(config.generator, key)) != _value(default, key):
            raise ConfigurationError(f"generator.{key}: {instead}; leave it out, got {given!r}")
    for kind in ("sampling_params", "eval_sampling_params"):
        further = sorted(set(getattr(config.generator, kind).additional_kwargs or ()) - {*SAMPLING})
        if further:
            raise ConfigurationError(
                f"generator.{kind}.additional_kwargs: an episode has {', '.join(SAMPLING)} only, "
                f"got {', '.join(further)}"
            )
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


def evaluated_with(config: Any) -> dict[str, Any]:
    """Return the sampling of evaluations that have none of their own: SkyRL's, by default greedy.

    Args:
        config: A whole configuration of SkyRL.
    """
    params = config.generator.eval_sampling_params
    given = {name: getattr(params, name) for name in ("temperature", "top_p", "top_k", "min_p")}
    return given | dict(params.additional_kwargs or {})


def _value(config: Any, key: str) -> Any:
    for name in key.split("."):
        config = getattr(config, name)
    return config
