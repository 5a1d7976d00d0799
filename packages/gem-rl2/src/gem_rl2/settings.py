"""What `+gem.<key>=` says on RL2's command line, and which of RL2's keys can work with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gem.advantage import ADVANTAGES
from gem.errors import ConfigurationError
from gem.rollout import Budget
from gem.tables import setting
from gem.training import settings as common
from gem_rl2.release import Form

SECTION = "gem"
"""Section of RL2's configuration; without it GEM stays out of the way."""
TASK_ORDERS = ("shuffled", "file")


@dataclass(frozen=True)
class Settings(common.Settings):
    """The section `gem` of RL2's configuration."""

    advantage: str | None = None
    """Estimator of `gem.advantage`; None leaves RL2's own in place."""
    prompt_tokens: int = 1024
    """Most tokens of a fresh prompt."""
    response_tokens: int | None = None
    """Most tokens appended to a fresh prompt; by default what `actor.max_length_per_device` leaves.
    """
    epochs: int = 1
    """Passes over a batch, of which RL2 itself has one."""
    task_order: str = "shuffled"
    """`file` plays the rows in their order, which RL2 always shuffles."""
    evaluate_from: int = 1
    """0 evaluates before the first iteration, too, which RL2 does not."""
    trainer_seed: int | None = None
    """Seed of PyTorch in RL2's processes: order of the rows, head of a new critic."""
    episodes_at_once: int | None = None
    """Most episodes played at the same time; by default all of a batch."""
    request_timeout_s: float = setting("limit of one request to SGLang in seconds", 600.0, above=0)
    request_retries: int = 3
    """Further attempts after a request that failed; then the run stops."""
    adam_beta1: float | None = None
    """For the release, whose AdamW has no keys for these three; by default PyTorch's."""
    adam_beta2: float | None = None
    adam_eps: float | None = None

    def __post_init__(self) -> None:
        self.check()

    def check(self, prefix: str = "gem.") -> None:
        """Raise `ConfigurationError` if a value is of the wrong type or range."""
        super().check(prefix)
        if self.seed is not None:
            raise ConfigurationError(
                "gem.seed: SGLang takes no seed with a request; set "
                "+rollout.server_args.random_seed, and gem.trainer_seed for RL2 itself"
            )
        if self.advantage is not None and self.advantage not in ADVANTAGES:
            raise ConfigurationError(
                f"gem.advantage must be one of {', '.join(ADVANTAGES)}, got {self.advantage!r}"
            )
        if self.task_order not in TASK_ORDERS:
            raise ConfigurationError(
                f"gem.task_order must be one of {', '.join(TASK_ORDERS)}, got {self.task_order!r}"
            )
        if self.evaluate_from > 1:
            raise ConfigurationError(
                f"gem.evaluate_from must be 0 or 1, got {self.evaluate_from}; the rest is "
                "trainer.test_freq"
            )
        least = {
            "prompt_tokens": 2,  # RL2's rows begin with the second token
            "response_tokens": 1,
            "epochs": 1,
            "evaluate_from": 0,
            "trainer_seed": 0,
            "episodes_at_once": 1,
            "request_retries": 0,
        }
        for name, bound in least.items():
            value = getattr(self, name)
            if value is not None and value < bound:
                raise ConfigurationError(f"gem.{name} must be at least {bound}, got {value}")

    @property
    def adam(self) -> dict[str, float]:
        """The given ones of AdamW's parameters, under the names of the settings."""
        names = ("adam_beta1", "adam_beta2", "adam_eps")
        return {n: getattr(self, n) for n in names if getattr(self, n) is not None}


