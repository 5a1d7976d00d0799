"""The cookbook's synchronous training with advantages per turn.

    python -m gem_tinker.cookbook_train model_name=... recipe_name=guess learning_rate=1e-4 \\
        max_tokens=512 log_path=runs/guess advantage=rebn gamma=0.9 \\
        dataset_builder=gem_tinker.cookbook:GemDatasetBuilder dataset_builder.model_name=... \\
        dataset_builder.train='gem:game:GuessTheNumber-v0?n=1600' dataset_builder.turn_tokens=512

All keys are those of `tinker_cookbook.rl.train.Config`; `advantage` and the ones after it are
ours. Made of the cookbook's public parts: rollouts, train step, metrics, checkpoints, evaluators.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gem_tinker import check_cookbook

try:
    import chz
except ImportError:
    # It comes with the cookbook: the message says how to install that.
    check_cookbook()
    raise

import tinker
from tinker_cookbook import checkpoint_utils
from tinker_cookbook.rl import train as cookbook
from tinker_cookbook.rl.dataset_utils import EpochCycledRLDataset
from tinker_cookbook.rl.metric_util import RLTestSetEvaluator, compute_trajectory_metrics
from tinker_cookbook.rl.rollouts import do_group_rollout_and_filter_constant_reward
from tinker_cookbook.rl.types import EnvGroupBuilder, TrajectoryGroup
from tinker_cookbook.utils import ml_log
from tinker_cookbook.utils.misc_utils import split_list

from gem.advantage import ADVANTAGES
from gem.errors import ConfigurationError, GemError
from gem.training.recording import RunRecording
from gem.training.settings import MAX_FAILED_FRACTION, check_failures
from gem.trajectory import Failure, Trajectory
from gem_tinker import __version__, check_tinker
from gem_tinker.advantage import Objective, batch_rows, to_datums, trained_rows
from gem_tinker.checkpoints import Checkpoints
from gem_tinker.cookbook import GemDatasetBuilder, LeaveOut, Played
from gem_tinker.probe import probe
from gem_tinker.settings import SERVERS
from gem_tinker.settings import Config as Direct


@chz.chz
class Config(cookbook.Config):  # type: ignore[misc]
    """The cookbook's keys and ours."""

    advantage: str = "rebn"
    """Estimator of `gem.advantage`, over all turns of a batch."""
    gamma: float = 1.0
    """Discount per turn."""
    loss_aggregation: str = "token-mean"
    """`token-mean` or `row-mean-token-sum`."""
    server: str = "auto"
    """How the server adds up its loss; see `gem_tinker.advantage.Objective`."""
    max_failed_fraction: float = MAX_FAILED_FRACTION
    """Share of failed episodes in a batch above which the run stops."""
    retries: int = 1
    """Further attempts, each with a new environment, after an environment failed."""


def check(config: Config) -> GemDatasetBuilder:
    """Return the dataset builder of a configuration that can work.

    Raises:
        ConfigurationError: The combination would train on something else than asked for.
    """
    builder = config.dataset_builder
    if not isinstance(builder, GemDatasetBuilder):
        raise ConfigurationError(
            f"dataset_builder must be gem_tinker.cookbook:GemDatasetBuilder, got {builder!r}"
        )
    known = [name for name in ADVANTAGES if name != "gae"]
    refused = {
        "stream_minibatch_config": (
            config.stream_minibatch_config is not None,
            "advantages would be computed on parts of a batch; leave it out",
        ),
        "async_config": (
            config.async_config is not None,
            "the batches of asynchronous training are of mixed versions; leave it out",
        ),
        "remove_constant_reward_groups": (
            config.remove_constant_reward_groups,
            "it would change the statistics of the batch; leave it off",
        ),
        "kl_penalty_coef": (
            config.kl_penalty_coef != 0,
            "the penalty is added to advantages after they are normalised; set it to 0",
        ),
        "loss_fn": (
            config.loss_fn == "stable_reinforce",
            "stable_reinforce needs provenance of every token; choose ppo, importance_sampling or "
            "cispo",
        ),
        "max_tokens": (
            config.max_tokens != builder.turn_tokens,
            f"must be dataset_builder.turn_tokens ({builder.turn_tokens}), got {config.max_tokens}",
        ),
        "temperature": (config.temperature != 1, "the losses take temperature 1 only"),
        "rollout_error_tolerance": (
            config.rollout_error_tolerance is not None,
            "failed episodes are left out and counted: use retries and max_failed_fraction",
        ),
        "advantage": (
            config.advantage not in known,
            f"must be one of {', '.join(known)}, got {config.advantage!r}: a Tinker server has no "
            "critic",
        ),
        "server": (config.server not in SERVERS, f"must be one of {', '.join(SERVERS)}"),
    }
    for name, (wrong, reason) in refused.items():
        if wrong:
            raise ConfigurationError(f"{name}: {reason}")
    return builder


