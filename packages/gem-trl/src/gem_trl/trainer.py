"""`GemGRPOTrainer`: TRL's GRPOTrainer with GEM's episodes and an advantage for every turn.

Four seams of TRL, of which nothing is copied or patched:

- `rollout_func`, TRL's hook: takes the prompts of this process, each a task, and returns token ids,
  log-probabilities and `env_mask` (1: sampled, 0: said by the environment).
- `_generate_and_score_completions`, extended: puts advantages `[rows, tokens]` in the place of
  TRL's `[rows]`. TRL's loss takes both, "to support subclasses that provide advantages with shape
  (B, T)".
- `log`, extended: finishes the entries of the record. TRL's loggers get `gem/*`.
- `train`, extended: a training that records fewer iterations than it was asked for is an error.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import trl
from accelerate.utils import gather_object
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from gem.errors import ConfigurationError
from gem.rollout.play import Sampler
from gem.trajectory import Trajectory
from gem_train.ending import to_the_end
from gem_train.experiment.agreement import Agreement
from gem_train.experiment.estimate import PerTurn, turn_advantages
from gem_train.experiment.filtering import filtered
from gem_train.experiment.tasksets import DatasetRow
from gem_train.packed import PackedTrajectory, Played
from gem_train.record import TrainedRow
from gem_train.recording import rows_wanted
from gem_train.rows import PlacedRow
from gem_train.seams import Seam, called, calls, check_seams, replaced
from gem_train.settings import check_episodes
from gem_trl import TRAINER
from gem_trl.lockstep import Lockstep
from gem_trl.record import RECORDED, of_iteration, recording
from gem_trl.replacement import check_class, check_kept
from gem_trl.rewards import RewardFunction, RewardFunctions
from gem_trl.rollout import columns, sampling_at, training_row
from gem_trl.settings import GemSettings, check_config, check_length, steps_per_iteration

SEAMS = [
    Seam("trl:GRPOTrainer._generate_and_score_completions", "self, inputs"),
    Seam("trl:GRPOTrainer.log", "self, logs, start_time"),
    Seam("trl:GRPOTrainer.train"),
    *calls(
        "trl",
        {
            "GRPOTrainer.__init__": "self, model, reward_funcs, args, *, rollout_func",
            "GRPOTrainer._generate_single_turn": "self, prompt_ids, images, multimodal_fields, "
            "num_generations",
            "GRPOTrainer._get_per_token_logps_and_entropies": "self, model, input_ids, "
            "attention_mask, logits_to_keep, batch_size",
            "GRPOTrainer._log_metric": "self, name, value",
        },
    ),
    called(
        "trl.generation.vllm_generation:VLLMGeneration.__init__",
        "self, model, accelerator, processing_class, *, temperature, top_p, top_k, min_p, "
        "generation_kwargs",
    ),
]
"""What is extended or called; arguments of the last one become attributes that are changed."""

check_seams(TRAINER, SEAMS)

OURS = ("rollout_func", "tools", "environment_factory", "reward_processing_classes")
"""Arguments of GRPOTrainer that GEM's episodes take the place of."""


def gem_return(episode_return: list[float | None], **_: Any) -> list[float | None]:
    """Return the environments' returns; a failed episode's, None, is left out of TRL's means."""
    return episode_return


