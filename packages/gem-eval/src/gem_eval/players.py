"""Who plays: a model behind a server, or a policy of the environment itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from gem.tasks import Task
from gem_eval.client import Message, Reply
from gem_eval.scripted import Scripted

Tools: TypeAlias = Sequence[Mapping[str, Any]]
"""As OpenAI's API takes them."""


class Player(Protocol):
    """Replies in an episode."""

    def prepared(self, task: Task) -> Task:
        """Return the task as its environment is made."""

    async def reply(self, messages: Sequence[Message], tools: Tools = ()) -> Reply:
        """Return the reply to a conversation, in which the model may call tools.

        Raises:
            ContextOverflowError, ServerError, ConfigurationError: See `gem_eval.server`.
        """


class ScriptedPlayer:
    """The environment's oracle or random policy: floor or ceiling of a model's result."""

    def __init__(self, policy: str) -> None:
        """Store the policy, one of `gem_eval.scripted.POLICIES`."""
        self._wrapper = {"name": f"{Scripted.__module__}:{Scripted.__name__}", "policy": policy}

    def prepared(self, task: Task) -> Task:
        """Return the task with the policy around its environment, besides its own wrappers."""
        own = task.params.get("wrappers", ())
        wrappers = [*(own if isinstance(own, list | tuple) else [own]), self._wrapper]
        return Task(task.env_id, task.seed, {**task.params, "wrappers": wrappers})

    async def reply(self, messages: Sequence[Message], tools: Tools = ()) -> Reply:
        """Return nothing: the wrapper has the action."""
        return Reply("")


class SilentPlayer:
    """Says nothing: what an environment gives for no answer at all."""

    def prepared(self, task: Task) -> Task:
        """Return the task."""
        return task

    async def reply(self, messages: Sequence[Message], tools: Tools = ()) -> Reply:
        """Return an empty reply."""
        return Reply("")


class ModelPlayer:
    """A model that `ask` asks."""

    def __init__(self, ask: Asks, system: str | None = None) -> None:
        """Store the model.

        Args:
            ask: Usually a `gem_eval.client.ChatClient`.
            system: A system message that begins each conversation.
        """
        self._ask = ask
        self._system: list[Message] = [{"role": "system", "content": system}] if system else []

    def prepared(self, task: Task) -> Task:
        """Return the task."""
        return task

    async def reply(self, messages: Sequence[Message], tools: Tools = ()) -> Reply:
        """Ask the model."""
        return await self._ask.reply([*self._system, *messages], tools)


class Asks(Protocol):
    """Something that a conversation can be given to."""

    async def reply(self, messages: Sequence[Message], tools: Tools = ()) -> Reply:
        """See `Player.reply`."""
