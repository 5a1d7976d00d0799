"""`OpenEnvEnv`, an environment of any OpenEnv server: `gem.make("openenv:http://host:port")`."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping
from typing import Any

from gem.core import Info, Observation, Step
from gem.errors import ConfigurationError, ContractError, RemoteError
from gem.parameters import optional, text
from gem.seeding import stream
from gem_serve.connection import ANSWER_TIMEOUT_S, Connection, ServedEnv, checked_url, fetched
from gem_serve.messages import json_value

# In every observation of OpenEnv, beside its own fields.
_COMMON = ("done", "reward", "metadata")
_SEED_BITS = 31


class OpenEnvEnv(ServedEnv):
    """An environment of an OpenEnv server: actions are one text, observations are shown as text.

    `done` is `terminated`; it is `truncated` instead if the metadata say so, as those of a GEM
    server do. A missing reward is 0. `reset` sends a seed; whether the server honours it is up to
    the server. There is no `snapshot`, as the protocol has none.
    """

    replayable = False

    def __init__(
        self,
        address: str,
        *,
        token: str | None = None,
        action_field: str | None = None,
        observation_field: str | None = None,
        wait_s: float = 0.0,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
        seed: int | None = None,
    ) -> None:
        """Connect.

        Args:
            address: `http://host:port` of the server, as OpenEnv's clients have it.
            token: Sent as `Authorization: Bearer <token>`; by default the value of
                `GEM_SERVE_TOKEN`, if set. It is no part of `spec`.
            action_field: Field of the server's action that holds the policy's text; by default its
                only field for a text, or the only required one.
            observation_field: Field of the server's observation to show; by default its only field
                for a text. If there are several, the whole observation is shown, as JSON.
            wait_s: Seconds to ask a full server again and again before giving up.
            answer_timeout_s: Limit of each answer in seconds.
            seed: Base seed of the first `reset` without one.

        Raises:
            ConfigurationError: The address or token is wrong, no OpenEnv server is there, or its
                action has no field of this name or none to choose.
            ServerFullError: The server takes no further session, not even after `wait_s`.
            UnreachableError: No server responds.
        """
        super().__init__(
            checked_url(address),
            token=token,
            wait_s=wait_s,
            answer_timeout_s=answer_timeout_s,
            seed=seed,
        )
        schema = fetched(f"{self.url}/schema", self._token)
        action, observation = (
            _fields(schema, name, self.url) for name in ("action", "observation")
        )
        self.action_field = _action_field(optional(text, "action_field", action_field), action)
        shown = optional(text, "observation_field", observation_field)
        if shown is not None and shown not in observation:
            raise ConfigurationError(
                f"observation_field must be one of {', '.join(observation)}, got {shown!r}"
            )
        texts = [name for name, field in observation.items() if _is_text(field)]
        self.observation_field = shown or (texts[0] if len(texts) == 1 else None)
        self.connect()

    def snapshot(self) -> bytes:
        """Raise: the protocol of OpenEnv has no snapshots.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError("the protocol of OpenEnv has no snapshots")

    def spawn(self, same_state: bool = False, seed: int | None = None) -> OpenEnvEnv:
        """Return a new environment on a connection of its own.

        Raises:
            NotImplementedError: With `same_state`, see `snapshot`.
        """
        if same_state:
            self.snapshot()
        child = OpenEnvEnv(
            self.url,
            token=self._token,
            action_field=self.action_field,
            observation_field=self.observation_field,
            wait_s=self._wait_s,
            answer_timeout_s=self._answer_timeout_s,
            seed=seed,
        )
        child.spec = self.spec
        return child

    def _greet(self, connection: Connection) -> None:
        # A full server says so in its first answer. Some have no state before the first episode.
        with contextlib.suppress(RemoteError):
            connection.ask("state")

    def _begin(self, options: Mapping[str, Any]) -> tuple[Observation, Info]:
        self.connect()
        base, episode = self.episode_key
        # OpenEnv has a seed for each episode, and none for a series.
        sent = base if episode == 0 else stream(base, episode).getrandbits(_SEED_BITS)
        observation, _, _, _, info = self._step(self.ask("reset", {"seed": sent, **options}))
        return observation, info

    def _play(self, action: str) -> Step:
        return self._step(self.ask("step", {self.action_field: action}))

    def _step(self, data: Mapping[str, Any]) -> Step:
        observation, done, reward = data.get("observation"), data.get("done"), data.get("reward")
        reward = 0.0 if reward is None else reward
        if (
            not isinstance(observation, dict)
            or not isinstance(done, bool)
            or not isinstance(reward, int | float)
            or not math.isfinite(reward)
        ):
            raise ContractError(f"{self.url}: no observation of OpenEnv: {data!r:.200}")
        info = data.get("metadata") or observation.get("metadata") or {}
        info = dict(info) if isinstance(info, dict) else {"metadata": info}
        truncated = done and info.get("truncated") is True
        return self._shown(observation), float(reward), done and not truncated, truncated, info

    def _shown(self, observation: Mapping[str, Any]) -> str:
        field = self.observation_field
        if field is not None:
            value = observation.get(field)
            if isinstance(value, str):
                return value
            if field in observation and value is not None:
                return json.dumps(json_value(value), ensure_ascii=False)
        own = {name: value for name, value in observation.items() if name not in _COMMON}
        return json.dumps(json_value(own), ensure_ascii=False)


def _fields(schema: Any, name: str, url: str) -> dict[str, Any]:
    """Return the fields of an action or observation, without those that all have."""
    part = schema.get(name) if isinstance(schema, dict) else None
    fields = part.get("properties", {}) if isinstance(part, dict) else None
    if not isinstance(fields, dict):
        raise ConfigurationError(f"{url} is no OpenEnv server: /schema has no {name}")
    required = part.get("required", []) if isinstance(part, dict) else []
    return {
        field: {**told, "required": field in required}
        for field, told in fields.items()
        if field not in _COMMON and isinstance(told, dict)
    }


def _action_field(given: str | None, fields: Mapping[str, Any]) -> str:
    texts = [name for name, field in fields.items() if _is_text(field)]
    required = [name for name in texts if fields[name]["required"]]
    if given is not None:
        if given not in fields:
            raise ConfigurationError(
                f"action_field must be one of {', '.join(fields) or '(none)'}, got {given!r}"
            )
        return given
    for found in (texts, required):
        if len(found) == 1:
            return found[0]
    raise ConfigurationError(
        f"the server's action has {len(texts)} fields for a text; action_field must name the one "
        f"for the policy's text, of {', '.join(fields) or '(none)'}"
    )


def _is_text(field: Mapping[str, Any]) -> bool:
    """Whether a field of a JSON schema holds any text, or null."""
    kinds = [field, *field.get("anyOf", [])]
    return any(kind.get("type") == "string" and "enum" not in kind for kind in kinds)
