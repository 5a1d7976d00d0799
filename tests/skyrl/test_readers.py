"""`readers.toml`: who reads each setting of SkyRL; what is refused says so by name."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from readers import Readers, Refused

from gem.errors import ConfigurationError

READERS = Readers.load(Path(__file__).with_name("readers.toml"))


def keys(kind: Any, above: str = "") -> Iterator[str]:
    """Yield the names of all settings of a dataclass of SkyRL's."""
    hints = get_type_hints(kind)
    for field in fields(kind):
        name, hint = f"{above}{field.name}", hints[field.name]
        # A table may be optional.
        table = next((t for t in (hint, *get_args(hint)) if is_dataclass(t)), None)
        yield from [name] if table is None else keys(table, f"{name}.")


def words(settings: Mapping[str, Any]) -> list[str]:
    return [f"{key}={json.dumps(value)}" for key, value in settings.items()]


def test_each_setting_of_skyrl_has_a_reader() -> None:
    from skyrl.train.config import SkyRLTrainConfig

    READERS.check(keys(SkyRLTrainConfig))


def test_a_plain_configuration_is_accepted(world: Any) -> None:
    world.parse(world.GOOD)


@pytest.mark.parametrize("refused", READERS.refused, ids=str)
def test_what_cannot_work_is_refused_by_name(refused: Refused, world: Any) -> None:
    given = [*world.GOOD, *words(refused.beside)]
    if refused.beside:
        world.parse(given)
    with pytest.raises((ValueError, AssertionError)) as caught:
        world.parse([*given, *words({refused.key: refused.value})])
    ours = isinstance(caught.value, ConfigurationError)
    assert (refused.key if ours else refused.key.rpartition(".")[2]) in str(caught.value)
