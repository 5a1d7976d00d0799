"""Plays pairs of players against each other, each task from both seats, into a record.

`run.json` has the settings, `matches.jsonl` a line per match, written when it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from gem.core import Observation
from gem.errors import ConfigurationError
from gem.executors.held import EnvFailedError
from gem.json_lines import append_lines, read_lines
from gem.multi import (
    MultiAgentEnv,
    MultiStep,
    Opponent,
    check_multi_reset,
    check_multi_step,
    make_multi,
)
from gem.rollout.match import HeldGame
from gem.rollout.play import Episode
from gem.seat import player_of
from gem.seeding import stream
from gem.tasks import Task
from gem.trajectory import Failure
from gem_eval.client import Message
from gem_eval.contents import text_of
from gem_eval.models import Model
from gem_eval.players import Player
from gem_eval.runner import Limits, TooManyFailedError, begun, side_by_side
from gem_eval.server import ContextOverflowError, ServerError
from gem_eval.tasks import Part, Play
from gem_eval.tokens import TokenPlays
from gem_train.ending import to_the_end
from gem_train.folders import alone
from gem_train.resuming import check_same

KIND = "matches"
MATCHES = "matches.jsonl"

# Key of the streams that scripted players draw from, as those of a seat's opponents.
_OPPONENTS = 2
# More than a player has turns in a match.
_TURNS = 1 << 16

Side = Model | str
"""A model, or the name of one of the game's own players."""


@dataclass(frozen=True)
class Match:
    """A match that is to be played."""

    task: Task
    group: int
    """Number of the task."""
    seats: Mapping[str, str]
    """The player of each agent, by the names of both."""

    @property
    def key(self) -> tuple[Any, ...]:
        """What identifies it in the record."""
        return self.task.seed, *self.seats.items()


@dataclass(frozen=True)
class Result:
    """How a match ended; a line of the record."""

    seed: int
    seats: dict[str, str]
    """The player of each agent."""
    rewards: dict[str, float]
    """Sum for each agent."""
    forfeit: str = ""
    """The agent that could not go on, because its context or budget was full: it has lost."""
    illegal: dict[str, int] | None = None
    """Illegal or unreadable moves of each agent."""
    actions: tuple[dict[str, str], ...] = ()
    """Of each step; with seed and parameters they replay the match."""
    calls: dict[str, list[dict[str, Any]]] | None = None
    """What is known of the calls to each agent's model."""
    failure: str = ""
    """Why the match is void."""

    @property
    def key(self) -> tuple[Any, ...]:
        """That of the match."""
        return self.seed, *self.seats.items()

    def points(self, agent: str) -> float:
        """Return 1 for a win, 0.5 for a draw, 0 for a loss: who got more has won."""
        [other] = self.rewards.keys() - {agent}
        if self.forfeit:
            return float(self.forfeit == other)
        mine, theirs = self.rewards[agent], self.rewards[other]
        if math.isclose(mine, theirs, rel_tol=0, abs_tol=1e-9):
            return 0.5
        return float(mine > theirs)


class _ForfeitError(Exception):
    """A player cannot go on; its argument is the agent."""


class _Voice(Protocol):
    """Plays one agent in one match."""

    notes: list[dict[str, Any]]

    async def say(self, observation: Observation) -> str:
        """Return the action; raise `_ForfeitError` where there can be none."""


class _ByScript:
    def __init__(self, game: HeldGame, task: Task, agent: str, place: int, name: str) -> None:
        self._game, self._agent, self._name = game, agent, name
        self._rng = stream(task.seed, 0, _OPPONENTS, place)
        self.notes: list[dict[str, Any]] = []

    async def say(self, observation: Observation) -> str:
        def acted(env: MultiAgentEnv) -> str:
            script: Opponent = player_of(env, self._name)
            return script(env, self._agent, observation, self._rng)

        return await self._game.call(acted)


