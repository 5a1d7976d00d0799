"""Every flag of OpenRLHF is read while gem-openrlhf is in use, or is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from readers import Readers, Refused

from gem.errors import ConfigurationError
from gem_openrlhf.launch import _arguments
from gem_train.table import below

TABLE = Readers.load(Path(__file__).with_name("readers.toml"))
BASE = {"gem.advantage": "rebn"}


def examine(world: Any, folder: Path, settings: dict[str, Any]) -> None:
    flags = {key: value for key, value in settings.items() if not key.startswith("gem.")}
    agent = world.agent_file(folder, **below(settings, "gem."))
    world.maker(agent, *_arguments(flags))


def test_the_table_has_every_flag(world: Any) -> None:
    TABLE.check(world.keys())


@pytest.mark.parametrize("refused", TABLE.refused, ids=str)
def test_a_flag_that_cannot_work_is_refused_by_name(
    refused: Refused, world: Any, tmp_path: Path
) -> None:
    settings = {**BASE, **refused.beside}
    examine(world, tmp_path, settings)
    with pytest.raises(ConfigurationError, match=rf"--{re.escape(refused.key)}\b"):
        examine(world, tmp_path, {**settings, refused.key: refused.value})
