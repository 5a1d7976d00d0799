"""OpenRLHF's experience maker with turn-level advantages: rows become a table of turns.

OpenRLHF has no plugin point for advantages. `GemExperienceMaker` extends its experience maker by
one method, which sees the whole batch in one process; `gem_openrlhf.worker` puts it in place. The
maths is `gem.advantage`; KL in the reward and length penalties are OpenRLHF's own functions, and
what they add to an episode's reward is added to the turns'.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np
import torch
from openrlhf.models.utils import compute_reward
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from openrlhf.trainer.ppo_utils.length_penalty import apply_length_penalties

from gem.errors import RolloutError
from gem.estimators import estimator
from gem_openrlhf.images import check_inputs, check_ranks, check_unpacked
from gem_openrlhf.record import recording
from gem_openrlhf.rollout import FAILED, PREFIX, Played
from gem_openrlhf.settings import Settings, check_flags, load_settings, with_whole_response
from gem_train.experiment.agreement import Agreement
from gem_train.experiment.estimate import PerTurn, Shaping, turn_advantages
from gem_train.record import TrainedRow
from gem_train.rows import PlacedEpisode, PlacedRow
from gem_train.settings import check_episodes

DIFFERENCE = f"{PREFIX}logprob_difference"
"""Log: mean distance of the trainer's log-probabilities from the engine's."""


@dataclass(frozen=True)
class Row(PlacedEpisode):
    """One episode of a batch, and where OpenRLHF keeps it."""

    experience: Any
    place: int
    """Row of the experience's tensors."""
    number: int
    """Number of the episode in the batch; `n_samples_per_prompt` in a row share a task."""

    @property
    def trained(self) -> PlacedRow | None:
        """The row of the tensors; None: the episode failed."""
        return self.rows[0] if self.rows else None

    @property
    def given(self) -> Any:
        """What OpenRLHF's models are given for the row's images; None if it has none."""
        inputs = self.experience.mm_train_inputs
        return inputs[self.place] if inputs else None

    def ids(self) -> torch.Tensor:
        """Return OpenRLHF's tokens of this row, without padding."""
        n = int(self.experience.attention_mask[self.place].sum())
        ids: torch.Tensor = self.experience.sequences[self.place, :n]
        return ids


