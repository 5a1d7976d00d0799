"""fake-trainer's trainer, with episodes, advantages and a record of GEM's.

Each overridden method is one of the trainer's hooks, named in `gem_skyrl.seams`. A batch comes
by in this order: `rollout`, `collate` (the trainer's own), `compute_advantages`, `update` (the
trainer's own), `log`.
"""

from __future__ import annotations

from typing import Any

import fake_trainer
from numpy.typing import NDArray

from gem.trajectory import Trajectory
from gem_skyrl.rollout import play_rows, trainer_row
from gem_skyrl.seams import SEAMS
from gem_skyrl.settings import Settings
from gem_skyrl.version import TRAINER
from gem_train.experiment.estimate import turn_advantages
from gem_train.experiment.tasksets import DatasetRow
from gem_train.record import TrainedRow
from gem_train.recording import Names, RunRecording
from gem_train.rows import PlacedRow, placed_rows, write
from gem_train.seams import check_seams
from gem_train.settings import check_episodes

RECORDED: Names = {
    "loss": "train/loss",
    "grad_norm": "train/grad_norm",
    "entropy": "train/entropy",
}
"""Names in the record, and in the trainer's logs."""


class GemTrainer(fake_trainer.Trainer):  # type: ignore[misc]
    """Trains on turns; a configuration names it: `"trainer": "gem_skyrl.trainer:GemTrainer"`."""

    def __init__(self, config: dict[str, Any]) -> None:
        """Check the trainer and its configuration before anything is loaded.

        Raises:
            ConfigurationError: The configuration is wrong; the message names the key.
            UnsupportedVersionError: The trainer is of an unsupported version, or not what it was.
        """
        about = TRAINER.about()
        check_seams(TRAINER, SEAMS)
        self.settings = Settings.read({**fake_trainer.DEFAULTS, **config})
        super().__init__(config)
        self.chat = self.settings.chat_format(self.tokenizer)
        self.recording = RunRecording(
            self.settings.record_dir, about, RECORDED, **self.settings.recorded
        )
        self.played: list[Trajectory] = []
        """Episodes of the batch, or of the evaluation, that is under way."""
        self.evaluated: list[str] = []
        """Names of the evaluations that the episodes belong to, one for each episode."""

    def train(self) -> None:
        """Train to the end.

        Raises:
            UnfinishedError: Fewer iterations are recorded than were asked for, or something called
                `sys.exit()`.
        """
        with self.recording.to_the_end(lambda: int(self.config["steps"])):
            super().train()

    async def rollout(self, texts: list[str], evaluation: bool = False) -> list[dict[str, Any]]:
        """Play an episode of each text; return the training rows.

        Raises:
            RolloutError: Too many episodes failed.
        """
        self.played = await play_rows(texts, self.engine, self.chat, self.config, self.settings)
        check_episodes(self.played, self.settings.max_failed_fraction)
        if evaluation:
            self.evaluated = [DatasetRow.decode(text).evaluation or "" for text in texts]
            valid = (t for t in self.played if t.valid)
            return [{"reward": trajectory.total_reward} for trajectory in valid]
        return [trainer_row(row) for each in self.played for row in each.training_rows()]

    def compute_advantages(self, batch: dict[str, NDArray[Any]]) -> None:
        """Set `advantages`, `[rows, columns]`: each turn's on its sampled tokens, else 0.

        Raises:
            RolloutError: The tensors do not hold the tokens that were sampled.
        """
        rows = placed_rows(self.played, PlacedRow)
        for row in rows:
            row.check(_ids(batch, row), batch["mask"][row.place].tolist(), f"row {row.place}")
        per_turn, _ = turn_advantages(
            self.settings.advantage,
            self.played,
            self.settings,
            gamma=self.config["gamma"],
        )
        batch["advantages"] = batch["mask"] * 0
        of_episode: list[list[PlacedRow]] = [[] for _ in self.played]
        for row in rows:
            of_episode[row.episode].append(row)
        for mine, of_turns in zip(of_episode, per_turn, strict=True):
            write(batch["advantages"], mine, of_turns)
        self.recording.keep_batch(
            self.played,
            per_turn,
            lambda: [
                [trained_row(batch, row, self.played[row.episode]) for row in mine]
                for mine in of_episode
            ],
        )

    def log(self, step: int, values: dict[str, float]) -> None:
        """Write the record of a batch or of an evaluation, beside the trainer's own log."""
        super().log(step, values)
        if not self.evaluated:
            self.recording.write_iteration(step, values)
        for name in dict.fromkeys(self.evaluated):
            mine = [t for t, n in zip(self.played, self.evaluated, strict=True) if n == name]
            self.recording.write_evaluation(step, name, mine)
        self.evaluated = []


def trained_row(
    batch: dict[str, NDArray[Any]], row: PlacedRow, trajectory: Trajectory
) -> TrainedRow:
    """Read back what the trainer trains on; `trajectory` is the row's episode."""
    mask, advantages = (batch[key][row.place, row.columns] for key in ("mask", "advantages"))
    # The trainer keeps no reward per token: those shown are what its advantages were made of.
    rewards = row.tokens.token_rewards(trajectory.rewards)
    return row.trained(_ids(batch, row), mask.tolist(), rewards, advantages.tolist())


def _ids(batch: dict[str, NDArray[Any]], row: PlacedRow) -> list[int]:
    ids: list[int] = batch["ids"][row.place, : batch["lengths"][row.place]].tolist()
    return ids
