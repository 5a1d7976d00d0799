"""The `gem` table of a verl configuration, and which verl configurations can work with GEM.

Users add keys with hydra's plus sign, `+gem.turn_tokens=64`; all have defaults.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from gem.errors import ConfigurationError
from gem.estimators import Estimator, estimator
from gem.tables import setting
from gem_train.experiment.hardware import known_config, logit_scales, sees
from gem_train.experiment.runspec import LogitsProcessing
from gem_train.settings import Refusal, refuse_values
from gem_train.settings import Settings as BaseSettings

GEM_MODES = ("gem_sync", "gem_colocate_async")
"""Values of `trainer.v1.trainer_mode` that `gem_verl.trainer` registers."""

MODES = ("sync", "colocate_async", "separate_async", *GEM_MODES)
"""Values of `trainer.v1.trainer_mode` that work with GEM rollouts."""

PREFIX = "gem_"
"""Of verl's names of our estimators."""
FLASH = "install flash-attn (docs/verl.md)"
CRITIC = "verl loads critics with flash attention only"

LAUNCHERS = {
    "async_training": "verl's fully-async launcher",
    "rollout": "verl's one-step-off launcher",
}
"""Tables that only launchers other than verl.trainer.main_ppo have at the top of a configuration.
The first name that a configuration has is its launcher's."""

SPLIT = (
    "verl shares a row inside flash attention only: with {} each GPU sees its own part of the row, "
    f"and log-probabilities are wrong; {FLASH}"
)
READ = "gem_prompt_ids"
"""Field of the server's answer with the prompt as the engine read it, if it has images."""
LOADED = "auto"
"""verl's `load_format` for models that see."""
WORKER = "gem_verl.worker.GemWorker"
UNMASKED = "actor_rollout_ref.rollout.engine_kwargs.vllm.worker_extension_cls"
"""Name of the setting whose value is `WORKER` for models that see."""
ATTENTION = "actor_rollout_ref.model.override_config.attn_implementation"

_SPLIT = ("actor.fsdp_config.", "actor.", "ref.fsdp_config.", "ref.")
_MODEL, _ROLLOUT = "actor_rollout_ref.model", "actor_rollout_ref.rollout"
_SUGGESTION = "set trainer.v1.trainer_mode=gem_sync"
_OF_TRAINERS = ("record", "info_metrics", "poll_interval_s", "max_failed_fraction")
"""Keys of the `gem` table without effect on verl's own trainers."""
_LOOPS = ("single_turn_agent", "tool_agent")
"""verl's own agent loops."""

