"""Settings of the adapter: the table `gem` of fake-trainer's configuration.

`Settings.read` also refuses settings of the trainer that would make it train on something else
than was asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from gem.errors import ConfigurationError
from gem.tables import setting
from gem_train import settings

NO_CRITIC = "fake-trainer has no critic"


@dataclass(frozen=True)
class Settings(settings.Settings):
    """The keys of every adapter, and those of this one."""

    advantage: str = setting(
        "name of an estimator that needs no critic",
        "rebn",
        check=partial(settings.check_offered, no_critic=NO_CRITIC),
    )

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Settings:
        """Return the settings of a whole configuration of fake-trainer.

        Raises:
            ConfigurationError: A key is unknown, a value has the wrong type or range, or settings
                contradict each other.
        """
        found = cls.from_mapping(config.get("gem", {}))
        settings.check_group_size(found.advantage, "samples", config["samples"])
        if not 0 <= config["gamma"] <= 1:
            raise ConfigurationError(f"gamma must be between 0 and 1, got {config['gamma']}")
        return found
