"""Several environments stepped together: `make_vec` and the synchronous vector environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from gem.core import WrapperLike
from gem.errors import ConfigurationError
from gem.making import make
from gem.moved import missing
from gem.vector.sync import AutoresetMode, SyncVectorEnv
from gem.wrappers import wrap

__all__ = ["AutoresetMode", "SyncVectorEnv", "make_vec"]


def make_vec(
    env_ids: str | Sequence[str],
    *,
    num_envs: int | None = None,
    wrappers: WrapperLike | Sequence[WrapperLike] = (),
    vec_kwargs: Sequence[Mapping[str, Any]] | None = None,
    autoreset: AutoresetMode | str = AutoresetMode.SAME_STEP,
    seed: int | None = None,
    **kwargs: Any,
) -> SyncVectorEnv:
    """Make several environments that are stepped together.

    Args:
        env_ids: One id for each environment, or one id for all of them.
        num_envs: Number of environments when `env_ids` is a single id; 1 by default.
        wrappers: Put around each environment, the last one outermost; see `gem.wrappers.wrap`.
        vec_kwargs: Parameters of each environment; they override `kwargs`.
        autoreset: What happens when an episode ends, see `AutoresetMode`.
        seed: Environment `i` plays the episodes of `gem.seeding.env_seed(seed, i)`, whatever the
            number of environments. An environment whose own parameters have a `seed` keeps it.
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
    with ExitStack() as made:
        envs = []
        for id, each in zip(ids, own, strict=True):
            env = make(id, **{**kwargs, **each})
            made.callback(env.close)
            envs.append(wrap(env, wrappers) if wrappers else env)
        vector = SyncVectorEnv(envs, autoreset=autoreset, seed=seed, keep_seed=seeded)
        made.pop_all()
    return vector


def __getattr__(name: str) -> Any:
    raise missing("gem.vector", name)
