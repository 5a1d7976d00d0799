"""Every setting of the cookbook is read in a run of cookbook_train, or is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tinker_cookbook", reason="needs gem-tinker[cookbook]")

import chz
from readers import Readers, Refused
from tinker_cookbook.rl import train as stock
from tinker_cookbook.rl.rollout_limits import TerminationRewardPolicy

from gem.errors import ConfigurationError
from gem_tinker import cookbook_train
from gem_tinker.cookbook import GemDatasetBuilder

TABLE = Readers.load(Path(__file__).with_name("readers.toml"))
NESTED: dict[str, Any] = {
    "stream_minibatch_config": stock.StreamMinibatchConfig,
    "async_config": stock.AsyncConfig,
    "termination": TerminationRewardPolicy,
}
BASE = cookbook_train.Config(
    model_name="m",
    recipe_name="r",
    learning_rate=1e-3,
    max_tokens=12,
    log_path="x",
    dataset_builder=GemDatasetBuilder(
        model_name="m", train="gem:game:GuessTheNumber-v0?n=16", turn_tokens=12
    ),
)


def test_the_table_has_every_setting() -> None:
    TABLE.check(chz.chz_fields(stock.Config))


def test_the_settings_below_are_accepted_without_the_refused_one() -> None:
    cookbook_train.check(BASE)


@pytest.mark.parametrize("refused", TABLE.refused, ids=str)
def test_a_setting_that_cannot_work_is_refused_by_name(refused: Refused) -> None:
    made, value = NESTED.get(refused.key), refused.value
    changed = chz.replace(BASE, **{refused.key: value if made is None else made(**value)})
    with pytest.raises(ConfigurationError, match=rf"^{refused.key}\b"):
        cookbook_train.check(changed)
