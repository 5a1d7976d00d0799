"""The environment contract: `Env`, `Wrapper`, `EnvSpec`, the five-value step.

Stands below everything else: it imports only seeding, errors and small helpers of gem.
"""

from __future__ import annotations

import pickle
import random
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeAlias, TypedDict, TypeVar

from gem.errors import ConfigurationError, ResetNeededError, UnknownParameterError
from gem.seeding import stream
from gem.specs import imported, recipe
from gem.tables import plain_values


class ContentPart(TypedDict, total=False):
    """One part of a multi-modal observation, in the form that chat templates accept.

    `{"type": "text", "text": str}` or `{"type": "image", "image": <path, bytes or PIL image>}`.
    """

    type: str
    text: str
    image: Any


Observation: TypeAlias = "str | list[ContentPart]"
"""What the policy is shown: a text, or the parts of a message, some of which may be images."""
Info: TypeAlias = dict[str, Any]
"""Diagnostics of a `reset` or `step`, which the policy must not need."""
Step: TypeAlias = tuple[Observation, float, bool, bool, Info]
"""`(observation, reward, terminated, truncated, info)`, which `Env.step` returns."""
WrapperLike: TypeAlias = "str | Mapping[str, Any] | Callable[[Env], Env]"
"""A name, `{"name": ..., <parameter>: <value>, ...}`, or a function from Env to Env. The name of a
wrapper that is not built in is `package.module:Class`."""
StatefulT = TypeVar("StatefulT", bound="Stateful")
WrapperT = TypeVar("WrapperT", bound="Wrapper")

# Key of the stream for `sample_random_action`, which differs from the episode's own stream.
_ACTION_STREAM = 1


@dataclass(frozen=True)
class EnvSpec:
    """A registered environment, or how an existing environment was made."""

    id: str
    """Registered name, such as `game:GuessTheNumber-v0-easy`."""
    entry_point: str | Callable[..., Any]
    """`"package.module:Class"`, imported at the first `make`, or a callable that returns an Env; a
    class of games of several agents (`gem.MultiAgentEnv`) also counts."""
    kwargs: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Parameters passed to the entry point."""
    wrappers: tuple[WrapperLike, ...] = field(default=(), hash=False)
    """Wrappers, that of tools included, the last one outermost; see `gem.wrappers.wrap`."""

    def load(self) -> Callable[..., Env]:
        """Return the callable that makes the Env; imports its module."""
        loaded = self.load_registered()
        # A game of several agents is played from one of its seats.
        seats: Callable[[], Callable[..., Env]] | None = getattr(loaded, "_seats", None)
        return loaded if seats is None else seats()

    def load_registered(self) -> Callable[..., Any]:
        """Return what was registered: as `load`, but a `gem.MultiAgentEnv` as it is."""
        if not isinstance(self.entry_point, str):
            return self.entry_point
        loaded: Callable[..., Any] = imported(self.entry_point)
        return loaded

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready mapping for `gem.spec` to read; it has the id, not the entry point.

        Raises:
            ConfigurationError: A parameter is not a plain value, such as a tool passed as an object
                or a wrapper passed as a function; the message names it.
        """
        return {
            "id": self.id,
            "kwargs": plain_values(self.kwargs, "kwargs"),
            "wrappers": plain_values(self.wrappers, "wrappers"),
        }