_PAID = "rewards come from the environments; leave it out"
_LIMITED = "the agent loops of gem-verl do not read it; set gem.turns"
_TOOLS = "environments bring their own tools, and the policy is not told of these; leave it out"
_BOUNDED = "only verl's tool agent reads it; environments bound their observations; "
_BOUNDED += "leave it at its default"
_FILES = "tasks come from environments, not from files; leave it at its default"
_PARTS = "only trainer_mode=separate_async has several batches in a step; leave it out"
_USUAL: Mapping[str, tuple[Any, str]] = {
    "reward.custom_reward_function.path": (None, _PAID),
    "reward.reward_manager.name": ("naive", _PAID),
    "reward.reward_manager.source": ("register", _PAID),
    "reward.reward_model.enable": (False, _PAID),
    "reward.sandbox_fusion.url": (None, _PAID),
    # Names of these settings before verl had `reward`, which verl.trainer.main_ppo does not read.
    "custom_reward_function.path": (None, _PAID),
    "reward_model.enable": (False, _PAID),
    "reward_model.reward_loop_source": ("register", _PAID),
    "reward_model.reward_manager": ("naive", _PAID),
    "sandbox_fusion.url": (None, _PAID),
    "data.prompt_key": ("prompt", _FILES),
    "data.image_key": ("images", _FILES),
    "data.video_key": ("videos", _FILES),
    "data.audio_key": ("audios", _FILES),
    "data.image_patch_size": (14, _FILES),
    "data.use_shm": (False, _FILES),
    "data.cache_dir": (None, _FILES),
    "data.need_tools_kwargs": (False, _FILES),
    "data.filter_overlong_prompts": (
        False,
        "a prompt is known only when its episode begins; leave it at False and choose a larger "
        "data.max_prompt_length",
    ),
    f"{_ROLLOUT}.multi_turn.max_assistant_turns": (None, _LIMITED),
    f"{_ROLLOUT}.multi_turn.max_user_turns": (None, _LIMITED),
    f"{_ROLLOUT}.multi_turn.tool_config_path": (None, _TOOLS),
    f"{_ROLLOUT}.multi_turn.function_tool_path": (None, _TOOLS),
    # By default those of multi_turn.
    "data.tool_config_path": (None, _TOOLS),
    "data.function_tool_path": (None, _TOOLS),
    f"{_ROLLOUT}.multi_turn.format": ("hermes", _BOUNDED),
    f"{_ROLLOUT}.multi_turn.max_parallel_calls": (1, _BOUNDED),
    f"{_ROLLOUT}.multi_turn.max_tool_response_length": (256, _BOUNDED),
    f"{_ROLLOUT}.multi_turn.tool_response_truncate_side": ("middle", _BOUNDED),
    f"{_ROLLOUT}.ignore_eos": (
        False,
        "GEM ends a turn at the tokens that end a message; leave it at False",
    ),
    f"{_ROLLOUT}.enable_rollout_routing_replay": (
        False,
        "episodes do not say to which experts tokens were routed; leave it at False",
    ),
    "algorithm.filter_groups.enable": (
        False,
        "it takes a failed episode for one of reward 0; leave it at False",
    ),
    "algorithm.use_pf_ppo": (
        False,
        "GEM's estimators do not read it, and verl's V1 trainer gives rows the advantages of "
        "others; leave it at False",
    ),
    "trainer.v1.sampler.sync_refill_failed_groups": (
        False,
        "a failed episode is a row that nothing is trained on, so that no group is without rows; "
        "leave it at False (gem.max_failed_fraction limits failures)",
    ),
    "trainer.v1.sync.parameter_sync_step": (1, _PARTS),
    "trainer.v1.colocate_async.parameter_sync_step": (1, _PARTS),
}
"""The only value that verl's setting may have, besides null, and why."""

_SCORED = "verl would give the last row's reward as the episode's score; leave it {} "
_SCORED += "(gem.record_dir has all episodes)"
_SEVERAL_ROWS: Mapping[str, tuple[Any, str]] = {
    "trainer.validation_data_dir": (None, _SCORED.format("out")),
    "trainer.log_val_generations": (0, _SCORED.format("at 0")),
    "distillation.enabled": (
        False,
        "verl asks the teacher about an episode's last row only; leave it at False, or choose "
        "agent loop gem with gem.context=chat and tasks of one seat",
    ),
    "skip.rollout_tq.enable": (
        False,
        "verl takes every cached row for an episode; leave it at False",
    ),
}
"""The same, where an episode has several training rows."""


@dataclass(frozen=True)
class Settings(BaseSettings, LogitsProcessing):
    """Keys of the `gem` table; `record_dir` needs a `gem_*` trainer mode.

    `min_p` and `repetition_penalty` are also those of evaluations without a `#temperature`.
    """

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


def check_rows(config: Any, agent: str, seats: bool = False) -> None:
    """Refuse several training rows per request where they would be torn apart.

    Args:
        config: A whole verl configuration.
        agent: Name of the agent loop.
        seats: Whether there are tasks with `seat=all`.

    Raises:
        ConfigurationError: The trainer, the estimator or another setting does not know which rows
            belong to an episode.
    """
    settings, mode = Settings.from_config(config), config.trainer.v1.trainer_mode
    if not (seats or agent == "gem_turns" or not settings.one_row):
        return
    reason = f"agent loop {agent!r} with {settings.shown} makes one training row per turn"
    reason = "seat=all makes one training row per agent" if seats else reason
    if mode not in GEM_MODES:
        raise ConfigurationError(f"{reason}, which trainer_mode={mode} tears apart; {_SUGGESTION}")
    if gem_estimator(config) is None:
        raise ConfigurationError(
            f"{reason}, and algorithm.adv_estimator={config.algorithm.adv_estimator} takes the "
            "last one's rewards for those of all; choose one of GEM's estimators"
        )
    _refuse(config, _others(config, _SEVERAL_ROWS, f"{reason}, and "))


