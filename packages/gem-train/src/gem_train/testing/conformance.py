"""Level L0 of conformance as tests: a trainer trains on `gem.advantage`'s values, to the last bit.

An adapter's tests derive a class from `L0Suite` and fill in `train`; pytest does the rest:

    from gem_train.testing.conformance import L0Suite

    class TestMyTrainer(L0Suite):
        def train(self, batch, algorithm):
            ...  # give the episodes to the trainer's own code, read its tensors back
            return rows  # [episode][row] of TrainedRow

- `expected_rows`: what must be trained on, by `gem.advantage`.
- `difference`: the first place where a trainer's rows differ from that, a `Finding`.
- `DEFECTS`: mistakes that adapters have made; each, built into the adapter, must be noticed.
- `cut_row`: cuts a `TrainedRow` out of a trainer's padded tensors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np

from gem.estimators import estimator, estimator_names
from gem.trajectory import Trajectory
from gem_train.experiment.estimate import Shaping, turn_advantages
from gem_train.experiment.runspec import AlgorithmPart
from gem_train.record import TrainedRow
from gem_train.testing.golden import golden_batch, golden_turn_rows, of_two_environments

if TYPE_CHECKING:
    import pytest

Rows: TypeAlias = list[list[TrainedRow]]
"""What a trainer trains on, `[episode][row]`."""
Make: TypeAlias = Callable[[], list[Trajectory]]
"""Makes a batch."""
Train: TypeAlias = Callable[[list[Trajectory], AlgorithmPart], Rows]
"""`L0Suite.train`."""

SAMPLED = ("prompt_ids", "response_ids", "mask")
"""Fields of a `TrainedRow` that the rollout decides."""
GAMMA, LAM = 0.9, 0.8
"""Discount and GAE's lambda of the suite, per turn."""
BY_ENVIRONMENT = "rebn by environment"
"""ReBN with `normalise` = `environment`, of a batch of two with very different rewards."""
SHAPED = "reinforce shaped"
"""REINFORCE with all that may be done to rewards and advantages, each with an effect."""
GROUP_MEAN = "grpo without deviation"
"""GRPO with `group_std` = False."""
VARIANTS: dict[str, dict[str, Any]] = {
    BY_ENVIRONMENT: {"advantage": "rebn", "normalise": "environment"},
    SHAPED: {
        "advantage": "reinforce",
        "reward_scale": 2.0,
        "reward_clip": 1.25,
        "whiten": True,
        "advantage_clip": 1.0,
    },
    GROUP_MEAN: {"advantage": "grpo", "group_std": False},
}
"""Settings of what is tested beside the plain estimators."""


def critic(episode: int, turn: int) -> float:
    """Return the value of the state before a turn, for `gae`.

    Args:
        episode: Index of the episode in the batch.
        turn: Index of the turn in the episode.
    """
    return 0.125 * episode - 0.25 * turn


def expected_rows(batch: Sequence[Trajectory], algorithm: AlgorithmPart) -> Rows:
    """Return what a trainer must train on; advantages and rewards are float32.

    A failed episode has no row. The values for `gae` are those of `critic`; the baselines of `rae`
    are those of a first batch.
    """
    values = [[critic(e, k) for k in range(len(t.turns))] for e, t in enumerate(batch)]
    per_turn, _ = turn_advantages(
        algorithm.advantage,
        batch,
        algorithm,
        gamma=algorithm.gamma,
        lam=algorithm.lam,
        values=values,
    )
    return [
        [
            TrainedRow(
                prompt_ids=row.prompt_ids,
                response_ids=row.response_ids,
                mask=row.mask,
                rewards=float32(row.token_rewards(trajectory.rewards)),
                advantages=float32(row.spread(of_turns)),
            )
            for row in trajectory.training_rows()
        ]
        for trajectory, of_turns in zip(batch, per_turn, strict=True)
    ]


