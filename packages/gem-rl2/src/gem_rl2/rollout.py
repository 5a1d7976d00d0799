"""RL2's rollout hook: episodes are played by `gem.rollout`, SGLang is the sampler.

RL2 lets an env file say how text is answered, but not token by token; therefore `Rollouts.rollout`
takes the place of one method of RL2's `Rollout`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp

from gem.errors import ConfigurationError, RolloutError
from gem.rollout import ChatFormat
from gem.trajectory import Trajectory
from gem_rl2.dataset import read
from gem_rl2.settings import Keys, Settings, budget
from gem_rl2.sglang import SglangSampler
from gem_train.experiment.tasksets import DatasetRow
from gem_train.packed import PackedTrajectory
from gem_train.settings import check_episodes

StateDict = dict[str, list[Any]]
"""One training row as RL2 wants it: `states`, `actions`, `action_mask`, `logps`, `rewards`."""

Metrics = dict[str, list[float]]
"""RL2's metrics of an episode: lists that it takes the mean of over all episodes."""

TAG = 1
"""Position in a row whose reward holds the number of the episode.

RL2 passes nothing on that would tell which episode a row belongs to. Position 0 is dropped when
rows become tensors; position 1 is the prompt's, where a reward counts for nothing.
"""


class Rollouts:
    """Plays the episodes of a run, and keeps those of the batch for the advantages."""

    def __init__(self, settings: Settings, keys: Keys) -> None:
        self.settings = settings
        self.keys = keys
        self.evaluated: dict[str, list[PackedTrajectory]] = {}
        """Evaluation episodes that were not recorded yet, by name."""
        self._batch: list[PackedTrajectory] = []
        self._budget = budget(settings, keys)
        self._eval_budget = budget(settings, keys, evaluation=True)
        self._chat: ChatFormat | None = None
        self._places = asyncio.Semaphore(settings.episodes_at_once or 2**30)

    def take(self) -> list[PackedTrajectory]:
        """Return the training episodes played since the last call; their place is their number."""
        batch, self._batch = self._batch, []
        return batch

    async def play(
        self, row: DatasetRow, tokenizer: Any, url: str, params: Mapping[str, Any]
    ) -> tuple[list[Trajectory], int]:
        """Play the task of a row; return its trajectories and the number of the first in the batch.

        Those of a match, of all agents, are neighbours.

        Args:
            row: Of the row file.
            tokenizer: The model's.
            url: Of SGLang's router.
            params: SGLang's sampling parameters.

        Raises:
            RolloutError: The server does not answer, or too many episodes of the batch failed.
        """
        settings = self.settings
        if self._chat is None:
            self._chat = settings.chat_format(tokenizer)
        chat = self._chat
        if row.sampling is not None:
            params = {**params, **row.sampling.engine}
        limits = self._budget if row.evaluation is None else self._eval_budget
        timeout = aiohttp.ClientTimeout(total=settings.request_timeout_s)
        async with self._places, aiohttp.ClientSession(timeout=timeout) as session:
            sampler = SglangSampler(
                session, url, params, stop_ids=chat.stop_ids, retries=settings.request_retries
            )
            played = await settings.play_all(row.task, sampler, chat, limits, group=row.number)
        packed = [PackedTrajectory.of(trajectory) for trajectory in played]
        if row.evaluation is not None:
            self.evaluated.setdefault(row.evaluation, []).extend(packed)
            return played, -1
        self._batch.extend(packed)
        self._check_failures(played)
        return played, len(self._batch) - len(played)

    async def rollout(self, its: Any, data: dict[str, Any], train: bool) -> Any:
        """Play one episode in the place of `RL2.workers.rollout.Rollout.rollout`.

        Args:
            its: RL2's `Rollout`.
            data: Columns of the row.
            train: Whether the episode is played for training.

        Returns:
            The tensors of its rows, and its metrics.
        """
        from RL2.datasets import state_dict_to_tensor_dict

        params = its.train_sampling_params if train else its.test_sampling_params
        played, number = await self.play(read(data), its.tokenizer, its.router_url, params)
        tensors = [state_dict_to_tensor_dict(row) for row in _rows(played, number)]
        # An evaluation that loses all of its episodes has no mean; RL2 would divide by zero.
        return tensors, _metrics(played, [] if train else [math.nan])

    def _check_failures(self, played: Sequence[Trajectory]) -> None:
        """Stop at the failure that is one too many, without playing the rest of the batch."""
        self.settings.check_left_out(played[0], "RL2")
        if not played[0].valid:  # a match is void for all
            size = self.keys.tasks * self.keys.group_size * len(played)
            check_episodes(self._batch, self.settings.max_failed_fraction, of=size)


def _rows(played: Sequence[Trajectory], number: int) -> list[StateDict]:
    """Return the training rows of an episode or match; `number` is that of the first trajectory."""
    return [row for n, each in enumerate(played, number) for row in state_dicts(each, n)]


def state_dicts(trajectory: Trajectory, number: int) -> list[StateDict]:
    """Return the training rows of an episode; none if it failed.

    Args:
        trajectory: The episode.
        number: Written to `TAG`.

    Raises:
        RolloutError: The sampler gave no log-probabilities, or a prompt has less than two tokens.
    """
    found: list[StateDict] = []
    for row in trajectory.training_rows():
        start = len(row.prompt_ids)
        if row.logprobs is None or start <= TAG:
            raise RolloutError(
                f"episode of {trajectory.task}: a row with a prompt of {start} tokens and "
                f"{'no ' if row.logprobs is None else ''}log-probabilities"
            )
        ids = row.ids
        rewards = [0.0] * start + row.token_rewards(trajectory.rewards)
        rewards[TAG] = float(number)
        found.append(
            {
                "states": ids,
                # Environment tokens too: they are not trained on, but the row can be read back.
                "actions": ids,
                "action_mask": [0] * start + row.mask,
                "logps": [0.0] * start + row.logprobs,
                "rewards": rewards,
            }
        )
    return found


def _metrics(played: Sequence[Trajectory], void: list[float]) -> Metrics:
    """Return RL2's metrics of an episode or match.

    Args:
        played: Its trajectories.
        void: Returns of a failed episode.
    """
    valid = [trajectory for trajectory in played if trajectory.valid]
    all_turns = [turn for trajectory in valid for turn in trajectory.turns]
    return {
        "response_length": [float(len(turn.response_ids)) for turn in all_turns],
        "length_clip_ratio": [float(turn.stop_reason == "length") for turn in all_turns],
        "n_turns": [float(len(trajectory.turns)) for trajectory in valid],
        "scores": [trajectory.total_reward for trajectory in valid] or void,
        "gem/success": [float(trajectory.success) for trajectory in valid],
        "gem/failed": [float(not trajectory.valid) for trajectory in played],
    }


async def generate(config: Any, tokenizer: Any, router_url: str, sample: Any) -> None:
    """Stand in the env file for what answers; `Rollouts.rollout` never asks it.

    Raises:
        ConfigurationError: GEM was not switched on.
    """
    raise ConfigurationError(
        "rollout.env_path is GEM's env file, but nothing else of GEM is on: give at least one "
        "key, such as +gem.advantage=rebn, and start RL2 with torchrun -m RL2.trainer.ppo"
    )
