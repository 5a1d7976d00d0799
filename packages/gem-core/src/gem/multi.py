"""Environments of several agents: `MultiAgentEnv`, `MultiStep`, `make_multi`.

One method set covers games in which agents take turns, act at the same time, or both.
`gem.make(id)` plays such a game from one of its seats, as an ordinary `Env` (`gem.seat`).
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

from gem.contract import check_reset, check_step, refusal
from gem.core import Env, EnvSpec, Info, Observation, Stateful, Step
from gem.errors import ConfigurationError, ContractError, UnknownEnvError
from gem.parameters import require_known
from gem.registry import spec
from gem.seeding import stream
from gem.specs import imported

if TYPE_CHECKING:
    from gem.tasks import Task

Opponent: TypeAlias = "Callable[[MultiAgentEnv, str, Observation, Random], str]"
"""Plays an agent: is given the game, the agent's name, its observation and the stream to draw from;
returns the action. It must not change the game."""

ALL, ALTERNATE, SELF = "all", "alternate", "self"
"""Values of the parameters of a seat: `seat=all` and `opponent=self` are no opponent's names but
say that the policy plays all seats. Trained are all of them, or the one that `seat` names."""

_FLAGS = ("format_error", "invalid_action")

# Key of the stream that draws who of a pool plays; `gem.seat` has those of the players.
_POOL = 3


class MultiStep(NamedTuple):
    """The result of `MultiAgentEnv.step`."""

    observations: dict[str, Observation]
    """Of exactly those who are to move next; empty when the match is over."""
    rewards: dict[str, float]
    """Of all agents."""
    terminated: bool
    """The match ended."""
    truncated: bool
    """A limit ended the match."""
    infos: dict[str, Info]
    """Of all agents; after the last step `result` may hold an observation for the agent."""


class Decision(NamedTuple):
    """A point of a game at which an agent decides, by what that agent knows."""

    key: str
    """Name of the information set."""
    agent: str
    """Who decides."""
    seed: int
    """Seed of a match that leads to it."""
    actions: tuple[str, ...]
    """Actions of all agents, in turn, that lead to it."""
    actions_by_move: dict[str, str]
    """The legal actions, by the names of the moves."""


class MultiAgentEnv(Stateful, ABC):
    """A text environment of several agents.

    Subclasses implement `reset` (calling `self.begin_episode(seed)` first), `step` and
    `sample_random_action`. An agent that is out is never asked again; its later rewards still
    arrive. Observations are complete and appendable, as those of `Env`: what an agent is told
    contains all that it may know since it last acted, the others' moves included.
    """

    agents: tuple[str, ...]
    """Fixed names, which are roles; known before `reset`."""
    zero_sum: bool = False
    """Whether the rewards of every step add up to 0, if all actions are legal."""
    public_text: bool = False
    """Whether agents are shown each other's whole texts, not only what they did."""
    opponents: ClassVar[Mapping[str, Opponent]] = {}
    """Scripted players of this game, for `opponent=<name>`; `random` and `oracle` exist always."""
    default_opponent: str = "random"
    """`opponent` of a seat that names none."""

    @abstractmethod
    def reset(self, seed: int | None = None) -> tuple[dict[str, Observation], dict[str, Info]]:
        """Begin a match; `seed` as in `Env.reset`.

        Returns:
            `(observations, infos)`: observations of exactly those who are to move, infos of all.
        """

    @abstractmethod
    def step(self, actions: Mapping[str, str]) -> MultiStep:
        """Let those who were asked act.

        Args:
            actions: The whole text of each agent that was asked, and of no other.

        Raises:
            ConfigurationError: An agent that was asked does not act, or another one does.
            ResetNeededError: The match has not begun or is over.
        """

    @abstractmethod
    def sample_random_action(self, agent: str, rng: Random | None = None) -> str:
        """Return a valid random action of an agent that was asked; does not change the match.

        Args:
            agent: Who acts.
            rng: Stream to draw from; `action_rng` by default.
        """

    def oracle_action(self, agent: str, rng: Random | None = None) -> str:
        """Return the action of an optimal player that knows the rules and what `agent` observed.

        Its policy is minimax or a part of an equilibrium; a mixed one draws from `rng`
        (`action_rng` by default).
        """
        raise NotImplementedError(f"{type(self).__name__} has no oracle_action()")

    def best_response(self, agent: str, opponent: str) -> str:
        """Return the agent's best action if all others play as `opponent` names; deterministic.

        By default the oracle's action, which is right where that is never a mixed one.
        """
        return self.oracle_action(agent)

    def decisions(self) -> list[Decision]:
        """Return all points at which an agent decides, one for each information set.

        Only small games of agents who take turns know them.
        """
        raise NotImplementedError(f"{type(self).__name__} has no decisions()")

    def exploitability(self, strategy: Mapping[str, Mapping[str, float]]) -> float:
        """Return what best responses win against a strategy, the mean over the seats.

        Args:
            strategy: Probability of each move at each of the `decisions`, by their keys.
        """
        raise NotImplementedError(f"{type(self).__name__} has no exploitability()")

    def resample(self, agent: str, rng: Random) -> bool:
        """Draw anew what is hidden from `agent` and consistent with all that it was told.

        What the game itself will reveal to all stays as it is: until an action finds out something,
        which `render` then shows, the same actions give the agent the same observations. The
        checker's leak test uses it.

        Returns:
            Whether anything is hidden from the agent.
        """
        raise NotImplementedError(f"{type(self).__name__} has no resample()")

    def render(self, agent: str) -> str:
        """Return all that `agent` knows of the state, as text for a person."""
        raise NotImplementedError(f"{type(self).__name__} has no render()")

    @classmethod
    def _seats(cls) -> Callable[..., Env]:
        """Return what makes an `Env` of this game; `EnvSpec.load` calls it."""
        # By name: that module imports this one.
        made: Callable[..., Env] = imported("gem.seat:seats")(cls)
        return made