def float32(values: Sequence[float]) -> list[float]:
    """Return the numbers rounded to single precision."""
    rounded: list[float] = np.asarray(values, np.float32).tolist()
    return rounded


@dataclass(frozen=True)
class Finding:
    """One place where a trainer does not do what it must."""

    level: str
    """`L0` to `L3`."""
    where: str
    expected: Any
    found: Any

    def __str__(self) -> str:
        return f"{self.level} {self.where}: expected {self.expected}, found {self.found}"


def difference(
    found: Rows, batch: Sequence[Trajectory], algorithm: AlgorithmPart
) -> Finding | None:
    """Return where `found` first differs from `expected_rows`; None if it does not.

    A row without a sampled token may be left out. A failed episode has no row, or rows whose
    advantages are 0. Advantages must be equal as they are, rewards as float32.

    Args:
        found: What the trainer trains on; a row's `rewards` may be empty if it keeps none. (In
            the record of a run they must be there: level L1 compares them.)
        batch: The episodes.
        algorithm: Estimator, discount and lambda.
    """
    if len(found) != len(batch):
        return Finding("L0", "number of episodes", len(batch), len(found))
    wanted = expected_rows(batch, algorithm)
    for episode, (trajectory, mine, theirs) in enumerate(zip(batch, wanted, found, strict=True)):
        if not trajectory.valid:
            trained = [a for row in theirs for a in row.advantages if a]
            if trained:
                return Finding("L0", f"advantages of failed episode {episode}", 0.0, trained[0])
            continue
        if len(mine) != len(theirs):
            mine = [row for row in mine if any(row.mask)]
        if len(mine) != len(theirs):
            return Finding("L0", f"rows of episode {episode}", len(mine), len(theirs))
        for index, (a, b) in enumerate(zip(mine, theirs, strict=True)):
            where = f"episode {episode}, row {index}"
            names = (*SAMPLED, "advantages", *(["rewards"] if b.rewards else []))
            finding = next(row_findings("L0", where, a, b, names), None)
            if finding is not None:
                return finding
    return None


def row_findings(
    level: str, where: str, wanted: TrainedRow, found: TrainedRow, names: Sequence[str]
) -> Iterator[Finding]:
    """Yield the first differing token of each field; rewards are compared as float32.

    Args:
        level: `L0` to `L3`.
        where: What the findings call the row.
        wanted: The row as it must be.
        found: The trainer's.
        names: Fields to compare.
    """
    for name in names:
        a, b = list(getattr(wanted, name)), list(getattr(found, name))
        if name == "rewards":
            a, b = float32(a), float32(b)
        if len(a) != len(b):
            yield Finding(level, f"length of {name} of {where}", len(a), len(b))
            continue
        for token, (x, y) in enumerate(zip(a, b, strict=True)):
            if x != y:  # also if both are NaN
                yield Finding(level, f"{name} of {where}, token {token}", x, y)
                break


def cut_row(
    ids: Sequence[int],
    prompt_tokens: int,
    *,
    mask: Sequence[float],
    advantages: Sequence[float],
    rewards: Sequence[float] = (),
) -> TrainedRow:
    """Cut one row out of tensors with a column for every token but the first.

    Column c is about token c + 1. Columns after the row's last token are padding.

    Args:
        ids: The row's tokens, without padding.
        prompt_tokens: How many of them are the prompt.
        mask: 1 where the loss counts the token, `[columns]`.
        advantages: `[columns]`.
        rewards: `[columns]`; empty if the trainer keeps none per token.

    Raises:
        AssertionError: The mask or an advantage is not 0 on the prompt or the padding, or the
            mask is neither 0 nor 1.
    """
    if not set(mask) <= {0, 1}:
        raise AssertionError(f"the mask must be 0 or 1, it has {sorted(set(mask) - {0, 1})}")
    columns = slice(prompt_tokens - 1, len(ids) - 1)
    for name, values in (("mask", mask), ("advantages", advantages)):
        for column, value in enumerate(values):
            if value and not columns.start <= column < columns.stop:
                raise AssertionError(f"{name} is {value} in column {column}, outside the response")
    return TrainedRow(
        prompt_ids=list(ids[:prompt_tokens]),
        response_ids=list(ids[prompt_tokens:]),
        mask=[int(m) for m in mask[columns]],
        rewards=list(rewards[columns]),
        advantages=list(advantages[columns]),
    )


