"""SkyRL's trainers with turn-level advantages: a class for each of its two loops.

A batch comes by in this order: the generator, `convert_to_training_input`, the forward passes
(SkyRL's own), `apply_reward_kl_penalty`, `compute_advantages_and_returns`, the update (SkyRL's
own), the tracker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from skyrl.train.fully_async_trainer import FullyAsyncRayPPOTrainer
from skyrl.train.trainer import RayPPOTrainer
from torchdata.stateful_dataloader import StatefulDataLoader

from gem.errors import RolloutError
from gem.estimators import estimator
from gem_skyrl.resume import clear_leftovers
from gem_skyrl.rollout import EPISODES, trained_rows
from gem_skyrl.settings import Settings, comparable, evaluated_with
from gem_train.experiment.agreement import Agreement
from gem_train.experiment.estimate import PerTurn, turn_advantages
from gem_train.experiment.metrics import episode_metrics
from gem_train.packed import PackedTrajectory
from gem_train.record import TrainedRow
from gem_train.recording import RunRecording
from gem_train.rows import PlacedEpisode, PlacedRow
from gem_train.settings import check_episodes


@dataclass
class RightRow(PlacedRow):
    """A row of SkyRL's response tensors, which end with the row's last token."""

    width: int = 0
    """Number of columns."""

    @property
    def first(self) -> int:
        """Column of the response's first token."""
        return self.width - len(self.tokens.response_ids)


class _GemTrainer:
    """What both loops have in common."""

    gem: Settings
    recording: RunRecording
    """Both are set by the experiment, right after the trainer is made."""
    gem_batch: Sequence[PackedTrajectory | None] = ()
    """The episode of each row of the batch under way; of several rows the last one has it."""
    gem_penalty: Any = None
    """What the KL divergence takes from the reward of each token, `[rows, columns]`; or None."""

    def _loader(self: Any, batch_size: int) -> Any:
        """Return the tasks in their order, which SkyRL would shuffle whatever it is told."""
        data = self.train_dataset
        return StatefulDataLoader(
            data, batch_size=batch_size, collate_fn=data.collate_fn, drop_last=True
        )

    def _limited(self: Any, steps: int) -> int:
        most = self.cfg.trainer.max_training_steps
        return steps if most is None else min(steps, int(most))

    def build_models(self: Any, PolicyWorker: Any, CriticWorker: Any, RefWorker: Any) -> None:  # noqa: N803
        """Make the workers; the policy's is `gem_skyrl.worker`'s."""
        from gem_skyrl.worker import PolicyWorker

        super().build_models(PolicyWorker, CriticWorker, RefWorker)  # type: ignore[misc]

    async def train(self: Any) -> None:
        """Train to the end.

        Raises:
            UnfinishedError: Fewer iterations are recorded than were asked for, or something called
                `sys.exit()`.
        """
        with self.recording.to_the_end(lambda: int(self.total_training_steps)):
            await super().train()  # type: ignore[misc]

    def load_checkpoints(self: Any) -> Any:
        """Go on from the last whole checkpoint, where there is one."""
        if self.cfg.trainer.resume_mode == "latest":
            asynchronous = bool(self.cfg.trainer.fully_async.enabled)
            clear_leftovers(Path(self.cfg.trainer.ckpt_path), asynchronous=asynchronous)
        found = super().load_checkpoints()  # type: ignore[misc]
        self.generator.engines.resumed = int(found[0])
        return found

    def save_checkpoints(self: Any) -> str:
        """Record the iteration that led to the checkpoint, and save; SkyRL would log it later.

        A run that is killed between the two could not go on: its record would have a gap.
        """
        self.tracker.write(self.all_metrics, self.global_step)
        return str(super().save_checkpoints())  # type: ignore[misc]

    def convert_to_training_input(self: Any, generator_output: Any, uids: list[str]) -> Any:
        """Keep the episodes of the batch; see SkyRL's method."""
        self.gem_batch, self.gem_penalty = generator_output[EPISODES], None
        return super().convert_to_training_input(generator_output, uids)  # type: ignore[misc]

    @torch.no_grad()
    def apply_reward_kl_penalty(self: Any, data: Any) -> Any:
        """Compute the penalty as SkyRL does, apart from the rewards."""
        rewards = data["rewards"]
        data["rewards"] = torch.zeros_like(rewards)
        data = super().apply_reward_kl_penalty(data)  # type: ignore[misc]
        self.gem_penalty = data["rewards"]
        data["rewards"] = rewards + self.gem_penalty
        return data

    @torch.no_grad()
    def compute_advantages_and_returns(self: Any, data: Any) -> Any:
        """Set `advantages` and `returns`: each turn's on its sampled tokens, else 0.

        Raises:
            RolloutError: Too many episodes failed, or a row does not hold what was played.
        """
        kept = [episode for episode in self.gem_batch if episode is not None]
        check_episodes(kept, self.gem.max_failed_fraction)
        placed = place(data, kept, len(self.gem_batch))
        per_turn, targets = self._turn_advantages(data, placed)
        for name, values in (("advantages", per_turn), ("returns", targets)):
            data[name] = torch.zeros(data["response_mask"].shape)
            for episode, of_turns in zip(placed, values, strict=True):
                episode.write(data[name], of_turns)
        data.metadata.setdefault("metrics", {})
        self.recording.keep_batch(
            kept,
            per_turn,
            lambda: [[trained_row(data, row) for row in each.rows] for each in placed],
            metrics=agreement(data).metrics() if comparable(self.cfg) else {},
        )
        return data

    def _turn_advantages(
        self: Any, data: Any, placed: list[PlacedEpisode]
    ) -> tuple[PerTurn, PerTurn]:
        algorithm, values, added = self.cfg.trainer.algorithm, None, None
        if estimator(self.gem.advantage).needs_critic:
            values = [each.at_turns(data["values"]) for each in placed]
        if self.gem_penalty is not None:
            added = [each.over_turns(self.gem_penalty) for each in placed]
        return turn_advantages(
            self.gem.advantage,
            [each.trajectory for each in placed],
            self.gem,
            gamma=float(algorithm.gamma),
            lam=float(algorithm.lambd),
            values=values,
            added=added,
        )

    @torch.no_grad()
    async def eval(self: Any, vllm_metrics_scraper: Any = None) -> dict[str, float]:
        """Play all evaluations; return SkyRL's metrics of them.

        Raises:
            RolloutError: Too many episodes of one failed.
        """
        if vllm_metrics_scraper is not None:
            vllm_metrics_scraper.resume()
        rows, given = self.eval_dataset.rows, evaluated_with(self.cfg)
        episodes = await self.generator.play(rows, [(self.global_step, 0)] * len(rows), given)
        if vllm_metrics_scraper is not None:
            vllm_metrics_scraper.pause()
        for row, episode in zip(rows, episodes, strict=True):
            self.recording.keep_evaluated(row.evaluation or row.name, [episode])
        self.recording.check_evaluated(self.gem.max_failed_fraction)
        found = {}
        for name, played in self.recording.evaluated.items():
            of_valid = episode_metrics(played)
            for ours in ("success_rate", "return_mean"):
                if ours in of_valid:  # not without a valid episode
                    found[f"eval/{name}/{ours}"] = of_valid[ours]
        return found


