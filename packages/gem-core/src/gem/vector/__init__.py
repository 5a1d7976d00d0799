"""Several environments stepped together: `make_vec` makes a `VectorEnv`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gem.core import WrapperLike
from gem.errors import ConfigurationError
from gem.executors.held import STEP_TIMEOUT_S
from gem.executors.named import NAMES, check_name, make_executor
from gem.executors.recipe import Recipe
from gem.vector.asynchronous import AsyncVectorEnv
from gem.vector.base import AutoresetMode, VectorEnv
from gem.vector.sync import SyncVectorEnv

__all__ = ["AsyncVectorEnv", "AutoresetMode", "SyncVectorEnv", "VectorEnv", "make_vec"]


def make_vec(
    env_ids: str | Sequence[str],
    *,
    num_envs: int | None = None,
    wrappers: WrapperLike | Sequence[WrapperLike] = (),
    vec_kwargs: Sequence[Mapping[str, Any]] | None = None,
    autoreset: AutoresetMode | str = AutoresetMode.SAME_STEP,
    seed: int | None = None,
    vectorization_mode: str = "sync",
    num_workers: int | None = None,
    step_timeout_s: float | None = STEP_TIMEOUT_S,
    **kwargs: Any,
) -> VectorEnv:
    """Make several environments that are stepped together.

    Args:
        env_ids: One id for each environment, or one id for all of them.
        num_envs: Number of environments when `env_ids` is a single id; 1 by default.
        wrappers: Put around each environment, the last one outermost; see `gem.wrappers.wrap`.
        vec_kwargs: Parameters of each environment; they override `kwargs`.
        autoreset: What happens when an episode ends, see `AutoresetMode`.
        seed: Environment `i` plays the episodes of `gem.seeding.env_seed(seed, i)`, whatever the
            number of environments. An environment whose own parameters have a `seed` keeps it.
        vectorization_mode: Where they run: `sync` one after the other in the calling thread;
            `thread`, `process` in other processes of this machine, `ray` in actors of a Ray
            cluster, or `remote:http://host:port` at a server (`python -m gem serve`), as an
            `AsyncVectorEnv`.
        num_workers: Most processes or actors; one for each core by default.
        step_timeout_s: Limit of one `reset` or `step` in seconds, None for no limit. The mode
            `sync` has none and refuses another than the default.
        **kwargs: Parameters of all environments.

    Raises:
        ConfigurationError: The lengths of the arguments do not agree, or a value is not allowed.
        UnknownEnvError, UnknownParameterError: See `gem.make`. Environments already made are
            closed.
    """
    if isinstance(env_ids, str):
        ids = [env_ids] * (1 if num_envs is None else num_envs)
    else:
        ids = list(env_ids)
        if num_envs is not None and num_envs != len(ids):
            raise ConfigurationError(f"num_envs={num_envs} but env_ids has {len(ids)} ids")
    if not ids:
        raise ConfigurationError(f"at least one environment is needed, got {num_envs=}, {env_ids=}")
    own = [{} for _ in ids] if vec_kwargs is None else [dict(each) for each in vec_kwargs]
    if len(own) != len(ids):
        raise ConfigurationError(
            f"vec_kwargs needs one mapping per environment: {len(ids)}, got {len(own)}"
        )
    seeded = [i for i, each in enumerate(own) if "seed" in each]
    options: Any = {"autoreset": autoreset, "seed": seed, "keep_seed": seeded}
    recipes = [Recipe(id, {**kwargs, **each}, wrappers) for id, each in zip(ids, own, strict=True)]
    if vectorization_mode == "sync":
        if num_workers is not None:
            raise ConfigurationError("num_workers: the mode 'sync' has no workers")
        if step_timeout_s not in (None, STEP_TIMEOUT_S):
            raise ConfigurationError("step_timeout_s: the mode 'sync' has no time limit")
        return SyncVectorEnv([recipe.make for recipe in recipes], **options)
    if vectorization_mode == "async":
        raise ConfigurationError(
            "vectorization_mode: Gymnasium's 'async' is 'thread' (the same process) or 'process' "
            "(processes) here"
        )
    try:
        check_name(vectorization_mode)
    except ConfigurationError:
        raise ConfigurationError(
            f"unknown vectorization_mode {vectorization_mode!r}; known: sync, {NAMES}"
        ) from None
    if vectorization_mode not in ("process", "ray") and num_workers is not None:
        raise ConfigurationError(f"num_workers: the mode {vectorization_mode!r} has no workers")
    name = vectorization_mode if num_workers is None else f"{vectorization_mode}:{num_workers}"
    executor = make_executor(name)
    return AsyncVectorEnv(recipes, executor, step_timeout_s=step_timeout_s, **options)
