"""The built-in environments: names and parameters of all ids, without importing any of them."""

from __future__ import annotations

from collections.abc import Callable

from gem.envs.dataset_ids import CONFIGS, DATASETS, GENERATORS
from gem.envs.games import GAMES
from gem.envs.multi import GAMES as MULTI
from gem.envs.multi import OPENSPIEL, TEXTARENA


def register_all(register: Callable[..., None]) -> None:
    """Register every built-in id; the registry calls it once, at the first look-up of an id."""
    for name, (entry_point, variants) in GAMES.items():
        for suffix, parameters in variants.items():
            register(f"game:{name}-v0{suffix}", f"gem.envs.games.{entry_point}", **parameters)
    for name, (entry_point, variants) in MULTI.items():
        for suffix, parameters in variants.items():
            register(f"multi:{name}-v0{suffix}", f"gem.envs.multi.{entry_point}", **parameters)
    for name in OPENSPIEL.split():
        register(f"openspiel:{name}", "gem.envs.multi.openspiel:OpenSpiel", name=name)
    for name in TEXTARENA.split():
        register(f"textarena:{name}", "gem.envs.multi.textarena:TextArena", name=name)
    for name, (entry_point, parameters) in DATASETS.items():
        register(name, f"gem.envs.{entry_point}", **parameters)
    for name in GENERATORS:
        extra = {"config": CONFIGS[name]} if name in CONFIGS else {}
        register(f"rg:{name}", "gem.envs.reasoning_gym:ReasoningGymEnv", name=name, **extra)
