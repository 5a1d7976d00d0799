"""Each of oat's settings is read by somebody, or refused by its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest
from readers import Readers, Refused

from gem.errors import ConfigurationError
from gem_oat.settings import REFUSED, parse

TABLE = Readers.load(Path(__file__).with_name("readers.toml"))


def test_the_table_has_every_setting_of_oat() -> None:
    from oat.algorithms.ppo import PPOArgs

    TABLE.check(field.name for field in fields(PPOArgs))
    assert set(REFUSED) <= {setting.key for setting in TABLE.refused}


def test_the_same_settings_without_them_are_taken(argv: Callable[..., list[str]]) -> None:
    for beside in ({}, *(setting.beside for setting in TABLE.refused if setting.beside)):
        parse(argv(**beside))


@pytest.mark.parametrize("setting", TABLE.refused, ids=str)
def test_a_setting_that_cannot_work_is_refused_by_its_name(
    setting: Refused, argv: Callable[..., list[str]]
) -> None:
    with pytest.raises(ConfigurationError, match=f"^--{setting.key}: "):
        parse(argv(**{**setting.beside, setting.key: setting.value}))
