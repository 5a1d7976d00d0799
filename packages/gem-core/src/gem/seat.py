"""`Seat`: a game of several agents, played from one seat, as an ordinary `Env`."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from functools import cache
from random import Random
from typing import Any, ClassVar

from gem.contract import refusal, shown
from gem.core import Env, Info, Observation, Step, known_options
from gem.errors import ConfigurationError, ContractError
from gem.model_server import ModelServer
from gem.multi import (
    ALL,
    ALTERNATE,
    SELF,
    MultiAgentEnv,
    MultiStep,
    Opponent,
    check_multi_reset,
    check_multi_step,
    drawn,
    merged,
    pool,
)
from gem.parameters import choice
from gem.seeding import env_seed, stream

# Key of the streams that opponents draw from, apart from the episode's and that of random actions.
_OPPONENTS = 2
# Matches that may end before the seat has a turn.
_ATTEMPTS = 100

_ARGUMENTS = """

Args:
    seat: Name of the agent to play; `alternate` takes the seats in turn, by the episode's seed.
    opponent: Plays the other seats: `random`, `oracle`{scripted}, a model, by its server's
        address, or a pool of these, such as `random:0.7,oracle:0.3`.
"""


def _random(game: MultiAgentEnv, agent: str, observation: Observation, rng: Random) -> str:
    return game.sample_random_action(agent, rng)


def _oracle(game: MultiAgentEnv, agent: str, observation: Observation, rng: Random) -> str:
    return game.oracle_action(agent, rng)


class Seat(Env):
    """One seat of a game; opponents play the others, drawing from streams of the episode's seed.

    An episode has the match that the game itself has with this seed; one that is over before the
    seat has a turn is replaced by that of a seed derived from it. The last observation is the
    `result` in the agent's info.

    A model that plays has a conversation of its own in every episode: its agent's observations and
    its replies. A server that fails voids the episode. A step's info has what models said since the
    last one: `opponent_said`, a list of texts as JSON.

    Attributes:
        game: The game.
        agent: The agent that is played in this episode.
        opponent: Name of the player of all other seats; `others` if they differ or have none; of a
            pool the one that was drawn for this episode, which infos name, too.
        recorded: What models say in the next episode, in order; when it is used up, they are asked.
    """

    oracle_success = 0.0
    """No share of wins is promised: the opponent decides. The checker compares returns."""
    _apart: ClassVar[tuple[str, ...]] = ("spec", "_players", "_pool")

    def __init__(
        self,
        env: MultiAgentEnv,
        agent: str = ALTERNATE,
        opponents: str | Opponent | Mapping[str, str | Opponent] = "",
        *,
        seed: int | None = None,
    ) -> None:
        """Take a seat.

        Args:
            env: The game; the seat resets and steps it.
            agent: Name of the agent to play; `alternate` takes seat `seed % n` of n, so that
                episodes of one seed share it.
            opponents: `random`, `oracle`, a name of the game's own `opponents`, the address of a
                model (`gem.model_server.ModelServer.of_address`), a function, or one of these for
                each of the other agents; by default the game's `default_opponent`. A pool
                (`gem.multi.pool`) is drawn from by the episode's seed.
            seed: Seed of the first `reset` that is not given one.

        Raises:
            ConfigurationError: There is no such agent or opponent.
        """
        super().__init__(seed=seed)
        self._text = opponents if isinstance(opponents, str) and "," in opponents else ""
        drawable = tuple(pool(self._text)) if self._text else ()
        if agent == ALL or opponents == SELF or SELF in drawable:
            what = f"seat={ALL}" if agent == ALL else f"opponent={SELF}"
            raise ConfigurationError(
                f"{what}: the policy plays all seats, which an environment cannot do for it; "
                "gem.rollout and trainers that support it can"
            )
        self.game = env
        self._fixed = choice("seat", agent, (*env.agents, ALTERNATE))
        self._pool = {name: _player(env, name) for name in drawable}
        given = (drawable[0] if drawable else opponents) or env.default_opponent
        others = [each for each in env.agents if each != agent]
        each = given if isinstance(given, Mapping) else dict.fromkeys(others, given)
        if set(each) - set(env.agents) or set(others) - set(each):
            raise ConfigurationError(f"opponents must be given for {others}, got {sorted(each)}")
        self._players = {name: _player(env, player) for name, player in each.items()}
        players = (*self._players.values(), *self._pool.values())
        self.replayable = not any(isinstance(player, ModelServer) for player in players)
        self.recorded: list[str] = []
        names = {player for player in each.values() if isinstance(player, str)}
        self.opponent = names.pop() if len(names) == 1 else "others"
        self._over = True

    def reset(self, seed: int | None = None, **options: Any) -> tuple[Observation, Info]:
        """Begin a match; there are no options. Opponents act until the seat is to move.

        Raises:
            UnknownParameterError: An option was given.
            ContractError: No match lasts until the seat has a turn.
        """
        known_options(self, options)
        super().reset(seed)
        base, episode = self.episode_key
        agents = self.game.agents
        fixed = self._fixed != ALTERNATE
        self.agent = self._fixed if fixed else agents[(base + episode) % len(agents)]
        if self._text:
            self.opponent = drawn(self._text, base, episode)
        self._over = True
        self._said: list[str] = []
        self._streams = {
            each: stream(base, episode, _OPPONENTS, place) for place, each in enumerate(agents)
        }
        for attempt in range(_ATTEMPTS):
            self._talks: dict[str, list[dict[str, str]]] = {each: [] for each in agents}
            self.game.seek(env_seed(base, attempt) if attempt else base, episode)
            observations, infos = check_multi_reset(self.game, self.game.reset())
            step = MultiStep(observations, dict.fromkeys(agents, 0.0), False, False, infos)
            _, step = self._until_asked(step)
            if step.observations:
                self._over = False
                return step.observations[self.agent], self._names()
        raise ContractError(f"{self.game!r} ended {_ATTEMPTS} times before {self.agent} had a turn")

    def step(self, action: str) -> Step:
        """Play one turn; opponents act until the seat is to move again, or the match is over.

        Raises:
            UnreachableError: The server of a model that plays fails; the episode cannot go on.
        """
        if self._over or not isinstance(action, str):
            raise refusal(type(self.game).__name__, self._over, action)
        self._over = True
        reward, step = self._until_asked(self._step({**self._others, self.agent: action}))
        info = {**step.infos[self.agent], **self._names()}
        if self._said:
            info["opponent_said"], self._said = json.dumps(self._said), []
        self._over = not step.observations
        last = info.pop("result", "")
        observation = last if self._over else step.observations[self.agent]
        return observation, reward, step.terminated, step.truncated, info

    def _until_asked(self, step: MultiStep) -> tuple[float, MultiStep]:
        """Let opponents act; return the seat's reward until it is asked, and the last step.

        Flags of the seat's own action stay in its info.
        """
        reward = step.rewards[self.agent]
        while True:
            self._others = {
                each: self._act(each, seen)
                for each, seen in step.observations.items()
                if each != self.agent
            }
            if not step.observations or self.agent in step.observations:
                return reward, step
            own = step.infos[self.agent]
            step = self._step(self._others)
            step.infos[self.agent] = merged(own, step.infos[self.agent])
            reward += step.rewards[self.agent]

    def _names(self) -> Info:
        return {"seat": self.agent, **({"opponent": self.opponent} if self._text else {})}

    def _act(self, agent: str, observation: Observation) -> str:
        player = self._pool[self.opponent] if self._text else self._players[agent]
        if not isinstance(player, ModelServer):
            return player(self.game, agent, observation, self._streams[agent])
        talk = self._talks[agent]
        if not isinstance(observation, str) and any(p["type"] == "image" for p in observation):
            raise ConfigurationError(
                f"{type(self.game).__name__} shows images, which a model that plays cannot be shown"
            )
        talk.append({"role": "user", "content": shown(observation)})
        said = self.recorded.pop(0) if self.recorded else player.reply(talk, silent=True)
        talk.append({"role": "assistant", "content": said})
        self._said.append(said)
        return said

    def _step(self, actions: Mapping[str, str]) -> MultiStep:
        return check_multi_step(self.game, self.game.step(actions))

    def close(self) -> None:
        """Close the game."""
        self.game.close()

    def render(self) -> str:
        """Return the state as the seat knows it."""
        _ = self.episode_key
        return self.game.render(self.agent)

    def sample_random_action(self) -> str:
        """Return a random legal action."""
        return self.game.sample_random_action(self.agent, self.action_rng)

    def oracle_action(self) -> str:
        """Return the best response to the opponent where the game knows it, else the oracle's."""
        _ = self.episode_key
        return self.game.best_response(self.agent, self.opponent)

    def _forget(self) -> None:
        self._over = True
        self.game = self.game.spawn()


