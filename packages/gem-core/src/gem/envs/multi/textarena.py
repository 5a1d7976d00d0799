"""Games of TextArena (extra `textarena`), each as a game of several agents.

TextArena (arXiv 2504.11442) has the rules, the words and the format of moves; this module has the
interface, and keeps TextArena's random numbers apart from those of the process.
"""

from __future__ import annotations

import pickle
import random
import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from random import Random
from threading import Lock
from typing import Any, TypeVar

from gem.core import Info, Observation
from gem.errors import ConfigurationError, ContractError
from gem.multi import MultiAgentEnv, MultiStep, require_asked
from gem.parameters import integer, optional, text
from gem.plugins import extra

_T = TypeVar("_T")
_NEEDED = "the textarena games need TextArena: pip install 'gem-core[textarena]'"
_RAW = "-raw"
_GAME = -1
_MOST_PLAYERS = 15
_MOVE = re.compile(r"\[[^\[\]\n]{1,40}\]")
_TAG = re.compile(r"\[(GAME|Player.*)\]", re.IGNORECASE)
_LISTED = re.compile(r"(available|valid|legal) (moves|actions)", re.IGNORECASE)
_PART = re.compile(r"\d{1,9}|\b[A-Za-z](?![A-Za-z])")
_TRIES = 200

# TextArena seeds and draws from the module `random`: one call at a time, with a state of its own.
_LOCK = Lock()


