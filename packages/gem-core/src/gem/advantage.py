"""Turn-level returns and advantages: pure functions over one table of turns.

`TurnTable` holds a batch of episodes, one row per turn. Every function takes the table and returns
float64 arrays with one value per turn, in the table's order:

- `returns`: discounted reward-to-go `G[turns]`;
- `reinforce`, `rebn`, `grpo`, `rloo`: advantages `A[turns]`;
- `gae`: advantages and value targets;
- `rae`: advantages against a baseline that is carried from batch to batch.

`gem.estimators` has them by name, with what a trainer must know about each.

A batch may have parts that are not compared with each other, such as the roles of a game or several
environments: `rebn`, `grpo`, `rloo` and `rae` take their statistics within a part.

Discounting acts per turn, never per token. Turns of invalid (failed) episodes are excluded from
every statistic and have advantage and return 0. No function ever returns NaN. Imports NumPy and
`gem.errors` only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gem.errors import ConfigurationError

Floats: TypeAlias = NDArray[np.float64]
AllReduce: TypeAlias = Callable[[Floats], Floats]
"""Element-wise sum over data-parallel ranks; every rank gets the result."""

MIN_STD = 1e-6
"""Below this standard deviation a batch or group carries no signal: its advantages are 0."""

ROUNDING = 1e-12
"""Below this fraction of the mean, a standard deviation is rounding error: advantages are 0."""

RAE_DECAY = 0.95
"""Share of a baseline of `rae` that stays after an episode, as in the paper."""

MAX_MAGNITUDE = 1e150
"""Largest reward or value accepted: sums of squares stay finite, so no result can be NaN."""


@dataclass(frozen=True)
class TurnTable:
    """A batch of episodes as columns; the turns of an episode are contiguous and in order."""

    episode: NDArray[np.int64]
    """Episode number, `[turns]`."""
    turn: NDArray[np.int64]
    """Index of the turn within its episode, from 0, `[turns]`."""
    group: NDArray[np.int64]
    """Number shared by episodes of the same task (GRPO, RLOO), `[turns]`."""
    reward: Floats
    """Environment reward of the turn, `[turns]`."""
    valid: NDArray[np.bool_]
    """False for turns of failed episodes, `[turns]`."""
    part: NDArray[np.int64]
    """Part of the batch that the episode belongs to, from 0, `[turns]`."""
    part_names: tuple[str, ...]
    """Name of each part, the same on all data-parallel ranks; a part may have no turns here."""
    lengths: NDArray[np.int64]
    """Number of turns of each episode, `[episodes]`; may be 0."""
    value: Floats | None = None
    """Critic's estimate before the turn (at the last prompt token), `[turns]`."""

    @classmethod
    def build(
        cls,
        rewards: Sequence[Sequence[float]],
        *,
        groups: Sequence[int] | None = None,
        parts: Sequence[int] | None = None,
        part_names: Sequence[str] | None = None,
        valid: Sequence[bool] | None = None,
        values: Sequence[Sequence[float]] | None = None,
    ) -> TurnTable:
        """Make a table from per-episode lists.

        Args:
            rewards: `rewards[episode][turn]`; an episode may have no turn.
            groups: Group of each episode; by default every episode is its own.
            parts: Part of each episode, from 0; by default there is one part.
            part_names: Name of each part of the whole batch. By default the numbers of those that
                are here: a data-parallel rank that may lack the last ones must be told.
            valid: Whether each episode counts; by default all do.
            values: `values[episode][turn]`, shaped like `rewards`.

        Raises:
            ConfigurationError: An episode has no list of rewards, lengths differ, a group or part
                is not an integer, `valid` is not boolean, part names repeat, a part has no name, or
                a valid turn's reward or value is not finite or above `MAX_MAGNITUDE`.
        """
        sizes: list[int] = []
        try:
            sizes.extend(map(len, rewards))
        except TypeError as error:
            raise ConfigurationError(
                f"rewards must be rewards[episode][turn], a list for each episode; that of "
                f"episode {len(sizes)} is {rewards[len(sizes)]!r:.80}"
            ) from error
        episodes = len(rewards)
        columns = {"groups": groups, "parts": parts, "valid": valid, "values": values}
        for name, column in columns.items():
            if column is not None and len(column) != episodes:
                raise ConfigurationError(
                    f"{name} has {len(column)} entries for {episodes} episodes"
                )
        lengths = np.array(sizes, dtype=np.int64)
        if values is not None:
            for index, (r, v) in enumerate(zip(rewards, values, strict=True)):
                if len(r) != len(v):
                    raise ConfigurationError(
                        f"episode {index} has {len(r)} rewards but {len(v)} values"
                    )
        episode = np.repeat(np.arange(episodes, dtype=np.int64), lengths)
        starts = np.cumsum(lengths) - lengths
        group_of = _column("groups", range(episodes) if groups is None else groups, "iu")
        valid_of = _column("valid", [True] * episodes if valid is None else valid, "b")
        part_of = _column("parts", [0] * episodes if parts is None else parts, "iu")
        if part_names is None:
            part_names = [str(number) for number in range(int(part_of.max(initial=0)) + 1)]
        count = len(part_names)
        if len(set(part_names)) < max(count, 1):
            raise ConfigurationError(
                f"part_names must be one or more different names, got {list(part_names)!r}"
            )
        for index in np.flatnonzero((part_of < 0) | (part_of >= count)):
            raise ConfigurationError(
                f"part of episode {index} is {part_of[index]}; it must be within [0, {count})"
            )
        table = cls(
            episode=episode,
            turn=np.arange(len(episode), dtype=np.int64) - starts[episode],
            group=group_of[episode],
            reward=_flatten(rewards),
            valid=valid_of[episode],
            part=part_of[episode],
            part_names=tuple(part_names),
            lengths=lengths,
            value=None if values is None else _flatten(values),
        )
        table._check_finite()
        return table

    def __len__(self) -> int:
        return len(self.reward)

    def split(self, per_turn: Floats) -> list[list[float]]:
        """Split an array `[turns]` into one list per episode, in order."""
        cuts = np.cumsum(self.lengths)[:-1]
        return [part.tolist() for part in np.split(per_turn, cuts)] if len(self.lengths) else []

    def _check_finite(self) -> None:
        for name, column in (("reward", self.reward), ("value", self.value)):
            if column is None:
                continue
            # The negated comparison is also true for NaN.
            bad = np.flatnonzero(self.valid & ~(np.abs(column) <= MAX_MAGNITUDE))
            if len(bad):
                i = bad[0]
                raise ConfigurationError(
                    f"{name} of episode {self.episode[i]}, turn {self.turn[i]} is {column[i]}; "
                    f"it must be finite and at most {MAX_MAGNITUDE:g} in size"
                )


