"""Plays one episode by messages: observations go to a player, its replies come back."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Protocol

from gem.contract import scalars
from gem.errors import ContractError
from gem.executors.asynchronous import AsyncEnv
from gem.executors.base import Executor
from gem.executors.held import STEP_TIMEOUT_S, EnvFailedError
from gem.trajectory import EpisodeEnd, Failure, Trajectory, Turn
from gem_eval import native
from gem_eval.client import Message
from gem_eval.contents import content_of
from gem_eval.players import Player
from gem_eval.scripted import ACTION
from gem_eval.server import ContextOverflowError, ServerError
from gem_eval.tasks import Play


@dataclass(frozen=True)
class Played:
    """An episode, and what is known of the calls to the model."""

    trajectory: Trajectory
    """Its turns have token ids where the server said them."""
    notes: list[dict[str, Any]] = field(default_factory=list)
    """`Reply.note` of each turn; of a void episode, of all calls of all attempts."""
    tools: list[dict[str, Any]] = field(default_factory=list)
    """What the model could call through its API."""
    lost: list[dict[str, Any]] = field(default_factory=list)
    """As `notes`, of the attempts before this one, whose environments failed, and in self-play of
    the other seats: they cost as much."""


class Plays(Protocol):
    """Plays an episode, as `play` with a player does."""

    async def __call__(
        self,
        each: Play,
        *,
        turns: int | None = None,
        retries: int = 1,
        step_timeout_s: float | None = STEP_TIMEOUT_S,
        executor: str | Executor | None = None,
    ) -> Played:
        """See `play`."""


async def play(
    each: Play,
    player: Player,
    *,
    turns: int | None = None,
    retries: int = 1,
    step_timeout_s: float | None = STEP_TIMEOUT_S,
    executor: str | Executor | None = None,
) -> Played:
    """Play an episode.

    If the environment raises, breaks its contract or exceeds its time limit, the episode starts
    over with a new environment, up to `retries` times; then it has a `Failure`. A server that
    fails for good is a `Failure` with the cause `engine`, a first prompt that the model's context
    cannot hold one with the cause `budget`. A later overflow of the context is an end of the
    episode, `token_budget`.

    Args:
        each: The episode.
        player: Replies.
        turns: Most turns, besides the environment's own limit.
        retries: Further attempts after an environment failed.
        step_timeout_s: Limit of one `reset`, with the making of the environment, or one `step`, in
            seconds; None for no limit.
        executor: Where the environment runs, see `gem.executors.named.shared_executor`.

    Raises:
        ConfigurationError: The environment or a parameter is unknown, or the server refuses the
            request.
    """
    failure = Failure("environment", "not played", 0)
    lost: list[dict[str, Any]] = []
    for attempt in range(1, retries + 2):
        env = AsyncEnv(player.prepared(each.task), step_timeout_s, executor)
        played = Played(Trajectory(each.task, group=each.group))
        try:
            await _play(played, env, player, turns)
            played.lost.extend(lost)
            return played
        except EnvFailedError as error:
            failure = error.failure(attempt)
        except ContractError as error:  # an image that cannot be sent
            failure = Failure("environment", str(error), attempt)
        except ServerError as error:
            failure = Failure("engine", str(error), attempt)
            break
        except ContextOverflowError as error:
            failure = Failure("budget", f"the first prompt is too long: {error}", attempt)
            break
        finally:
            await env.aclose()
            lost += played.notes
    return Played(Trajectory(each.task, group=each.group, end="failed", failure=failure), lost)


async def _play(played: Played, env: AsyncEnv, player: Player, most: int | None) -> None:
    trajectory = played.trajectory
    observation, info = await env.reset(trajectory.task.seed)
    played.tools.extend(json.loads(info.get(native.TOOLS, "[]")))
    messages: list[Message] = []
    note: dict[str, Any] | None = None
    before: list[int] = []
    end: EpisodeEnd | None = None
    while end is None:
        messages += native.before(content_of(observation), note)
        try:
            reply = await player.reply(messages, played.tools)
        except ContextOverflowError:
            if not trajectory.turns:
                raise
            end = "token_budget"
            break
        # A template may change what was there before: then the prompt is a new one.
        fresh = not before or reply.prompt_ids[: len(before)] != before
        shown = observation
        note = reply.note
        played.notes.append(note)
        observation, reward, terminated, truncated, info = await env.step(reply.text)
        text = info.pop(ACTION, reply.text)
        messages.append(native.after(text, note))
        trajectory.turns.append(
            Turn(
                observation=shown,
                context_ids=reply.prompt_ids if fresh else reply.prompt_ids[len(before) :],
                fresh=fresh,
                response_ids=reply.token_ids,
                logprobs=None,
                text=text,
                reward=reward,
                terminated=terminated,
                truncated=truncated,
                stop_reason=reply.stop_reason,
                info=scalars(info),
            )
        )
        before = reply.prompt_ids + reply.token_ids
        if terminated or truncated:
            end = "terminated" if terminated else "truncated"
        elif most is not None and len(trajectory.turns) >= most:
            end = "turn_budget"
    trajectory.end = end
    trajectory.final_observation = observation
