"""The exception hierarchy: every error that GEM-core raises to its users derives from `GemError`.

`exit_status` ends a command with such an error. Imports nothing of gem.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable


class GemError(Exception):
    """Base of all errors raised on purpose by GEM-core and its adapters."""


class MisuseError(GemError):
    """An error in the setup or code of a run; it ends the run, as every episode would fail."""


class ConfigurationError(MisuseError, ValueError):
    """A parameter or spec is wrong; the message names it, its value and what is allowed."""


class UnknownParameterError(MisuseError, TypeError):
    """An environment was given a keyword it does not have."""


class UnknownEnvError(MisuseError, KeyError):
    """No environment is registered under this id; the message lists the nearest known ids."""

    def __str__(self) -> str:
        # KeyError would print the repr of the message, quotes and escapes included.
        return str(self.args[0]) if self.args else ""


class ResetNeededError(GemError, RuntimeError):
    """`step` was called before `reset` or after the episode ended."""


class MissingExtraError(MisuseError, ImportError):
    """An optional dependency is not installed; the message names the command that installs it."""


class UnreachableError(GemError, ConnectionError):
    """A server, hub or worker that an environment needs does not respond; the message names it."""


class RefusedError(UnreachableError):
    """A server says that a request is at fault (400, 413, 422); the message names the server."""


class BusyMachineError(UnreachableError):
    """A program or grader had a CPU for too little of its time, also when it ran again alone."""


class ServerFullError(UnreachableError):
    """A server takes no further session for now; the message says which limit it has reached."""


class RemoteError(GemError, RuntimeError):
    """An environment on a server raised; the message is the server's."""


class ContractError(GemError, ValueError):
    """An environment returned something that the contract forbids; the message says what."""


class DataError(GemError, ValueError):
    """Task data cannot be read; the message names the source, the row and the column."""


class UnsupportedVersionError(MisuseError, RuntimeError):
    """A trainer is installed in a version outside the supported range; both are named."""


class RolloutError(MisuseError, RuntimeError):
    """A rollout cannot go on, because of the sampler or a broken protocol, not of one episode."""


class JudgeError(MisuseError, RuntimeError):
    """A run cannot go on with a judge: not calibrated, another model, budget used up, and so on."""


class UnfinishedError(GemError, RuntimeError):
    """A run ended before all that was asked for is recorded; the message has both numbers."""


class RecordError(GemError, OSError):
    """A run's record cannot be written or read; lines written before stay readable."""


def exit_place(error: SystemExit) -> str:
    """Return the file, line and function that called `sys.exit()`."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{place.filename}, line {place.lineno}, in {place.name}"


def exit_status(run: Callable[[], object], *others: type[Exception]) -> int:
    """Run a command; return 0, or 2 after a message on standard error if it cannot be run.

    Args:
        run: Does the work.
        *others: Exceptions besides `GemError` whose text says enough.
    """
    expected: tuple[type[Exception], ...] = (GemError, *others)
    try:
        run()
    except expected as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0