def returns(table: TurnTable, gamma: float) -> Floats:
    """Discounted reward-to-go `G_t = r_t + gamma * G_{t+1}` within each episode, `[turns]`.

    An episode contributes nothing beyond its last turn, whether it terminated or was truncated.

    Raises:
        ConfigurationError: `gamma` is outside [0, 1].
    """
    _check_unit("gamma", gamma)
    result = np.where(table.valid, table.reward, 0.0)
    last = _is_last(table)
    # One vectorised step per turn index, from the longest episode's end to its start.
    for rows in _rows_by_turn(table):
        rows = rows[~last[rows]]
        result[rows] += gamma * result[rows + 1]
    return result


def reinforce(table: TurnTable, gamma: float) -> Floats:
    """REINFORCE without baseline: the return itself (Williams, 1992)."""
    return returns(table, gamma)


def _local(x: Floats) -> Floats:
    return x


def rebn(table: TurnTable, gamma: float, all_reduce: AllReduce = _local) -> Floats:
    """REINFORCE with Return Batch Normalisation (arXiv 2510.01051, section 3).

    `A = (G - mean) / std` over all valid turns of a part of the whole batch: float64, two passes,
    population standard deviation. A part with `std < MIN_STD` has advantage 0 everywhere.

    Args:
        table: The turns of this data-parallel rank.
        gamma: Discount per turn.
        all_reduce: Reduction over ranks, of arrays `[parts, 2]` and `[parts, 1]`; by default there
            is one rank.
    """
    return normalised(returns(table, gamma), table, all_reduce)


