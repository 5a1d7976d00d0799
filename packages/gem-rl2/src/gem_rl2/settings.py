"""What `+gem.<key>=` says on RL2's command line, and which of RL2's keys can work with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from gem.errors import ConfigurationError
from gem.rollout import Budget
from gem.tables import flatten, setting
from gem_train.settings import DatasetSettings, check_estimator, check_group_size

SECTION = "gem"
"""Section of RL2's configuration; without it GEM stays out of the way."""


@dataclass(frozen=True)
class Settings(DatasetSettings):
    """The section `gem` of RL2's configuration."""

    prompt_tokens: int = setting(
        "most tokens of a fresh prompt; RL2's rows begin with the second token", 1024, least=2
    )
    response_tokens: int | None = setting(
        "most tokens appended to a fresh prompt; by default the rest of a row", None, least=1
    )
    epochs: int = setting("passes over a batch; RL2 itself makes one", 1, least=1)
    evaluate_from: int = setting(
        "0 evaluates before the first iteration, too, which RL2 does not", 1, least=0, most=1
    )
    trainer_seed: int | None = setting(
        "seed of PyTorch in RL2's processes: order of the rows, head of a new critic", None, least=0
    )
    episodes_at_once: int | None = setting(
        "most episodes played at the same time; by default all of a batch", None, least=1
    )
    request_timeout_s: float = setting("limit of one request to SGLang in seconds", 600.0, above=0)
    request_retries: int = setting(
        "further attempts after a request that failed; then the run stops", 3, least=0
    )
    adam_beta1: float | None = setting("of AdamW; by default PyTorch's", None)
    adam_beta2: float | None = setting("of AdamW; by default PyTorch's", None)
    adam_eps: float | None = setting("of AdamW; by default PyTorch's", None)

    @property
    def adam(self) -> dict[str, float]:
        """The given ones of AdamW's parameters, for which RL2 has no keys."""
        names = ("adam_beta1", "adam_beta2", "adam_eps")
        return {n: getattr(self, n) for n in names if getattr(self, n) is not None}


def _key(name: str) -> Any:
    """Declare a field of `Keys` by its name in RL2's configuration."""
    return field(metadata={"name": name})


@dataclass(frozen=True)
class Keys:
    """What this package reads of RL2's own configuration."""

    longest: int
    """Most tokens of a row that RL2 trains on."""
    shortest_pass: str
    """RL2's name of the key that decides it."""
    sampling: Mapping[str, Mapping[str, Any]]
    """SGLang's parameters by section, in training and in evaluations."""
    tasks: int = _key("train_data.prompts_per_rollout")
    """Different tasks in a batch."""
    group_size: int = _key("train_data.responses_per_prompt")
    rollout_group_size: int = _key("rollout.responses_per_prompt")
    adv_group_size: int = _key("adv.responses_per_prompt")
    max_turns: int = _key("rollout.max_turns")
    turn_tokens: int | None = _key("rollout.train_sampling_params.max_new_tokens")
    eval_turn_tokens: int | None = _key("rollout.test_sampling_params.max_new_tokens")
    dynamic_filtering: bool = _key("rollout.dynamic_filtering")
    train_path: str | None = _key("train_data.path")
    test_path: str | None = _key("test_data.path")
    test_freq: int | None = _key("trainer.test_freq")
    checkpoint: str | None = _key("trainer.load_ckpt_from")
    save_freq: int | None = _key("trainer.save_freq")
    save_dir: str = _key("trainer.save_dir")
    estimator: str = _key("adv.estimator")
    gamma: float = _key("adv.gamma")
    lam: float = _key("adv.lamda")
    norm_var: bool = _key("adv.norm_var")
    global_norm: bool = _key("adv.global_norm")
    minibatches: int = _key("actor.update_per_rollout")
    copies: int = _key("actor.ddp_size")
    tensor_parallel: int = _key("actor.tp_size")
    critic_minibatches: int = _key("critic.update_per_rollout")
    critic_copies: int = _key("critic.ddp_size")
    critic_tensor_parallel: int = _key("critic.tp_size")
    reference_copies: int = _key("ref_actor.ddp_size")
    reference_offloaded: bool = _key("ref_actor.offload_model")
    kl_coef: float = _key("actor.kl.coef")
    kl_type: str | None = _key("actor.kl.type")
    kl_estimator: str = _key("actor.kl.reward_estimator")

    @classmethod
    def names(cls) -> dict[str, str]:
        """Return RL2's name of each field that it has a key for."""
        return {f.name: f.metadata["name"] for f in fields(cls) if "name" in f.metadata}

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Keys:
        """Read RL2's configuration.

        Args:
            config: As plain mappings, resolved.

        Raises:
            ConfigurationError: A key is missing that RL2 itself would miss later.
        """
        values = flatten(config)
        lengths = {}
        for part in ("actor", "critic") if values["adv.estimator"] == "gae" else ("actor",):
            for name in ("max_length_per_device", "max_inference_length_per_device"):
                key = f"{part}.{name}"
                if not values[key]:
                    raise ConfigurationError(f"{key} is not set")
                lengths[key] = values[key] * values[f"{part}.sp_size"] * values[f"{part}.tp_size"]
        least = min(lengths, key=lambda key: lengths[key])
        sampling = {name: config["rollout"][name] for name in _SAMPLING}
        return cls(
            lengths[least], least, sampling, **{n: values[key] for n, key in cls.names().items()}
        )


