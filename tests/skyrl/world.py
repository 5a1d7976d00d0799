"""SkyRL's own objects for tests: its parsed command line, its trainers, their tensors."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from gem.trajectory import Trajectory

PAD = 0
STOP = 2
GOOD = (
    "trainer.logger=console",
    "trainer.train_batch_size=4",
    "trainer.policy_mini_batch_size=4",
    "trainer.critic_mini_batch_size=4",
    "trainer.algorithm.use_kl_loss=false",
    "generator.n_samples_per_prompt=2",
)
"""A command line that works."""


def parse(words: Sequence[str]) -> Any:
    """Parse a command line as SkyRL's launcher does with GEM, up to where it would start Ray."""
    from gem_skyrl.entrypoint import parse

    # SkyRL asks for the key of the service when it is told to log there.
    with patch.dict("os.environ", {"WANDB_API_KEY": "none"}):
        return parse(words)


def trainer(*words: str, ranks: int = 1, asynchronous: bool = False) -> Any:
    """SkyRL's trainer as GEM extends it, without workers, engines and a dataset.

    Args:
        *words: Of the command line.
        ranks: Data-parallel ranks that batches must divide among.
        asynchronous: Of which loop it is.
    """
    from gem_skyrl.record import RECORDED
    from gem_skyrl.settings import read
    from gem_skyrl.trainer import GemAsyncTrainer, GemTrainer
    from gem_train.recording import RunRecording

    config = parse([*GOOD, "trainer.placement.colocate_all=false", *words])
    kind = GemAsyncTrainer if asynchronous else GemTrainer
    made = kind.__new__(kind)
    made.cfg, made.global_step, made.trajectory_logger = config, 1, None
    made.all_metrics, made.all_timings, made.max_staleness_steps = {}, {}, 4
    made.tokenizer = SimpleNamespace(pad_token_id=PAD, decode=str)
    made.dispatch = SimpleNamespace(get_lcm_dp_size=lambda: ranks)
    made.gem = read(config)
    about = {"trainer": "skyrl", "versions": {}}
    made.recording = RunRecording(made.gem.record_dir, about, RECORDED)
    made.reward_kl_controller = None
    return made


def batch(trainer: Any, episodes: Sequence[Trajectory]) -> Any:
    """SkyRL's tensors of episodes, as they are when advantages are computed."""
    from skyrl.train.fully_async_trainer import FullyAsyncRayPPOTrainer, GeneratedOutputGroup
    from skyrl.train.generators.base import TrajectoryID

    from gem_skyrl.rollout import columns

    several = bool(trainer.cfg.generator.step_wise_trajectories)
    if not isinstance(trainer, FullyAsyncRayPPOTrainer):
        names = [TrajectoryID(str(each.group), i % 2) for i, each in enumerate(episodes)]
        output = columns(episodes, STOP, names, several=several)
        size = len(episodes)
        generator = SimpleNamespace(generate=lambda _: _done(output))
        trainer.generator = generator
        output = asyncio.run(trainer.generate({"prompts": [None] * size}))
        uids = [name.instance_id for name in output["trajectory_ids"]]
        output, uids = trainer.postprocess_generator_output(output, uids)
        return _scored(trainer.convert_to_training_input(output, uids))
    groups = []
    for group in sorted({each.group for each in episodes}):
        mine = [each for each in episodes if each.group == group]
        names = [TrajectoryID(str(group), i) for i in range(len(mine))]
        groups.append(
            GeneratedOutputGroup(columns(mine, STOP, names, several=several), str(group), 1)
        )
    return _scored(trainer.convert_generation_group_mini_batch_to_training_input(groups))


def _scored(data: Any) -> Any:
    """Add log-probabilities of the trainer, which are the engine's."""
    data["action_log_probs"] = data["rollout_logprobs"].clone()
    return data


async def _done(value: Any) -> Any:
    return value


def with_values(data: Any, episodes: Sequence[Trajectory], value: Any) -> Any:
    """Add a critic's values: `value(episode, turn)` where a turn begins, 9 everywhere else."""
    from gem_skyrl.rollout import trained_rows

    width = data["response_mask"].shape[1]
    data["values"] = torch.full(data["response_mask"].shape, 9.0)
    place = 0
    for number, episode in enumerate(episodes):
        rows = trained_rows(episode)
        for i, row in enumerate(rows):
            for span in row.spans:
                column = min(width - len(row.response_ids) + span.start, width - 1)
                data["values"][place + i, column] = value(number, span.turn)
        place += max(1, len(rows))
    return data