class Stateful:
    """What `Env` and `gem.MultiAgentEnv` have in common: parameters, episodes by seed, snapshots.

    Subclasses draw randomness from `self.rng` only, and keep the whole state of an episode in
    instance attributes, so that `snapshot`, `restore` and `spawn` work without further code; data
    shared by all instances (word lists, data sets) belongs at module level.
    """

    spec: EnvSpec | None = None
    """The registered id and parameters this instance was made from; `gem.make(env.spec)` makes
    another one. None when constructed directly."""
    replayable: bool = True
    """Whether the same seed and actions give the same episode anywhere, at any time. Executors
    play the actions again when the process of an environment ends."""
    _apart: ClassVar[tuple[str, ...]] = ("spec",)
    """Attributes that are not state: `snapshot` leaves them out, `restore` keeps them."""

    # Of a class, too: a subclass whose `__init__` does not call this one's has no base seed.
    _base_seed: int | None = None
    _episode: int = -1
    _rng: random.Random | None = None
    _action_rng: random.Random | None = None

    def __init__(self, *, seed: int | None = None) -> None:
        """Set the seed of the first `reset` that is not given one.

        Args:
            seed: Base seed; None draws one from the operating system at the first `reset`.
        """
        self._base_seed = checked_seed(seed)
        self._episode = -1
        self._rng = self._action_rng = None

    @property
    def rng(self) -> random.Random:
        """The random stream of the current episode; replaced by every `reset`.

        Raises:
            ResetNeededError: `reset` was never called.
        """
        if self._rng is None:
            raise ResetNeededError(f"{type(self).__name__}: call reset() before anything else")
        return self._rng

    @property
    def action_rng(self) -> random.Random:
        """The stream that `sample_random_action` draws from; never influences the episode."""
        if self._action_rng is None:
            self._action_rng = stream(*self.episode_key, _ACTION_STREAM)
        return self._action_rng

    @property
    def episode_key(self) -> tuple[int, int]:
        """`(base seed, episode index)` of the current episode; identifies it for a replay."""
        if self._base_seed is None or self._episode < 0:
            raise ResetNeededError(f"{type(self).__name__}: call reset() before anything else")
        return self._base_seed, self._episode

    def seek(self, base_seed: int, episode: int) -> None:
        """Make the next `reset` without a seed begin the episode with this `episode_key`."""
        self._base_seed, self._episode = checked_seed(base_seed), episode - 1

    def begin_episode(self, seed: int | None) -> None:
        """Begin the episode of a `reset` with this seed; `reset` of a subclass calls it."""
        if seed is not None:
            self._base_seed = checked_seed(seed)
            self._episode = 0
        else:
            if self._base_seed is None:
                self._base_seed = secrets.randbits(63)
            self._episode += 1
        self._rng = stream(*self.episode_key)
        self._action_rng = None

    def close(self) -> None:
        """Release what the environment holds (processes, files, connections); safe to repeat."""

    def snapshot(self) -> bytes:
        """Return the complete state, random streams included.

        The bytes are a pickle: restore only pickles that your own processes made.
        """
        state = {k: v for k, v in self.__dict__.items() if k not in self._apart}
        return pickle.dumps(state, protocol=5)

    def restore(self, state: bytes) -> None:
        """Continue from `snapshot`: the same actions give the same episode, bit for bit."""
        restored = pickle.loads(state)
        kept = {k: v for k, v in self.__dict__.items() if k in self._apart}
        self.__dict__.clear()
        self.__dict__.update(restored | kept)

    def spawn(self: StatefulT, same_state: bool = False, seed: int | None = None) -> StatefulT:
        """Return a new environment with the same parameters.

        Args:
            same_state: The child continues this very episode, and its later episodes, exactly
                like this environment. Otherwise it must be `reset` before use.
            seed: Base seed of a child that does not share the state.

        Raises:
            ConfigurationError: Both `same_state` and `seed` were given.
        """
        if same_state and seed is not None:
            raise ConfigurationError(f"spawn(same_state=True) takes no seed, got seed={seed!r}")
        child = type(self).__new__(type(self))
        child.__dict__.update({k: v for k, v in self.__dict__.items() if k in self._apart})
        child.restore(self.snapshot())
        if not same_state:
            Stateful.__init__(child, seed=seed)
            child._forget()
        return child

    def _forget(self) -> None:
        """Forget the episode: the child of a `spawn` without `same_state` has none."""

    def __enter__(self: StatefulT) -> StatefulT:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        name = self.spec.id if self.spec is not None else ""
        return f"<{type(self).__name__} {name}>" if name else f"<{type(self).__name__}>"


