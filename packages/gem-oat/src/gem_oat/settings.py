"""oat's arguments and GEM's beside them, and which of them can work together."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from typing import Any, get_type_hints

import tyro
from oat.algorithms.ppo import PPOArgs
from oat.args import default_args_validation

from gem.errors import ConfigurationError
from gem.estimators import estimator
from gem.rollout import Budget
from gem.tables import check, json_or_text, setting
from gem_train.experiment.hardware import logit_scales
from gem_train.experiment.losses import Correction, PolicyLoss
from gem_train.experiment.mixtures import Tasks, parse_tasks, run_tasks
from gem_train.experiment.runspec import LogitsProcessing
from gem_train.experiment.tasksets import Source, parse_sources
from gem_train.settings import Refusal, Settings, check_offered, refuse_values

OATS = ("turn_tokens", "clip", "tis_clip")
"""Settings for which oat has flags of its own."""


@dataclass(frozen=True)
class GemSettings(Settings, Correction, PolicyLoss, LogitsProcessing):
    """GEM's settings; each is a flag `--gem_<name>`, except those for which oat has flags."""

    tasks: str = setting(
        "task set or mixture to train on, gem:<env id>?seed=0&<parameter>=<value>",
        "",
        check=parse_tasks,
    )
    """Its `n` is not looked at."""
    eval: str = setting("task sets to evaluate on, separated by spaces: gem:...?n=64#name=...", "")
    """After `#` may also stand `temperature`."""
    advantage: str = setting(
        "name of an estimator; one that needs a critic needs --critic_type ppo",
        "rebn",
        check=check_offered,
    )
    critic_warmup: int = setting("first iterations in which only the critic is trained", 0, least=0)
    forward_tokens: int = setting("most tokens, padding included, of a forward pass", 8192, above=0)
    """At least one row is in a forward pass of the learner."""
    resume: bool = setting(
        "save all that training needs every --save_steps, below --save_path, and go on from there",
        False,
    )
    """The same command starts a run, and goes on with it."""


def _flags() -> Any:
    """Return oat's arguments extended by the flags of `GemSettings`; a table's is JSON."""
    types = get_type_hints(GemSettings) | {"template_kwargs": str | None}
    flags = [
        (f"gem_{f.name}", types[f.name], field(default=f.default, metadata=f.metadata))
        for f in fields(GemSettings)
        if f.name not in OATS
    ]
    return make_dataclass("Flags", flags, bases=(PPOArgs,))


