"""What an agent file says, and which OpenRLHF flags can work with it."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from gem.errors import ConfigurationError
from gem.estimators import BUILT_IN
from gem.rollout import Budget
from gem.tables import setting
from gem_train.experiment.runspec import LogitsProcessing
from gem_train.settings import (
    DatasetSettings,
    Refusal,
    check_estimator,
    check_group_size,
    refuse_values,
)

NEED_HOOK = ("advantage", "task_order", "record_dir")
"""Settings that need the worker hook, unless they have their default."""
DEFAULT_CLIP_RANGE = (-10, 10)
"""OpenRLHF's default of `--reward.clip_range`."""
LORA = "OpenRLHF sends vLLM the weights of adapters unmerged, by names that vLLM does not know"
"""Why low-rank adapters are refused."""
ONE_ROW = "it makes several training rows of an episode, but OpenRLHF knows one row per episode"
"""Why contexts other than 'chat' are refused, and taking thinking out of later prompts."""


@dataclass(frozen=True)
class Settings(DatasetSettings, LogitsProcessing):
    """Settings of an agent file; those of `NEED_HOOK` need the worker hook.

    The first prompt has at most `prompt_tokens`; the rest of `--data.max_len` is for everything
    after it.
    """

    top_k: int = setting(
        "number of candidates when sampling, for which OpenRLHF has no flag; -1 is all",
        -1,
        least=1,
        special=-1,
    )

    def check(self, prefix: str = "gem.") -> None:
        """Raise `ConfigurationError` if a value is wrong or OpenRLHF cannot do it."""
        super().check(prefix)
        refused = (
            *self.several_rows(ONE_ROW),
            ("group_std", not self.group_std, "give OpenRLHF --algo.advantage.no_std_norm"),
        )
        refuse_values(vars(self), refused, prefix)

    def given(self) -> dict[str, Any]:
        """Return the settings that have another value than by default."""
        return {k: value for k, value in vars(self).items() if value != getattr(Settings, k)}

    def needs_hook(self) -> list[str]:
        """Return the settings that work only with the worker hook."""
        return [name for name in self.given() if name in NEED_HOOK]

    def budget(self, max_len: int, max_new_tokens: int | None) -> Budget:
        """Return the limits of an episode.

        Args:
            max_len: OpenRLHF's `--data.max_len`.
            max_new_tokens: OpenRLHF's `--rollout.max_new_tokens`, which limits a turn.

        Raises:
            ConfigurationError: Nothing is left for the response.
        """
        response = max_len - self.prompt_tokens
        if response < 1:
            raise ConfigurationError(
                f"gem.prompt_tokens={self.prompt_tokens} leaves no token for the response: "
                f"--data.max_len is {max_len}"
            )
        return self.limits(self.prompt_tokens, response, max_new_tokens)


def load_settings(agent_file: str | None) -> Settings | None:
    """Return the settings in an agent file; None if its executor is not GEM's.

    Args:
        agent_file: OpenRLHF's `--train.agent_func_path`.
    """
    if not agent_file:
        return None
    try:
        source = Path(agent_file).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"--train.agent_func_path: {error}") from error
    return _settings(agent_file, source)


@functools.cache
def _settings(agent_file: str, source: bytes) -> Settings | None:
    # A file that registers environments cannot be run twice in a process.
    module = ModuleType("gem_openrlhf_agent_file")
    module.__file__ = agent_file
    exec(compile(source, agent_file, "exec"), module.__dict__)
    settings = getattr(getattr(module, "AgentExecutor", None), "settings", None)
    return settings if isinstance(settings, Settings) else None


def check_flags(args: Any, settings: Settings) -> None:
    """Refuse OpenRLHF flags that would train on something else than the agent file says.

    Args:
        args: OpenRLHF's parsed command line.
        settings: Of the agent file.

    Raises:
        ConfigurationError: The message names the flag, why, and what to choose instead.
    """
    budget = settings.budget(args.data.max_len, args.rollout.max_new_tokens)
    refused = _refused(args, budget.response_tokens)
    refuse_values({name: attrgetter(name)(args) for name, *_ in refused}, refused, "--")
    _check_batches(args)
    if settings.record_dir is not None:
        if not args.logger.tensorboard_dir:
            raise ConfigurationError(
                "gem.record_dir takes the trainer's metrics from its TensorBoard logger: set "
                "--logger.tensorboard_dir"
            )
        if args.logger.logging_steps != 1:
            raise ConfigurationError(
                "gem.record_dir records every iteration: --logger.logging_steps must be 1, got "
                f"{args.logger.logging_steps}"
            )
    if settings.advantage is not None:
        _check_advantage(args, settings.advantage)
        if args.algo.dynamic_filtering_enable and settings.max_failed_fraction:
            raise ConfigurationError(
                "--algo.dynamic_filtering_enable takes a failed episode for one of reward 0; "
                "with gem.max_failed_fraction=0 the run stops at the first one instead"
            )


