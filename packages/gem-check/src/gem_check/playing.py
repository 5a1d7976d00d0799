"""Plays episodes for the checks, in forms that compare and hash equally in every process."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, TypeAlias

from gem.contract import succeeded
from gem.core import Env, Observation, Step
from gem.fingerprint import canonical
from gem.tasks import Task
from gem.trajectory import EpisodeEnd, Trajectory, Turn

Policy: TypeAlias = Callable[[Env, Observation], str]
"""Returns the action for an environment and its last observation."""

# At least this many episodes are played, however slow the environment is.
_FEWEST_EPISODES = 4


@dataclass
class Episode:
    """One played episode."""

    first: Observation
    actions: list[str] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    @property
    def done(self) -> bool:
        """Whether the environment ended it."""
        return bool(self.steps) and (self.steps[-1][2] or self.steps[-1][3])

    @property
    def success(self) -> bool:
        """Whether its last step wins it; see `gem.contract.succeeded`."""
        return bool(self.steps) and won(self.steps[-1])

    @property
    def total_reward(self) -> float:
        """Undiscounted return."""
        return sum(step[1] for step in self.steps)

    @property
    def observations(self) -> list[Observation]:
        """All observations, the one of `reset` first."""
        return [self.first, *(step[0] for step in self.steps)]


@dataclass
class Score:
    """Episodes of one policy."""

    episodes: list[Episode] = field(default_factory=list)
    floors: list[float] = field(default_factory=list)
    """`oracle_success` of each start."""

    @property
    def wins(self) -> int:
        """Number of episodes won."""
        return sum(episode.success for episode in self.episodes)

    @property
    def decided(self) -> int:
        """Number of episodes that the environment ended."""
        return sum(episode.done for episode in self.episodes)

    @property
    def rate(self) -> float:
        """Share of all episodes that was won."""
        return self.wins / len(self.episodes)

    @property
    def mean_return(self) -> float:
        """Mean undiscounted return."""
        return math.fsum(episode.total_reward for episode in self.episodes) / len(self.episodes)

    @property
    def steps(self) -> int:
        """Number of steps taken."""
        return sum(len(episode.steps) for episode in self.episodes)


def won(step: Step) -> bool:
    """Whether an episode with this last step is won; see `gem.contract.succeeded`."""
    _, reward, terminated, _, info = step
    return succeeded(reward, terminated, info)


def random_policy(env: Env, observation: Observation) -> str:
    """Sample a legal action."""
    return env.sample_random_action()


def oracle_policy(env: Env, observation: Observation) -> str:
    """Ask the oracle."""
    return env.oracle_action()


def play(env: Env, policy: Policy, max_steps: int, seed: int | None = None) -> Episode:
    """Play one episode of at most `max_steps` turns."""
    observation, _ = env.reset(seed=seed)
    episode = Episode(observation)
    while not episode.done and len(episode.steps) < max_steps:
        action = policy(env, observation)
        step = env.step(action)
        episode.actions.append(action)
        episode.steps.append(step)
        observation = step[0]
    return episode


def score(
    env: Env,
    policy: Policy,
    episodes: int,
    max_steps: int,
    cpu_s: float = math.inf,
    total_steps: float = math.inf,
) -> Score:
    """Play the episodes of the seeds 0, 1, ...

    Args:
        env: The environment.
        policy: The policy.
        episodes: Most episodes.
        max_steps: Most turns played of an episode.
        cpu_s: CPU seconds after which no episode is begun, once there are four.
        total_steps: Number of steps after which no episode is begun.
    """
    began = cpu_time()
    result = Score()
    for seed in range(episodes):
        spent = len(result.episodes) >= _FEWEST_EPISODES and cpu_time() - began > cpu_s
        if spent or result.steps >= total_steps:
            break
        result.episodes.append(play(env, policy, max_steps, seed))
        result.floors.append(float(env.unwrapped.oracle_success))
    return result


def cpu_time() -> float:
    """Return CPU seconds of this process and its reaped children."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system


def replay(env: Env, actions: Iterable[str]) -> list[Any]:
    """Take the given actions; return the facts of their steps."""
    return [facts(env.step(action)) for action in actions]


def recorded(episode: Episode, task: Task) -> Trajectory:
    """Return an episode as a rollout would record it, without tokens."""
    turns: list[Turn] = []
    rows = zip(episode.actions, episode.observations, episode.steps, strict=False)
    for action, before, step in rows:
        _, reward, terminated, truncated, _ = step
        turns.append(
            Turn(
                observation=before,
                context_ids=[],
                fresh=not turns,
                response_ids=[],
                logprobs=None,
                text=action,
                reward=float(reward),
                terminated=terminated,
                truncated=truncated,
                stop_reason="stop",
            )
        )
    end: EpisodeEnd = "turn_budget"
    if episode.done:
        end = "terminated" if episode.steps[-1][2] else "truncated"
    return Trajectory(task, turns, end=end, final_observation=episode.observations[-1])


def answer_like(example: str, content: str) -> str:
    """Return `content` in the answer format of the action `example`."""
    if "\\boxed{" in example:
        return f"\\boxed{{{content}}}"
    if "<answer>" in example:
        return f"<answer>{content}</answer>"
    fence = re.search(r"^```.*$", example, re.MULTILINE)
    return f"{fence[0]}\n{content}\n```" if fence else content


def content_of(action: str) -> str:
    """Return the answer in an action: the inverse of `answer_like`."""
    for begin, end in (("\\boxed{", "}"), ("<answer>", "</answer>")):
        start = action.rfind(begin)
        if start >= 0:
            return action[start + len(begin) :].rpartition(end)[0]
    fenced = re.search(r"^```.*\n((?:.*\n)*?)```$", action, re.MULTILINE)
    return fenced[1].rstrip("\n") if fenced else action


def shown(observation: Observation) -> str:
    """Return the text of an observation."""
    if isinstance(observation, str):
        return observation
    return "\n".join(part.get("text", "") for part in observation)


def identity(observation: Observation) -> str:
    """Return an observation as a text that differs if observations do, also in their images."""
    return str(canonical(observation))


def facts(step: Step) -> Any:
    """Return a step as plain values, with the scalars of its info in order of their keys.

    Keys that end with `seconds` are left out: measured times differ between runs.
    """
    observation, reward, terminated, truncated, info = step
    scalars = {
        k: v
        for k, v in info.items()
        if isinstance(v, bool | int | float | str) and not k.endswith("seconds")
    }
    return canonical(observation), float(reward), terminated, truncated, sorted(scalars.items())


def transcript(env: Env, seeds: range, max_steps: int) -> list[Any]:
    """Return two episodes of random play per seed: one seeded, and the next one of that seed."""
    episodes = []
    for seed in seeds:
        for given in (seed, None):
            episode = play(env, random_policy, max_steps, given)
            told = [facts(step) for step in episode.steps]
            episodes.append((canonical(episode.first), told))
    return episodes


def digest(transcript: list[Any]) -> str:
    """Return a short hash of a transcript."""
    return blake2b(repr(transcript).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
