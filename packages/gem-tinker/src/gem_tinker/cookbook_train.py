"""The cookbook's synchronous training with advantages per turn.

    python -m gem_tinker.cookbook_train model_name=... recipe_name=guess learning_rate=1e-4 \\
        max_tokens=512 log_path=runs/guess advantage=rebn gamma=0.9 \\
        dataset_builder=gem_tinker.cookbook:GemDatasetBuilder dataset_builder.model_name=... \\
        dataset_builder.train='gem:game:GuessTheNumber-v0?n=1600' dataset_builder.turn_tokens=512

All keys are those of `tinker_cookbook.rl.train.Config`; `advantage` and the ones after it are
ours. The loop is the cookbook's own, `tinker_cookbook.rl.train.main`; while it runs, `Batches`
takes the place of the function that makes a batch's datums.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import fields
from functools import partial, partialmethod
from typing import Any

# First: without the cookbook its message says how to install it.
from gem_tinker.cookbook import GemDatasetBuilder, GemEvaluatorBuilder, LeaveOut  # isort: split

import chz
import tinker
from tinker_cookbook.rl import train as cookbook
from tinker_cookbook.rl import types as rl
from tinker_cookbook.utils.misc_utils import split_list

from gem.errors import ConfigurationError, exit_status
from gem_tinker import COOKBOOK, __version__, check_tinker
from gem_tinker.advantage import Objective, batch_rows, to_datums, trained_rows
from gem_tinker.server import probe
from gem_tinker.settings import Config as Direct
from gem_train import recording, seams, settings
from gem_train.ending import to_the_end
from gem_train.experiment.mixtures import parse_tasks

SEAMS = seams.calls(
    cookbook.__name__,
    {
        "main": "config",
        "do_train_step_and_get_sampling_client": "config, i_batch, training_client, checkpoint_mgr,"
        "kl_reference_client, tokenizer, env_group_builders_P, trajectory_groups_P",
        "prepare_minibatch": "env_group_builders_P, trajectory_groups_P, tokenizer, "
        "kl_reference_client, kl_penalty_coef, kl_discount_factor",
    },
)
"""What is called in the cookbook's loop; `Batches` takes the place of all but the first."""
SEAMS += seams.calls("tinker_cookbook.rl.rollouts", {"do_single_rollout": "policy, env"})
SEAMS += seams.calls(
    "tinker_cookbook.rl.metric_util",
    {"RLTestSetEvaluator": "dataset, max_tokens, *, name, strategy"},
)


@chz.chz
class Config(cookbook.Config):  # type: ignore[misc]
    """The cookbook's keys and ours."""

    advantage: str = "rebn"
    """Estimator of `gem.advantage`, over all turns of a batch."""
    gamma: float = 1.0
    """Discount per turn."""
    normalise: str = "batch"
    """What ReBN's statistics are over: `batch`, or `environment` of a mixture."""
    reward_scale: float = 1.0
    """Factor of every turn's reward."""
    reward_clip: float | None = None
    """Largest size of a scaled reward."""
    group_std: bool = True
    """Whether `grpo` divides by the standard deviation of the group."""
    whiten: bool = False
    """Whether advantages are normalised."""
    advantage_clip: float | None = None
    """Largest size of an advantage."""
    loss_aggregation: str = "token-mean"
    """How losses are added up; see `gem_train.experiment.losses.PolicyLoss`."""
    server: str = "auto"
    """How the server adds up its loss; see `gem_tinker.advantage.Objective`."""
    max_failed_fraction: float = settings.Settings.max_failed_fraction
    """Share of failed episodes in a batch above which the run stops."""
    retries: int = 1
    """Further attempts, each with a new environment, after an environment failed."""


def check(config: Config) -> Direct:
    """Return the direct run that plays and trains alike, if the configuration can work.

    Raises:
        ConfigurationError: The combination would train on something else than asked for.
    """
    builder = config.dataset_builder
    if not isinstance(builder, GemDatasetBuilder):
        raise ConfigurationError(
            f"dataset_builder must be gem_tinker.cookbook:GemDatasetBuilder, got {builder!r}"
        )
    needed = {
        "stream_minibatch_config": (None, "advantages would be computed on parts of a batch"),
        "async_config": (None, "the batches of asynchronous training are of mixed versions"),
        "remove_constant_reward_groups": (False, "it would change the statistics of the batch"),
        "kl_penalty_coef": (0, "the penalty is added to advantages after they are normalised"),
        "max_tokens": (builder.turn_tokens, "the same as dataset_builder.turn_tokens"),
        "temperature": (1, "the losses take temperature 1 only"),
        "rollout_error_tolerance": (None, "retries and max_failed_fraction are used instead"),
        "renderer_name": (
            None,
            "conversations are rendered with the tokenizer's chat template; use "
            "template_kwargs, system_prompt and thinking of the dataset_builder",
        ),
    }
    for key, (value, reason) in needed.items():
        if getattr(config, key) != value:
            raise ConfigurationError(f"{key} must be {value}, got {getattr(config, key)}: {reason}")
    if config.effective_termination() is not None:
        raise ConfigurationError(
            "termination: it would change the cookbook's rewards, not GEM's advantages; leave it "
            "out, and choose a model for which the cookbook has none of its own"
        )
    episodes = builder.groups_per_batch * builder.group_size
    if not 1 <= config.num_substeps <= episodes:
        raise ConfigurationError(
            f"num_substeps must be at least 1 and at most {episodes}, the number of episodes in a "
            f"batch, got {config.num_substeps}"
        )
    # Keys that mean the same have the same name, but for when the cookbook evaluates and saves.
    keys = {key.name for key in fields(Direct)} - {"eval_every", "save_every"}
    parts = (builder, config)
    table = {key: getattr(part, key) for part in parts for key in keys if hasattr(part, key)}
    table |= {"model": config.model_name, "tasks": builder.groups_per_batch}
    table |= {"minibatches": config.num_substeps, "record_dir": f"{config.log_path}/gem"}
    return Direct.from_mapping(table, prefix="")