class GemGRPOTrainer(GRPOTrainer):  # type: ignore[misc]
    """GRPOTrainer with GEM's episodes; its datasets are those of `gem_trl.dataset`."""

    def __init__(
        self,
        model: Any,
        args: GRPOConfig,
        *,
        reward_funcs: RewardFunction | list[RewardFunction] | None = None,
        gem: GemSettings | None = None,
        **kwargs: Any,
    ) -> None:
        """Prepare for training.

        Args:
            model: As for GRPOTrainer.
            args: As for GRPOTrainer; `max_completion_length` is the most tokens of a turn, and
                `reward_weights` are those of `reward_funcs`.
            reward_funcs: Functions whose rewards are added to that of an episode's last turn
                (`gem_trl.rewards`); by default rewards are the environment's alone.
            gem: How episodes are played, and what becomes of their rewards.
            **kwargs: GRPOTrainer's other arguments, but those in `OURS`.

        Raises:
            ConfigurationError: The arguments do not go with the settings, `reward_funcs` has
                something else than functions, or the model has no usable chat template.
            RecordError: The folder of the record cannot be created or written.
            UnsupportedVersionError: Something has changed TRL's trainer where GEM's episodes and
                advantages go (`gem_trl.replacement`).
        """
        check_class(GRPOTrainer)
        if trl.GRPOTrainer is not GRPOTrainer:
            warnings.warn(
                f"trl.GRPOTrainer has become {trl.GRPOTrainer.__module__}."
                f"{trl.GRPOTrainer.__qualname__} since gem_trl was imported: GemGRPOTrainer "
                f"extends {GRPOTrainer.__module__}.{GRPOTrainer.__qualname__} without its changes",
                stacklevel=2,
            )
        self.gem = gem or GemSettings()
        for name in OURS:
            if kwargs.get(name) is not None:
                raise ConfigurationError(f"{name}: episodes and rewards are GEM's; leave it out")
        check_config(args, self.gem)
        self._rewards = RewardFunctions(reward_funcs, args.reward_weights)
        self._columns: list[dict[str, Any]] = []
        """Of the dataset besides the prompt, of the rows that are played."""
        rewards = [gem_return, *self._rewards.columns]
        with warnings.catch_warnings(), replaced(args, "reward_weights", None):
            warnings.filterwarnings("ignore", "You are using 'rollout_func'")
            super().__init__(model, rewards, args, rollout_func=self._rollout, **kwargs)
        check_kept(self, self._rollout, rewards)
        # accelerator_config may have changed gradient_accumulation_steps.
        check_config(args, self.gem)
        self.add_callback(_Length(self._check_length))
        # As TRL does where its environments have a reward: that has weight 1.
        self.reward_weights = torch.tensor([1.0, *self._rewards.weights.values()])
        if self.gem.group_size is not None:
            # TRL's samplers read it, and its own advantages, which are not used.
            self.num_generations = self.gem.group_size
            # As TRL's own by default: as many episodes of a task as in training.
            self.num_generations_eval = args.num_generations_eval or self.gem.group_size
        tokenizer: Any = getattr(self.processing_class, "tokenizer", self.processing_class)
        self._chat = self.gem.chat_format(tokenizer)
        self._stop_at_turn_end()
        self._budget = self.gem.limits(
            self.gem.prompt_tokens, self.gem.response_tokens, args.max_completion_length
        )
        main = self.accelerator.is_main_process
        self._recording = recording(
            self.gem.record_dir if main else None, self.gem, self._rewards.weights
        )
        self._steps: list[dict[str, float]] = []
        self._mine: list[Trajectory] = []
        """The last episodes of this process, one a row of TRL's tensors."""
        self._batch: _Batch
        """The last training episodes of all processes."""

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train to the end; see TRL's method. A callback may end the training earlier.

        Raises:
            ConfigurationError: The training would end inside a batch, or leave the first part of
                the dataset (`GemSettings.extra_batches`).
            UnfinishedError: Fewer iterations are recorded than were asked for (trained, where
                nothing is recorded), or something called `sys.exit()`.
        """
        # Without a record TRL may log, and GEM know, some of the iterations only.
        unknown = self.gem.record_dir is None
        with (
            to_the_end(lambda: self._iterations(self.state.global_step), self._wanted)
            if unknown
            else self._recording.to_the_end(self._wanted)
        ):
            return super().train(*args, **kwargs)

    def _check_length(self, max_steps: int) -> None:
        filtered = self.gem.extra_batches is not None
        tasks = len(self.train_dataset) if filtered else None
        check_length(self.args, self.gem, max_steps, tasks)

    def _wanted(self) -> int:
        """Return the iterations of the run, or those until a callback ended the training."""
        state = self.state
        ended = self.control.should_training_stop and state.global_step > 0
        return self._iterations(state.global_step if ended else state.max_steps)

    def _iterations(self, steps: int) -> int:
        return int(steps // steps_per_iteration(self.args))

    def _stop_at_turn_end(self) -> None:
        """A chat template may close a message with another token than the model's eos."""
        self.eos_token_ids: list[int] = sorted({*self._chat.stop_ids, *self.eos_token_ids})
        if self.use_vllm:
            self.vllm_generation.generation_kwargs["stop_token_ids"] = self.eos_token_ids
        else:
            self.generation_config.eos_token_id = self.eos_token_ids
            self.generation_kwargs["eos_token_id"] = self.eos_token_ids

    @property
    def sampling_is_collective(self) -> bool:
        """Whether the processes must sample in step.

        A vLLM server answers all processes at once, as do engines that share weights (tensor
        parallelism, ZeRO-3, FSDP).
        """
        together = self.vllm_mode == "server" or self.vllm_tensor_parallel_size > 1
        shared = self.is_deepspeed_enabled or self.is_fsdp_enabled or (self.use_vllm and together)
        return bool(self.accelerator.num_processes > 1 and shared)

    # Episodes

    def _rollout(self, prompts: list[str], _: Any) -> dict[str, Any]:
        return self.play(prompts)

    def play(self, prompts: list[str]) -> dict[str, Any]:
        """Play this process's episodes; see TRL's `rollout_func`.

        Raises:
            ConfigurationError: The dataset is not of `gem_trl.dataset`, or mixes samplings.
            RolloutError: Too many episodes of the batch failed.
        """
        began = time.perf_counter()
        rows = [DatasetRow.decode(prompt) for prompt in prompts]
        evaluation = self._evaluation(rows)
        most = self._largest if self.sampling_is_collective else None
        sample = partial(
            self._generate_single_turn, images=None, multimodal_fields={}, num_generations=1
        )
        engine = Lockstep(sample, frozenset(self.eos_token_ids), most)
        stop_id = min(self._chat.stop_ids)
        with sampling_at(self, rows[0].sampling):
            if evaluation is None and self.gem.extra_batches is not None:
                batch = self._filtered(engine, rows)
            else:
                self._mine = self._played(engine, rows, self._columns)
                everyone = gather_object([PackedTrajectory.of(each) for each in self._mine])
                batch = _Batch(everyone, [True] * len(everyone), [*range(len(everyone))])
        if evaluation is not None:
            self._recording.keep_evaluated(evaluation, batch.episodes)
            return self._shown(stop_id, [True] * len(rows))
        check_episodes(batch.episodes, self.gem.max_failed_fraction)
        # Of all processes: ReBN's statistics are the batch's, and processes may share a group.
        batch.advantages, _ = turn_advantages(
            self.gem.advantage,
            batch.episodes,
            self.gem,
            gamma=self.gem.gamma,
            trained=batch.trained,
        )
        batch.in_loss = self.gem.in_loss(batch.episodes, batch.trained)
        batch.metrics.update(self._rewards.metrics(batch.episodes))
        batch.metrics["rollout_s"] = time.perf_counter() - began
        self._batch = batch
        mine = self._places(batch)
        counted, in_loss = ([each[i] for i in mine] for each in (batch.trained, batch.in_loss))
        return self._shown(stop_id, counted, in_loss)

    def _shown(
        self, stop_id: int, counted: Sequence[bool], in_loss: Sequence[bool] | None = None
    ) -> dict[str, Any]:
        """Return what TRL is shown of this process's episodes; see `columns`."""
        scores = [self._rewards.scores(each) for each in self._mine]
        unknown: list[float | None] = [None] * len(self._rewards.weights)
        shown = [
            known if counts else unknown for known, counts in zip(scores, counted, strict=True)
        ]
        return {**columns(self._mine, stop_id, counted, in_loss), "scores": shown}

    def _played(
        self,
        engine: Lockstep,
        rows: Sequence[DatasetRow],
        further: Sequence[Mapping[str, Any]],
    ) -> list[Trajectory]:
        """Play an episode for each row, and add the rewards of `reward_funcs`.

        Args:
            engine: Samples.
            rows: Of the dataset.
            further: Columns of the rows besides the prompt.
        """
        return self._rewards.score(
            engine.play([partial(self._episode, row) for row in rows]),
            self._chat,
            system_prompt=self.gem.system_prompt,
            columns=further,
            trainer_state=self.state,
            log_metric=self._log_metric,
        )

    def _filtered(self, engine: Lockstep, rows: Sequence[DatasetRow]) -> _Batch:
        """Play the batch of an iteration, and further ones as `extra_batches` says.

        Each process gets its part of what is trained on, filled up with episodes that are not.

        Raises:
            RolloutError: Too many episodes failed, or there is nothing to train on.
        """
        extra, data = self.gem.extra_batches or 0, self.train_dataset
        groups = len(rows) * self.accelerator.num_processes // self.num_generations
        played: list[Trajectory] = []
        for number in range(1 + extra):
            places = [row.number + number * (len(data) // (1 + extra)) for row in rows]
            found_rows = [data[place] for place in places]
            further = [DatasetRow.decode(row["prompt"]) for row in found_rows]
            more = gather_object(self._played(engine, further, _besides(found_rows)))
            check_episodes(more, self.gem.max_failed_fraction)
            played += more
            found = filtered(played, groups, self.gem)
            if found.groups == groups:
                break
        found.check()
        order = sorted(range(len(played)), key=lambda i: not found.trained[i])
        packed = [PackedTrajectory.of(each) for each in played]
        batch = _Batch(packed, found.trained, order[: groups * self.num_generations])
        batch.metrics.update(found.metrics)
        self._mine = [played[i] for i in self._places(batch, len(rows))]
        return batch

    def _places(self, batch: _Batch, number: int | None = None) -> list[int]:
        """Return which episodes of a batch the rows of this process are, by index."""
        number = len(self._mine) if number is None else number
        first = self.accelerator.process_index * number
        return batch.rows[first : first + number]

    async def _episode(self, row: DatasetRow, sampler: Sampler) -> Trajectory:
        return await self.gem.play(row.task, sampler, self._chat, self._budget, group=row.number)

    def _evaluation(self, rows: Sequence[DatasetRow]) -> str | None:
        """Return the name of the evaluation that rows are of; None in training."""
        found = {row.sampling for row in rows}
        if len(found) > 1 or (self.model.training and found != {None}):
            raise ConfigurationError(
                f"the rows of a batch ask for the sampling {found}: in training it is "
                "GRPOConfig's, and an evaluation has one (gem_trl.eval_datasets)"
            )
        return None if self.model.training else rows[0].evaluation or "eval"

    @staticmethod
    def _largest(number: int) -> int:
        return int(max(gather_object([number])))

    # Advantages

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Play and score a batch; see TRL's method.

        Raises:
            RolloutError: Too many episodes failed, or a row does not hold what was played.
        """
        self._columns = _besides(inputs)
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        if not self.model.training:
            return output
        batch = self._batch
        places = self._places(batch)
        advantages = torch.zeros(output["completion_ids"].shape, dtype=torch.float32)
        trained: list[list[TrainedRow]] = [[] for _ in self._mine]
        for place, trajectory in enumerate(self._mine):
            tokens = training_row(trajectory)
            if tokens is None or not batch.in_loss[places[place]]:
                continue
            row, n = PlacedRow(place, tokens), len(tokens.response_ids)
            ids, mask = _tokens(output, place)
            row.check(ids, [0] * row.first + mask, "a training row of TRL")
            advantages[place, :n] = torch.tensor(tokens.spread(batch.advantages[places[place]]))
            # TRL keeps no reward per token: those shown are the episode's.
            rewards = tokens.token_rewards(trajectory.rewards)
            trained[place] = [row.trained(ids, mask[:n], rewards, advantages[place, :n].tolist())]
        output["advantages"] = advantages.to(output["completion_ids"].device)
        rows: list[list[TrainedRow]] = [[] for _ in batch.episodes]
        if rows_wanted():
            for index, row in zip(batch.rows, gather_object(trained), strict=True):
                rows[index] = row
        batch.metrics.update(self._agreement(output).metrics())
        kept = self._recording.keep_batch(
            batch.episodes, batch.advantages, lambda: rows, metrics=batch.metrics
        )
        # TRL logs the means of these lists, and empties them.
        for name, value in kept.items():
            self._metrics["train"][f"gem/{name}"].append(value)
        return output

    @torch.no_grad()
    def _agreement(self, output: dict[str, Any]) -> Agreement:
        """Return how far vLLM's log-probabilities are from TRL's: large if its weights are stale.

        It is of no token where they are not of the same distribution: TRL's is that before any
        candidate is left out or penalised, and a server may report that at temperature 1.
        """
        theirs = output.get("sampling_per_token_logps")
        changed = self.top_k > 0 or self.top_p < 1 or self.min_p or self.repetition_penalty != 1
        served = self.vllm_mode == "server" and self.temperature != 1
        if not self.use_vllm or theirs is None or changed or served:
            return Agreement()
        parts = [(output[f"prompt_{k}"], output[f"completion_{k}"]) for k in ("ids", "mask")]
        ids, attended = (torch.cat(pair, dim=1) for pair in parts)
        size, rows = theirs.size(1), self.args.per_device_train_batch_size
        found, *_ = self._get_per_token_logps_and_entropies(self.model, ids, attended, size, rows)
        sampled = (output["completion_mask"] * output["tool_mask"]).bool()
        mine = Agreement.of(found.float().cpu(), theirs.float().cpu(), sampled.cpu())
        return sum(gather_object([mine]), Agreement())

    # Record

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log, and record the iteration or evaluation that has ended; see TRL's method.

        Raises:
            RecordError: It cannot be written.
            RolloutError: Too many episodes of an evaluation failed.
        """
        super().log(logs, start_time)
        iterations, left = divmod(self.state.global_step, steps_per_iteration(self.args))
        evaluated = self._recording.evaluated
        evaluated.update({name: self._once(played) for name, played in evaluated.items()})
        self._recording.check_evaluated(self.gem.max_failed_fraction)
        self._recording.write_evaluated(iterations)
        if "loss" in logs:
            self._steps.append(logs)
            if left == 0:
                logged = of_iteration(self._steps)
                if self.importance_sampling_level == "sequence":
                    # TRL's is a share of rows.
                    logged.pop(RECORDED["clip_fraction"], None)
                self._recording.write_iteration(iterations - 1, logged)
                self._steps = []

    def _once(self, played: Sequence[Played]) -> list[Played]:
        """Leave out the episodes with which accelerate fills up an evaluation's last batch."""
        seen: Counter[int] = Counter()
        kept = []
        for trajectory in played:
            seen[trajectory.group] += 1
            if seen[trajectory.group] <= self.num_generations_eval:
                kept.append(trajectory)
        return kept


class _Length(TrainerCallback):  # type: ignore[misc]
    """Checks the number of steps of a training, which is known when it begins."""

    def __init__(self, check: Callable[[int], None]) -> None:
        self._check = check

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._check(state.max_steps)


@dataclass
class _Batch:
    """The training episodes of all processes."""

    episodes: list[PackedTrajectory]
    trained: list[bool]
    """Whether each is in the statistics (`gem_train.experiment.filtering`)."""
    rows: list[int]
    """Which episode each row of TRL's tensors is, of all processes."""
    metrics: dict[str, float] = field(default_factory=dict)
    advantages: PerTurn = field(default_factory=list)
    """`[episode][turn]`"""
    in_loss: list[bool] = field(default_factory=list)
    """Whether the row of each is in the loss."""


def _besides(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the columns of rows of a dataset that TRL's reward functions get by name."""
    own = ("prompt", "completion", "completion_ids")
    return [{name: row[name] for name in row if name not in own} for row in rows]


def _tokens(output: dict[str, Any], place: int) -> tuple[list[int], list[int]]:
    """Return TRL's tokens of a row without padding, and what its loss counts of the completion."""
    ids: list[int] = []
    for part in ("prompt", "completion"):
        ids += output[f"{part}_ids"][place][output[f"{part}_mask"][place].bool()].tolist()
    return ids, (output["completion_mask"][place] * output["tool_mask"][place]).tolist()