def check_config(config: Any, seats: bool = False, images: str | None = None) -> Settings:
    """Return the settings of a verl configuration that GEM rollouts can work with.

    Args:
        config: A whole verl configuration.
        seats: Whether there are tasks with `seat=all`.
        images: An environment that shows images, if there is one.

    Raises:
        ConfigurationError: The combination would train on something else than asked for, or fail
            later; the message says why and what to choose instead.
    """
    settings = Settings.from_config(config)
    # Their agent loops know no `session_id`, and keep one reward of an episode.
    for table, launcher in LAUNCHERS.items():
        if config.get(table) is not None:
            raise ConfigurationError(
                f"{launcher} does not work with GEM's episodes: its agent loops keep one reward of "
                "an episode, and not those of turns; use verl.trainer.main_ppo with "
                "trainer.v1.trainer_mode=gem_colocate_async"
            )
    found = [*_refusals(config, settings), *_others(config, _USUAL), *_on_gpus(config)]
    if images is not None:
        found += _with_images(config, settings, images)
    _refuse(config, found)
    check_rows(config, config.actor_rollout_ref.rollout.agent.default_agent_loop, seats)
    return settings


def gem_estimator(config: Any) -> Estimator | None:
    """Return the estimator of a verl configuration; None if it is one of verl's own."""
    name = str(config.algorithm.adv_estimator)
    return estimator(name.removeprefix(PREFIX)) if name.startswith(PREFIX) else None


def keeps_state(config: Any) -> bool:
    """Return whether the estimator of a verl configuration keeps a state between batches."""
    chosen = gem_estimator(config)
    return chosen is not None and chosen.keeps_state


def _refuse(config: Any, found: Iterable[Refusal]) -> None:
    from omegaconf import OmegaConf  # comes with verl, which compiling a command must not need

    found = list(found)
    refuse_values({key: OmegaConf.select(config, key) for key, *_ in found}, found)


def _others(
    config: Any, usual: Mapping[str, tuple[Any, str]], because: str = ""
) -> Iterator[Refusal]:
    """Yield what has another value than the usual one; the reason follows `because`."""
    from omegaconf import OmegaConf

    for key, (value, why) in usual.items():
        yield key, OmegaConf.select(config, key) not in (None, value), f"{because}{why}"


