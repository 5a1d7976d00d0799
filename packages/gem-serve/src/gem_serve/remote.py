"""`RemoteEnv`, an environment of a GEM server: `gem.make("remote:http://host:port/<id>")`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gem.core import EnvSpec, Info, Observation, Step
from gem.errors import ConfigurationError
from gem.tables import plain_values
from gem_serve.connection import ANSWER_TIMEOUT_S, Connection, ServedEnv, checked_url
from gem_serve.messages import observation_of, oversized, size_of, step_of

_FOLDER = "/envs"


class RemoteEnv(ServedEnv):
    """An environment of `python -m gem serve`, with the same episodes as a local one.

    Tools and wrappers that `gem.make` is given work here; `server_tools` work at the server.
    `snapshot` is the episode's seed and actions, so `restore` plays the episode again.
    """

    def __init__(
        self,
        address: str,
        *,
        token: str | None = None,
        server_tools: str | Sequence[Any] = (),
        wait_s: float = 0.0,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
        seed: int | None = None,
        **parameters: Any,
    ) -> None:
        """Connect, and make the environment at the server.

        Args:
            address: `http://host:port/<id>`, or `https://...`.
            token: That the server wants; by default the value of `GEM_SERVE_TOKEN`, if set. It is
                no part of `spec`: what makes the environment again needs the variable.
            server_tools: Tools that the server gives to the environment, as `gem.make` has them;
                the server must offer them.
            wait_s: Seconds to ask a full server again and again before giving up.
            answer_timeout_s: Limit of each answer in seconds.
            seed: Base seed of the first `reset` without one.
            **parameters: Of the environment; the server must allow them.

        Raises:
            ConfigurationError: The address or token is wrong, or the server does not offer this.
            UnknownEnvError: The server does not know the id.
            ServerFullError: The server takes no further session, not even after `wait_s`.
            UnreachableError: No server responds.
            GemError: The server cannot make the environment.
        """
        base, _, id = checked_url(address).rpartition("/")
        if base.endswith(":/") or base.endswith(_FOLDER + _FOLDER) or not id:
            raise ConfigurationError(
                f"a remote environment is remote:http://host:port/<id>, got {address!r}"
            )
        url = f"{base.removesuffix(_FOLDER)}{_FOLDER}/{id}"
        super().__init__(
            url, token=token, wait_s=wait_s, answer_timeout_s=answer_timeout_s, seed=seed
        )
        tools = [server_tools] if isinstance(server_tools, str) else list(server_tools)
        self._make = {
            "params": plain_values(parameters, "parameters"),
            "tools": plain_values(tools, "server_tools"),
        }
        self._options: dict[str, Any] = {}
        self._actions: list[str] = []
        self.connect()

    def render(self) -> str:
        """Return the environment's `render`."""
        return str(self._call("render"))

    def sample_random_action(self) -> str:
        """Return a random action of the environment."""
        return str(self._call("sample_random_action"))

    def oracle_action(self) -> str:
        """Return the next action of the environment's oracle."""
        return str(self._call("oracle_action"))

    def snapshot(self) -> bytes:
        """Return seed, options and actions of the episode, as JSON."""
        state = {
            "base_seed": self._base_seed,
            "episode": self._episode,
            "options": self._options,
            "actions": self._actions,
        }
        return json.dumps(state).encode()

    def restore(self, state: bytes) -> None:
        """Play the episode of a `snapshot` again, on a connection of its own if there is none.

        The stream of `sample_random_action` begins anew.
        """
        data = json.loads(state)
        self._running = False
        self._base_seed, self._episode = data["base_seed"], data["episode"]
        if data["episode"] < 0:
            return
        self.seek(data["base_seed"], data["episode"])
        self.reset(**data["options"])
        for action in data["actions"]:
            self.step(action)

    def spawn(self, same_state: bool = False, seed: int | None = None) -> RemoteEnv:
        """Return a new environment on a connection of its own; see `Env.spawn`."""
        if same_state and seed is not None:
            raise ConfigurationError(f"spawn(same_state=True) takes no seed, got seed={seed!r}")
        child = RemoteEnv(
            self.url,
            token=self._token,
            server_tools=self._make["tools"],
            wait_s=self._wait_s,
            answer_timeout_s=self._answer_timeout_s,
            seed=seed,
            **self._make["params"],
        )
        child.spec = self.spec
        if same_state:
            child.restore(self.snapshot())
        return child

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the episode (see `snapshot`), without connection and token."""
        settings = {
            "server_tools": self._make["tools"],
            "wait_s": self._wait_s,
            "answer_timeout_s": self._answer_timeout_s,
            **self._make["params"],
        }
        return _again, (self.url, settings, self.spec, self.snapshot())

    def _greet(self, connection: Connection) -> None:
        made = connection.ask("make", self._make)
        if not isinstance(made.get("max_action_bytes"), int):
            raise ConfigurationError(f"{self.url} is no GEM server: {made!r:.200}")
        self._most_bytes: int = made["max_action_bytes"]
        self.replayable = made.get("replayable") is True

    def _begin(self, options: Mapping[str, Any]) -> tuple[Observation, Info]:
        self.connect()
        base, episode = self.episode_key
        which = {"seed": base, "episode": episode} if episode else {"seed": base}
        self._options, self._actions = dict(options), []
        return observation_of(self.ask("reset", {**self._options, **which}))

    def _play(self, action: str) -> Step:
        # A message far above the limit would end the connection.
        if size_of(action) > self._most_bytes:
            # The policy, not the environment, has said too much: no reason to void the episode.
            raise ConfigurationError(oversized(size_of(action), self._most_bytes))
        step = step_of(self.ask("step", {"text": action}))
        self._actions.append(action)
        return step

    def _call(self, name: str) -> Any:
        return self.ask("call", {"name": name})["value"]


def _again(url: str, settings: Mapping[str, Any], spec: EnvSpec | None, state: bytes) -> RemoteEnv:
    """Return the environment that was pickled, on a connection of its own."""
    env = RemoteEnv(url, **settings)
    env.spec = spec
    env.restore(state)
    return env