@dataclass(frozen=True)
class Keys:
    """What this package reads of RL2's own configuration, which two forms name differently."""

    form: Form
    tasks: int | None
    """Different tasks in a batch; None: the whole file (head)."""
    group_size: int
    dynamic_filtering: bool
    filtering_key: str
    partial_rollout: bool
    turn_tokens: int | None
    longest: int
    """Most tokens of a row that RL2 trains on."""
    estimator: str
    gamma: float
    lam: float
    normalised: str | None
    """The key that asks for RL2's own normalisation, if one does."""
    kl_coef: float
    kl_type: str | None
    kl_estimator: str
    minibatches: int
    test_path: str | None
    eval_only: bool

    @classmethod
    def read(cls, config: Mapping[str, Any], form: Form) -> Keys:
        """Read RL2's configuration.

        Args:
            config: As plain mappings, resolved.
            form: Whose configuration it is.

        Raises:
            ConfigurationError: A key is missing that RL2 itself would miss later.
        """
        head = form == "head"
        rollout, actor, adv = config["rollout"], config["actor"], config["adv"]
        data = rollout["train"] if head else config["train_data"]
        sampling = data["sampling_params"] if head else rollout["train_sampling_params"]
        parts = [actor, config["critic"]] if adv["estimator"] == "gae" else [actor]
        for name, part in zip(("actor", "critic"), parts, strict=False):
            if not part["max_length_per_device"]:
                raise ConfigurationError(f"{name}.max_length_per_device is not set")
        split = "cp_size" if head else "sp_size"
        return cls(
            form=form,
            tasks=data["prompts_per_rollout"],
            group_size=data["responses_per_prompt"],
            dynamic_filtering=(data if head else rollout)["dynamic_filtering"],
            filtering_key=("rollout.train" if head else "rollout") + ".dynamic_filtering",
            partial_rollout=head and data["partial_rollout"],
            turn_tokens=sampling["max_new_tokens"],
            longest=min(
                min(p["max_length_per_device"], p["max_inference_length_per_device"])
                * p[split]
                * p["tp_size"]
                for p in parts
            ),
            estimator=adv["estimator"],
            gamma=float(adv["gamma"]),
            lam=float(adv["lamda"]),
            normalised=next(
                (f"adv.{name}" for name in ("norm_var", "global_norm") if adv[name]), None
            ),
            kl_coef=float(actor["kl"]["coef"]),
            kl_type=actor["kl"]["type"],
            kl_estimator=actor["kl"]["reward_estimator"],
            minibatches=actor["update_per_rollout"],
            test_path=rollout["test"]["path"] if head else config["test_data"]["path"],
            eval_only=bool(config["trainer"].get("eval_only", False)),
        )

    @property
    def episodes(self) -> int | None:
        """Episodes of a batch, if the configuration says it."""
        return None if self.tasks is None else self.tasks * self.group_size


def budget(settings: Settings, keys: Keys) -> Budget:
    """Return the limits of an episode.

    Raises:
        ConfigurationError: A row could be longer than RL2 takes.
    """
    response = settings.response_tokens or keys.longest - settings.prompt_tokens
    if response < 1 or settings.prompt_tokens + response > keys.longest:
        raise ConfigurationError(
            f"gem.prompt_tokens={settings.prompt_tokens} and "
            f"gem.response_tokens={settings.response_tokens} do not fit into a row: "
            f"actor.max_length_per_device allows {keys.longest} tokens"
        )
    turn = min(settings.turn_tokens or response, keys.turn_tokens or response, response)
    return Budget(turn, response, settings.prompt_tokens, settings.turns)


def check(settings: Settings, keys: Keys) -> None:
    """Refuse keys that would train on something else than the section `gem` says.

    Raises:
        ConfigurationError: The message names the key, why, and what to choose instead.
    """
    budget(settings, keys)
    if keys.dynamic_filtering and keys.group_size > 1:
        raise ConfigurationError(
            f"{keys.filtering_key}=true drops the groups whose rewards are all the same, failed "
            f"episodes counted as 0, and shrinks the batch; set {keys.filtering_key}=false (their "
            "advantage is 0 anyway)"
        )
    if keys.partial_rollout:
        raise ConfigurationError(
            "rollout.train.partial_rollout=true would cut episodes in the middle of a turn; set it "
            "to false"
        )
    if settings.adam and keys.form == "head":
        raise ConfigurationError(
            f"gem.{next(iter(settings.adam))} is for rl-square 0.0.2; this RL2 passes everything "
            "in actor.optimizer to AdamW: +actor.optimizer.betas=[0.9,0.999]"
        )
    if keys.form == "head" and not keys.test_path and not keys.eval_only:
        raise ConfigurationError(
            "rollout.test.path is not set: RL2 would take rollout.test_ratio of the training rows "
            "away for evaluation; give it a file of its own (python -m gem_rl2.make_dataset --eval)"
        )
    if keys.minibatches % settings.epochs:
        raise ConfigurationError(
            f"gem.epochs={settings.epochs}: actor.update_per_rollout counts the optimiser steps of "
            f"all passes and must be a multiple of it, got {keys.minibatches}"
        )
    if settings.advantage is not None:
        _check_advantage(settings.advantage, keys)


def _check_advantage(name: str, keys: Keys) -> None:
    needed = "gae" if name == "gae" else "reinforce"
    if keys.estimator != needed:
        reason = "creates the critic" if needed == "gae" else "creates no critic"
        raise ConfigurationError(
            f"gem.advantage={name} needs adv.estimator={needed}, which {reason} (the computation "
            f"is GEM's); got {keys.estimator}"
        )
    if name in ("grpo", "rloo") and keys.group_size < 2:
        key = "rollout.train" if keys.form == "head" else "train_data"
        raise ConfigurationError(
            f"gem.advantage={name} compares the episodes of a task: {key}.responses_per_prompt "
            "must be at least 2"
        )
    if keys.normalised:
        raise ConfigurationError(
            f"{keys.normalised}=true means nothing to gem.advantage={name}; set it to false"
        )
    if keys.kl_coef and keys.kl_type not in ("reward", "loss"):
        raise ConfigurationError(
            f"actor.kl.coef={keys.kl_coef} with actor.kl.type={keys.kl_type}: GEM's advantages go "
            "with reward (taken from the turns' rewards) or loss"
        )