def grpo(table: TurnTable, scale: bool = True) -> Floats:
    """Group-relative advantage (arXiv 2402.03300, equation 4 with outcome supervision).

    `A = (R - mean_group) / std_group` with the undiscounted episode return R and the population
    standard deviation over the valid episodes of the group; every turn of an episode shares it.
    A group with `std < MIN_STD`, such as a group of one, has advantage 0. Episodes of different
    parts are of different groups. A group must not be split over data-parallel ranks.

    Args:
        table: Turns of whole groups.
        scale: False leaves out the division (Dr. GRPO, arXiv 2503.20783).
    """
    total, groups = _episode_returns(table)
    result = np.zeros_like(total)
    for members in groups:
        values = total[members]
        result[members] = _standardise(values) if scale else _centre(values)
    return result[table.episode]


def rloo(table: TurnTable) -> Floats:
    """REINFORCE leave-one-out (arXiv 2402.14740): `R` minus the mean of the group's others.

    A group with one valid episode has advantage 0. Episodes of different parts are of different
    groups. A group must not be split over ranks.
    """
    total, groups = _episode_returns(table)
    result = np.zeros_like(total)
    for members in groups:
        n = len(members)
        if n > 1:
            values = total[members]
            result[members] = _centre(values) * (n / (n - 1))
    return result[table.episode]


def gae(table: TurnTable, gamma: float, lam: float) -> tuple[Floats, Floats]:
    """Generalised advantage estimation over turns (arXiv 1506.02438, equation 16).

    `delta_t = r_t + gamma * V_{t+1} - V_t` and `A_t = delta_t + gamma * lam * A_{t+1}`, where V
    after the last turn is 0 (no bootstrapping, neither on termination nor on truncation).

    Returns:
        `(A[turns], A + V [turns])`: advantages, not normalised, and targets for the critic.

    Raises:
        ConfigurationError: The table has no values, or `gamma` or `lam` is outside [0, 1].
    """
    if table.value is None:
        raise ConfigurationError("gae needs a value for every turn; the table has none")
    _check_unit("gamma", gamma)
    _check_unit("lam", lam)
    value = np.where(table.valid, table.value, 0.0)
    advantage = np.where(table.valid, table.reward, 0.0) - value
    last = _is_last(table)
    for rows in _rows_by_turn(table):
        rows = rows[~last[rows]]
        advantage[rows] += gamma * value[rows + 1] + gamma * lam * advantage[rows + 1]
    return advantage, advantage + value


def rae(
    table: TurnTable, gamma: float, state: Mapping[str, float], *, decay: float = RAE_DECAY
) -> tuple[Floats, dict[str, float]]:
    """Role-conditioned advantage estimation (arXiv 2506.24119, section 3).

    Every part p has a baseline `b_p`, an average of returns that begins with 0. For each valid
    episode in the table's order, with the return `G_0` of its first turn, `A = G_0 - b_p` and then
    `b_p = decay * b_p + (1 - decay) * G_0`: an episode's own return is not in its baseline. All
    turns of an episode share its advantage.

    Args:
        table: The turns of the whole batch, of all ranks. The name of a part must mean the same in
            every batch.
        gamma: Discount per turn; 1 in the paper.
        state: Baselines by the name of the part; `{}` at the beginning.
        decay: Share of the baseline that stays.

    Returns:
        `(A[turns], state)`: the advantages and the baselines after this batch. JSON represents
        them exactly; `state` itself is not changed.

    Raises:
        ConfigurationError: `gamma` or `decay` is outside [0, 1].
    """
    _check_unit("decay", decay)
    g = returns(table, gamma)
    result, baselines = np.zeros_like(g), dict(state)
    first = np.flatnonzero((table.turn == 0) & table.valid)
    for start in first:
        part = table.part_names[table.part[start]]
        length = table.lengths[table.episode[start]]
        baseline, total = baselines.get(part, 0.0), float(g[start])
        result[start : start + length] = total - baseline
        baselines[part] = decay * baseline + (1 - decay) * total
    return result, baselines