class GemExperienceMaker(RemoteExperienceMaker):  # type: ignore[misc]
    """OpenRLHF's experience maker; with GEM's executor, advantages are those of its settings."""

    args: Any
    strategy: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Read the agent file, and refuse flags that cannot work with it."""
        super().__init__(*args, **kwargs)
        self.gem = load_settings(self.args.train.agent_func_path)
        if self.gem is not None:
            check_flags(self.args, self.gem)
            # OpenRLHF's own method reads them from its strategy, which is not the maker's alone.
            self.strategy = copy(self.strategy)
            self.strategy.args = self.args = with_whole_response(self.args, self.gem)

    @torch.no_grad()
    def compute_advantages_and_returns(self, experiences: list[Any]) -> list[Any]:
        """Set rewards, advantages and returns of a batch; see OpenRLHF's method.

        Raises:
            ConfigurationError: Images were shown, and flags do not work with them.
            RolloutError: Too many episodes failed, or a row does not hold what was played.
        """
        if self.gem is None:
            return list(super().compute_advantages_and_returns(experiences))
        rows = read_rows(experiences, self.args.rollout.n_samples_per_prompt)
        shown = [bool(row.given) for row in rows]
        if any(shown):
            check_unpacked(self.args)
            check_ranks(self.args, shown)
        trajectories = [row.trajectory for row in rows]
        check_episodes(trajectories, self.gem.max_failed_fraction)
        agreement = self._agreement(experiences, rows, self.gem)
        per_turn: PerTurn | None = None
        if self.gem.advantage is None:
            experiences = list(super().compute_advantages_and_returns(experiences))
        else:
            per_turn = self._turn_advantages(experiences, rows, self.gem)
            leave_out(experiences, rows)
        if self.gem.record_dir is not None:
            recording(self.gem).keep_batch(
                trajectories,
                per_turn,
                lambda: [trained_row(row) for row in rows],
                metrics=agreement.metrics(),
            )
        return experiences

    def _turn_advantages(
        self, experiences: list[Any], rows: list[Row], settings: Settings
    ) -> PerTurn:
        """Fill in the experiences; return the advantages."""
        flags, name = self.args.algo.advantage, settings.advantage
        assert name is not None
        shaping = Shaping(**{**settings.shaping, "group_std": not flags.no_std_norm})
        added = self._added(experiences, rows, shaping)
        values = None
        if estimator(name).needs_critic:
            values = [row.at_turns(row.experience.values) for row in rows]
        per_turn, targets = turn_advantages(
            name,
            [row.trajectory for row in rows],
            shaping,
            gamma=float(flags.gamma),
            lam=float(flags.lambd),
            added=added,
            values=values,
        )
        for experience in experiences:
            experience.advantages = torch.zeros(experience.action_mask.shape)
            experience.returns = torch.zeros(experience.action_mask.shape)
            experience.info["return"] = torch.zeros(len(experience.sequences))
            experience.kl = None
        for row, a, g, more in zip(rows, per_turn, targets, added, strict=True):
            row.write(row.experience.advantages, a)
            row.write(row.experience.returns, g)
            total = row.trajectory.total_reward + sum(more)
            row.experience.info["return"][row.place] = total
        return per_turn

    def _added(self, experiences: list[Any], rows: list[Row], shaping: Shaping) -> PerTurn:
        """Return what OpenRLHF adds to each turn's shaped reward, by episodes and by tokens."""
        kl = {
            id(experience): compute_reward(
                torch.zeros(len(experience.sequences)),
                self.kl_ctl.value,
                experience.kl,
                action_mask=experience.action_mask,
            )
            for experience in experiences
        }
        added = [row.over_turns(kl[id(row.experience)]) for row in rows]
        penalties = self._penalties(experiences, rows, shaping)
        for of_turns, penalty in zip(added, penalties, strict=True):
            if of_turns:
                of_turns[-1] += penalty
        return added

    def _penalties(self, experiences: list[Any], rows: list[Row], shaping: Shaping) -> list[float]:
        """Return what OpenRLHF's length penalties add to each episode's shaped reward.

        Logs have the sum of the environment's reward and the penalty.
        """
        shaped = {}
        for experience in experiences:
            experience.rewards = experience.rewards.float()
            zeros = torch.zeros_like(experience.rewards)
            shaped[id(experience)] = replace(experience, rewards=zeros, info={})
        rewards = [shaped[id(row.experience)].rewards[row.place] for row in rows]
        for row, reward in zip(rows, rewards, strict=True):
            reward.fill_(sum(shaping.rewards(row.trajectory.rewards)))
        before = [float(reward) for reward in rewards]
        apply_length_penalties(list(shaped.values()), self.args)
        penalties = [float(after) - b for after, b in zip(rewards, before, strict=True)]
        for row, penalty in zip(rows, penalties, strict=True):
            row.experience.rewards[row.place] += penalty
        for experience in experiences:
            experience.info["reward"] = experience.rewards.clone()
        return penalties

    def _agreement(self, experiences: list[Any], rows: list[Row], settings: Settings) -> Agreement:
        """Log how far the trainer's log-probabilities are from the engine's, and return it.

        It is of no token where they are not of the same distribution: unless OpenRLHF asks for
        the sampling distribution's, vLLM reports those at temperature 1, before any candidate is
        left out.
        """
        processed = experiences[0].rollout_log_probs is not None
        whole = settings.top_k == -1 and not settings.min_p and settings.repetition_penalty == 1
        if not (whole if processed else self.args.rollout.temperature == 1.0):
            return Agreement()
        found = Agreement()
        for experience in experiences:
            experience.info[DIFFERENCE] = torch.zeros(len(experience.sequences))
        for row in rows:
            if row.trained is None or row.trained.tokens.logprobs is None:
                continue
            tokens = row.trained.tokens
            ours = row.experience.action_log_probs[row.place, row.trained.columns].float()
            of_row = Agreement.of(ours, np.asarray(tokens.logprobs), tokens.mask)
            row.experience.info[DIFFERENCE][row.place] = of_row.total / max(of_row.tokens, 1)
            found += of_row
        return found