def make_multi(id: str | EnvSpec, **overrides: Any) -> MultiAgentEnv:
    """Make the game of several agents that is registered as `id`, all of its seats open.

    Args:
        id: As in `gem.make`.
        **overrides: Parameters of the game. Those of its seats in the registered id do not matter;
            here they are allowed where they say that the policy plays all seats.

    Raises:
        UnknownEnvError: No such id.
        UnknownParameterError: The game has no such parameter.
        ConfigurationError: It is no game of several agents, or a value is not allowed.
    """
    found = id if isinstance(id, EnvSpec) else spec(id)
    game = found.load_registered()
    if not (isinstance(game, type) and issubclass(game, MultiAgentEnv)):
        raise ConfigurationError(f"{found.id} is no game of several agents; gem.make makes it")
    seats = ("seat", "opponent")
    kwargs = {name: value for name, value in found.kwargs.items() if name not in seats}
    open_to_all = all_seats(overrides) or overrides.get("opponent") == SELF
    kwargs |= {n: value for n, value in overrides.items() if not (open_to_all and n in seats)}
    require_known(found.id, game, kwargs)
    env = game(**kwargs)
    env.spec = EnvSpec(found.id, found.entry_point, {**found.kwargs, **overrides})
    return env


def agents(id: str, params: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the agents of a game.

    Raises:
        ConfigurationError: See `make_multi`.
    """
    with make_multi(id, **params) as game:
        return game.agents


def all_seats(params: Mapping[str, Any]) -> bool:
    """Whether parameters of a task ask for a match in which all seats are trained."""
    return params.get("seat") == ALL


def against_itself(id: str, params: Mapping[str, Any]) -> bool:
    """Whether a task is a seat of a game whose other seats the policy plays, too."""
    return params.get("opponent") == SELF and _of_agents(id)


def _of_agents(id: str) -> bool:
    try:
        game = spec(id).load_registered()
    except UnknownEnvError:
        return False
    return isinstance(game, type) and issubclass(game, MultiAgentEnv)


def pool(opponents: str) -> dict[str, float]:
    """Return the players of a pool and their weights.

    Args:
        opponents: Players with their weights, such as `self:0.7,random:0.2,oracle:0.1`. The weight
            stands behind the last colon; a comma in an address is written `%2C`.

    Raises:
        ConfigurationError: A player has no positive weight, or is named twice.
    """
    found: dict[str, float] = {}
    for entry in opponents.split(","):
        name, _, weight = (part.strip() for part in entry.rpartition(":"))
        try:
            value = float(weight)
        except ValueError:
            value = math.nan
        # Behind a host without a path an integer is a port, and the weight is missing.
        port = re.fullmatch(r"https?://[^/:]+", name) and weight.isdigit()
        if not name or name in found or not 0 < value < math.inf or port:
            raise ConfigurationError(
                f"opponent {opponents!r}: {entry.strip()!r} is not a player and its weight, such "
                "as random:0.5, with each player once"
            )
        found[name] = value
    return found


def drawn(opponents: str, seed: int, episode: int = 0) -> str:
    """Return who of a pool plays the other seats in an episode of this seed.

    Args:
        opponents: See `pool`; what has no comma is an opponent of all episodes.
        seed: Of the episode; samples of one task share the opponent.
        episode: Number of the episode since the environment was given this seed.
    """
    if "," not in opponents:
        return opponents
    players = pool(opponents)
    return stream(seed, episode, _POOL).choices(list(players), list(players.values()))[0]


def with_opponent(task: Task) -> Task:
    """Return a task of the opponent that is drawn, if it names a pool."""
    opponents = task.params.get("opponent")
    if not (isinstance(opponents, str) and "," in opponents and _of_agents(task.env_id)):
        return task
    return replace(task, params={**task.params, "opponent": drawn(opponents, task.seed)})


def named_seat(id: str, params: Mapping[str, Any]) -> Any:
    """Return the seat that a task names, else its id's own; `alternate` if neither has one."""
    try:
        own = spec(id).kwargs
    except UnknownEnvError:
        own = {}
    return {"seat": ALTERNATE, **own, **params}["seat"]


def of_one_seat(id: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a task that `gem.make` can make.

    Where the policy plays all seats, it plays one against random players instead; of a pool the
    others are left.
    """
    opponents = params.get("opponent")
    if isinstance(opponents, str) and "," in opponents and _of_agents(id):
        others = {name: weight for name, weight in pool(opponents).items() if name != SELF}
        one = next(iter(others)) if len(others) == 1 else None
        return {**params, "opponent": one or ",".join(f"{n}:{w}" for n, w in others.items())}
    if not (all_seats(params) or against_itself(id, params)):
        return dict(params)
    seat = ALTERNATE if all_seats(params) else named_seat(id, params)
    return {**params, "seat": seat, "opponent": "random"}


def merged(own: Info, later: Info) -> Info:
    """Return a later info of an agent, with the flags that its own last action got."""
    return {**later, **{flag: own[flag] for flag in _FLAGS if flag in own}}


def require_asked(env: MultiAgentEnv, asked: tuple[str, ...], actions: Mapping[str, str]) -> None:
    """Check the actions of a `step`; environments call it first.

    Args:
        env: The environment.
        asked: Agents that are to act, empty before the beginning and after the end.
        actions: Of the `step`.

    Raises:
        ConfigurationError: An agent that was asked does not act, or another one does.
        ResetNeededError: Nobody was asked.
        TypeError: An action is not a str.
    """
    name = type(env).__name__
    if not asked:
        raise refusal(name, True, "")
    if set(actions) != set(asked):
        unknown = [agent for agent in actions if agent not in env.agents]
        what = f"has no agent {', '.join(map(repr, unknown))}" if unknown else "asked others"
        raise ConfigurationError(
            f"{name}.step needs actions of {', '.join(asked)}, got those of "
            f"{', '.join(map(str, actions)) or 'nobody'}: it {what}"
        )
    for action in actions.values():
        if not isinstance(action, str):
            raise refusal(name, False, action)


def check_multi_reset(
    env: MultiAgentEnv, result: Any
) -> tuple[dict[str, Observation], dict[str, Info]]:
    """Return a copy of the result of a `reset` if the contract of `MultiAgentEnv` allows it.

    Raises:
        ContractError: The message says what it does not allow.
    """
    if not isinstance(result, tuple) or len(result) != 2:
        raise ContractError(f"reset() must return (observations, infos), got {result!r:.100}")
    observations, infos = result
    if not isinstance(observations, dict) or not observations:
        raise ContractError("reset() must return observations of those who are to move")
    _require_names(env, infos, "infos")
    _require_known_agents(env, observations)
    checked = {a: check_reset((observations.get(a, ""), infos[a])) for a in env.agents}
    seen = {agent: checked[agent][0] for agent in observations}
    return seen, {agent: info for agent, (_, info) in checked.items()}


def check_multi_step(env: MultiAgentEnv, result: Any) -> MultiStep:
    """Return a copy of the result of a `step` if the contract of `MultiAgentEnv` allows it.

    Raises:
        ContractError: The message says what it does not allow.
    """
    if not isinstance(result, MultiStep):
        raise ContractError(f"step() must return a MultiStep, got {result!r:.100}")
    observations, rewards, terminated, truncated, infos = result
    _require_names(env, rewards, "rewards")
    _require_names(env, infos, "infos")
    _require_known_agents(env, observations)
    checked: dict[str, Step] = {}
    for agent in env.agents:
        seen = observations.get(agent, "")
        step = check_step((seen, rewards[agent], terminated, truncated, infos[agent]))
        checked[agent], (_, _, terminated, truncated, info) = step, step
        if "result" in info:
            info["result"], *_ = check_step((info["result"], 0.0, False, False, {}))
    if bool(observations) == (terminated or truncated):
        raise ContractError(
            "step() must return observations until the match is over, and none then; got "
            f"terminated={terminated}, truncated={truncated}, observations of {list(observations)}"
        )
    return MultiStep(
        {agent: checked[agent][0] for agent in observations},
        {agent: step[1] for agent, step in checked.items()},
        terminated,
        truncated,
        {agent: step[4] for agent, step in checked.items()},
    )


def _require_names(env: MultiAgentEnv, values: Any, what: str) -> None:
    if not isinstance(values, dict) or set(values) != set(env.agents):
        raise ContractError(
            f"{what} must have exactly the agents {env.agents}, got {values!r:.100}"
        )


def _require_known_agents(env: MultiAgentEnv, observations: Mapping[str, Any]) -> None:
    unknown = set(observations) - set(env.agents)
    if unknown:
        raise ContractError(f"observations of unknown agents: {sorted(unknown)}")
