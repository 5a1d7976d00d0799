"""Playing episodes for the checks, in forms that compare and hash alike in every process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, TypeAlias

from gem.core import Env, Observation, Step

Policy: TypeAlias = Callable[[Env, Observation], str]
"""The action for an environment that has just shown an observation."""


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
        """What the last info says; without such a key, whether the last reward is positive."""
        if not self.steps:
            return False
        _, reward, _, _, info = self.steps[-1]
        return bool(info.get("success", info.get("correct", reward > 0)))


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


def replay(env: Env, actions: list[str]) -> list[Any]:
    """Return what given actions lead to."""
    return [facts(env.step(action)) for action in actions]


def shown(observation: Observation) -> str:
    """Return the text of an observation."""
    if isinstance(observation, str):
        return observation
    return "\n".join(part.get("text", "") for part in observation)


def facts(step: Step) -> Any:
    """Return a step as plain values; of the info, its scalars in order of their keys."""
    observation, reward, terminated, truncated, info = step
    scalars = {k: v for k, v in info.items() if isinstance(v, bool | int | float | str)}
    return shown(observation), float(reward), terminated, truncated, sorted(scalars.items())


def transcript(env: Env, seeds: range, max_steps: int) -> list[Any]:
    """Return two episodes of random play per seed, the second one not seeded."""
    episodes = []
    for seed in seeds:
        for given in (seed, None):
            episode = play(env, random_policy, max_steps, given)
            episodes.append((shown(episode.first), [facts(step) for step in episode.steps]))
    return episodes


def digest(transcript: list[Any]) -> str:
    """Return a short hash of a transcript."""
    return blake2b(repr(transcript).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
