"""Every setting of TRL's configurations is read while gem-trl is in use, or is refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from readers import Readers, Refused

from gem.errors import ConfigurationError
from gem_trl.settings import GemSettings, check_config

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

HERE = Path(__file__).parent
TABLES = {
    "GRPOConfig": Readers.load(HERE / "readers.toml"),
    "AsyncGRPOConfig": Readers.load(HERE / "readers_async.toml"),
}
NEWEST = "5.24."
"""Of transformers in `make test-trl-versions`, which nobody has walked."""

Check = Callable[[Any, GemSettings], None]


def configuration(name: str) -> tuple[Any, Check]:
    """Return the class of a configuration, and what checks one."""
    if name == "GRPOConfig":
        from trl import GRPOConfig

        return GRPOConfig, check_config
    if version("trl").startswith("1.15."):
        pytest.skip("TRL 1.15 has no asynchronous trainer that can be used")
    from trl.experimental.async_grpo import AsyncGRPOConfig

    from gem_trl import async_trainer

    return AsyncGRPOConfig, async_trainer.check_config


@pytest.mark.parametrize("name", TABLES)
def test_the_table_has_every_setting(name: str) -> None:
    if version("transformers").startswith(NEWEST):
        pytest.skip(f"the tables have the settings of older transformers, not of {NEWEST}*")
    made, _ = configuration(name)
    TABLES[name].check(each.name for each in fields(made) if each.init)


@pytest.mark.parametrize(
    ("name", "refused"),
    [
        pytest.param(name, refused, id=f"{name}.{refused}")
        for name, table in TABLES.items()
        for refused in table.refused
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_name(
    name: str, refused: Refused, tmp_path: Path
) -> None:
    made, check = configuration(name)
    prefix, gem = "gem.", {}
    given: dict[str, Any] = {
        "output_dir": str(tmp_path),
        "per_device_train_batch_size": 8,
        "num_generations": 2,
        "max_steps": 2,
        "logging_steps": 1,
        "bf16": False,
        "use_cpu": True,
        "report_to": [],
    }
    if name == "GRPOConfig":
        # Refused only beside others, and TRL's defaults.
        given |= {"shuffle_dataset": False, "vllm_importance_sampling_correction": False}
    for key, value in refused.beside.items():
        (gem if key.startswith(prefix) else given)[key.removeprefix(prefix)] = value
    settings = GemSettings(**gem)
    check(made(**given), settings)
    with pytest.raises(ConfigurationError, match=rf"\b{refused}\b"):
        check(made(**{**given, refused.key: refused.value}), settings)