@dataclass
class Args(_flags()):  # type: ignore[misc]
    """oat's arguments with other defaults or values for some of them, and GEM's."""

    # Episodes of each task.
    num_samples: int = 1
    # Weight of the KL penalty (k3) to the initial policy.
    beta: float = 0.0
    # Any name of transformers' `get_scheduler`, of which oat's own type knows three.
    lr_scheduler: str = PPOArgs.lr_scheduler
    # Named by --gem_tasks and --gem_eval instead.
    prompt_data: str = ""
    oracle: str = ""

    @property
    def gem(self) -> GemSettings:
        """GEM's own arguments.

        Raises:
            ConfigurationError: A value is not allowed; the message names its flag.
        """
        own = {name.removeprefix("gem_"): value for name, value in shown(self).items()}
        if own["template_kwargs"] is not None:
            own["template_kwargs"] = json_or_text(own["template_kwargs"])
        own["clip"] = self.cliprange
        own["tis_clip"] = self.tis_c
        return GemSettings.from_mapping(own, "--gem_")

    @property
    def iterations(self) -> int:
        """Batches to train on."""
        return int(self.max_train) // int(self.rollout_batch_size)

    @property
    def episodes(self) -> int:
        """Episodes of an iteration."""
        return int(self.rollout_batch_size) * int(self.num_samples)

    @property
    def minibatches(self) -> int:
        """Optimiser steps of a pass over a batch."""
        return self.episodes // int(self.train_batch_size)

    @property
    def learners(self) -> int:
        """Data-parallel ranks."""
        gpus = int(self.gpus)
        return (gpus if self.collocate or gpus == 1 else (gpus + 1) // 2) * int(self.num_groups)

    def train_tasks(self) -> Tasks:
        """All tasks of the run, `rollout_batch_size` an iteration."""
        return run_tasks(self.gem.tasks, self.iterations, int(self.rollout_batch_size))

    def sources(self) -> list[Source]:
        """What is evaluated on.

        Raises:
            ConfigurationError: One is malformed, or two have the same name.
        """
        return parse_sources(self.gem.eval.split(), "--gem_eval")

    def budget(self, *, evaluation: bool = False) -> Budget:
        """Limits of an episode."""
        turn = self.eval_generate_max_length if evaluation else self.generate_max_length
        room = self.max_model_len - self.prompt_max_length
        return Budget(min(turn, room), room, self.prompt_max_length, self.gem.turns)


@dataclass(frozen=True)
class Ranges:
    """Ranges of oat's own flags, which oat does not check, under their names."""

    num_samples: int = setting("episodes of each task", least=1)
    num_ppo_epochs: int = setting("passes over a batch", least=1)
    top_p: float = setting("nucleus mass", above=0, most=1)
    top_k: int = setting("number of candidates", least=1, special=-1)
    gamma: float = setting("discount per turn", least=0, most=1)
    lam: float = setting("GAE's lambda per turn", least=0, most=1)
    cliprange: float = setting("clip range of the probability ratio", above=0)
    tis_c: float | None = setting("most weight in importance sampling", above=0)
    beta: float = setting("weight of the KL penalty", least=0)
    vf_coef: float = setting("weight of the critic's loss", least=0)


_REWARDS = "rewards are the environment's"
_UNREAD = (
    "disable_trace_cache activation_offloading sft_sum_loss oracle_type "
    "label_smoothing gamma_beta_ratio dpo_positive_lambda sft_weight len_reg_alpha "
    "bt_sample preference_flip_prob num_bon bon_temperature num_ensemble enn_max_try "
    "enn_lambda rm_lr rm_wd rm_hidden_dim rm_act_fn rm_sgd_steps rm_fixed_reg "
    "rm_train_budget rm_backbone rm_pretrain encoding_dim r_buffer_maxlen exp_method "
    "exp_rnd_sample exp_allow_second_best model_rollout max_model_data_ratio "
    "burn_in_period pure_model_based"
)
_REASONS = {
    "asynchronous sync_params_every": "every batch is sampled by the policy that it trains",
    "max_sgd_steps buffer_clear_every": "every batch is trained on once, and as a whole",
    "num_prompt_epoch max_queries": "--max_train says how many tasks are trained on",
    "max_epochs": "--num_ppo_epochs is the number of passes over a batch",
    "reinforce_update": "oat 0.2 divides by zero; one optimiser step a batch is REINFORCE's",
    "train_batch_size_per_device": "--gem_forward_tokens decides how many rows are one forward",
    "dry_run dry_run_prompt_len dry_run_response_len": (
        "rows are whole episodes, never dummies; the longest has --max_model_len tokens"
    ),
    "lora_sync_only": "turns are asked of the engine without an adapter, which it would need",
    "num_gpus_per_actor": "oat's multi-turn learner knows actors of one GPU only",
    "whiten_adv whiten_rewards": "--gem_whiten normalises advantages, over turns of all ranks",
    "oracle oracle_batch_size remote_rm_url remote_rm_client_workers": _REWARDS,
    "learn_rm learn_rm_only non_stop_penalty non_stop_fixed_reward": _REWARDS,
    "reward_scale": "--gem_reward_scale is the factor of every turn's reward",
    "kl_penalty_coef": "a KL penalty is a term of the loss here: --beta",
    "ignore_no_eos": "every sampled token is trained on",
    "apply_chat_template": "the model's chat template is always applied",
    "disable_fast_tokenizer": "the engine's tokenizer, which is the fast one, writes the turns",
    "rnd_seed": "tasks have a fixed order, and without --gem_seed every run samples other turns",
    "prompt_data": "--gem_tasks names what is trained on",
    "eval_data online_evaluation best_of_n_eval": "--gem_eval names what is evaluated on",
    "input_key output_key train_split eval_split eval_input_key eval_output_key": (
        "it is about the file of --prompt_data; --gem_tasks and --gem_eval name what is played"
    ),
    "eval_n": "write #samples=<n> behind a task set in --gem_eval",
    "max_eval": "n in --gem_eval says how many tasks are played",
    "eval_batch_size": "all episodes of an evaluation are played at the same time",
    "dump_all_buffer dump_replay_every": "--gem_record_dir keeps the episodes",
    "resume_dir resume_tag": (
        "oat begins with the first batch again; --gem_resume goes on from the last checkpoint"
    ),
    "launch_type": "Launchpad's processes are the only kind that oat works with",
    "lora_dropout": "oat sets every dropout to 0",
    _UNREAD: "oat's PPO does not read it",
}
REFUSED = {name: reason for names, reason in _REASONS.items() for name in names.split()}
"""Flags of oat that must keep their defaults, and why."""


def parse(argv: Sequence[str]) -> Args:
    """Read the command line, as oat does, check it, and fill in what oat derives from it.

    Args:
        argv: Flags; `_` and `-` are the same in their names.

    Raises:
        ConfigurationError: A flag does not go with GEM, with another or with the machine; the
            message names it, or is oat's.
    """
    with warnings.catch_warnings():
        # oat has text fields whose default is none.
        warnings.filterwarnings("ignore", message="The field .* is annotated with type")
        args = tyro.cli(Args, args=list(argv), prog="python -m gem_oat")
    check(Ranges(**{f.name: getattr(args, f.name) for f in fields(Ranges)}), "--")
    args.sources()
    refuse_values(vars(args), _refusals(args), "--")
    args.algo = "PPO"
    args.rollout_batch_size_per_device = args.rollout_batch_size // args.learners
    # From these two and the number of tasks oat counts the optimiser steps that its learning rate
    # is scheduled over.
    args.max_epochs = args.num_ppo_epochs * args.num_samples
    try:
        prepared: Args = default_args_validation(args)
    except (AssertionError, ValueError) as error:
        raise ConfigurationError(f"oat refuses the flags: {error}") from error
    # oat stops once it has counted more episodes.
    prepared.max_queries = prepared.iterations * prepared.episodes
    return prepared


def _refusals(args: Args) -> Iterator[Refusal]:
    """Yield flags that would train on something else than they say."""
    for name, reason in REFUSED.items():
        default = getattr(Args, name)
        yield name, getattr(args, name) != default, f"{reason}; leave it at {default!r}"
    yield from _sizes(args)
    yield from _algorithm(args)
    yield from _sampling(args)


def _sizes(args: Args) -> Iterator[Refusal]:
    longest = args.max_model_len
    needed = "it must be the longest episode in tokens, first prompt included"
    yield "max_model_len", longest is None, needed
    full = f"it leaves no token for the response: --max_model_len is {longest}"
    yield "prompt_max_length", args.prompt_max_length >= longest, full
    never = "--gem_resume goes on from what is saved every so many iterations: must be above 0"
    yield "save_steps", args.gem.resume and args.save_steps < 1, never
    args.budget()
    args.budget(evaluation=True)
    size, ranks, step = args.rollout_batch_size, args.learners, args.train_batch_size
    yield "rollout_batch_size", size % ranks > 0, f"tasks do not divide over {ranks} learners"
    per_device, share = args.rollout_batch_size_per_device, size // ranks
    follows = f"it is --rollout_batch_size over the number of learners, {share}; leave it out"
    known = (PPOArgs.rollout_batch_size_per_device, share)
    yield "rollout_batch_size_per_device", per_device not in known, follows
    kept, share = args.pi_buffer_maxlen_per_device, args.episodes // ranks
    all_of_them = f"every episode is trained on, here {share} a learner; leave it out"
    known = (PPOArgs.pi_buffer_maxlen_per_device, share)
    yield "pi_buffer_maxlen_per_device", kept not in known, all_of_them
    yield "max_train", args.iterations < 1, f"less than one iteration of {size} tasks"
    uneven = f"an iteration of {args.episodes} episodes does not divide into such steps"
    yield "train_batch_size", step < 1 or args.episodes % step > 0, uneven
    yield "train_batch_size", step % ranks > 0, f"does not divide over {ranks} learners"


def _algorithm(args: Args) -> Iterator[Refusal]:
    name = args.gem.advantage
    gradients = "gem_oat has policy gradients only: --gem_advantage and --gem_loss; leave it out"
    yield "algo", args.algo not in (PPOArgs.algo, "PPO"), gradients
    chosen = estimator(name)
    needed = "ppo, which makes the critic" if chosen.needs_critic else "no critic"
    critic = f"--gem_advantage {name} needs {needed}"
    yield "critic_type", chosen.needs_critic != (args.critic_type == "ppo"), critic
    here = (
        "it only says whether there is a critic; oat's grpo is --gem_advantage grpo with "
        "--gem_loss_aggregation row-mean-token-mean here; leave it out"
    )
    yield "critic_type", args.critic_type == "grpo", here
    warm = f"--gem_advantage {name} has no critic; leave it out"
    yield "gem_critic_warmup", args.gem.critic_warmup > 0 and not chosen.needs_critic, warm
    late = (
        "the policy's learning rate would begin its schedule after the critic's warm-up; set "
        "--lr_scheduler constant"
    )
    scheduled = args.lr_scheduler != "constant"
    yield "gem_critic_warmup", args.gem.critic_warmup > 0 and scheduled, late
    # Without an upper limit: at infinity nothing is clipped.
    yield "cliprange_value", not args.cliprange_value > 0, "must be above 0"
    alone = f"--gem_advantage {name} compares the episodes of a task: must be at least 2"
    yield "num_samples", chosen.compares == "group" and args.num_samples < 2, alone
    scaled = logit_scales(str(args.pretrain))
    kept = f"it leaves out the model's {', '.join(scaled)}: --no-use_fused_lm_head"
    yield "use_fused_lm_head", bool(args.use_fused_lm_head and scaled), kept


def _sampling(args: Args) -> Iterator[Refusal]:
    compared = (
        "a correction needs vLLM's log-probabilities, which are of temperature 1 and before "
        "tokens are left out or penalised; leave out --gem_tis_floor and --gem_reject_*, and set "
        "--tis_c None"
    )
    for name in ("temperature", "top_p", "top_k", "gem_min_p", "gem_repetition_penalty"):
        changed = getattr(args, name) != getattr(Args, name)
        yield name, args.gem.corrects and changed, compared
    greedy = "must be above 0; --top_k 1 is greedy"
    yield "temperature", not 0 < args.temperature < math.inf, greedy
    nothing = (
        "without a critic and adapters, whose first weights it draws, it changes nothing; turns "
        "are sampled with --gem_seed, and seed= in --gem_tasks says which tasks are played; leave "
        "it out, or give --gem_seed the same value"
    )
    drawn = args.critic_type == "ppo" or args.lora_rank > 0
    yield "seed", not drawn and args.seed not in (PPOArgs.seed, args.gem.seed), nothing


def shown(args: Args) -> dict[str, Any]:
    """Return GEM's own arguments, for the record."""
    return {name: value for name, value in vars(args).items() if name.startswith("gem_")}
