"""Settings of the adapter, the table `gem` of SkyRL's configuration; what can work with them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from gem.errors import ConfigurationError
from gem.estimators import estimator
from gem.tables import setting
from gem_train import settings

NO_VALUES = "a turn without tokens has a row of its own, in which SkyRL computes no value"
"""Why there is no critic where an episode has several rows."""
_OWN = "it would change what GEM's advantages are made of, or which rows are trained on"
_CANDIDATES = "GEM does not ask the engine for the candidates of each token"
_LOADED = "rows are made in the trainer's process"
_LOGPROBS = "GEM always asks the engine for the log-probability of each token"
_PLAYED = (
    "SkyRL's environments are not played; the rows of data.train_data name the environment and its "
    "parameters"
)
_STOP = "a turn ends at tokens of the chat template"
_TEMPLATE = "GEM renders conversations with the tokenizer's own template"
_TOKENS = "the most tokens of a turn are gem.turn_tokens, in evaluations too"
_TYPED = "SkyRL hands on only that of additional_kwargs"
REFUSED = {
    "trainer.strategy": "only FSDP was tried with GEM",
    "trainer.policy.model.lora.rank": "adapters were never tried with GEM's worker",
    "trainer.algorithm.advantage_estimator": "the advantages are those of gem.advantage",
    "trainer.algorithm.grpo_norm_by_std": "the advantages are GEM's; set gem.group_std",
    "trainer.algorithm.zero_variance_filter": _OWN,
    "trainer.algorithm.dynamic_sampling.type": _OWN,
    "trainer.algorithm.advantage_batch_normalize": _OWN,
    "trainer.algorithm.enable_sample_support_replay": _CANDIDATES,
    "trainer.fully_async.sample_full_batch": _OWN,
    "trainer.fully_async.simulate_training": "GEM extends SkyRL's real trainers only",
    "trainer.eval_batch_size": "all tasks of an evaluation are played at once",
    "trainer.num_logger_eval_samples": "evaluated episodes are in gem.record_dir, not in a table",
    "data.dataloader.num_workers": _LOADED,
    "data.dataloader.persistent_workers": _LOADED,
    "generator.merge_stepwise_output": _OWN,
    "generator.vision_language_generator": "GEM's generator plays the episodes, with text only",
    "generator.batched": "episodes are played turn by turn",
    "generator.max_turns": "it is of SkyRL's own generator; GEM's is gem.turns",
    "generator.chat_template": _TEMPLATE,
    "generator.chat_template_kwargs": "GEM's are gem.template_kwargs",
    "generator.use_conversation_multi_turn": _TEMPLATE,
    "generator.use_cache_salt": "GEM always keeps the prefix caches of different weights apart",
    "generator.eval_n_samples_per_prompt": "write #samples=<n> behind the URI of an evaluation",
    "generator.zero_reward_on_non_stop": "rewards come from the environments",
    "generator.apply_overlong_filtering": "it judges an episode by its last token",
    "generator.sampling_params.max_generate_length": _TOKENS,
    "generator.sampling_params.logprobs": _LOGPROBS,
    "generator.sampling_params.stop": _STOP,
    "generator.sampling_params.repetition_penalty": _TYPED,
    "generator.eval_sampling_params.max_generate_length": _TOKENS,
    "generator.eval_sampling_params.logprobs": _LOGPROBS,
    "generator.eval_sampling_params.stop": _STOP,
    "generator.eval_sampling_params.repetition_penalty": _TYPED,
    "generator.inference_engine.enable_return_sample_support_set": _CANDIDATES,
    "generator.inference_engine.enable_return_routed_experts": (
        "GEM's episodes do not carry the experts' routes"
    ),
    "environment.env_class": _PLAYED,
    "environment.skyrl_gym.llm_as_a_judge": _PLAYED,
    "environment.skyrl_gym.search": _PLAYED,
    "environment.skyrl_gym.text2sql": _PLAYED,
    "environment.skyrl_gym.max_env_workers": "where environments run is gem.executor",
}
"""Settings, or tables of them, of which only SkyRL's default works with GEM, and why."""
SAME = {
    "trainer.strategy": "fsdp2",
    "trainer.num_logger_eval_samples": 0,
    "data.dataloader.num_workers": 0,
    "generator.sampling_params.logprobs": 0,
    "generator.eval_sampling_params.logprobs": 0,
}
"""Another value that means with GEM what the default does."""
PENALTY = "repetition_penalty"
SAMPLING = ("temperature", "top_p", "top_k", "min_p", PENALTY)
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
    _check_read(config)
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
    if not (found.one_row or config.generator.step_wise_trajectories):
        raise ConfigurationError(
            f"gem.context={found.context} with gem.thinking={found.thinking} makes a training row "
            "of each turn; set generator.step_wise_trajectories=true"
        )
    ranks = _ranks(config)
    if not ranks or tasks * samples % ranks:
        raise ConfigurationError(
            f"trainer.train_batch_size: {tasks} tasks with {samples} episodes each do not divide "
            f"among {ranks} ranks (the least common multiple of those of all models), and SkyRL "
            "would leave out what is over"
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

    By default vLLM reports those at temperature 1, before any candidate is left out or penalised;
    with `logprobs_mode=processed_logprobs` those of the distribution that it samples from.
    """
    sampling = config.generator.sampling_params
    engine = config.generator.inference_engine.engine_init_kwargs
    if dict(engine).get("logprobs_mode") == "processed_logprobs":
        penalty = (sampling.additional_kwargs or {}).get(PENALTY, 1.0)
        whole = sampling.top_k == -1 and sampling.top_p == 1.0 and sampling.min_p == 0.0
        return bool(whole and penalty == 1.0)
    return bool(sampling.temperature == 1.0)


def evaluated_with(config: Any) -> dict[str, Any]:
    """Return the sampling of evaluations that have none of their own: SkyRL's, by default greedy.

    Args:
        config: A whole configuration of SkyRL.
    """
    params = config.generator.eval_sampling_params
    given = {name: getattr(params, name) for name in ("temperature", "top_p", "top_k", "min_p")}
    return given | dict(params.additional_kwargs or {})


def _check_read(config: Any) -> None:
    """Refuse settings that nothing would read as they are meant."""
    default = type(config)()
    for name, why in REFUSED.items():
        for key in _leaves(default, name):
            given, same = _value(config, key), _value(default, key)
            if given != same and (key not in SAME or given != SAME[key]):
                raise ConfigurationError(f"{key}: {why}; leave it out, got {given!r}")
    trainer, generator = config.trainer, config.generator
    for kind in ("sampling_params", "eval_sampling_params"):
        further = sorted(set(getattr(generator, kind).additional_kwargs or ()) - {PENALTY})
        if further:
            raise ConfigurationError(
                f"generator.{kind}.additional_kwargs: GEM reads {PENALTY} only; set temperature, "
                f"top_p, top_k and min_p in generator.{kind}, got {', '.join(further)}"
            )
    if (shown := trainer.num_logger_train_samples) > 0 and generator.step_wise_trajectories:
        raise ConfigurationError(
            "trainer.num_logger_train_samples: where an episode has several rows, SkyRL shows them "
            f"beside prompts of other episodes; leave it out, got {shown}"
        )
    if trainer.eval_interval > 0 and not config.data.val_data:
        raise ConfigurationError(
            f"data.val_data: trainer.eval_interval={trainer.eval_interval} needs tasks; name a "
            "file, or set trainer.eval_interval=-1"
        )


def _ranks(config: Any) -> int:
    """Return the least common multiple of the models' ranks, by which SkyRL divides batches."""
    trainer, place = config.trainer, config.trainer.placement
    models = ["policy"]
    if trainer.critic.model.path:
        models.append("critic")
    if trainer.algorithm.use_kl_loss or trainer.algorithm.use_kl_in_reward:
        models.append("ref")
    return math.lcm(
        *(
            getattr(place, f"{model}_num_nodes")
            * getattr(place, f"{model}_num_gpus_per_node")
            // getattr(trainer, model).sequence_parallel_size
            for model in models
        )
    )


def _leaves(config: Any, key: str) -> Iterator[str]:
    """Yield the name of a setting, or of each one of a table."""
    value = _value(config, key)
    if not is_dataclass(value):
        yield key
        return
    for each in fields(value):
        yield from _leaves(config, f"{key}.{each.name}")


def _value(config: Any, key: str) -> Any:
    for name in key.split("."):
        config = getattr(config, name)
    return config