def _another_discount(train: Train) -> Train:
    return lambda batch, algorithm: train(batch, replace(algorithm, gamma=1.0))


def _rewards_at_the_end(train: Train) -> Train:
    def moved(trajectory: Trajectory) -> Trajectory:
        turns = [replace(turn, reward=0.0) for turn in trajectory.turns]
        last = [replace(turn, reward=trajectory.total_reward) for turn in turns[-1:]]
        return replace(trajectory, turns=turns[:-1] + last)

    return lambda batch, algorithm: train([moved(t) for t in batch], algorithm)


def _failed_episodes_count(train: Train) -> Train:
    return lambda batch, algorithm: train([replace(t, failure=None) for t in batch], algorithm)


def _unbiased_deviation(train: Train) -> Train:
    def broken(batch: list[Trajectory], algorithm: AlgorithmPart) -> Rows:
        rows = train(batch, algorithm)
        if algorithm.advantage != "rebn":
            return rows
        turns = sum(len(t.turns) for t in batch if t.valid)
        factor = ((turns - 1) / turns) ** 0.5
        return _changed(rows, lambda row: {"advantages": [a * factor for a in row.advantages]})

    return broken


def _shifted(name: str, train: Train) -> Train:
    def shifted(row: TrainedRow) -> dict[str, Any]:
        values = getattr(row, name)
        return {name: [0, *values][: len(values)]}

    return lambda batch, algorithm: _changed(train(batch, algorithm), shifted)


def _changed(rows: Rows, change: Callable[[TrainedRow], dict[str, Any]]) -> Rows:
    return [[replace(row, **change(row)) for row in episode] for episode in rows]


def _left_out(names: Sequence[str], train: Train) -> Train:
    default = {name: Shaping().shaping[name] for name in names}
    return lambda batch, algorithm: train(batch, replace(algorithm, **default))


DEFECTS: dict[str, Callable[[Train], Train]] = {
    "another discount": _another_discount,
    "unbiased standard deviation": _unbiased_deviation,
    "advantages shifted by one token": partial(_shifted, "advantages"),
    "mask shifted by one token": partial(_shifted, "mask"),
    "all reward in the last turn": _rewards_at_the_end,
    "failed episodes count": _failed_episodes_count,
    "environments normalised together": partial(_left_out, ["normalise"]),
    "rewards not scaled": partial(_left_out, ["reward_scale"]),
    "rewards not clipped": partial(_left_out, ["reward_clip"]),
    "deviation of the group": partial(_left_out, ["group_std"]),
    "advantages not whitened": partial(_left_out, ["whiten"]),
    "advantages not clipped": partial(_left_out, ["advantage_clip"]),
}
"""By name; each makes of a trainer one that has the defect."""