class TextArena(MultiAgentEnv):
    """A game of TextArena, in which agents take turns.

    The agents are `player0`, `player1`, ... Their texts go to TextArena as they are: a move is
    written in brackets as the game says, such as `[4]`, and most games show the whole text to the
    others. An agent is told all messages since it last acted, its own text excepted, with the
    sender in front of each: `[GAME]`, `[Player 1]`. A move that the game calls invalid
    (`invalid_action`) may be repeated once in most games; the second one in a row loses.

    Rewards are TextArena's, all in the last step: in most games 1 for winners, -1 for losers and 0
    in a draw; who makes an invalid move loses to the others. An episode is won with more than 0.
    There is no oracle.

    Random actions are drawn from the moves that the game lists, else from the examples of its rules
    with other numbers and letters, until TextArena accepts one on a copy of the match. Not all
    legal moves need to be among them; in games of free text they say little.

    Threads may play at the same time, one call after the other. While a call lasts, a thread that
    draws from the module `random` itself gets the match's numbers.

    Attributes:
        game: Of TextArena, in the current match.
        match_seed: What TextArena's `reset` was given in the current match.
        asked: The agent that is to move; nobody before the beginning and after the end.
    """

    public_text = True

    def __init__(
        self, name: str = "TicTacToe-v0", *, players: int | None = None, seed: int | None = None
    ) -> None:
        """Load the game.

        Args:
            name: TextArena's id of the game, without the suffix of its observations (`-raw`,
                `-train`).
            players: How many play; by default the least number that the game allows.
            seed: Seed of the first `reset` that is not given one.

        Raises:
            ConfigurationError: There is no such game, it is one for a single player, it does not
                allow this number of players, or it lacks something, such as the key of a model
                that judges.
            MissingExtraError: TextArena is not installed.
        """
        super().__init__(seed=seed)
        self.name = text("name", name)
        optional(integer, "players", players, 2, _MOST_PLAYERS)
        self._random: Any = Random(0).getstate()
        self.asked: tuple[str, ...] = ()
        known = extra("textarena", _NEEDED).envs.registration.ENV_REGISTRY
        if name + _RAW not in known:
            names = [id.removesuffix(_RAW) for id in known if id.endswith(_RAW)]
            near = ", ".join(get_close_matches(name, names) or names)
            raise ConfigurationError(f"TextArena has no game {name!r}; it has {near}")
        number = self._least() if players is None else players
        refused = self._refusal(number)
        if refused:
            raise ConfigurationError(f"TextArena's {name} refuses {number} players: {refused}")
        self.agents = tuple(f"player{place}" for place in range(number))

    def reset(self, seed: int | None = None) -> tuple[dict[str, Observation], dict[str, Info]]:
        """Begin a match; see `MultiAgentEnv.reset`."""
        self.begin_episode(seed)
        self.match_seed = self.rng.getrandbits(32)
        self._random = Random(self.match_seed).getstate()
        self._listed: dict[str, list[str]] = {agent: [] for agent in self.agents}
        self._examples: dict[str, list[str]] = {agent: [] for agent in self.agents}
        self._seen = dict.fromkeys(self.agents, "")
        self.asked = ()
        self.game = self._call(self._begun, len(self.agents), self.match_seed)
        return self._ask(), {agent: {} for agent in self.agents}

    def step(self, actions: Mapping[str, str]) -> MultiStep:
        """Let the agent that was asked act; see `MultiAgentEnv.step`."""
        require_asked(self, self.asked, actions)
        ((agent, action),) = actions.items()
        # If TextArena fails, the match cannot go on.
        self.asked = ()
        done, invalid = self._call(_played, self.game, action)
        infos: dict[str, Info] = {
            each: {
                "success": False,
                "format_error": False,
                "invalid_action": invalid and each == agent,
            }
            for each in self.agents
        }
        if not done:
            return MultiStep(self._ask(), dict.fromkeys(self.agents, 0.0), False, False, infos)
        given, told = self._call(self.game.close)
        if not given:
            raise ContractError(f"TextArena's {self.name} ended without rewards: {told}")
        rewards = {each: float(given.get(place, 0)) for place, each in enumerate(self.agents)}
        for place, each in enumerate(self.agents):
            ending = f"The match is over: {told[place].get('reason', '')}"
            lines = [*self._lines(place, self.game.state.observations[place]), ending]
            infos[each]["success"] = rewards[each] > 0
            infos[each]["result"] = "\n".join([*lines, f"Your reward is {rewards[each]:g}."])
        return MultiStep({}, rewards, True, False, infos)

    def sample_random_action(self, agent: str, rng: Random | None = None) -> str:
        """Return a random action that TextArena accepts; the last one tried if none of 200 is."""
        _ = self.episode_key
        rng = rng or self.action_rng
        saved = pickle.dumps(self.game)
        for tried in range(_TRIES):
            action = self._drawn(agent, rng, tried)
            if agent not in self.asked or self._accepted(saved, action):
                break
        return action

    def render(self, agent: str) -> str:
        """Return what the agent was told last."""
        _ = self.episode_key
        return f"{self.name}, {agent}\n{self._seen[agent]}"

    def _forget(self) -> None:
        self.asked = ()

    def _least(self) -> int:
        """Return the least number of players that the game allows."""
        for number in range(2, _MOST_PLAYERS + 1):
            if not self._refusal(number):
                return number
        if not self._refusal(1):
            raise ConfigurationError(f"TextArena's {self.name} is a game for a single player")
        return 2

    def _refusal(self, number: int) -> str:
        """Return why the game refuses this number of players, "" if it does not."""
        try:
            self._call(self._begun, number, 0)
        except AssertionError as error:
            return str(error) or "AssertionError"
        except Exception as error:
            # Syntax of later Pythons, keys, word lists and files that are missing.
            why = f"{error!r:.200}"
            raise ConfigurationError(f"TextArena cannot begin {self.name}: {why}") from error
        return ""

    def _begun(self, number: int, seed: int) -> Any:
        # A new game for each match: some keep what they shuffled.
        game = extra("textarena", _NEEDED).make(self.name + _RAW)
        game.reset(num_players=number, seed=seed)
        return game

    def _call(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """Call into TextArena with the match's state of the module `random`."""
        with _LOCK:
            before = random.getstate()
            random.setstate(self._random)
            try:
                return function(*arguments)
            finally:
                self._random = random.getstate()
                random.setstate(before)

    def _ask(self) -> dict[str, Observation]:
        place, messages = self._call(self.game.get_observation)
        agent = self.agents[place]
        for sender, message, kind in messages:
            moves = _moves(message) if sender == _GAME else []
            if kind.name == "PROMPT":
                self._examples[agent] += moves
            if moves and _LISTED.search(message):
                self._listed[agent] = moves
        self.asked = (agent,)
        self._seen[agent] = "\n".join(self._lines(place, messages)) or "It is your turn."
        return {agent: self._seen[agent]}

    def _lines(self, place: int, messages: list[Any]) -> list[str]:
        """Return messages to an agent as lines, without its own words."""
        roles = self.game.state.role_mapping
        return [
            f"[{roles.get(sender, f'Player {sender}')}] {message}".encode(errors="replace").decode()
            for sender, message, kind in messages
            if sender != place or kind.name != "PLAYER_ACTION"
        ]

    def _drawn(self, agent: str, rng: Random, tried: int) -> str:
        listed = self._listed[agent]
        action = rng.choice(listed or self._examples[agent] or ["[0]"])
        if listed and tried < 2 * len(listed):
            return action
        return _PART.sub(lambda part: _other(part[0], rng), action)

    def _accepted(self, saved: bytes, action: str) -> bool:
        kept = self._random
        try:
            return not self._call(_played, pickle.loads(saved), action)[1]
        except Exception:
            # An action on which TextArena fails is not offered.
            return False
        finally:
            self._random = kept


def _played(game: Any, action: str) -> tuple[bool, bool]:
    """Play an action; return whether the match is over, and whether TextArena calls it invalid."""
    refused: list[str] = []
    refuse = game.state.set_invalid_move

    def heard(*args: Any, **kwargs: Any) -> Any:
        refused.append(action)
        return refuse(*args, **kwargs)

    # The state forgets that a move was invalid before `step` returns.
    game.state.set_invalid_move = heard
    try:
        done, _ = game.step(action)
    finally:
        del game.state.set_invalid_move
    return bool(done), bool(refused)


def _moves(message: str) -> list[str]:
    """Return what a message has in brackets; of one that lists moves, what it lists last."""
    found = list(_LISTED.finditer(message))
    listed = _MOVE.findall(message, found[-1].end()) if found else []
    return [move for move in listed or _MOVE.findall(message) if not _TAG.fullmatch(move)]


def _other(part: str, rng: Random) -> str:
    """Return another number or letter for one of an example; a capital may stand for a number."""
    if part.isdigit():
        return str(rng.randint(0, max(9, int(part))))
    if part.isupper() and rng.random() < 0.5:
        return str(rng.randint(0, 9))
    letter = rng.choice("abcdefgh")
    return letter.upper() if part.isupper() else letter
