"""`GemAsyncGRPOTrainer`: TRL's async trainer on GEM's episodes, which are played while it trains.

TRL's trainer (`trl.experimental.async_grpo`) takes a `rollout_worker` and a `weight_transfer`; both
are GEM's, its loop and loss stay TRL's. Nothing of TRL is copied or patched.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from transformers import AutoTokenizer

from gem.errors import ConfigurationError, RolloutError, UnfinishedError
from gem_train.ending import to_the_end
from gem_train.recording import rows_wanted
from gem_train.seams import Seam, called, check_seams
from gem_train.settings import check_group_size, refuse_values
from gem_trl import TRAINER
from gem_trl.async_engine import InProcessEngine
from gem_trl.async_server import ServerEngine
from gem_trl.record import recording
from gem_trl.rewards import RewardFunction, RewardFunctions
from gem_trl.settings import GemSettings, changed

_ASYNC = "trl.experimental.async_grpo."
SEAMS = [
    Seam(f"{_ASYNC}async_grpo_trainer:AsyncGRPOTrainer.train"),
    Seam(f"{_ASYNC}async_grpo_trainer:AsyncGRPOTrainer.log", "self, logs, start_time"),
    called(
        f"{_ASYNC}async_grpo_trainer:AsyncGRPOTrainer.__init__",
        "self, model, *, args, train_dataset, processing_class, rollout_worker, weight_transfer",
    ),
    called(
        f"{_ASYNC}async_rollout_worker:RolloutSample",
        "*, prompt, completion, input_ids, completion_mask, old_log_probs, advantage, "
        "model_version, group_id, metrics, enqueued_at",
    ),
    # Forwards what the samples of an episode share once; TRL has it since 1.16.
    called(f"{_ASYNC}packing:TreeRow.add", "self, sample"),
]
"""What is extended or called."""

NEEDED = replace(TRAINER, supported=">=1.16,<2", install='pip install "trl>=1.16,<2"')
"""TRL that has these."""

NEEDED.check()
check_seams(NEEDED, SEAMS)

from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer  # noqa: E402

from gem_trl.async_worker import Engine, GemRolloutWorker  # noqa: E402

OURS = ("tools", "environment_factory", "rollout_worker")
"""Arguments of AsyncGRPOTrainer that GEM's episodes take the place of."""


_OLD = (
    "that are more than AsyncGRPOConfig.max_staleness updates old (raise it above the number of "
    "updates that a batch of episodes takes, choose fewer tasks, or more samples for an update)"
)
DROPPED = {
    "sample/dropped_stale_total": _OLD,
    "batch/dropped_oversize_total": "that are longer than AsyncGRPOConfig.token_budget (raise it)",
}
"""What TRL logs of samples that it leaves out, and which these are."""

UNUSED = {
    "chat_template_kwargs": "of TRL's own worker; GEM's is gem.template_kwargs",
    "max_tool_calling_iterations": "of TRL's own worker; GEM's is gem.turns",
    "max_inflight_tasks": "of TRL's own worker; GEM's plays the episodes of a batch together",
    "queue_maxsize": "of TRL's own worker; GEM's begins a batch when the queue is almost empty",
    "fork_threshold_tokens": "of TRL's own worker; GEM never renders a conversation again",
    "log_completions": "of TRL's own worker; GEM's record has the episodes (gem.record_dir)",
}
"""Fields of AsyncGRPOConfig that have no effect here, and what has instead."""

SERVER = dict.fromkeys(
    ("vllm_server_base_url", "vllm_server_timeout", "request_timeout", "weight_sync_timeout"),
    "only engine='server' reads it, and the default engine samples in this process",
)
"""Fields that have no effect with the default engine."""