def read_rows(experiences: Sequence[Any], samples: int) -> list[Row]:
    """Return the episodes of a batch in order of their numbers; labels become the dataset's again.

    Args:
        experiences: OpenRLHF's batch.
        samples: Episodes of a task.

    Raises:
        RolloutError: A row does not hold what was played.
    """
    found = []
    for experience in experiences:
        labels = []
        for place, (number, label) in enumerate(
            zip(experience.index, experience.labels, strict=True)
        ):
            if not isinstance(label, Played):
                raise RolloutError(f"a row without a trajectory of GEM: {label!r:.200}")
            labels.append(label.label)
            trajectory = label.trajectory
            trajectory.group = int(number) // samples
            rows = [PlacedRow(place, tokens) for tokens in trajectory.training_rows()]
            row = Row(trajectory, rows, experience, place, int(number))
            if row.trained is not None:
                mask, name = experience.action_mask[place], f"the training row of {trajectory.task}"
                row.trained.check(row.ids(), mask, name)
                check_inputs(row.given, row.trained.tokens.images, name)
            found.append(row)
        experience.labels = labels
    return sorted(found, key=lambda row: row.number)


def leave_out(experiences: Sequence[Any], rows: Sequence[Row]) -> None:
    """Make failed episodes count for nothing.

    Their advantage is 0 already and their one token gets no loss from critic or correction. In
    OpenRLHF's logs they get the mean of the others, so that each mean is that of the others.
    """
    void = [row for row in rows if row.trained is None]
    if not void:
        return
    kept = [row for row in rows if row.trained is not None]
    keys = [key for key in experiences[0].info if key != FAILED]
    logged = {}
    for experience in experiences:
        experience.info = {k: v.float() for k, v in experience.info.items()}
        experience.response_length = experience.response_length.float()
        experience.truncated = experience.truncated.float()
        columns = [experience.info[key] for key in keys]
        logged[id(experience)] = [*columns, experience.response_length, experience.truncated]
    values = [[column[row.place] for column in logged[id(row.experience)]] for row in kept]
    means = [torch.stack(of_column).mean() for of_column in zip(*values, strict=True)]
    for row in void:
        experience = row.experience
        for column, mean in zip(logged[id(experience)], means, strict=True):
            column[row.place] = mean
        if experience.values is not None:
            experience.returns[row.place] = experience.values[row.place].float()
        if experience.rollout_log_probs is not None:
            experience.rollout_log_probs[row.place] = experience.action_log_probs[row.place]


def trained_row(row: Row) -> list[TrainedRow]:
    """Read back what OpenRLHF trains on; none for a failed episode.

    OpenRLHF keeps no reward per token: those shown are the episode's.
    """
    if row.trained is None or row.experience.advantages is None:
        return []
    experience, columns = row.experience, row.trained.columns
    return [
        row.trained.trained(
            row.ids(),
            experience.action_mask[row.place, columns].tolist(),
            row.trained.tokens.token_rewards(row.trajectory.rewards),
            experience.advantages[row.place, columns].tolist(),
        )
    ]


def install(module: ModuleType) -> None:
    """Replace OpenRLHF's experience maker in its module."""
    module.RemoteExperienceMaker = GemExperienceMaker  # type: ignore[attr-defined]
