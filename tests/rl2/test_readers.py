"""Every setting of RL2 is read while gem-rl2 is in use, or is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from readers import Readers, Refused

from gem.errors import ConfigurationError
from gem.tables import flatten
from gem_rl2.settings import check

TABLE = Readers.load(Path(__file__).with_name("readers.toml"))
RANKS = 2
BASE = {
    "gem.advantage": "rebn",
    "gem.prompt_tokens": 100,
    "actor.kl.type": "loss",
    "actor.update_per_rollout": 2,
}


def examine(world: Any, settings: dict[str, Any]) -> None:
    given = [f"{'+' * key.startswith('gem.')}{key}={json.dumps(settings[key])}" for key in settings]
    check(world.settings(*given), world.keys(*given), RANKS)


def test_the_table_has_every_setting(world: Any) -> None:
    config = OmegaConf.load(world.RL2.folder / "trainer" / "config" / "ppo.yaml")
    # Not resolved: a key that follows another one is a key of its own.
    plain: Any = OmegaConf.to_container(config, resolve=False)
    TABLE.check(flatten(plain))


@pytest.mark.parametrize("refused", TABLE.refused, ids=str)
def test_a_setting_that_cannot_work_is_refused_by_name(refused: Refused, world: Any) -> None:
    settings = {**BASE, **refused.beside}
    examine(world, settings)
    with pytest.raises(ConfigurationError, match=rf"(?<!\w){re.escape(refused.key)}\b"):
        examine(world, {**settings, refused.key: refused.value})
