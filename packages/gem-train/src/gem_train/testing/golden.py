"""Golden trajectories: a fixed batch, edge cases included, on which every adapter must agree."""

from __future__ import annotations

from dataclasses import replace

from gem.tasks import Task
from gem.trajectory import EpisodeEnd, Failure, StopReason, Trajectory, Turn

CLOSE = 2
"""Token id that ends a message in the golden episodes."""


def golden_batch() -> list[Trajectory]:
    """Return the golden episodes: four groups of two, append-only, one training row each.

    Among them: a win in several turns, dense and negative rewards, an episode of one turn, a turn
    cut by the token limit, a turn with an empty response, an episode ended by a budget, one without
    any reward, and one that failed (infrastructure) after two turns.
    """
    return [
        _episode(0, [("ab", 0.0), ("cde", 0.0), ("f", 1.0)], end="terminated"),
        _episode(0, [("ab", 0.25), ("cde", -0.1)], end="terminated"),
        _episode(1, [("abcdef", 1.0)], end="terminated"),
        _episode(1, [("abcdefgh!", 0.125), ("a", 0.5), ("bc", 0.0)], end="truncated"),
        _episode(2, [("ab", 0.5), ("", 0.25), ("cd", 1.0)], end="terminated"),
        _episode(2, [("abcdefgh!", 0.0), ("abcdefgh!", 0.0)], end="token_budget"),
        _episode(3, [("a", 0.0), ("b", 0.0), ("c", 0.0), ("d", 0.0)], end="truncated"),
        _episode(3, [("ab", 5.0), ("cd", 7.0)], end="failed"),
    ]


def golden_turn_rows() -> list[Trajectory]:
    """Return the golden batch as a context with one prompt per turn would have recorded it."""
    batch = golden_batch()
    for trajectory in batch:
        seen: list[int] = []
        turns = []
        for turn in trajectory.turns:
            seen = [*seen, *turn.context_ids]
            turns.append(replace(turn, context_ids=list(seen), fresh=True))
            seen = [*seen, *turn.response_ids]
        trajectory.turns = turns
    return batch


def of_two_environments(batch: list[Trajectory]) -> list[Trajectory]:
    """Make of golden episodes a batch of two environments, `small` and `large`.

    The rewards of `large` are 1000 times as large: against them those of `small` are nothing.
    """
    for trajectory in batch:
        large = trajectory.group >= 2
        trajectory.task = replace(trajectory.task, name="large" if large else "small")
        if large:
            trajectory.turns = [replace(t, reward=1000 * t.reward) for t in trajectory.turns]
    return batch


def _episode(group: int, script: list[tuple[str, float]], *, end: EpisodeEnd) -> Trajectory:
    """Make an episode; a response that ends with "!" was cut by the token limit."""
    turns = []
    closed = True
    for index, (text, reward) in enumerate(script):
        cut = text.endswith("!")
        said = text.rstrip("!")
        ids = [10 + ord(letter) - ord("a") for letter in said]
        if ids and not cut:
            ids.append(CLOSE)
        bridge = [3, 4, 5 + group, 1] if index == 0 or closed else [CLOSE, 3, 4, 5 + group, 1]
        last = index == len(script) - 1
        stop: StopReason = "length" if cut else "stop"
        turns.append(
            Turn(
                observation=f"observation {index}",
                context_ids=bridge,
                fresh=index == 0,
                response_ids=ids,
                logprobs=[-0.25 - 0.125 * i for i in range(len(ids))],
                text=said,
                reward=reward,
                terminated=last and end == "terminated",
                truncated=last and end == "truncated",
                stop_reason=stop,
                info={"success": last and reward == 1.0, "format_error": False},
            )
        )
        closed = bool(ids) and not cut
    return Trajectory(
        task=Task("golden:Episode-v0", seed=group),
        turns=turns,
        group=group,
        end=end,
        failure=Failure("environment", "OSError: server gone", 2) if end == "failed" else None,
        policy_version=(0, 0),
    )