class Env(Stateful):
    """A multi-turn text environment.

    Subclasses implement `reset` (calling `super().reset(seed=seed)` first) and `step`.
    """

    oracle_success: float = 1.0
    """Share of starts that `oracle_action` wins; below 1 only where chance or the turn limit
    decides, which the environment's docstring then explains."""

    def reset(self, seed: int | None = None, **options: Any) -> tuple[Observation, Info]:
        """Begin an episode.

        Args:
            seed: With an integer, the episode is the first one of that seed. With None, it is the
                next episode of the seed given last (to `reset` or the constructor).
            **options: Environment-specific choices for this episode, documented per environment.
                `options={...}`, as Gymnasium has it, means the same; see `reset_options`.

        Returns:
            `(observation, info)`. The observation holds all that the policy needs to act
            (instructions, board, request); info holds diagnostics that it must not need.
        """
        self.begin_episode(seed)
        return "", {}

    def step(self, action: str) -> Step:
        """Play one turn with the policy's whole text as the action.

        Returns:
            `(observation, reward, terminated, truncated, info)`. `terminated`: the task ended;
            `truncated`: a limit ended it; never both. A bad action is no error: it gets a reward
            and a message.

        Raises:
            ResetNeededError: The episode has not begun or is over.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement step()")

    def render(self) -> str:
        """Return the current state as text for a person."""
        raise NotImplementedError(f"{type(self).__name__} has no render()")

    def sample_random_action(self) -> str:
        """Return a valid random action; does not change the episode."""
        raise NotImplementedError(f"{type(self).__name__} has no sample_random_action()")

    def oracle_action(self) -> str:
        """Return the next action of a policy that wins whenever the game can be won.

        The policy knows the rules and what was observed, never the hidden state.
        """
        raise NotImplementedError(f"{type(self).__name__} has no oracle_action()")

    @property
    def unwrapped(self) -> Env:
        """The innermost environment."""
        return self


class Wrapper(Env):
    """An environment around another one; methods that it does not override go to the inner one.

    Unknown attributes are looked up on the inner environment at each access, never copied.
    """

    # Slots, so that snapshots of `__dict__` leave them out: constructor arguments are not state.
    __slots__ = ("_arguments", "_given_spec")
    _arguments: tuple[tuple[Any, ...], Mapping[str, Any]] | None
    _given_spec: EnvSpec | None
    _apart: ClassVar[tuple[str, ...]] = ("env",)

    def __new__(cls: type[WrapperT], *args: Any, **kwargs: Any) -> WrapperT:
        """Remember the arguments besides the environment, for `spec`."""
        self = object.__new__(cls)
        keyword = {name: value for name, value in kwargs.items() if name != "env"}
        positional = args if "env" in kwargs else args[1:]
        self._arguments = (positional, keyword) if args or kwargs else None
        self._given_spec = None
        return self

    def __init__(self, env: Env) -> None:
        self.env = env

    def __getattr__(self, name: str) -> Any:
        # Reached only when normal lookup fails. `env` itself must not recurse (unpickling).
        if name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)

    @property
    def spec(self) -> EnvSpec | None:
        """The inner environment's spec and this wrapper."""
        if self._given_spec is not None:
            return self._given_spec
        inner = self.env.spec
        if inner is None or self._arguments is None:
            return inner
        return replace(inner, wrappers=(*inner.wrappers, recipe(type(self), self._arguments)))

    @spec.setter
    def spec(self, spec: EnvSpec | None) -> None:
        self._given_spec = spec

    @property
    def oracle_success(self) -> float:  # type: ignore[override]
        """The inner environment's; without this property lookup would find that of `Env`."""
        return self.env.oracle_success

    @property
    def replayable(self) -> bool:  # type: ignore[override]
        """The inner environment's."""
        return self.env.replayable

    @property
    def rng(self) -> random.Random:
        """The inner environment's random stream."""
        return self.env.rng

    @property
    def action_rng(self) -> random.Random:
        """The inner environment's action stream."""
        return self.env.action_rng

    @property
    def episode_key(self) -> tuple[int, int]:
        """The inner environment's `(base seed, episode index)`."""
        return self.env.episode_key

    def seek(self, base_seed: int, episode: int) -> None:
        """Choose the inner environment's next episode."""
        self.env.seek(base_seed, episode)

    def reset(self, seed: int | None = None, **options: Any) -> tuple[Observation, Info]:
        """Reset the inner environment; every option is passed on."""
        return self.env.reset(seed=seed, **options)

    def step(self, action: str) -> Step:
        """Step the inner environment."""
        return self.env.step(action)

    def close(self) -> None:
        """Close the inner environment."""
        self.env.close()

    def render(self) -> str:
        """Render the inner environment."""
        return self.env.render()

    def sample_random_action(self) -> str:
        """Sample from the inner environment."""
        return self.env.sample_random_action()

    def oracle_action(self) -> str:
        """Ask the inner environment's oracle."""
        return self.env.oracle_action()

    def snapshot(self) -> bytes:
        """Return the wrapper's own attributes together with the inner snapshot."""
        return pickle.dumps((super().snapshot(), self.env.snapshot()), protocol=5)

    def restore(self, state: bytes) -> None:
        """Restore the wrapper's own attributes and the inner environment."""
        own, inner = pickle.loads(state)
        super().restore(own)
        self.env.restore(inner)

    def spawn(self: WrapperT, same_state: bool = False, seed: int | None = None) -> WrapperT:
        """Spawn the inner environment and wrap it in the same way."""
        child = type(self).__new__(type(self))
        child.env = self.env.spawn(same_state=same_state, seed=seed)
        child._arguments, child._given_spec = self._arguments, self._given_spec
        Env.restore(child, Env.snapshot(self))
        if not same_state:
            child._forget()
        return child

    @property
    def unwrapped(self) -> Env:
        """The innermost environment."""
        return self.env.unwrapped

    def __repr__(self) -> str:
        return f"<{type(self).__name__}{self.env!r}>"


