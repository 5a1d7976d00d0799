"""Which code reads each of verl's settings, in `readers.toml`; what cannot work is refused."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from readers import Readers, Refused

from gem.errors import ConfigurationError
from gem_verl.settings import check_config

BASE = [
    "actor_rollout_ref.rollout.name=vllm",
    "actor_rollout_ref.rollout.agent.default_agent_loop=gem",
    "algorithm.adv_estimator=gem_rebn",
]
READERS = Readers.load(Path(__file__).with_name("readers.toml"))
GOT = (
    "data.cache_dir",
    "data.chat_template_func",
    "data.filter_prompts",
    "data.need_tools_kwargs",
    "reward.custom_reward_function.reward_kwargs",
    "reward.reward_kwargs",
    "trainer.remove_previous_ckpt_in_save",
    "trainer.v1.colocate_async.parameter_sync_step",
    "trainer.v1.sync.parameter_sync_step",
)
"""What verl reads with `get`, and neither a YAML file nor a dataclass has."""


def leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Keys that YAML files have, and fields of the dataclasses into which verl makes tables."""
    if "_target_" in table:
        yield from fields(table["_target_"], table, prefix)
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{key}.")
        elif key != "_target_":
            yield prefix + key


def fields(kind: Any, table: Mapping[str, Any], prefix: str) -> Iterator[str]:
    if isinstance(kind, str):
        module, _, name = kind.rpartition(".")
        kind = getattr(import_module(module), name)
    hints = typing.get_type_hints(kind)
    for each in dataclasses.fields(kind):
        found, hint = table.get(each.name, {}), hints[each.name]
        kinds = [k for k in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(k)]
        if not each.init or each.name == "_target_":
            continue
        if kinds and isinstance(found, dict):
            if "_target_" not in found:
                yield from fields(kinds[0], found, f"{prefix}{each.name}.")
        elif each.name not in table:
            yield prefix + each.name


def test_it_is_known_who_reads_each_setting(compose: Any) -> None:
    told = OmegaConf.to_container(compose([]), resolve=False)
    READERS.check([*leaves(told), *GOT])


@pytest.mark.parametrize("refused", READERS.refused, ids=str)
def test_what_cannot_work_is_refused_by_its_name(
    compose: Any, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GEM_CPU", raising=False)
    config = compose(BASE)
    for key, value in refused.beside.items():
        OmegaConf.update(config, key, value, force_add=True)
    check_config(config)
    OmegaConf.update(config, refused.key, refused.value, force_add=True)
    with pytest.raises(ConfigurationError, match=f"^{re.escape(refused.key)}: "):
        check_config(config)
