"""Plays matches of several agents, one token-exact trajectory per agent.

- `play_match`: one match.
- `play_tasks`: many tasks, matches or not, with a sampler of whole batches.
- `play_all`: one task, a match or not.
- `play_seat`: a match in which one sampler plays all seats, and one seat's trajectory of it.

Every agent has an `Episode` of its own, with its own conversation. What others say reaches it as
text of observations only, if at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

from gem.blame import boundary
from gem.core import Env, Info, Observation
from gem.errors import ConfigurationError, RolloutError
from gem.executors.base import Executor
from gem.executors.held import STEP_TIMEOUT_S, EnvFailedError, HeldEnv, env_failure
from gem.executors.threads import env_threads
from gem.fingerprint import match_digest
from gem.multi import (
    ALTERNATE,
    MultiAgentEnv,
    MultiStep,
    all_seats,
    check_multi_reset,
    check_multi_step,
    make_multi,
    merged,
    named_seat,
)
from gem.parameters import choice
from gem.registry import list_envs, spec
from gem.rollout.collect import BatchSampler, Rounds, together
from gem.rollout.play import Budget, Episode, Sample, Sampler, check_limits, play
from gem.rollout.tokens import ChatFormat
from gem.tasks import Task
from gem.trajectory import Failure, Trajectory

T = TypeVar("T")

# More than any game has agents.
_AGENTS = 1 << 10


async def play_match(
    task: Task,
    samplers: Sampler | Mapping[str, Sampler],
    chat: ChatFormat,
    *,
    budget: Budget,
    context: str = "chat",
    group: int = 0,
    index: int = 0,
    forfeit: float = 0.0,
    make_game: Callable[[Task], MultiAgentEnv] | None = None,
    retries: int = 1,
    step_timeout_s: float | None = STEP_TIMEOUT_S,
) -> dict[str, Trajectory]:
    """Play a match with all seats open; the samplers of those who move together run together.

    A turn's reward is all that its agent got until it was asked again, or until the end; what it
    got before its first turn counts there. The trajectory of an agent without any turn has no
    rewards and no training row. If an agent's budget ends, the match is truncated for all. If the
    game fails, or a first prompt is too long, the match is void for all: every trajectory has the
    failure.

    Args:
        task: The match: id of a `MultiAgentEnv`, its parameters, the seed.
        samplers: Of each agent, or one for all; see `play`.
        chat: The model's chat format, the same for all agents.
        budget: Token and turn limits of each agent.
        context: Name of a context, see `gem.rollout.context`.
        group: Stored in the trajectories.
        index: Number of the match. Requests of each agent have a number of their own, below 0, so
            that none is that of an ordinary episode in the same batch.
        forfeit: Added to the last reward of an agent whose budget ended the match.
        make_game: Makes the game of a task, in a thread; `gem.make_multi` by default.
        retries: Further attempts, with new games, after one failed.
        step_timeout_s: See `play`.

    Returns:
        The trajectories by agent; `agent` and `match` are set.

    Raises:
        ConfigurationError: The id is no game of several agents, an agent has no sampler, or what
            `play` raises.
    """

    def started(agents: tuple[str, ...]) -> _Match:
        numbers = {agent: k - (index + 1) * _AGENTS for k, agent in enumerate(agents)}
        made = {
            agent: Episode(task, chat, context=context, budget=budget, group=group, index=number)
            for agent, number in numbers.items()
        }
        return _Match(task, made, _by_agent(samplers, agents))

    check_limits(retries, step_timeout_s)
    failed: EnvFailedError | None = None
    match: _Match | None = None
    for _ in range(retries + 1):
        game = HeldGame(lambda: (make_game or _made)(task), step_timeout_s)
        try:
            match = started(await game.call(lambda env: env.agents))
            await match.play(game, forfeit)
            return match.trajectories()
        except EnvFailedError as error:
            failed = error
        finally:
            game.close()
    assert failed is not None
    match = match or started(_known_agents(task, samplers, failed))
    match.fail(failed.failure(retries + 1))
    return match.trajectories()


def play_tasks(
    tasks: Sequence[Task],
    sampler: BatchSampler,
    chat: ChatFormat,
    *,
    budget: Budget,
    context: str = "chat",
    groups: Sequence[int] | None = None,
    retries: int = 1,
    step_timeout_s: float | None = STEP_TIMEOUT_S,
    executor: str | Executor | None = None,
) -> list[list[Trajectory]]:
    """Play tasks in lockstep as `play_batch` does; one with `seat=all` is a match.

    The sampler plays all seats of a match. Those who move at the same time in it ask in one round.

    Args:
        tasks: The episodes and matches to play.
        sampler: See `play_batch`.
        chat: The model's chat format.
        budget: Token and turn limits, of each agent in a match.
        context: What the policy is shown.
        groups: Group of each task; by default each is its own.
        retries: Further attempts after an environment failed.
        step_timeout_s: See `play`.
        executor: Where environments run; games of several agents run in threads.

    Returns:
        For each task, in order, its trajectories: one, or those of all agents of the match.

    Raises:
        RolloutError: The sampler did not answer every request.
        ConfigurationError: See `play` and `play_match`.
    """
    if groups is not None and len(groups) != len(tasks):
        raise ConfigurationError(f"{len(groups)} groups for {len(tasks)} tasks")

    async def played(number: int, task: Task, ask: Sampler) -> list[Trajectory]:
        group = number if groups is None else groups[number]
        shown: dict[str, Any] = {"budget": budget, "context": context}
        shown |= {"group": group, "index": number}
        limits: dict[str, Any] = {"retries": retries, "step_timeout_s": step_timeout_s}
        return await play_all(task, ask, chat, executor=executor, **shown, **limits)

    return Rounds(sampler).play([partial(played, *numbered) for numbered in enumerate(tasks)])


async def play_all(
    task: Task,
    sampler: Sampler,
    chat: ChatFormat,
    *,
    executor: str | Executor | None = None,
    **given: Any,
) -> list[Trajectory]:
    """Play an episode; with `seat=all` a match, all seats by one sampler.

    Args:
        task: The episode or match.
        sampler: See `play` and `play_match`.
        chat: The model's chat format.
        executor: Where the environment of an episode runs; games run in threads.
        **given: Keywords that `play` and `play_match` have in common.

    Returns:
        The trajectory; of a match those of all agents, in their order.

    Raises:
        ConfigurationError: See `play` and `play_match`.
    """
    if all_seats(task.params):
        return list((await play_match(task, sampler, chat, **given)).values())
    return [await play(task, sampler, chat, executor=executor, **given)]


async def play_seat(task: Task, sampler: Sampler, chat: ChatFormat, **given: Any) -> Trajectory:
    """Play a match, all seats by one sampler, and return the trajectory of the task's seat.

    The seat is the parameter `seat` of the task, else the one that its id is registered with;
    `alternate` (default) is seat `seed % n` of n. If that agent had no turn before the match was
    over, the trajectory of one that had is returned.

    Args:
        task: The match.
        sampler: See `play_match`.
        chat: The model's chat format.
        **given: Keywords of `play_match`.

    Raises:
        ConfigurationError: The game has no such seat, or what `play_match` raises.
    """
    played = await play_match(task, sampler, chat, **given)
    agents = tuple(played)
    seat = named_seat(task.env_id, task.params)
    chosen = agents[task.seed % len(agents)] if seat == ALTERNATE else choice("seat", seat, agents)
    acted = [agent for agent in agents if played[agent].turns]
    return played[chosen if chosen in acted or not acted else acted[0]]


class _Match:
    """The episodes of a match, and what each agent is owed since its last turn."""

    def __init__(
        self, task: Task, episodes: dict[str, Episode], samplers: Mapping[str, Sampler]
    ) -> None:
        self._task = task
        self._episodes = episodes
        self._samplers = samplers
        self._owed = dict.fromkeys(episodes, 0.0)
        self._infos: dict[str, Info] = {}
        self._played: list[dict[str, str]] = []

    async def play(self, game: HeldGame, forfeit: float) -> None:
        """Play to the end.

        Raises:
            EnvFailedError: The game failed.
        """
        seed = self._task.seed
        observations, _ = await game.call(partial(_begun, seed))
        while True:
            for agent, observation in observations.items():
                self._show(agent, observation)
            if any(self._episodes[agent].request is None for agent in observations):
                self._cut(observations, forfeit)
                return
            samples = await together([self._sample(agent) for agent in observations])
            actions = {
                agent: self._episodes[agent].receive(sample)
                for agent, sample in zip(observations, samples, strict=True)
            }
            step = await game.call(partial(_stepped, actions))
            self._account(actions, step)
            observations = step.observations
            if not observations:
                for agent in self._infos:
                    result = step.infos[agent].get("result", "")
                    self._advance(agent, result, step.terminated, step.truncated)
                played = [each.trajectory for each in self._episodes.values()]
                if failures := [each.failure for each in played if each.failure is not None]:
                    self.fail(failures[0])
                return

    def trajectories(self) -> dict[str, Trajectory]:
        """Return the trajectories, with the names of agents and match."""
        digest = match_digest(self._task, self._played)
        for agent, episode in self._episodes.items():
            episode.trajectory.agent, episode.trajectory.match = agent, digest
        return {agent: episode.trajectory for agent, episode in self._episodes.items()}

    def fail(self, failure: Failure) -> None:
        """End all episodes as failed."""
        for episode in self._episodes.values():
            episode.fail(failure)

    async def _sample(self, agent: str) -> Sample:
        request = self._episodes[agent].request
        assert request is not None
        with boundary("engine"):
            return await self._samplers[agent](request)

    def _show(self, agent: str, observation: Observation) -> None:
        if agent in self._infos:
            self._advance(agent, observation, False, False)
        else:
            self._episodes[agent].begin(observation, {})

    def _account(self, actions: dict[str, str], step: MultiStep) -> None:
        self._played.append(actions)
        for agent in self._episodes:
            self._owed[agent] += step.rewards[agent]
            if agent in actions:
                self._infos[agent] = step.infos[agent]
            elif agent in self._infos:
                self._infos[agent] = merged(self._infos[agent], step.infos[agent])

    def _advance(
        self, agent: str, observation: Observation, terminated: bool, truncated: bool
    ) -> None:
        info = {key: value for key, value in self._infos[agent].items() if key != "result"}
        reward, self._owed[agent] = self._owed[agent], 0.0
        self._episodes[agent].advance((observation, reward, terminated, truncated, info))

    def _cut(self, asked: Mapping[str, Observation], forfeit: float) -> None:
        """End the match because an agent that was asked has no budget left."""
        for agent, episode in self._episodes.items():
            trajectory = episode.trajectory
            if trajectory.failure is not None:
                self.fail(trajectory.failure)
                return
            if agent not in asked:
                if agent in self._infos:
                    self._advance(agent, "", False, True)
                else:
                    trajectory.end = "truncated"
            elif episode.request is not None:
                episode.stop()
            elif trajectory.turns:
                last = trajectory.turns[-1]
                trajectory.turns[-1] = replace(last, reward=last.reward + forfeit)


class HeldGame:
    """One game, called in a thread."""

    def __init__(self, make: Callable[[], MultiAgentEnv], timeout_s: float | None) -> None:
        """Store how the game is made, at the first call, and the limit of a call in seconds."""
        # What holds an environment needs of it only what both kinds have in common.
        self._held = HeldEnv(cast("Callable[[], Env]", make))
        self._timeout_s = timeout_s

    async def call(self, function: Callable[[MultiAgentEnv], T]) -> T:
        """Return what a function of the game returns.

        Raises:
            EnvFailedError: It raised or exceeded the limit.
        """
        called: Any = function
        try:
            result: T = await env_threads().run(self._held.run, called, timeout_s=self._timeout_s)
            return result
        except Exception as error:
            raise env_failure(error, self._timeout_s) from error

    def close(self) -> None:
        """Close the game, after any call that runs; return at once."""
        self._held.close()


def _begun(seed: int, env: MultiAgentEnv) -> tuple[dict[str, Observation], dict[str, Info]]:
    return check_multi_reset(env, env.reset(seed=seed))


def _stepped(actions: Mapping[str, str], env: MultiAgentEnv) -> MultiStep:
    return check_multi_step(env, env.step(actions))


def _made(task: Task) -> MultiAgentEnv:
    return make_multi(task.env_id, **task.params)


def _known_agents(
    task: Task, samplers: Sampler | Mapping[str, Sampler], failed: EnvFailedError
) -> tuple[str, ...]:
    """Return the agents of a game that cannot be made.

    Raises:
        RolloutError: They are not known.
    """
    if isinstance(samplers, Mapping):
        return tuple(samplers)
    agents: tuple[str, ...] = ()
    if task.env_id in list_envs():
        agents = getattr(spec(task.env_id).load_registered(), "agents", ())
    if not agents:
        raise RolloutError(f"the game of {task} cannot be made: {failed}") from failed
    return agents


def _by_agent(
    samplers: Sampler | Mapping[str, Sampler], agents: tuple[str, ...]
) -> Mapping[str, Sampler]:
    if not isinstance(samplers, Mapping):
        return dict.fromkeys(agents, samplers)
    if set(samplers) != set(agents):
        raise ConfigurationError(
            f"samplers must be of {', '.join(agents)}, got those of {', '.join(samplers)}"
        )
    return samplers
