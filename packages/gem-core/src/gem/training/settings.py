"""Settings of adapters: how they play episodes, and the share of failed ones that they accept."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from gem.errors import ConfigurationError, RolloutError
from gem.rollout.context import check_context
from gem.rollout.environment import STEP_TIMEOUT_S
from gem.trajectory import Failure

SettingsT = TypeVar("SettingsT", bound="Settings")
MAX_FAILED_FRACTION = 0.1
"""Default of `Settings.max_failed_fraction`."""


@dataclass(frozen=True)
class Settings:
    """How an adapter plays episodes; a subclass may add keys of its own."""

    context: str = "chat"
    """Context that builds the prompts: `chat`, `concat`, `concat_with_action`, `window:<k>`."""
    system_prompt: str | None = None
    """Text of a system message before everything else."""
    turn_tokens: int | None = None
    """Most tokens sampled in one turn; by default all that fit into the response."""
    turns: int | None = None
    """Most turns of an episode, besides the environment's own limit."""
    retries: int = 1
    """Further attempts after an environment failed, each with a new environment."""
    step_timeout_s: float | None = STEP_TIMEOUT_S
    """Limit of one environment reset or step in seconds; None for no limit."""
    seed: int | None = None
    """If set, every sampled turn has its own seed, so that the order of requests has no effect."""
    max_failed_fraction: float = MAX_FAILED_FRACTION
    """Share of failed episodes in a batch above which the run stops."""
    record_dir: str | None = None
    """Folder for `gem.training.record` files."""

    @classmethod
    def from_mapping(cls: type[SettingsT], table: Mapping[str, Any]) -> SettingsT:
        """Make and check the settings of a table, which messages call `gem`.

        Raises:
            ConfigurationError: A key is unknown, or its value has the wrong type or range.
        """
        known = {field.name: field for field in fields(cls)}
        for key in table:
            if key not in known:
                near = difflib.get_close_matches(str(key), known, n=1)
                hint = f"did you mean gem.{near[0]}?" if near else f"known: {', '.join(known)}"
                raise ConfigurationError(f"unknown key gem.{key}; {hint}")
        settings = cls(**{str(key): table[key] for key in table})
        settings.check()
        return settings

    def check(self) -> None:
        """Raise `ConfigurationError` if a value has the wrong type or range."""
        types: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "float": (int, float)}
        for field in fields(self):
            value = getattr(self, field.name)
            name, _, optional = str(field.type).partition(" | ")
            if value is None and optional:
                continue
            if isinstance(value, bool) or not isinstance(value, types[name]):
                raise ConfigurationError(f"gem.{field.name} must be of type {name}, got {value!r}")
            if isinstance(value, float) and not math.isfinite(value):
                raise ConfigurationError(f"gem.{field.name} must be finite, got {value}")
        try:
            check_context(self.context)
        except ConfigurationError as error:
            raise ConfigurationError(f"gem.context: {error}") from None
        for key, least in (("turn_tokens", 1), ("turns", 1), ("retries", 0), ("seed", 0)):
            value = getattr(self, key)
            if value is not None and value < least:
                raise ConfigurationError(f"gem.{key} must be at least {least}, got {value}")
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name.endswith("_s") and value is not None and value <= 0:
                raise ConfigurationError(f"gem.{field.name} must be above 0, got {value}")
        if not 0 <= self.max_failed_fraction <= 1:
            raise ConfigurationError(
                f"gem.max_failed_fraction must be within [0, 1], got {self.max_failed_fraction}"
            )


def check_failures(
    valid: Sequence[bool],
    limit: float = MAX_FAILED_FRACTION,
    failures: Iterable[Failure | None] = (),
    *,
    batch: str = "this batch",
) -> int:
    """Return the number of failed episodes in a batch; raise if there are too many.

    Args:
        valid: For each episode of the batch, whether it did not fail.
        limit: Largest share of failed episodes with which training goes on.
        failures: Known failures; None is ignored.
        batch: Name of the batch in the message.

    Raises:
        RolloutError: Too many episodes failed, or all. The message lists the causes.
    """
    failed = sum(not each for each in valid)
    if failed == len(valid) or failed > limit * len(valid):
        raise RolloutError(
            f"{failed} of {len(valid)} episodes of {batch} failed; at most a share of "
            f"{limit:g} may. {failure_reasons(failures) or 'The reasons are in the log.'}"
        )
    return failed


def failure_reasons(failures: Iterable[Failure | None]) -> str:
    """Return the number of failures by cause as text, with a message for each cause; may be empty.

    Args:
        failures: Failures of a batch; None is ignored.
    """
    messages: dict[str, list[str]] = {}
    for failure in failures:
        if failure is not None:
            messages.setdefault(failure.cause, []).append(failure.message)
    causes = (f"{cause} {len(each)} ({each[0]})" for cause, each in messages.items())
    return f"By cause: {', '.join(causes)}." if messages else ""