class _ByMessages:
    def __init__(self, player: Player, task: Task, agent: str) -> None:
        self._player, self._task, self._agent = player, task, agent
        self._messages: list[Message] = []
        self.notes: list[dict[str, Any]] = []

    async def say(self, observation: Observation) -> str:
        self._messages.append({"role": "user", "content": text_of(observation, self._task)})
        try:
            reply = await self._player.reply(self._messages)
        except ContextOverflowError as error:
            raise _ForfeitError(self._agent) from error
        self._messages.append({"role": "assistant", "content": reply.text})
        self.notes.append(reply.note)
        return reply.text


class _ByTokens:
    def __init__(self, plays: TokenPlays, play: Play, agent: str, index: int) -> None:
        self._plays, self._play, self._agent = plays, play, agent
        self._episode = Episode(
            play.task, plays.chat, context=plays.context, budget=plays.budget, index=index
        )
        self._turn = 0
        self.notes: list[dict[str, Any]] = []

    async def say(self, observation: Observation) -> str:
        if self._turn:
            self._episode.advance((observation, 0.0, False, False, {}))
        else:
            self._episode.begin(observation, {})
        request = self._episode.request
        if request is None:
            raise _ForfeitError(self._agent)
        # Open for one turn only: a model in this process waits for all that are open.
        play = replace(self._play, sample=self._play.sample * _TURNS + self._turn)
        with self._plays.sampling(play, self.notes) as sampler:
            sample = await sampler(request)
        self._turn += 1
        return self._episode.receive(sample)


def matches_of(part: Part, agents: Sequence[str], players: Sequence[str]) -> list[Match]:
    """Return all matches: of every task, every pair of players with both distributions of seats."""
    return [
        Match(task, group, dict(zip(agents, pair, strict=True)))
        for group, task in enumerate(part.tasks)
        for pair in itertools.permutations(players, 2)
    ]


def play_matches(
    folder: Path,
    part: Part,
    sides: Mapping[str, Side],
    *,
    about: dict[str, Any],
    resume: bool = False,
    limits: Limits | None = None,
) -> list[Result]:
    """Play the matches that the record lacks; return the valid ones.

    Args:
        folder: Of the record.
        part: The game and its tasks.
        sides: The players by their names, two or more.
        about: For `run.json`, see `gem_eval.runner.evaluate`.
        resume: Continue what the folder holds.
        limits: What bounds it; games run in threads, whatever the executor.

    Raises:
        ConfigurationError: It is no game of two agents, a name is no player of it, or the folder
            holds something else.
        TooManyFailedError: More matches failed than `limits` allow.
        UnfinishedError: Code that runs in a match called `sys.exit()`.
    """
    limits = limits or Limits()
    agents = _agents(part, sides)
    wanted = matches_of(part, agents, list(sides))
    with alone(folder):
        earlier = begun(folder, about, resume, KIND)
        if earlier is not None:
            keys = ("settings", "models", "versions")
            both = ({key: each.get(key, {}) for key in keys} for each in (earlier, about))
            check_same(folder, *both)
        done = {each.key: each for each in read_results(folder)}
        missing = [each for each in wanted if each.key not in done]
        ended = 0

        def counted(_: Result) -> None:
            nonlocal ended
            ended += 1

        # Around the event loop: what calls `sys.exit()` in one match ends the loop.
        with to_the_end(lambda: ended, lambda: len(missing), "matches"):
            asyncio.run(_play_all(folder, part, missing, sides, limits, len(wanted), counted))
        found = {each.key: each for each in read_results(folder)}
    return [found[each.key] for each in wanted if each.key in found]


def read_results(folder: Path) -> list[Result]:
    """Return the valid matches of a record.

    Raises:
        RecordError: It cannot be read.
    """
    results = [Result(**line) for line in read_lines(folder / MATCHES, Result)]
    return [each for each in results if not each.failure]


async def _play_all(
    folder: Path,
    part: Part,
    missing: Sequence[Match],
    sides: Mapping[str, Side],
    limits: Limits,
    wanted: int,
    watch: Callable[[Result], None],
) -> None:
    failed = 0
    numbers = itertools.count()

    async def one(match: Match) -> None:
        nonlocal failed
        result = await _played(match, part, sides, limits, numbers)
        append_lines(folder / MATCHES, [json.dumps(asdict(result))])
        watch(result)
        if result.failure:
            failed += 1
            if failed / wanted > limits.max_failed:
                raise TooManyFailedError(
                    f"{failed} matches failed, more than --max-failed allows "
                    f"({limits.max_failed * wanted:g}); the last one: {result.failure}"
                )

    async with contextlib.AsyncExitStack() as stack:
        for side in sides.values():
            if isinstance(side, Model):
                await stack.enter_async_context(side.around())
        await side_by_side(missing, min(limits.concurrency, len(missing)), one)