class Batches:
    """Makes the datums of a run's batches and records them, in the cookbook's loop."""

    def __init__(self, config: Direct, objective: Objective) -> None:
        self.config = config
        self.objective = objective
        episodes = config.tasks * config.group_size
        self.strategy = LeaveOut(config.retries, episodes, config.max_failed_fraction)
        about = {"trainer": "tinker", "versions": {"gem-tinker": __version__}}
        self.recording = recording.RunRecording(config.record_dir, about, **config.recorded)
        self._prepare = cookbook.prepare_minibatch
        self._step = cookbook.do_train_step_and_get_sampling_client

    async def prepare(
        self, builders: Any, groups: Sequence[rl.TrajectoryGroup], *args: Any, **kwargs: Any
    ) -> tuple[list[tinker.Datum], dict[str, Any], Any]:
        """Do what `prepare_minibatch` does, with GEM's advantages in the datums."""
        _, metrics, usage = await self._prepare(builders, groups, *args, **kwargs)
        episodes = [played.episode for group in groups for played in group.trajectories_G]
        lost = self.strategy.end_batch(len(episodes))
        rows, per_turn = batch_rows(episodes, self.config)
        # `train_step` splits the datums alike: each part is an update, with a mean of its own.
        parts = split_list(rows, min(self.config.minibatches, len(rows)))
        datums = [datum for part in parts for datum in to_datums(part, self.objective, mask=True)]
        shown = partial(trained_rows, rows, episodes)
        self.recording.keep_batch(episodes, per_turn, shown, lost=lost)
        return datums, metrics, usage

    async def step(
        self, config: Config, i_batch: int, *args: Any, **kwargs: Any
    ) -> tuple[Any, dict[str, Any]]:
        """Do what `do_train_step_and_get_sampling_client` does, and record the batch."""
        sampler, metrics = await self._step(config, i_batch, *args, **kwargs)
        recorded = self.recording.write_iteration(i_batch)
        return sampler, metrics | {f"gem/{name}": value for name, value in recorded.items()}


async def main(config: Config) -> None:
    """Train, from the last checkpoint in `log_path` if there is one.

    Raises:
        ConfigurationError: The configuration cannot work, or the server cannot do it.
        RolloutError: Too many episodes failed.
        UnfinishedError: Fewer batches are recorded than there are.
        UnsupportedVersionError: The cookbook has other functions than it had.
    """
    check_tinker()
    direct = check(config)
    seams.check_seams(COOKBOOK, SEAMS)
    batches = Batches(
        direct, Objective(direct.loss_aggregation, await probe(direct), direct.response_tokens)
    )
    builder = config.dataset_builder
    failing: dict[str, Any] = {"retries": config.retries, "limit": config.max_failed_fraction}
    evaluators = [
        partial(each.dataset.evaluator, each.tasks, each.name, **failing)
        if isinstance(each, GemEvaluatorBuilder)
        else each
        for each in config.evaluator_builders
    ]
    if builder.test is not None:
        # Not by the cookbook: it would count failed episodes of the test set with the batch's.
        evaluators.append(partial(builder.evaluator, builder.test, "test", **failing))
    # The adapter of a direct run, on attention and MLP projections.
    made = tinker.ServiceClient.create_lora_training_client
    adapter = partialmethod(made, train_unembed=False)
    steps = len(parse_tasks(builder.train)) // builder.groups_per_batch * config.num_epochs
    if getattr(config, "max_steps", None) is not None:
        steps = min(steps, config.max_steps)
    with (
        batches.recording.to_the_end(lambda: steps),
        seams.replaced(cookbook, "prepare_minibatch", batches.prepare),
        seams.replaced(cookbook, "do_train_step_and_get_sampling_client", batches.step),
        seams.replaced(tinker.ServiceClient, "create_lora_training_client", adapter),
    ):
        await cookbook.main(
            chz.replace(
                config,
                rollout_error_tolerance=batches.strategy,
                dataset_builder=chz.replace(builder, test=None),
                evaluator_builders=evaluators,
            )
        )


def run(config: Config) -> None:
    """Train in an event loop; see `main`.

    Raises:
        UnfinishedError: Something called `sys.exit()`, which ends the loop, not `main`.
    """
    with to_the_end(lambda: 0, lambda: 0):
        asyncio.run(main(config))


if __name__ == "__main__":
    sys.exit(exit_status(lambda: run(chz.entrypoint(Config, allow_hyphens=True))))