def _refusals(config: Any, settings: Settings) -> Iterator[Refusal]:
    mode, algorithm = config.trainer.v1.trainer_mode, config.algorithm
    rollout, ours = config.actor_rollout_ref.rollout, mode in GEM_MODES
    legacy = "verl's legacy trainer replaces the rewards of turns by one number per episode"
    yield "trainer.use_v1", not config.trainer.use_v1, f"{legacy}; leave it at True"
    others = f"it is not known to gem-verl; choose one of {', '.join(MODES)}"
    yield "trainer.v1.trainer_mode", mode not in MODES, others
    silent = f"trainer_mode={mode} cannot record; {_SUGGESTION}"
    yield "gem.record_dir", settings.record_dir is not None and not ours, silent
    unread = f"only GEM's trainers read it; leave it out, or {_SUGGESTION}"
    for name in _OF_TRAINERS:
        yield f"gem.{name}", not ours and getattr(settings, name) != getattr(Settings, name), unread
    shaped = ours and gem_estimator(config) is not None
    unused = f"only GEM's estimators in GEM's trainers use it; {_SUGGESTION} and "
    unused += "algorithm.adv_estimator to one of GEM's"
    for name in settings.changed:
        yield f"gem.{name}", not shaped, unused
    yield "gem.group_std", not settings.group_std, "set algorithm.norm_adv_by_std_in_grpo"
    correction = algorithm.get("rollout_correction") or {}
    masked = correction.get("rollout_rs") and gem_estimator(config) is not None
    torn = f"it removes tokens from the mask by which turns are found; {_SUGGESTION}"
    yield "algorithm.rollout_correction.rollout_rs", bool(masked) and not ours, torn
    chosen = gem_estimator(config)
    critic = f"it needs the critic's values: {_SUGGESTION} and critic.enable=True"
    without = chosen is not None and chosen.needs_critic and not (ours and config.critic.enable)
    yield "algorithm.adv_estimator", without, critic
    kept = f"the trainers of gem-verl keep its state; {_SUGGESTION}"
    yield "algorithm.adv_estimator", keeps_state(config) and not ours, kept
    cut = mode == "separate_async" and config.trainer.v1.separate_async.parameter_sync_step > 1
    parts = "it is normalised over a batch, and trainer_mode=separate_async has parts of a batch"
    parts += "; set trainer.v1.separate_async.parameter_sync_step=1, or choose gem_grpo"
    mixed = cut and chosen is not None and chosen.compares == "batch"
    yield "algorithm.adv_estimator", mixed, parts
    loss = config.actor_rollout_ref.actor.policy_loss.loss_mode
    spread = loss == "geo_mean" and chosen is not None and chosen.name not in ("grpo", "rloo")
    flat = "it gives all tokens of a row the mean of its advantages, and those of turns are lost; "
    flat += "choose another one, or gem_grpo or gem_rloo"
    yield "actor_rollout_ref.actor.policy_loss.loss_mode", spread, flat
    for name in ("rollout_is", "rollout_rs"):
        key, part = f"rollout_correction.{name}", "actor_rollout_ref.actor.policy_loss"
        skipped = "verl's V1 trainer does not read it with bypass_mode=True; "
        skipped += f"set +{part}.{key} and {part}.loss_mode=bypass_mode instead"
        bypassed = correction.get("bypass_mode") and correction.get(name)
        yield f"algorithm.{key}", bool(bypassed), skipped
    zero = "verl's own estimators take a failed episode for one of reward 0, and its own trainers "
    zero += f"cannot stop at it; {_SUGGESTION}, which does, or choose one of GEM's estimators"
    yield "algorithm.adv_estimator", chosen is None and not ours, zero
    again = "a turn that verl interrupts to load weights goes on with the random numbers that it "
    again += f"began with; leave it out, or {_SUGGESTION}"
    yield "gem.seed", settings.seed is not None and "_async" in mode, again
    seeded = rollout.name == "sglang" and settings.seed is not None
    yield "gem.seed", seeded, "verl hands it to SGLang, whose requests know no `seed`; leave it out"
    drawn = "verl gives all requests of a server one seed and chooses the server by the request's "
    drawn += "name, which is random here; set gem.seed with trainer.v1.trainer_mode=gem_sync, or "
    drawn += "leave it at False"
    fixed = bool(rollout.full_determinism) and settings.seed is None
    yield f"{_ROLLOUT}.full_determinism", fixed, drawn
    other = "verl's TensorRT-LLM server does not obey the limit and the stop tokens of a turn; set "
    yield f"{_ROLLOUT}.name", rollout.name == "trtllm", f"{other}it to vllm"
    loop = f"{_ROLLOUT}.agent.default_agent_loop"
    idle = "it plays no environment; set it to gem or gem_turns"
    yield loop, rollout.agent.default_agent_loop in _LOOPS, idle
    empty = f"the servers of trainer_mode={mode} answer without; leave it at True"
    unknown = "_async" in mode and not rollout.calculate_log_probs
    yield f"{_ROLLOUT}.calculate_log_probs", unknown, empty
    longest = rollout.prompt_length + rollout.response_length
    # verl would cut a turn there, and say that it is complete.
    most = rollout.max_model_len or _positions(config)
    sizes = f"an episode may have {longest} tokens (data.max_prompt_length + "
    sizes += f"data.max_response_length), the engine's model at most {most}"
    yield f"{_ROLLOUT}.max_model_len", most is not None and most < longest, sizes


def _positions(config: Any) -> int | None:
    """Return the most tokens of the model, verl's default of `rollout.max_model_len`, if known."""
    from omegaconf import OmegaConf

    name, about = "max_position_embeddings", known_config(str(config.actor_rollout_ref.model.path))
    changed: int | None = OmegaConf.select(config, f"{_MODEL}.override_config.{name}")
    return changed or about.get(name) or about.get("text_config", {}).get(name)


