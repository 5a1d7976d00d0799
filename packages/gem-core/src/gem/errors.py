"""The one exception hierarchy: every error a user of GEM-core can meet derives from `GemError`."""

from __future__ import annotations


class GemError(Exception):
    """Base of all errors raised on purpose by GEM-core and its adapters."""


class ConfigurationError(GemError, ValueError):
    """A parameter or specification is wrong; the message names it, its value, what is allowed."""


class UnknownParameterError(GemError, TypeError):
    """An environment was given a keyword it does not have."""


class UnknownEnvError(GemError, KeyError):
    """No environment is registered under this id; the message lists the nearest known ids."""

    def __str__(self) -> str:
        # KeyError would print the repr of the message, quotes and escapes included.
        return str(self.args[0]) if self.args else ""


class ResetNeededError(GemError, RuntimeError):
    """`step` was called before `reset` or after the episode ended."""


class MissingExtraError(GemError, ImportError):
    """An optional dependency is not installed; the message names the command that installs it."""


class UnreachableError(GemError, ConnectionError):
    """A server or hub that the environment needs does not answer; the message names it."""


class ContractError(GemError, ValueError):
    """An environment returned what the contract does not allow; the message says what it was."""


class DataError(GemError, ValueError):
    """Task data cannot be read; the message names the source, the row and the column."""


class UnsupportedVersionError(GemError, RuntimeError):
    """A trainer is installed in a version outside the supported range; both are named."""


class RolloutError(GemError, RuntimeError):
    """A rollout cannot go on and no episode is to blame (sampler gone, broken protocol)."""


class RecordError(GemError, OSError):
    """A run's record cannot be written or read; what was written before stays readable."""