def reset_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a `reset`, with those of an `options={...}` keyword merged in.

    Environments with options use it, so that `reset(idx=3)` and Gymnasium's
    `reset(options={"idx": 3})` are the same call; `options=None` adds none.

    Raises:
        ConfigurationError: `options` is not a mapping, or an option is given both ways.
    """
    own = dict(options)
    given = own.pop("options", None)
    if given is None:
        return own
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"options must be a mapping or None, got {given!r:.80}")
    twice = sorted(set(own) & set(given))
    if twice:
        raise ConfigurationError(f"reset got the option {twice[0]!r} twice")
    return {**own, **given}


def known_options(env: Env, options: Mapping[str, Any], *known: str) -> dict[str, Any]:
    """Return `reset_options` of the environments that come with gem.

    Args:
        env: The environment.
        options: Of its `reset`.
        *known: Names of the options that it has.

    Raises:
        UnknownParameterError: There is another option.
        ConfigurationError: See `reset_options`.
    """
    given = reset_options(options)
    unknown = ", ".join(repr(name) for name in given if name not in known)
    if unknown:
        has = f"; it has {', '.join(map(repr, known))}" if known else ""
        raise UnknownParameterError(f"{type(env).__name__}.reset has no option {unknown}{has}")
    return given


def checked_seed(seed: int | None) -> int | None:
    """Return a seed as Python's own integer, or None.

    Raises:
        ConfigurationError: It is neither.
    """
    if seed is None:
        return None
    try:
        return int(seed.__index__())
    except AttributeError:
        raise ConfigurationError(f"seed must be an integer or None, got {seed!r}") from None