class L0Suite(ABC):
    """Tests that a trainer gets `gem.advantage`'s values; derive a class `Test...` from it.

    A fixture with `autouse=True` prepares what `train` needs, and repeats all tests if it has
    `params`.
    """

    critic: ClassVar[bool] = True
    """Whether the trainer has a critic, for estimators that need one."""
    mixtures: ClassVar[bool] = True
    """Whether ReBN may take the statistics of each environment by itself."""
    shaping: ClassVar[bool] = True
    """Whether rewards and advantages may be shaped (`algorithm.shaping`)."""
    batches: ClassVar[Sequence[Make]] = (golden_batch, golden_turn_rows)
    """The episodes: one row each, and one row a turn; the second only if the trainer can do so."""

    @abstractmethod
    def train(self, batch: list[Trajectory], algorithm: AlgorithmPart) -> Rows:
        """Return what the trainer trains on, read back from its own tensors, `[episode][row]`.

        One of the golden episodes failed: the trainer must accept a share of 1/8.

        Args:
            batch: The episodes, new for every call.
            algorithm: `advantage` is one of `estimators()`, `gamma` and `lam` are per turn,
                `algorithm.shaping` has settings of the adapter, `{name: value}`, which have their
                defaults unless the trainer can do `mixtures` or `shaping`. For `gae` the trainer's
                critic answers with `critic`.
        """

    def test_the_trainer_gets_gems_advantages(self, estimator: str, batch: Make) -> None:
        """Every token's advantage is that of its turn."""
        algorithm, batch = _algorithm(estimator), _made(estimator, batch)
        wanted = expected_rows(batch(), algorithm)
        if not any(any(row.advantages) for rows in wanted for row in rows):
            raise AssertionError("every advantage of this batch is 0, which proves nothing")
        finding = difference(self.train(batch(), algorithm), batch(), algorithm)
        if finding is not None:
            raise AssertionError(f"{estimator}: {finding}")

    def test_a_defect_is_noticed(self, defect: str) -> None:
        """The comparison fails for the same trainer with a defect built in."""
        estimator = self._telling(defect)[0]
        algorithm, batch = _algorithm(estimator), _made(estimator, self.batches[0])
        found = DEFECTS[defect](self.train)(batch(), algorithm)
        if difference(found, batch(), algorithm) is None:
            raise AssertionError(f"{algorithm.advantage}: nothing differs in spite of the defect")

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Repeat the tests for all estimators and batches, or for all defects."""
        if "defect" in metafunc.fixturenames:
            metafunc.parametrize("defect", [name for name in DEFECTS if self._telling(name)])
        if "estimator" in metafunc.fixturenames:
            metafunc.parametrize("batch", self.batches)
            metafunc.parametrize("estimator", self._estimators())

    @classmethod
    def estimators(cls) -> list[str]:
        """Return the names of the estimators that the trainer must offer.

        They are all built-in and installed ones whose traits it can meet; by default those that
        keep no state.
        """
        known = {name: estimator(name) for name in estimator_names()}
        return [
            name
            for name, each in known.items()
            if not each.keeps_state and (cls.critic or not each.needs_critic)
        ]

    @classmethod
    def _estimators(cls) -> list[str]:
        names = cls.estimators()
        shaped = [SHAPED, GROUP_MEAN] if cls.shaping else []
        variants = [*([BY_ENVIRONMENT] if cls.mixtures else []), *shaped]
        return [*names, *(each for each in variants if VARIANTS[each]["advantage"] in names)]

    def _telling(self, defect: str) -> list[str]:
        """Return the estimators whose mask or advantages change with a defect, `rebn` first."""

        def right(batch: list[Trajectory], algorithm: AlgorithmPart) -> Rows:
            return _changed(expected_rows(batch, algorithm), lambda row: {"rewards": []})

        def tells(estimator: str) -> bool:
            algorithm, batch = _algorithm(estimator), _made(estimator, self.batches[0])
            found = DEFECTS[defect](right)(batch(), algorithm)
            return difference(found, batch(), algorithm) is not None

        ordered = sorted(self._estimators(), key=lambda name: name != "rebn")
        return [name for name in ordered if tells(name)]


def _algorithm(estimator: str) -> AlgorithmPart:
    return AlgorithmPart(
        **{"advantage": estimator, "gamma": GAMMA, "lam": LAM, **VARIANTS.get(estimator, {})}
    )


def _made(estimator: str, batch: Make) -> Make:
    """Return what makes the batch that an estimator is tested with."""
    return batch if estimator != BY_ENVIRONMENT else lambda: of_two_environments(batch())