async def _played(
    match: Match,
    part: Part,
    sides: Mapping[str, Side],
    limits: Limits,
    numbers: itertools.count[int],
) -> Result:
    """Play a match, again with a new game after one failed."""
    failure = Failure("environment", "not played", 0)
    for attempt in range(1, limits.retries + 2):
        game = HeldGame(lambda: _made(match.task), limits.step_timeout_s)
        voices: dict[str, _Voice] = {}
        for place, (agent, name) in enumerate(match.seats.items()):
            side = sides[name]
            play = Play(part, match.task, match.group, place)
            if isinstance(side, str):
                voices[agent] = _ByScript(game, match.task, agent, place, side)
            elif side.player is not None:
                voices[agent] = _ByMessages(side.player, match.task, agent)
            else:
                assert isinstance(side.plays, TokenPlays)
                voices[agent] = _ByTokens(side.plays, play, agent, next(numbers))
        try:
            return await _match(match, game, voices)
        except EnvFailedError as error:
            failure = error.failure(attempt)
        except ServerError as error:
            failure = Failure("engine", str(error), attempt)
            break
        finally:
            game.close()
    return Result(match.task.seed, dict(match.seats), {}, failure=str(failure))


async def _match(match: Match, game: HeldGame, voices: Mapping[str, _Voice]) -> Result:
    rewards = dict.fromkeys(match.seats, 0.0)
    illegal = dict.fromkeys(match.seats, 0)
    played: list[dict[str, str]] = []
    forfeit = ""

    def begun(env: MultiAgentEnv) -> dict[str, Observation]:
        return check_multi_reset(env, env.reset(seed=match.task.seed))[0]

    observations = await game.call(begun)
    while observations:
        try:
            said = [await voices[agent].say(seen) for agent, seen in observations.items()]
        except _ForfeitError as error:
            forfeit = str(error)
            break
        actions = dict(zip(observations, said, strict=True))

        def stepped(env: MultiAgentEnv, actions: dict[str, str] = actions) -> MultiStep:
            return check_multi_step(env, env.step(actions))

        step = await game.call(stepped)
        played.append(actions)
        for agent in match.seats:
            rewards[agent] += step.rewards[agent]
        for agent in actions:
            info = step.infos[agent]
            illegal[agent] += bool(info.get("format_error") or info.get("invalid_action"))
        observations = step.observations
    calls = {agent: voice.notes for agent, voice in voices.items() if voice.notes}
    return Result(
        match.task.seed,
        dict(match.seats),
        rewards,
        forfeit,
        illegal,
        tuple(played),
        calls,
    )


def _agents(part: Part, sides: Mapping[str, Side]) -> tuple[str, ...]:
    """Return the agents of the game, after trying its own players on a match."""
    if len(sides) < 2:
        raise ConfigurationError("matches need two or more different players")
    task = part.tasks[0]
    if given := sorted({"seat", "opponent"} & task.params.keys()):
        raise ConfigurationError(f"{part.name}: players take all seats; leave out {given[0]}")
    with contextlib.closing(_made(task)) as game:
        if len(game.agents) != 2:
            raise ConfigurationError(
                f"{part.name} has {len(game.agents)} agents; matches of pairs need a game of two"
            )
        for side in sides.values():
            if isinstance(side, str):
                script = player_of(game, side)
                observations, _ = game.reset(seed=task.seed)
                agent, seen = next(iter(observations.items()))
                try:
                    script(game, agent, seen, stream(0))
                except NotImplementedError:
                    raise ConfigurationError(f"{part.name} has no {side}") from None
        return game.agents


def _made(task: Task) -> MultiAgentEnv:
    return make_multi(task.env_id, **task.params)