class GemTrainer(_GemTrainer, RayPPOTrainer):  # type: ignore[misc]
    """SkyRL's trainer that samples and trains in turn."""

    def _build_train_dataloader_and_compute_training_steps(self) -> None:
        self.train_dataloader = self._loader(self.cfg.trainer.train_batch_size)
        steps = len(self.train_dataloader) * self.cfg.trainer.epochs
        self.total_training_steps = self._limited(steps)


class GemAsyncTrainer(_GemTrainer, FullyAsyncRayPPOTrainer):  # type: ignore[misc]
    """SkyRL's trainer that samples while it trains (`trainer.fully_async.enabled`)."""

    def _build_train_dataloader_and_compute_training_steps(self) -> None:
        self.train_dataloader = self._loader(1)
        self.num_steps_per_epoch = len(self.train_dataloader) // self.mini_batch_size
        steps = self.num_steps_per_epoch * self.cfg.trainer.epochs
        self.total_training_steps = self._limited(steps)


def place(data: Any, episodes: Sequence[PackedTrajectory], rows: int) -> list[PlacedEpisode]:
    """Find the rows of episodes in SkyRL's tensors, and check that they hold what was played.

    Rows that SkyRL has added to make a batch even come after them.

    Args:
        data: SkyRL's batch.
        episodes: In the order of the batch.
        rows: Number of rows that the generator made of them.

    Raises:
        RolloutError: They do not.
    """
    width, found, at = data["response_mask"].shape[1], [], 0
    for number, episode in enumerate(episodes):
        tokens = trained_rows(episode)
        mine = [RightRow(at + i, each, number, width) for i, each in enumerate(tokens)]
        # An episode without rows has one in which nothing is trained.
        at += max(1, len(mine))
        for row in mine:
            mask = data["loss_mask"][row.place]
            row.check(_ids(data, row), mask.numpy(), f"the training row of {episode.task}")
        found.append(PlacedEpisode(episode, list(mine)))
    if at != rows:
        raise RolloutError(f"the episodes have {at} rows, SkyRL has {rows}")
    return found


def trained_row(data: Any, row: PlacedRow) -> TrainedRow:
    """Read back what SkyRL trains on."""
    mask, rewards, advantages = (
        data[name][row.place, row.columns] for name in ("loss_mask", "rewards", "advantages")
    )
    return row.trained(_ids(data, row), mask.numpy(), rewards.tolist(), advantages.tolist())


def agreement(data: Any) -> Agreement:
    """Return how far the trainer's log-probabilities are from the engines'."""
    trained, sampled = data["action_log_probs"], data["rollout_logprobs"]
    if trained is None or sampled is None:
        return Agreement()
    return Agreement.of(trained.float(), sampled.float(), data["loss_mask"] > 0)


def _ids(data: Any, row: PlacedRow) -> Any:
    """Return SkyRL's tokens of a row without its padding, which comes first."""
    attended = int(data["attention_mask"][row.place].sum())
    return data["sequences"][row.place, -attended:].numpy()
