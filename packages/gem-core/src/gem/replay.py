"""Replays recorded episodes and finds the first difference; `replay_cli` is the command."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain, takewhile
from typing import Any, Literal, TypeAlias

from gem.core import Env, Observation
from gem.errors import ConfigurationError, MissingExtraError, UnreachableError
from gem.fingerprint import canonical
from gem.foreign import contained, described
from gem.json_lines import checked, parse_as
from gem.multi import MultiAgentEnv, check_multi_reset, check_multi_step, make_multi
from gem.tasks import Task
from gem.trajectory import Trajectory

What: TypeAlias = Literal["observation", "reward", "terminated", "truncated", "exception"]


@dataclass(frozen=True)
class Difference:
    """The first difference between a recorded episode and its replay."""

    turn: int
    """Number of turns played before it; 0 is the observation of `reset`."""
    what: What
    expected: Any
    """The recorded value."""
    found: Any
    """The replay's value."""
    agent: str = ""
    """Of a match: whose turn it is."""

    def __str__(self) -> str:
        expected, found = self.expected, self.found
        if isinstance(expected, str) and isinstance(found, str):
            expected, found = _around(expected, found)
        where = f"{self.agent and f'{self.agent}, '}turn {self.turn}, {self.what}"
        return f"{where}\n  expected {_clip(expected)}\n  found    {_clip(found)}"


def difference(
    trajectory: Trajectory, make_env: Callable[[Task], Env] = Task.make
) -> Difference | None:
    """Play the recorded actions and return the first difference, None if there is none.

    Episodes cut by a budget are compared as far as they go. Failed episodes are not compared: how
    they look depends on the infrastructure that failed.

    Args:
        trajectory: A recorded episode.
        make_env: Makes the environment of its task.

    Raises:
        ConfigurationError: It is a trajectory of a match, which `match_difference` replays.
        GemError: The environment cannot be made or reached.
    """
    if trajectory.agent is not None:
        raise ConfigurationError(
            f"the trajectory of {trajectory.agent} is a part of a match of {trajectory.task}; "
            "gem.replay.match_difference replays those of all its agents together"
        )
    if trajectory.failure is not None:
        return None
    turn = 0
    with make_env(trajectory.task) as env:
        # What models said that played other seats; see `gem.seat.Seat`.
        texts = [each.info.get("opponent_said") or "[]" for each in trajectory.turns]
        place = f"opponent_said of the episode of {trajectory.task}"
        said = [parse_as(checked(t, str, place), list[Any], place) for t in texts]
        if any(said):
            vars(env.unwrapped)["recorded"] = list(chain.from_iterable(said))
        try:
            observation, _ = env.reset(seed=trajectory.task.seed)
            for turn, recorded in enumerate(trajectory.turns):
                if not same(recorded.observation, observation):
                    return Difference(turn, "observation", recorded.observation, observation)
                observation, reward, terminated, truncated, _ = env.step(recorded.text)
                pairs: tuple[tuple[What, Any, Any], ...] = (
                    ("reward", recorded.reward, float(reward)),
                    ("terminated", recorded.terminated, terminated),
                    ("truncated", recorded.truncated, truncated),
                )
                for what, expected, found in pairs:
                    if expected != found:
                        return Difference(turn + 1, what, expected, found)
        except BaseException as error:
            return _exception(error, turn)
    last = trajectory.final_observation
    if last is not None and not same(last, observation):
        return Difference(len(trajectory.turns), "observation", last, observation)
    return None


def match_difference(
    trajectories: Mapping[str, Trajectory],
    make_game: Callable[[Task], MultiAgentEnv] | None = None,
) -> Difference | None:
    """Play the recorded actions of a match; return the first difference, None if there is none.

    A match that a budget cut short is compared as far as it goes, a failed one is not.

    Args:
        trajectories: Of all agents of one match, by agent.
        make_game: Makes the game of its task; `gem.make_multi` by default.

    Raises:
        GemError: The game cannot be made or reached.
    """
    task = next(iter(trajectories.values())).task
    if any(each.failure is not None for each in trajectories.values()):
        return None
    played, owed = dict.fromkeys(trajectories, 0), dict.fromkeys(trajectories, 0.0)

    def checked(agent: str, terminated: bool, truncated: bool) -> Difference | None:
        """Compare what the agent's last turn led to."""
        if not played[agent]:
            return None
        turn = trajectories[agent].turns[played[agent] - 1]
        pairs: tuple[tuple[What, Any, Any], ...] = (
            ("reward", turn.reward, owed[agent]),
            ("terminated", turn.terminated, terminated),
            ("truncated", turn.truncated, truncated),
        )
        owed[agent] = 0.0
        for what, expected, found in pairs:
            if expected != found:
                return Difference(played[agent], what, expected, found, agent)
        return None

    def shown(agent: str, seen: Observation) -> Difference | None:
        """Compare what the agent sees after its turns so far."""
        turns, turn = trajectories[agent].turns, played[agent]
        last = trajectories[agent].final_observation
        recorded = turns[turn].observation if turn < len(turns) else last
        if recorded is None or same(recorded, seen):
            return None
        return Difference(turn, "observation", recorded, seen, agent)

    actions: dict[str, str] = {}
    with (make_game or _game_of)(task) as game:
        try:
            observations, _ = check_multi_reset(game, game.reset(seed=task.seed))
            while observations:
                cut = [a for a in observations if played[a] >= len(trajectories[a].turns)]
                for agent in cut:  # a forfeit may be in its last reward
                    owed[agent] = next((t.reward for t in trajectories[agent].turns[-1:]), 0.0)
                for agent, seen in observations.items():
                    found = checked(agent, False, False) or shown(agent, seen)
                    if found is not None:
                        return found
                if cut:
                    return None
                actions = {a: trajectories[a].turns[played[a]].text for a in observations}
                step = check_multi_step(game, game.step(actions))
                for agent in trajectories:
                    played[agent] += agent in actions
                    owed[agent] += step.rewards[agent]
                observations = step.observations
        except BaseException as error:
            agent = next(iter(actions), "")
            return _exception(error, played.get(agent, 0), agent)
    for agent in trajectories:
        found = checked(agent, step.terminated, step.truncated)
        if found is None and played[agent]:
            found = shown(agent, step.infos[agent].get("result", ""))
        if found is not None:
            return found
    return None


def _exception(error: BaseException, turn: int, agent: str = "") -> Difference:
    """Return what an environment raised as a difference.

    Raises:
        GemError: It cannot be made or reached.
    """
    if isinstance(error, ConfigurationError | MissingExtraError | UnreachableError):
        raise error
    return Difference(turn, "exception", None, described(contained(error)), agent)


def _game_of(task: Task) -> MultiAgentEnv:
    return make_multi(task.env_id, **task.params)


def same(one: Observation, other: Observation) -> bool:
    """Whether two observations are equal; images are compared by their bytes."""
    return canonical(one) == canonical(other)


def _around(one: str, other: str) -> tuple[str, str]:
    """Return both texts from shortly before their first difference."""
    alike = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    place = sum(1 for _ in alike)
    start = max(0, place - 40)
    lead = "..." if start else ""
    return lead + one[start:], lead + other[start:]


def _clip(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 160 else text[:157] + "..."
