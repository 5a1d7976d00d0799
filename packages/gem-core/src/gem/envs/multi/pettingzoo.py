"""Games of PettingZoo (extra `pettingzoo`) whose observations and actions are texts."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from random import Random
from typing import Any

from gem.core import Info, Observation
from gem.envs.gym import check_text, describe
from gem.envs.multi.base import ILLEGAL_REWARD
from gem.errors import ConfigurationError
from gem.multi import MultiAgentEnv, MultiStep, require_asked
from gem.parameters import text
from gem.plugins import extra

_NEEDED = "the games of PettingZoo need it: pip install 'gem-core[pettingzoo]'"


class PettingZoo(MultiAgentEnv):
    """A game of PettingZoo as it is, `pettingzoo:module`.

    The module has `env()`, a game in turns (AEC), or `parallel_env()`, which is then played in
    turns, too. Spaces must be `gymnasium.spaces.Text`. An action that its space does not contain
    ends the match: -1 for its agent, 0 for the others. There is no oracle.

    Attributes:
        game: Of PettingZoo, AEC.
        asked: The agent that is to move, alone; empty before the beginning and after the end.
    """

    def __init__(
        self,
        address: str,
        *,
        params: Mapping[str, Any] | None = None,
        seed: int | None = None,
    ) -> None:
        """Make the game.

        Args:
            address: The module.
            params: Of its function `env` or `parallel_env`.
            seed: Seed of the first `reset` that is not given one.

        Raises:
            ConfigurationError: The module cannot be imported or has neither function, a parameter
                is refused, or a space is not of texts.
            MissingExtraError: PettingZoo is not installed.
        """
        super().__init__(seed=seed)
        utils = extra("pettingzoo.utils", _NEEDED)
        try:
            module = import_module(text("address", address))
            if hasattr(module, "env"):
                self.game = module.env(**(params or {}))
            else:
                self.game = utils.parallel_to_aec(module.parallel_env(**(params or {})))
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            raise ConfigurationError(f"pettingzoo:{address} cannot be made: {error}") from error
        self.agents = tuple(self.game.possible_agents)
        for agent in self.agents:
            name = f"pettingzoo:{address}, {agent}"
            check_text(name, "observation", self.game.observation_space(agent))
            check_text(name, "action", self.game.action_space(agent))
        self.asked: tuple[str, ...] = ()
        self._total: dict[str, float] = {}

    def reset(self, seed: int | None = None) -> tuple[dict[str, Observation], dict[str, Info]]:
        """Begin a match; the first one of a seed is PettingZoo's of that seed."""
        self._forget()
        self.begin_episode(seed)
        base, episode = self.episode_key
        plain = episode == 0 and base >= 0
        self.game.reset(seed=base if plain else self.rng.getrandbits(31))
        self._total = dict.fromkeys(self.agents, 0.0)
        self._ended = dict.fromkeys(self.agents, (False, False))
        self._pass_dead({})
        return self._observations(), {a: dict(self.game.infos.get(a, {})) for a in self.agents}

    def step(self, actions: Mapping[str, str]) -> MultiStep:
        """Let the agent that was asked act; see `MultiAgentEnv.step`."""
        require_asked(self, self.asked, actions)
        [agent] = self.asked
        infos: dict[str, Info] = {each: {} for each in self.agents}
        rewards = dict.fromkeys(self.agents, 0.0)
        space = self.game.action_space(agent)
        said = actions[agent] if space.contains(actions[agent]) else actions[agent].strip()
        if not space.contains(said):
            self.asked = ()
            rewards[agent] = ILLEGAL_REWARD
            for each in self.agents:
                infos[each] |= {"success": False, "invalid_action": each == agent}
                infos[each]["result"] = f"{agent} made no move: {describe(space)}."
            return MultiStep({}, rewards, True, False, infos)
        self._act(said, rewards)
        self._pass_dead(rewards)
        for each in self.agents:
            infos[each] |= dict(self.game.infos.get(each, {}))
            self._total[each] += rewards[each]
        if not self.asked:
            for each in self.agents:
                infos[each].setdefault("success", self._total[each] > 0)
        cut = not self.asked and not any(ended for ended, _ in self._ended.values())
        return MultiStep(self._observations(), rewards, not self.asked and not cut, cut, infos)

    def sample_random_action(self, agent: str, rng: Random | None = None) -> str:
        """Return a random action of the agent's space."""
        _ = self.episode_key
        space = self.game.action_space(agent)
        space.seed((rng or self.action_rng).getrandbits(31))
        return str(space.sample())

    def render(self, agent: str) -> str:
        """Return what the agent sees."""
        _ = self.episode_key
        return str(self.game.observe(agent))

    def close(self) -> None:
        """Close the game."""
        self.game.close()

    def _forget(self) -> None:
        self.asked = ()

    def _act(self, action: str | None, rewards: dict[str, float]) -> None:
        self.game.step(action)
        for agent in self.game.agents if action is not None else ():
            rewards[agent] += float(self.game.rewards.get(agent, 0.0))
            flags = (
                self.game.terminations.get(agent, False),
                self.game.truncations.get(agent, False),
            )
            self._ended[agent] = bool(flags[0]), bool(flags[1])

    def _pass_dead(self, rewards: dict[str, float]) -> None:
        """Let agents that are out take the empty steps that PettingZoo asks of them."""
        while self.game.agents:
            agent = self.game.agent_selection
            if not (self.game.terminations[agent] or self.game.truncations[agent]):
                self.asked = (agent,)
                return
            self._act(None, rewards)
        self.asked = ()

    def _observations(self) -> dict[str, Observation]:
        return {agent: str(self.game.observe(agent)) for agent in self.asked}