async def main(config: Config) -> None:
    """Train, from the last checkpoint in `log_path` if there is one.

    Raises:
        ConfigurationError: The configuration cannot work, or the server cannot do it.
        RolloutError: Too many episodes failed.
    """
    check_tinker()
    check_cookbook()
    builder = check(config)
    objective = Objective(config.loss_aggregation, await probe(_direct(config, builder)))
    ml_logger = ml_log.setup_logging(
        log_dir=config.log_path,
        wandb_project=config.wandb_project,
        config=config,
        wandb_name=config.wandb_name,
    )
    about = {"trainer": "tinker", "versions": {"gem-tinker": __version__}}
    recording = RunRecording(Path(config.log_path) / "gem", about)
    resume = checkpoint_utils.get_last_checkpoint(config.log_path)
    start = resume.batch if resume else 0
    Checkpoints(recording.folder).rewind(start)
    with tinker.ServiceClient(base_url=config.base_url) as service:
        if resume:
            client = await service.create_training_client_from_state_with_optimizer(
                resume.state_path
            )
        elif config.load_checkpoint_path:
            client = await service.create_training_client_from_state(config.load_checkpoint_path)
        else:
            client = await service.create_lora_training_client(
                config.model_name, rank=config.lora_rank, train_unembed=False
            )
        manager = checkpoint_utils.CheckpointManager(
            training_client=client,
            service_client=service,
            log_path=config.log_path,
            save_every=config.save_every,
            ttl_seconds=config.ttl_seconds,
            rolling_save_every=config.rolling_save_every,
            rolling_ttl_seconds=config.rolling_ttl_seconds,
            store=ml_logger.store,
        )
        await _train(config, objective, client, manager, ml_logger, recording, start)
    ml_logger.close()


async def _train(
    config: Config,
    objective: Objective,
    client: Any,
    manager: Any,
    ml_logger: Any,
    recording: RunRecording,
    start: int,
) -> None:
    train, test = await config.dataset_builder()
    dataset = EpochCycledRLDataset(train, config.num_epochs)
    evaluators = [evaluator() for evaluator in config.evaluator_builders]
    if test is not None:
        strategy = LeaveOut(config.retries)
        evaluators.append(RLTestSetEvaluator(test, config.max_tokens, strategy=strategy))
    end = len(dataset) if config.max_steps is None else min(len(dataset), config.max_steps)
    sampler, _ = await cookbook.save_checkpoint_and_get_sampling_client(
        client, manager, start, start
    )
    for batch in range(start, end):
        metrics: dict[str, Any] = {"progress/batch": batch, "optim/lr": config.learning_rate}
        if evaluators and config.eval_every and batch % config.eval_every == 0:
            metrics |= await _evaluate(config, evaluators, sampler, batch, ml_logger)
        builders = dataset.get_batch(batch)
        strategy = LeaveOut(config.retries)
        groups = await asyncio.gather(*(_play(config, sampler, b, strategy) for b in builders))
        episodes, lost = _episodes(config, builders, groups, strategy.failures)
        there = [(b, g) for b, g in zip(builders, groups, strict=True) if g is not None]
        tags = [b.logging_tags() for b, _ in there]
        metrics |= compute_trajectory_metrics([g for _, g in there], tags)
        rows, per_turn = batch_rows(episodes, config.advantage, config.gamma)
        datums, logprobs = [], []
        # Each substep is an update of its own, with a mean of its own.
        for part in split_list(rows, min(config.num_substeps, len(rows))):
            sent = to_datums(part, objective)
            logprobs += await cookbook.train_step(
                sent,
                client,
                config.learning_rate,
                1,
                config.loss_fn,
                config.loss_fn_config,
                metrics,
            )
            # The cookbook's metrics look for sampled tokens in a mask, which is never sent.
            masks = [_mask(row) for row in part if row.datum is not None]
            datums += [_with_mask(d, m) for d, m in zip(sent, masks, strict=True)]
        sampler, after = await cookbook.compute_full_batch_metrics_and_get_sampling_client(
            client, manager, batch + 1, datums, logprobs, config.compute_post_kl
        )
        await manager.maybe_save_rolling_async(batch + 1, {"batch": batch + 1})
        shown = functools.partial(trained_rows, rows, episodes)
        recording.keep_batch(episodes, per_turn, shown, lost=lost)
        ours = recording.write_iteration(batch)
        metrics |= after | {f"gem/{name}": value for name, value in ours.items()}
        ml_logger.log_metrics(metrics, step=batch)
    if start < end:
        if evaluators and config.eval_every:
            found = await _evaluate(config, evaluators, sampler, end, ml_logger)
            ml_logger.log_metrics(found, step=end)
        await manager.save_final_async({"batch": end})
    else:
        await manager.finalize_async()