def _refused(args: Any, response: int) -> list[Refusal]:
    tasks, buffer = args.rollout.batch_size, args.reward.overlong_buffer_len
    low, high = args.algo.dynamic_filtering_range
    useful = low < high and low < 1 and high > 0 and (low >= 0 or high <= 1)
    return [
        ("ds.lora.rank", args.ds.lora.rank > 0, f"{LORA}; set it to 0"),
        (
            "reward.model_name_or_path",
            args.reward.model_name_or_path is not None,
            "rewards come from the environments, and OpenRLHF makes no reward model with an agent "
            "file; leave it out, or choose an environment with a judge (the critic's model is "
            "--critic.model_name_or_path)",
        ),
        (
            "reward.normalize_enable",
            args.reward.normalize_enable,
            "it normalises a reward model's scores, and there is none; choose "
            "gem.advantage='rebn', gem.whiten or gem.reward_scale",
        ),
        (
            "reward.overlong_buffer_len",
            buffer is not None and buffer > response,
            f"a response has at most {response} tokens (--data.max_len less gem.prompt_tokens); "
            "choose fewer",
        ),
        (
            "data.input_template",
            args.data.input_template is not None,
            "it would fill in the row's name; prompts come from the environment and the model's "
            "chat template; leave it out, or set gem.system_prompt",
        ),
        (
            "data.label_key",
            args.data.label_key != "label",
            "the tasks are in the column 'label' of gem_openrlhf.make_dataset; set it to label",
        ),
        (
            "critic.freezing_steps",
            args.critic.freezing_steps >= 0,
            "OpenRLHF keeps the rows of these steps and trains the policy on them afterwards; "
            "leave it out",
        ),
        (
            "rollout.vllm_generate_batch_size",
            args.rollout.vllm_generate_batch_size < tasks,
            f"OpenRLHF would train on fewer tasks than --rollout.batch_size {tasks}; leave it out, "
            "or lower --rollout.batch_size",
        ),
        (
            "algo.dynamic_filtering_range",
            args.algo.dynamic_filtering_enable and not useful,
            "the filter sees the share of a task's episodes that succeeded, not rewards, and would "
            "drop all tasks or none; 0 1 drops those of which all or no episodes succeed",
        ),
    ]


def _check_batches(args: Any) -> None:
    ranks = args.actor.num_nodes * args.actor.num_gpus_per_node
    ranks //= args.ds.ring_attn_size * args.ds.tensor_parallel_size
    rows = args.rollout.batch_size * args.rollout.n_samples_per_prompt
    step = args.train.batch_size
    if rows % step:
        raise ConfigurationError(
            f"--train.batch_size {step}: an iteration has {rows} episodes, and OpenRLHF would not "
            "train on those of an incomplete step, or only together with the next iteration's; "
            f"choose a divisor of {rows}"
        )
    if args.train.dynamic_batch_enable:
        if step % ranks:
            raise ConfigurationError(
                f"--train.batch_size {step}: each of {ranks} ranks takes the same number of "
                f"episodes, and OpenRLHF would drop the others; choose a multiple of {ranks}"
            )
        return
    if rows % (ranks * args.train.micro_batch_size):
        raise ConfigurationError(
            f"--train.micro_batch_size {args.train.micro_batch_size}: a batch has {rows} episodes "
            f"for {ranks} ranks, and OpenRLHF would drop those of an incomplete micro-batch"
        )
    if ranks > 1 and rows % (ranks * args.rollout.micro_batch_size):
        raise ConfigurationError(
            f"--rollout.micro_batch_size {args.rollout.micro_batch_size}: a batch has {rows} "
            f"episodes for {ranks} ranks, which would get different numbers of micro-batches and "
            "wait for each other for ever"
        )


def with_whole_response(args: Any, settings: Settings) -> Any:
    """Return a copy of the command line in which `--rollout.max_new_tokens` is of an episode.

    OpenRLHF's penalty of long episodes begins before that many tokens, or else before
    `--data.max_len`. But with GEM the flag is the limit of a turn, and `--data.max_len` has the
    prompt in it.

    Args:
        args: OpenRLHF's parsed command line.
        settings: Of the agent file.
    """
    budget = settings.budget(args.data.max_len, args.rollout.max_new_tokens)
    rollout = {**vars(args.rollout), "max_new_tokens": budget.response_tokens}
    return SimpleNamespace(**{**vars(args), "rollout": SimpleNamespace(**rollout)})


def check_dataset(args: Any, tasks: int) -> None:
    """Refuse a dataset whose last batch would be smaller than the others.

    Args:
        args: OpenRLHF's parsed command line.
        tasks: Rows of the dataset that will be used.

    Raises:
        ConfigurationError: The message says which size fits.
    """
    size = args.rollout.batch_size
    if tasks % size:
        raise ConfigurationError(
            f"--data.prompt_dataset: {tasks} tasks are no multiple of --rollout.batch_size {size}; "
            f"make {tasks // size * size or size} of them, or set --data.max_samples"
        )


def _check_advantage(args: Any, name: str) -> None:
    flags = args.algo.advantage
    check_estimator(name, "--algo.advantage.estimator", flags.estimator)
    check_group_size(name, "--rollout.n_samples_per_prompt", args.rollout.n_samples_per_prompt)
    if args.actor.policy_loss_type == "gspo" and name not in ("grpo", "rloo"):
        raise ConfigurationError(
            "--actor.policy_loss_type gspo gives all tokens of a row the mean of its advantages, "
            f"and gem.advantage={name!r} has one for each turn; choose ppo, or 'grpo' or 'rloo'"
        )
    if flags.no_std_norm and name in BUILT_IN and name != "grpo":
        raise ConfigurationError(
            f"--algo.advantage.no_std_norm means nothing to gem.advantage={name!r}; it works with "
            "'grpo'"
        )
    if tuple(args.reward.clip_range) != DEFAULT_CLIP_RANGE:
        raise ConfigurationError(
            "--reward.clip_range clips the sum of an episode's rewards, which GEM's advantages "
            "do not use; gem.reward_clip clips that of each turn; leave the flag out"
        )