def player_of(env: MultiAgentEnv, player: str | Opponent) -> Opponent:
    """Return a player of a game by its name: `random`, `oracle` or one of the game's `opponents`.

    Raises:
        ConfigurationError: The game has no such player.
    """
    if not isinstance(player, str):
        return player
    known = {"random": _random, "oracle": _oracle, **env.opponents}
    return known[choice("opponent", player, tuple(known))]


def _player(env: MultiAgentEnv, player: str | Opponent) -> Opponent | ModelServer:
    if isinstance(player, str) and "://" in player:
        return ModelServer.of_address(player)
    return player_of(env, player)


class Seats:
    """Makes seats of one game: its parameters, and `seat` and `opponent`.

    An entry point, with the name, description and signature of the game.
    """

    def __init__(self, game: type[MultiAgentEnv]) -> None:
        """Describe the seats of a game."""
        self.game = self.__wrapped__ = game
        self.__name__, self.__module__ = game.__name__, game.__module__
        scripted = "".join(f", `{name}`" for name in game.opponents)
        # Not `inspect.getdoc(game)` alone: without a docstring that is the base class's.
        self.__doc__ = (inspect.getdoc(game) or "") + _ARGUMENTS.format(scripted=scripted)
        own = list(inspect.signature(game).parameters.values())
        kind = inspect.Parameter.KEYWORD_ONLY
        defaults = {"seat": ALTERNATE, "opponent": game.default_opponent}
        added = [inspect.Parameter(n, kind, default=d, annotation=str) for n, d in defaults.items()]
        first = [parameter for parameter in own if parameter.kind is not kind]
        last = [parameter for parameter in own if parameter.kind is kind]
        self.__signature__ = inspect.Signature([*first, *added, *last])

    def __call__(self, *, seat: str = ALTERNATE, opponent: str = "", **params: Any) -> Seat:
        """Make a seat of a new game."""
        return Seat(self.game(**params), seat, opponent, seed=params.get("seed"))

    def __reduce__(self) -> tuple[Callable[..., Seats], tuple[type[MultiAgentEnv]]]:
        return seats, (self.game,)


@cache
def seats(game: type[MultiAgentEnv]) -> Seats:
    """Return the entry point that makes seats of a game; the same one at every call."""
    return Seats(game)
