"""Games of OpenSpiel (extra `openspiel`), each as a game of several agents.

OpenSpiel (arXiv 1908.09453) has the rules; this module has the words: observations, moves, rewards.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from gem.envs.multi.base import Match, as_move
from gem.errors import ConfigurationError
from gem.grading.braces import find_boxes
from gem.parameters import text
from gem.plugins import extra

_NEEDED = "the openspiel games need OpenSpiel: pip install 'gem-core[openspiel]'"


class OpenSpiel(Match):
    """A game of OpenSpiel: agents in turn or at the same time, with or without hidden information.

    The agents are `player0`, `player1`, ... Where all information is public, an agent is told the
    moves of the others and shown OpenSpiel's observation; else its information state, which
    is all that the agent may know, in OpenSpiel's own short form. Moves are OpenSpiel's names of
    actions in lower case; where two of them are the same, the action's number follows.

    Rewards are OpenSpiel's over the largest payoff of the game, when they arise. An episode is won
    with more than 0 in total. There is no oracle.

    Attributes:
        game: Of OpenSpiel.
        state: Of the match.
    """

    def __init__(
        self,
        name: str = "tic_tac_toe",
        *,
        params: Mapping[str, Any] | None = None,
        on_illegal: str = "lose",
        seed: int | None = None,
    ) -> None:
        """Load the game.

        Args:
            name: OpenSpiel's name of the game.
            params: OpenSpiel's parameters of the game, such as `{"board_size": 5}` of `hex`.
            on_illegal: See `Match`.
            seed: Seed of the first `reset` that is not given one.

        Raises:
            ConfigurationError: There is no such game or parameter, or it is none of at least two
                players who act in turn or at the same time by the numbers of actions.
            MissingExtraError: OpenSpiel is not installed.
        """
        super().__init__(on_illegal=on_illegal, seed=seed)
        spiel = extra("pyspiel", _NEEDED)
        if text("name", name) not in spiel.registered_names():
            raise ConfigurationError(
                f"OpenSpiel has no game {name!r}; it has {', '.join(spiel.registered_names())}"
            )
        try:
            self.game = spiel.load_game(name, dict(params or {}))
        except (spiel.SpielError, TypeError) as error:
            raise ConfigurationError(f"OpenSpiel refuses {name} {params}: {error}") from error
        kind, types = self.game.get_type(), spiel.GameType
        fit = self.game.num_players() > 1 and kind.dynamics != types.Dynamics.MEAN_FIELD
        sampled = kind.chance_mode == types.ChanceMode.SAMPLED_STOCHASTIC
        seen = kind.provides_observation_string or kind.provides_information_state_string
        if not fit or sampled or not seen or kind.action_structs_only:
            raise ConfigurationError(
                f"OpenSpiel's {name} cannot be played here: it needs two players or more, chance "
                f"that it leaves to its caller, numbered actions, and observations as text"
            )
        self.agents = tuple(f"player{place}" for place in range(self.game.num_players()))
        self.zero_sum = kind.utility == types.Utility.ZERO_SUM
        self._public = kind.information != types.Information.IMPERFECT_INFORMATION
        states = kind.provides_information_state_string
        self._informed = states and not (self._public and kind.provides_observation_string)
        self._most = max(abs(self.game.min_utility()), abs(self.game.max_utility())) or 1.0
        self._long_name = kind.long_name

    def resample(self, agent: str, rng: Random) -> bool:
        """Nothing is hidden in games of perfect information; others are not drawn anew."""
        if not self._public:
            raise NotImplementedError(f"{self._long_name}: what is hidden cannot be drawn anew")
        return False

    def _start(self) -> None:
        self.state = self.game.new_initial_state()
        self._pass_chance()
        self._first = self._legal(self._next()[0])

    def _pass_chance(self) -> None:
        while self.state.is_chance_node():
            actions, chances = zip(*self.state.chance_outcomes(), strict=True)
            self.state.apply_action(self.rng.choices(actions, chances)[0])

    def _rules(self, agent: str) -> str:
        given = ", ".join(f"{k}={v}" for k, v in sorted(self.game.get_parameters().items()))
        return f"The rules are those of OpenSpiel's {self.game.get_type().short_name}({given})."

    def _all_moves(self) -> tuple[str, ...]:
        return self._first

    def _next(self) -> tuple[str, ...]:
        if self.state.is_terminal():
            return ()
        if self.state.is_simultaneous_node():
            return tuple(a for i, a in enumerate(self.agents) if self.state.legal_actions(i))
        return (self.agents[self.state.current_player()],)

    def _legal(self, agent: str) -> tuple[str, ...]:
        return tuple(self._actions(agent))

    def _actions(self, agent: str) -> dict[str, int]:
        """Return the agent's legal actions by their moves."""
        place = self.agents.index(agent)
        found: dict[str, list[int]] = {}
        for action in self.state.legal_actions(place):
            found.setdefault(as_move(self.state.action_to_string(place, action)), []).append(action)
        return {
            name if len(same) == 1 else f"{name} {action}": action
            for name, same in found.items()
            for action in same
        }

    def _read(self, agent: str, action: str) -> tuple[str, str]:
        # Which moves there are depends on the state: what is in the box is a move, legal or not.
        move, fault = super()._read(agent, action)
        if fault and any(box.end is not None for box in find_boxes(action)):
            fault = "invalid_action"
        return move, fault

    def _view(self, agent: str) -> str:
        place = self.agents.index(agent)
        if self._informed:
            return str(self.state.information_state_string(place))
        return str(self.state.observation_string(place))

    def _play(self, moves: dict[str, str]) -> dict[str, float]:
        before = self.state.returns()
        chosen = {agent: self._actions(agent)[move] for agent, move in moves.items()}
        if self.state.is_simultaneous_node():
            self.state.apply_actions([chosen.get(agent, 0) for agent in self.agents])
        else:
            self.state.apply_action(*chosen.values())
        if self._public:
            for agent, move in moves.items():
                self._tell(f"{agent} plays {move}.", but=agent)
        self._pass_chance()
        after = self.state.returns()
        return {
            agent: (now - was) / self._most
            for agent, now, was in zip(self.agents, after, before, strict=True)
        }

    def _name(self) -> str:
        return str(self._long_name)