async def _play(
    config: Config, sampler: Any, builder: EnvGroupBuilder, strategy: LeaveOut
) -> TrajectoryGroup | None:
    return await do_group_rollout_and_filter_constant_reward(
        sampler,
        builder,
        max_tokens=config.max_tokens,
        temperature=1.0,
        do_remove_constant_reward_groups=False,
        enable_logging=False,
        strategy=strategy,
    )


async def _evaluate(
    config: Config, evaluators: Sequence[Any], sampler: Any, batch: int, ml_logger: Any
) -> dict[str, Any]:
    found: dict[str, Any] = await cookbook.run_evaluations_parallel(
        list(evaluators), sampler, config, batch, store=ml_logger.store
    )
    return found


def _episodes(
    config: Config,
    builders: Sequence[Any],
    groups: Sequence[TrajectoryGroup | None],
    failures: Sequence[Failure],
) -> tuple[list[Trajectory], list[Failure]]:
    """Return the episodes that were played to their end, and why the others were not."""
    trajectories = [t for group in groups if group is not None for t in group.trajectories_G]
    episodes = [t.episode for t in trajectories if isinstance(t, Played)]
    missing = sum(builder.size for builder in builders) - len(episodes) - len(failures)
    lost = [*failures, *[Failure("engine", "the cookbook lost the episode", 1)] * missing]
    valid = [True] * len(episodes) + [False] * len(lost)
    check_failures(valid, config.max_failed_fraction, lost)
    return episodes, lost


def _mask(row: Any) -> tinker.TensorData:
    before = [0.0] * (len(row.tokens.prompt_ids) - 1)
    return tinker.TensorData(data=before + [float(m) for m in row.tokens.mask], dtype="float32")


def _with_mask(datum: tinker.Datum, mask: tinker.TensorData) -> tinker.Datum:
    return dataclasses.replace(datum, loss_fn_inputs={**datum.loss_fn_inputs, "mask": mask})


def _direct(config: Config, builder: GemDatasetBuilder) -> Direct:
    """Return what `probe` needs to know."""
    table = {
        "model": config.model_name,
        "train": builder.train,
        "base_url": config.base_url,
        "server": config.server,
        "loss_fn": config.loss_fn,
        "lora_rank": config.lora_rank,
        "tasks": builder.groups_per_batch,
        "group_size": builder.group_size,
        "minibatches": config.num_substeps,
        "prompt_tokens": builder.prompt_tokens,
        "response_tokens": builder.response_tokens,
        "loss_aggregation": config.loss_aggregation,
    }
    return Direct.from_mapping(table)


if __name__ == "__main__":
    try:
        asyncio.run(main(chz.entrypoint(Config, allow_hyphens=True)))
    except GemError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
