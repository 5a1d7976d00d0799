"""`Served`: one environment of verifiers with its servers, in a background event loop."""

from __future__ import annotations

import asyncio
import atexit
import copy
import functools
import json
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from itertools import islice
from typing import Any

import verifiers.v1 as vf
from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.utils.loaders import load_environment, resolve_env_config

from gem.errors import ConfigurationError, GemError
from gem_serve.inverted import MODEL, shared_url

_START_S = 120.0
_STOP_S = 30.0


class Served:
    """An environment of verifiers, its tasks and its servers.

    Attributes:
        seat: The role that the policy plays.
        tasks: The first tasks of the taskset, in order.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        seat: str,
        tasks: int,
        harness: str,
        max_turns: int | None,
    ) -> None:
        """Load the environment and start its servers.

        Args:
            config: Of verifiers' `EnvConfig`.
            seat: The role that the policy plays; empty for the only one.
            tasks: Most tasks to read.
            harness: Program of that role; `own` for the taskset's.
            max_turns: Most replies of that role.

        Raises:
            ConfigurationError: verifiers refuses the configuration, or it cannot be played here.
        """
        player = {"harness": {"id": harness}} if harness != "own" else {}
        self.seat, resolved = _seated(config, seat, {**player, "max_turns": max_turns})
        self.env = _checked(load_environment, resolved)
        harness, task = self.env._harnesses[self.seat], type(self.env.taskset).task_type()
        runtime = getattr(resolved, self.seat).runtime.type
        kinds: tuple[Any, Any] = (type(harness), task)
        needing = [kind.__name__ for kind in kinds if kind.NEEDS_CONTAINER]
        if needing and runtime == "subprocess":
            raise ConfigurationError(
                f"{needing[0]} needs a container: set {self.seat}.runtime.type to one of "
                "verifiers' other runtimes"
            )
        self.tasks = _checked(lambda most: list(islice(iter(self.env.taskset), most)), tasks)
        if not self.tasks:
            raise ConfigurationError(f"the taskset {config['taskset']['id']!r} has no tasks")
        self._ready: Future[None] = Future()
        # Referenced: a task that nothing refers to is collected as garbage while it waits.
        self._stop = asyncio.Event()
        self._serving = asyncio.run_coroutine_threadsafe(self._serve(), _loop())
        self._ready.result(_START_S)

    def run(self, task: Any, on_trace: Callable[[Any], None]) -> Future[Any]:
        """Begin an episode of a task; the future has verifiers' `Episode`."""
        # One address for all: verifiers keeps a client for each.
        client = vf.EvalClientConfig(base_url=shared_url(), api_key_var="GEM_NO_KEY")
        context = vf.ModelContext(model=MODEL, client=client, sampling=vf.Sampling())
        episode = self.env.run_episode(task, context, on_trace=on_trace)
        return asyncio.run_coroutine_threadsafe(episode, _loop())

    def close(self) -> None:
        """Stop the servers."""
        _loop().call_soon_threadsafe(self._stop.set)
        self._serving.result(_STOP_S)

    async def _serve(self) -> None:
        try:
            async with self.env.serving():
                self._ready.set_result(None)
                await self._stop.wait()
        except BaseException as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)


def served(config: Mapping[str, Any], *seated: Any) -> Served:
    """Return the environment of a configuration; one for all that ask with the same.

    Args:
        config: See `Served`, as the others.
        *seated: The further arguments of `Served`.
    """
    key = (os.getpid(), json.dumps([config, *seated], sort_keys=True))
    with _lock:
        if key not in _served:
            _served[key] = Served(config, *seated)
        return _served[key]


def _seated(config: Mapping[str, Any], seat: str, player: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the role of the policy, and the configuration with what every role needs here."""
    roles = list(agent_config_fields(_checked(resolve_env_config, _copied(config))))
    if not seat and len(roles) > 1:
        raise ConfigurationError(
            f"this environment has the roles {', '.join(roles)}; seat must name the policy's"
        )
    seat = seat or roles[0]
    if seat not in roles:
        raise ConfigurationError(f"seat must be one of {', '.join(roles)}, got {seat!r}")
    full = _copied(config)
    full[seat] = {**player, **full.get(seat, {})}
    for role in roles:
        # verifiers' default is a box in a cloud.
        full.setdefault(role, {}).setdefault("runtime", {}).setdefault("type", "subprocess")
    resolved = _checked(resolve_env_config, full)
    for role, agent in agent_config_fields(resolved).items():
        if role != seat and (agent.client is None or agent.model is None):
            raise ConfigurationError(
                f"the role {role!r} has no model of its own: set {role}.client.type=eval, "
                f"{role}.client.base_url and {role}.model; GEM plays and trains {seat!r} only"
            )
    return seat, resolved


def _copied(config: Mapping[str, Any]) -> dict[str, Any]:
    # verifiers writes into what it is given.
    return copy.deepcopy(dict(config))


def _checked(function: Callable[[Any], Any], argument: Any) -> Any:
    """Call a function of verifiers; what it refuses becomes a `ConfigurationError`."""
    try:
        return function(argument)
    except GemError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, ImportError, OSError) as error:
        raise ConfigurationError(f"verifiers: {error}") from error


@functools.cache
def _loop_of(pid: int) -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="gem verifiers", daemon=True).start()
    return loop


def _loop() -> asyncio.AbstractEventLoop:
    return _loop_of(os.getpid())


_served: dict[tuple[int, str], Served] = {}
_lock = threading.Lock()


def _close_all() -> None:
    for (pid, _), each in _served.items():
        if pid == os.getpid():
            each.close()


# As `concurrent.futures` does: its threads, which verifiers needs to stop, end before `atexit`.
getattr(threading, "_register_atexit", atexit.register)(_close_all)