def _with_images(config: Any, settings: Settings, env: str) -> Iterator[Refusal]:
    """Yield what does not work with an environment that shows images."""
    from omegaconf import OmegaConf

    rollout, why = config.actor_rollout_ref.rollout, f"{env} shows images, and "
    agent, name = "agent.default_agent_loop", f"{_ROLLOUT}.name"
    one = f"{why}they need episodes of one row"
    yield f"{_ROLLOUT}.{agent}", rollout.agent.default_agent_loop != "gem", f"{one}; set it to gem"
    yield from settings.several_rows(one, "gem.")
    other = f"{why}verl's {rollout.name} does not tell how it read them; set it to vllm"
    yield name, rollout.name != "vllm", other
    apart = f"{why}servers that divide prefill and decoding do not tell how they read them"
    divided = bool((rollout.get("disaggregation") or {}).get("enabled"))
    yield f"{_ROLLOUT}.disaggregation.enabled", divided, f"{apart}; set it to False"
    noise = f"{why}vLLM has the mean and variance of their pixels in buffers, which 'dummy' fills "
    noise += f"with noise and no update of the weights restores; set it to {LOADED}"
    yield f"{_ROLLOUT}.load_format", str(rollout.load_format) == "dummy", noise
    banned = f"{why}verl bans the tokens that stand for them in the engine, not in the learner, so "
    banned += f"that log-probabilities of all tokens differ; set +{UNMASKED}={WORKER}"
    yield UNMASKED, OmegaConf.select(config, UNMASKED) != WORKER, banned
    attention = str(OmegaConf.select(config, ATTENTION) or "flash_attention_2")
    packed = bool(config.actor_rollout_ref.model.use_remove_padding) and "flash" not in attention
    padding = f"{why}verl removes the padding of models that see with flash attention only; set it"
    yield f"{_MODEL}.use_remove_padding", packed, f"{padding} to False"
    given = bool(config.data.get("mm_processor_kwargs"))
    sizes = f"{why}the server does not get these arguments; change the model's preprocessor_config"
    yield "data.mm_processor_kwargs", given, f"{sizes}.json instead"
    critic = f"{why}nobody has tried verl's critics with them; choose an estimator without one"
    yield "critic.enable", bool(config.critic.enable), critic


def fuses(model: str) -> bool:
    """Return whether verl's fused head can train a model: not if it scales its logits or sees.

    FSDP2 shards a head by itself unless its matrix is also that of the embeddings. The fused head
    would then meet a shard. A model that is not here yet counts as one with a matrix of its own.
    """
    if sees(model) or logit_scales(model):
        return False
    return known_config(model).get("tie_word_embeddings") is True


def _on_gpus(config: Any) -> Iterator[Refusal]:
    """Yield settings of GPUs that are valid each by itself, and wrong together."""
    from omegaconf import OmegaConf

    # Without the key verl asks for flash attention.
    attention = str(OmegaConf.select(config, ATTENTION) or "flash_attention_2")
    sizes = (f"actor_rollout_ref.{part}ulysses_sequence_parallel_size" for part in _SPLIT)
    for key in sizes:
        split = int(OmegaConf.select(config, key) or 1) > 1
        yield key, split and "flash" not in attention, f"{SPLIT.format(attention)}, or set it to 1"
    valued = config.critic.enable
    if valued is None:
        valued = str(config.algorithm.adv_estimator) == "gae"
    lacking = find_spec("flash_attn") is None and config.trainer.device == "cuda"
    alone = lacking and os.environ.get("GEM_CPU") != "1"
    yield "critic.enable", bool(valued) and alone, f"{CRITIC}; {FLASH}"
    whole = OmegaConf.select(config, f"{_MODEL}.use_fused_kernels")
    scaled = logit_scales(str(config.actor_rollout_ref.model.path))
    # The kernels compute from the last matrix alone.
    changed = f"the model's {', '.join(scaled)} would be left out; set it to False"
    yield f"{_MODEL}.use_fused_kernels", bool(whole and scaled), changed
    about = known_config(str(config.actor_rollout_ref.model.path))
    sharded = str(config.actor_rollout_ref.actor.strategy) == "fsdp2" and bool(about)
    own = sharded and about.get("tie_word_embeddings") is not True
    apart = "FSDP2 shards a head that is not tied to the embeddings, and the kernels would meet a "
    apart += "shard; set it to False"
    yield f"{_MODEL}.use_fused_kernels", bool(whole and own), apart