class GemAsyncGRPOTrainer(AsyncGRPOTrainer):  # type: ignore[misc]
    """AsyncGRPOTrainer with GEM's episodes; its dataset is that of `gem_trl.dataset`."""

    def __init__(
        self,
        model: str,
        args: AsyncGRPOConfig,
        *,
        train_dataset: Any,
        gem: GemSettings | None = None,
        tasks: int | None = None,
        reward_funcs: RewardFunction | list[RewardFunction] | None = None,
        engine: Engine | Literal["server"] | None = None,
        processing_class: Any = None,
        weight_transfer: Any = None,
        **kwargs: Any,
    ) -> None:
        """Prepare for training.

        Args:
            model: As for AsyncGRPOTrainer.
            args: As for AsyncGRPOTrainer; `max_completion_length` is the most tokens of a turn.
                `token_budget` is by default that of the longest episode.
            train_dataset: `gem_trl.task_dataset`, whose tasks are played in their order.
            gem: How episodes are played, and what becomes of their rewards.
            tasks: Tasks of a batch of episodes, over which advantages are computed; by default as
                many as give an optimiser step's number of episodes.
            reward_funcs: See `GemGRPOTrainer`; all have the weight 1.
            engine: Samples turns. By default it is a copy of the model in the main process, which
                takes over the weights (`gem_trl.async_engine.InProcessEngine`). `server` is the
                vLLM server of `args`, to which TRL sends the weights. An engine of your own needs
                a `weight_transfer`.
            processing_class: As for AsyncGRPOTrainer.
            weight_transfer: As for AsyncGRPOTrainer: brings the weights to the engine.
            **kwargs: AsyncGRPOTrainer's other arguments, but those in `OURS`.

        Raises:
            ConfigurationError: The arguments do not go with the settings, or the model has no
                usable chat template.
            RecordError: The folder of the record cannot be created or written.
        """
        gem = gem or GemSettings()
        for name in OURS:
            if kwargs.get(name) is not None:
                raise ConfigurationError(f"{name}: episodes are GEM's; leave it out")
        served = engine == "server"
        if not served and (engine is None) != (weight_transfer is None):
            raise ConfigurationError(
                "engine and weight_transfer belong together: without its weights an engine samples "
                "with those that it began with"
            )
        if served and kwargs.get("peft_config") is not None:
            raise ConfigurationError(
                "peft_config: TRL may give the server an adapter of another name for each update, "
                "which engine='server' does not ask for; leave out one of them"
            )
        check_config(args, gem, engine)
        if served and args.temperature != 1:
            raise ConfigurationError(
                "AsyncGRPOConfig.temperature: vLLM's server reports log-probabilities at "
                f"temperature 1 by default; with engine='server' it must be 1, "
                f"got {args.temperature}"
            )
        rewards = RewardFunctions(reward_funcs)
        if args.token_budget is None:
            args.token_budget = gem.prompt_tokens + gem.response_tokens
        group_size = gem.group_size or args.num_generations
        samples = args.per_device_train_batch_size * args.gradient_accumulation_steps
        samples *= args.world_size
        init = {"trust_remote_code": args.trust_remote_code, **(args.model_init_kwargs or {})}
        tokenizer = processing_class or AutoTokenizer.from_pretrained(
            model, revision=init.get("revision"), trust_remote_code=init["trust_remote_code"]
        )
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        self.gem_worker: GemRolloutWorker | None = None
        """Plays the episodes; None but in the main process."""
        if args.process_index == 0:
            chat = gem.chat_format(tokenizer)
            if engine is None:
                engine = weight_transfer = InProcessEngine(
                    model,
                    temperature=args.temperature,
                    stop_ids=chat.stop_ids,
                    pad_id=tokenizer.pad_token_id,
                    device=args.device,
                    **{"dtype": args.dtype, **init},
                )
            elif engine == "server":
                engine = ServerEngine(
                    args.vllm_server_base_url,
                    model,
                    stop_ids=chat.stop_ids,
                    seed=args.seed,
                    timeout_s=args.request_timeout,
                )
            self.gem_worker = GemRolloutWorker(
                train_dataset,
                engine,
                chat,
                gem.limits(gem.prompt_tokens, gem.response_tokens, args.max_completion_length),
                gem,
                recording(gem.record_dir, gem, rewards.weights),
                tasks=tasks or max(samples // group_size, 1),
                group_size=group_size,
                waiting=samples,
                rewards=rewards,
            )
        super().__init__(
            model,
            args=args,
            train_dataset=train_dataset,
            processing_class=tokenizer,
            rollout_worker=self.gem_worker or _Absent(),
            weight_transfer=weight_transfer or (None if served else _Absent()),
            **kwargs,
        )

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train to the end; see TRL's method.

        Raises:
            ConfigurationError: It is to go on from a checkpoint, which has no position in the
                tasks.
            RolloutError: Playing failed: too many episodes, the engine, or a reward function.
            UnfinishedError: Fewer steps were made than were asked for, or TRL's limit of steps
                came before the end of `num_train_epochs`, or something called `sys.exit()`. A
                callback may end the training earlier.
        """
        if args or kwargs.get("resume_from_checkpoint"):
            raise ConfigurationError(
                "resume_from_checkpoint: checkpoints of GemAsyncGRPOTrainer have no position in "
                "the tasks; start from the saved weights as a new training"
            )
        with to_the_end(lambda: self.state.global_step, self._wanted, "steps"):
            result = super().train(**kwargs)
        if self.gem_worker is not None:
            # What failed after the last sample that was trained on.
            self.gem_worker.check()
            self._check_epochs()
        return result

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log; see TRL's method.

        Raises:
            RolloutError: TRL has dropped samples: what is left of a batch is not what its
                advantages were computed over.
        """
        super().log(logs, start_time)
        for name, why in DROPPED.items():
            if number := logs.get(name):
                raise RolloutError(
                    f"TRL has dropped {number:.0f} samples {why}, but advantages are over whole "
                    "batches"
                )

    def _check_epochs(self) -> None:
        """Raise if TRL's limit of steps has ended the training before all passes over the tasks.

        Without `max_steps` TRL sets one for 32 samples an episode; here each turn may be one.
        """
        trained, wanted, state = len(self._trained_groups), self._epoch_stop_groups, self.state
        if wanted is not None and trained < wanted and state.global_step >= state.max_steps:
            raise UnfinishedError(
                "AsyncGRPOConfig.num_train_epochs: TRL has ended the training at its own limit of "
                f"{state.max_steps} steps, after {trained} of {wanted} groups of episodes; set "
                "max_steps"
            )

    def _wanted(self) -> int:
        """Return the steps of the run, or those until a callback ended the training."""
        ended = self.control.should_training_stop and self.state.global_step > 0
        return int(self.state.global_step if ended else self.state.max_steps)


class _Absent:
    """What the other processes are given: TRL uses neither worker nor transfer there."""


def check_config(
    args: Any, gem: GemSettings, engine: Engine | Literal["server"] | None = None
) -> None:
    """Refuse an AsyncGRPOConfig that would train on something else than the settings say.

    Args:
        args: The AsyncGRPOConfig.
        gem: The settings.
        engine: See `GemAsyncGRPOTrainer`.

    Raises:
        ConfigurationError: The message names the key, its value, why, and what to choose instead.
    """
    check_group_size(gem.advantage, "gem.group_size", gem.group_size or args.num_generations)
    no_extra = "TRL's async trainer takes samples one by one, not batches; leave it out"
    no_rows = "GEM_RECORD_ROWS=1 asks for rows of tensors, which this trainer lacks; unset it"
    own = "the ratio to the sampler's probabilities is TRL's loss itself; leave it False"
    refuse_values(
        vars(gem),
        [
            ("extra_batches", gem.extra_batches is not None, no_extra),
            ("importance_sampling", gem.importance_sampling, own),
            ("record_dir", gem.record_dir is not None and rows_wanted(), no_rows),
        ],
        "gem.",
    )
    every = "TRL's logs tell whether it drops samples; set it to 1, and logging_strategy to 'steps'"
    rare = (args.logging_strategy, args.logging_steps) != ("steps", 1)
    refuse_values(vars(args), [("logging_steps", rare, every)], "AsyncGRPOConfig.")
    unused = UNUSED if engine is not None else UNUSED | SERVER
    refuse_values(vars(args), changed(args, unused), "AsyncGRPOConfig.")
    whole = "the ratio in TRL's loss would compare different distributions; leave its default"
    longest = gem.prompt_tokens + gem.response_tokens
    short = args.token_budget is not None and 0 < args.token_budget < longest
    refuse_values(
        vars(args),
        [
            ("top_k", args.top_k > 0, whole),
            ("top_p", args.top_p < 1, whole),
            ("min_p", bool(args.min_p), whole),
            ("repetition_penalty", args.repetition_penalty != 1, whole),
            (
                "token_budget",
                short,
                f"TRL drops longer episodes; it must be at least {longest}, gem.prompt_tokens + "
                "gem.response_tokens",
            ),
        ],
        "AsyncGRPOConfig.",
    )
