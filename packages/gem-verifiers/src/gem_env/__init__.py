"""Any GEM environment in verifiers: `vf-eval gem_env --env.taskset.env-id game:Wordle-v0`.

verifiers finds the taskset, the environment and the harness here by their classes. A row is a seed;
the environment's first observation opens the exchange. The trace has the reward `gem`, the sum over
the turns, and each turn's reward in `info["turn_rewards"]`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf

import gem
from gem.contract import check_reset, check_step, succeeded
from gem.core import Observation
from gem.errors import ConfigurationError
from gem.json_lines import parse
from gem_verifiers.harness import GemChat

__all__ = ["GemChat", "GemEnv", "GemTaskset"]


class GemConfig(vf.TasksetConfig):
    """Which environment, and which seeds."""

    env_id: str = "game:GuessTheNumber-v0-easy"
    """Id of the environment, as `gem.make` takes it."""
    parameters: str = "{}"
    """Its parameters, as a JSON object."""
    tools: list[str] = []  # noqa: RUF012
    """Tools that the policy may call by text."""
    seeds: int = 1000
    """Number of rows."""
    first_seed: int = 0
    """Seed of the first row; the others follow."""


class GemData(vf.TaskData):
    """One episode."""

    env_id: str
    parameters: str
    tools: list[str]
    seed: int


class GemTask(vf.Task[GemData]):
    """One episode of a GEM environment; the environment itself gives the reward."""


class GemTaskset(vf.Taskset[GemTask, GemConfig]):
    """The seeds of a GEM environment."""

    def load(self) -> Iterator[GemTask]:
        """Yield a task for each seed."""
        config = self.config
        _make(config).close()  # a wrong id or parameter ends here, not in each episode
        for seed in range(config.first_seed, config.first_seed + config.seeds):
            data = GemData(
                name=f"{config.env_id}#{seed}",
                # The first observation, which is made when the row is played, opens the exchange.
                prompt=None,
                env_id=config.env_id,
                parameters=config.parameters,
                tools=config.tools,
                seed=seed,
            )
            yield GemTask(data, config.task)


class GemEnvConfig(vf.EnvConfig):
    """One agent plays, in the chat loop of this process."""

    player: vf.AgentConfig = vf.AgentConfig(
        harness={"id": "gem_env"}, runtime={"type": "subprocess"}
    )


class GemEnv(vf.Env[GemEnvConfig]):
    """Plays a GEM environment with the agent `player`."""

    async def run(self, task: Any, agents: Any) -> None:
        """Play one episode; what the environment raises is an error of verifiers' episode."""
        env = await asyncio.to_thread(_make, task.data)
        try:
            async with agents.player.interaction(task) as talk:
                await _play(env, task.data.seed, talk)
        finally:
            await asyncio.to_thread(env.close)


async def _play(env: gem.Env, seed: int, talk: Any) -> None:
    """Play an episode in an exchange, and write its result into the trace."""
    observation, info = check_reset(await asyncio.to_thread(env.reset, seed))
    rewards: list[float] = []
    terminated = truncated = False
    while not (terminated or truncated):
        said = await talk.turn(_text(observation))
        if said.terminated:  # by a limit of verifiers or an error
            break
        replies = [message for message in said.messages if message.role == "assistant"]
        action = replies[-1].content or ""
        stepped = check_step(await asyncio.to_thread(env.step, action))
        observation, reward, terminated, truncated, info = stepped
        rewards.append(reward)
    trace = talk.trace
    if trace.errors:  # a reward beside an error could be taken for one
        return
    trace.record_reward("gem", sum(rewards))
    trace.record_metric("turns", float(len(rewards)))
    trace.record_metric("truncated", float(not terminated))
    won = bool(rewards) and succeeded(rewards[-1], terminated, info)
    trace.record_metric("success", float(won))
    trace.info["turn_rewards"] = rewards


def _make(data: GemConfig | GemData) -> gem.Env:
    parameters = parse(data.parameters, "parameters", ConfigurationError)
    if not isinstance(parameters, dict):
        raise ConfigurationError(f"parameters must be a JSON object, got {data.parameters!r}")
    return gem.make(data.env_id, tools=data.tools, **parameters)


def _text(observation: Observation) -> str:
    if not isinstance(observation, str):
        raise ConfigurationError("observations with images cannot be shown in verifiers")
    return observation