def budget(settings: Settings, keys: Keys, *, evaluation: bool = False) -> Budget:
    """Return the limits of an episode, of settings that passed `check`."""
    response = settings.response_tokens or keys.longest - settings.prompt_tokens
    turn = keys.eval_turn_tokens if evaluation else keys.turn_tokens
    return settings.limits(settings.prompt_tokens, response, turn)


_SAMPLING = ("train_sampling_params", "test_sampling_params")
_DECODES = "it changes SGLang's text only, and GEM decodes the tokens itself; leave it out"
_DECIDED: dict[str, tuple[Any, str]] = {
    "no_stop_trim": (
        True,
        "environments are given the text of exactly the sampled tokens, the stop string included; "
        "set it to true",
    ),
    "stop_token_ids": (
        None,
        "a turn ends at the chat template's tokens; leave it out, or set stop to a text that ends "
        "a turn, too",
    ),
    "skip_special_tokens": (None, _DECODES),
    "spaces_between_special_tokens": (None, _DECODES),
}
"""SGLang's parameters that GEM decides: the only value that is accepted, and why."""

_NOTHING = "it means nothing to gem.advantage={advantage}; set it to false"
_MULTIPLE = (
    "it counts the optimiser steps of all passes and must be a multiple of gem.epochs={epochs}"
)
_APART = (
    "on {ranks} ranks none shares its copy of the weights with another; then PyTorch's FSDP adds "
    "up no gradients, and each rank trains weights of its own; set it to 1"
)
_REASONS = {
    "seed": "SGLang takes no seed with a request; set +rollout.server_args.random_seed, and "
    "gem.trainer_seed for RL2 itself",
    "prompt_tokens": "with gem.response_tokens={response_tokens} it does not fit into a row: "
    "{shortest_pass} allows {longest} tokens",
    "dynamic_filtering": "it drops the groups whose rewards are all the same, failed episodes "
    "counted as 0, and shrinks the batch; set it to false (their advantage is 0 anyway)",
    "rollout_group_size": "RL2 uses it for dynamic filtering only; leave it out and set "
    "train_data.responses_per_prompt, which it follows",
    "adv_group_size": "gem.advantage={advantage} does not read it: the episodes of a row are a "
    "group, train_data.responses_per_prompt of them; leave it out",
    "max_turns": "GEM plays the episodes and does not read it; leave it at 1 and set gem.turns",
    "minibatches": _MULTIPLE,
    "critic_minibatches": _MULTIPLE,
    "copies": _APART,
    "critic_copies": _APART,
    "reference_copies": "on {ranks} ranks the reference's weights reach the first rank only; set "
    "it to 1, or ref_actor.offload_model to true",
    "norm_var": _NOTHING,
    "global_norm": _NOTHING,
    "kl_type": "with actor.kl.coef={kl_coef} GEM's advantages go with reward (taken from the "
    "turns' rewards) or loss",
}
"""Why a field of `Settings` or `Keys` is refused and what to choose instead, formatted with both's
fields."""


def check(settings: Settings, keys: Keys, ranks: int = 1) -> None:
    """Refuse keys that would train on something else than the section `gem` says.

    Args:
        settings: The section `gem`.
        keys: RL2's.
        ranks: Number of RL2's processes.

    Raises:
        ConfigurationError: The message names the key, why, what to choose instead, and its value.
    """
    for part, params in keys.sampling.items():
        for parameter, (accepted, reason) in _DECIDED.items():
            found = params.get(parameter, accepted)
            if found != accepted:
                raise ConfigurationError(f"rollout.{part}.{parameter}: {reason}, got {found!r}")

    def apart(copies: int, tensor_parallel: int) -> bool:
        return copies > 1 and copies * tensor_parallel == ranks

    name, critic = settings.advantage, keys.estimator == "gae"
    refused = {
        "seed": settings.seed is not None,
        "prompt_tokens": settings.prompt_tokens + (settings.response_tokens or 1) > keys.longest,
        "dynamic_filtering": keys.dynamic_filtering and keys.group_size > 1,
        "rollout_group_size": keys.rollout_group_size != keys.group_size,
        "adv_group_size": name and keys.adv_group_size != keys.group_size,
        "max_turns": keys.max_turns != 1,
        "minibatches": keys.minibatches % settings.epochs,
        "critic_minibatches": critic and keys.critic_minibatches % settings.epochs,
        "copies": apart(keys.copies, keys.tensor_parallel),
        "critic_copies": critic and apart(keys.critic_copies, keys.critic_tensor_parallel),
        # With tensor parallelism, the first rank of every copy loads the weights.
        "reference_copies": keys.kl_coef > 0
        and not keys.reference_offloaded
        and apart(keys.reference_copies, 1),
        "norm_var": name and keys.norm_var,
        "global_norm": name and keys.global_norm,
        "kl_type": name and keys.kl_coef and keys.kl_type not in ("reward", "loss"),
    }
    values = {**vars(settings), **vars(keys), "ranks": ranks}
    names = {key: f"gem.{key}" for key in values} | Keys.names()
    for key in filter(refused.get, refused):
        reason = _REASONS[key].format_map(values)
        raise ConfigurationError(f"{names[key]}: {reason}, got {values[key]!r}")
    if name is not None:
        check_estimator(name, "adv.estimator", keys.estimator)
        check_group_size(name, names["group_size"], keys.group_size)
