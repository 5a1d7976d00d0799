"""What a server offers its clients, how much of it, and how it refuses the rest."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from gem.errors import ConfigurationError, RemoteError, ServerFullError, UnknownEnvError
from gem.executors.held import STEP_TIMEOUT_S
from gem.foreign import named
from gem.making import make
from gem.registry import list_envs, spec
from gem.tables import check, setting
from gem_serve.messages import fault

# Parameters of `gem.make` that are not the environment's: a wrapper, for one, may be any class.
_NOT_PARAMETERS = {
    name for name, p in inspect.signature(make).parameters.items() if p.kind is not p.VAR_KEYWORD
}


@dataclass(frozen=True)
class Limits:
    """How much a server lets its clients use; a client is an address.

    Raises:
        ConfigurationError: A value is not allowed.
    """

    max_envs: int = setting("most environments at a time", 1024, least=1)
    max_envs_per_client: int = setting("most of one client; 0: no limit", 0, least=0)
    session_timeout_s: float = setting("seconds without a message", 1800.0, above=0.0)
    step_timeout_s: float = setting("of one reset or step", STEP_TIMEOUT_S, above=0.0)
    drain_timeout_s: float = setting("for running episodes at the end", 60.0, least=0.0)
    max_action_bytes: int = setting("of an action as UTF-8", 1 << 20, least=1)

    def __post_init__(self) -> None:
        check(self)


class Offer:
    """What a server offers: environment ids, and what clients may set on them."""

    def __init__(
        self, patterns: Sequence[str] = (), *, parameters: bool = False, tools: Sequence[str] = ()
    ) -> None:
        """Choose the ids.

        Args:
            patterns: Ids, with `*` and `?`; none: all registered ones. One that is not registered,
                such as `verifiers:NAME`, is offered if it is named.
            parameters: Whether clients set parameters of environments and tools. These can name
                files, programs and addresses.
            tools: Tools that clients may add to an environment.

        Raises:
            ConfigurationError: A pattern matches no id, or one with parameters.
        """
        known = list_envs()
        matched = {pattern: [i for i in known if fnmatchcase(i, pattern)] for pattern in patterns}
        for pattern, ids in matched.items():
            if not ids:
                ids += _played_elsewhere(pattern)
        chosen = set().union(*matched.values()) if patterns else set(known)
        self.ids = tuple(sorted(chosen))
        self.parameters = parameters
        self.tools = tuple(tools)

    def check_id(self, id: str) -> None:
        """Raise if the id is not offered.

        Raises:
            Refusal: With 404 if there is no such id, else with 403.
        """
        if id in self.ids:
            return
        try:
            spec(id)
        except UnknownEnvError as error:
            raise Refusal(404, "SESSION_ERROR", str(error), error) from None
        message = f"this server does not offer {id!r}"
        raise Refusal(403, "SESSION_ERROR", message, ConfigurationError(message))

    def check_parameters(self, params: Mapping[str, Any], tools: Sequence[Any]) -> None:
        """Raise if a client may not set these parameters, or add these tools.

        Raises:
            Refusal: It may not; the message names the option of the server that allows it.
        """
        if not self.parameters and (params or any(isinstance(tool, Mapping) for tool in tools)):
            raise refused("this server lets no client set parameters (--allow-parameters)")
        for name in params:
            if name in _NOT_PARAMETERS:
                raise refused(f"{name!r} is no parameter of an environment")
        for tool in tools:
            wanted = tool.get("name") if isinstance(tool, Mapping) else tool
            if wanted not in self.tools:
                has = ", ".join(self.tools) or "none"
                raise refused(f"this server adds no tool {wanted!r} (--tools); it has {has}")


def _played_elsewhere(id: str) -> list[str]:
    """Return an id that is not registered and needs not be, such as `verifiers:NAME`.

    Raises:
        ConfigurationError: There is none.
    """
    try:
        found = spec(id)
    except UnknownEnvError:
        raise ConfigurationError(f"no environment id matches {id!r}") from None
    if found.id != id:
        raise ConfigurationError(f"{id!r} cannot be offered with parameters (--allow-parameters)")
    return [id]


class Refusal(Exception):  # noqa: N818
    """What a server does not do; a session goes on."""

    def __init__(
        self, status: int, code: str, message: str, error: Exception | None = None
    ) -> None:
        """Store what to answer.

        Args:
            status: Of HTTP.
            code: Error code of OpenEnv.
            message: For a person.
            error: Raised at the client, too; none: `RemoteError`.
        """
        super().__init__(message)
        self.status = status
        self.error = error or RemoteError(message)
        self.data = {**fault(error or self), "message": message, "code": code}


def refused(message: str) -> Refusal:
    """Return the refusal of a message; a client raises `ConfigurationError`."""
    return Refusal(400, "VALIDATION_ERROR", message, ConfigurationError(message))


def full(status: int, message: str) -> Refusal:
    """Return the refusal of a session beyond a limit."""
    return Refusal(status, "CAPACITY_REACHED", message, ServerFullError(message))


def not_now(error: Exception) -> Refusal:
    """Return the refusal of a call that raised, after which the session goes on."""
    return Refusal(400, "VALIDATION_ERROR", named(error)[1], error)