def normalised(x: Floats, table: TurnTable, all_reduce: AllReduce = _local) -> Floats:
    """Return `(x - mean) / std` of the valid turns of each part over all ranks, `[turns]`.

    Population standard deviation in float64; a part with `std < MIN_STD` is 0 everywhere, and so
    are invalid turns.

    Args:
        x: A number for each turn, `[turns]`.
        table: The turns of this data-parallel rank.
        all_reduce: See `rebn`.
    """
    parts = range(len(table.part_names))
    rows = [np.flatnonzero(table.valid & (table.part == part)) for part in parts]
    chosen = [x[each] for each in rows]
    result = np.zeros_like(x)
    # A rank without a turn of some part adds 0 to that part's sums.
    sums = all_reduce(np.array([[float(len(each)), each.sum()] for each in chosen]))
    n, mean = sums[:, 0], sums[:, 1] / np.maximum(sums[:, 0], 1)
    centred = [each - m for each, m in zip(chosen, mean, strict=True)]
    squares = all_reduce(np.array([[(each * each).sum()] for each in centred]))[:, 0]
    for where, values, m, std in zip(
        rows, centred, mean, np.sqrt(squares / np.maximum(n, 1)), strict=True
    ):
        result[where] = _scaled(values, m, std)
    return result


def _standardise(x: Floats) -> Floats:
    mean = x.sum() / len(x)
    centred = x - mean
    return _scaled(centred, mean, np.sqrt((centred * centred).sum() / len(x)))


def _scaled(centred: Floats, mean: float, std: float) -> Floats:
    # The mean of equal numbers may be off by a rounding error, which division would scale to 1.
    small = std < max(MIN_STD, ROUNDING * abs(mean))
    return np.zeros_like(centred) if small else centred / std


def _centre(x: Floats) -> Floats:
    # The mean of equal numbers may be off by a rounding error; their deviation must be exactly 0.
    return np.zeros_like(x) if np.ptp(x) == 0 else x - x.mean()


def _episode_returns(table: TurnTable) -> tuple[Floats, list[NDArray[np.int64]]]:
    """Undiscounted return of every episode, and the valid episodes of every group."""
    episodes = len(table.lengths)
    total: Floats = np.zeros(episodes)
    np.add.at(total, table.episode, table.reward)
    first = table.turn == 0
    chosen = first & table.valid
    index, group, part = table.episode[chosen], table.group[chosen], table.part[chosen]
    order = np.lexsort((part, group))
    cuts = np.flatnonzero(np.diff(group[order]) | np.diff(part[order])) + 1
    return total, [members for members in np.split(index[order], cuts) if len(members)]


def _is_last(table: TurnTable) -> NDArray[np.bool_]:
    last = np.ones(len(table), np.bool_)
    last[:-1] = table.episode[1:] != table.episode[:-1]
    return last


def _rows_by_turn(table: TurnTable) -> list[NDArray[np.int64]]:
    """Row numbers grouped by turn index, last index first."""
    order = np.argsort(table.turn, kind="stable")
    cuts = np.flatnonzero(np.diff(table.turn[order])) + 1
    return [rows for rows in reversed(np.split(order, cuts)) if len(rows)]


def _flatten(per_episode: Sequence[Sequence[float]]) -> Floats:
    return np.array([x for episode in per_episode for x in episode], dtype=np.float64)


def _column(name: str, column: Sequence[Any], kinds: str) -> NDArray[Any]:
    """Return a column `[episodes]`, as NumPy's type of the kinds: booleans or integers."""
    values = np.asarray(column)
    # Converted, 0.2 and 0.7 would be one group, and "False" would be valid.
    if values.ndim != 1 or (len(values) and values.dtype.kind not in kinds):
        kind = "a boolean" if kinds == "b" else "an integer"
        raise ConfigurationError(f"{name} must be {kind} for each episode, got {column!r:.80}")
    return values.astype(np.bool_ if kinds == "b" else np.int64)


def _check_unit(name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise ConfigurationError(f"{name} must be within [0, 1], got {value!r}")
