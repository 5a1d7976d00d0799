"""The `auto` executor: Monty first, bubblewrap for programs that Monty cannot run."""

from __future__ import annotations

from collections.abc import Sequence

from gem.sandbox.base import Executor, Limits, Result, Session
from gem.sandbox.bwrap import BwrapExecutor
from gem.sandbox.monty import MontyExecutor


class AutoExecutor(Executor):
    """Runs programs in Monty, and in bubblewrap those that Monty cannot run.

    A program with stdin goes to bubblewrap at once. A program that fails in Monty, other than by a
    limit, is run again from its beginning in bubblewrap: a feature that Monty lacks looks like an
    error of the program. The first run leaves nothing that the second could see. The limits apply
    to each of the two runs.
    """

    isolates = BwrapExecutor.isolates & MontyExecutor.isolates

    def __init__(self, distributions: Sequence[str] | None = None) -> None:
        """Check that Monty and bubblewrap are available.

        Args:
            distributions: Distributions that programs may import; see `BwrapExecutor`.

        Raises:
            ConfigurationError: Bubblewrap is not installed, or a distribution is not allowed.
            MissingExtraError: The extra `monty` is not installed.
        """
        self.fast = MontyExecutor()
        self.full = BwrapExecutor(distributions=distributions)

    def run(self, code: str, stdin: str = "", limits: Limits = Limits()) -> Result:  # noqa: B008
        """Run a program; see `Executor.run`."""
        if not stdin:
            result = self.fast.run(code, stdin, limits)
            if result.exit_code == 0 or result.limit_hit is not None:
                return result
        return self.full.run(code, stdin, limits)

    def session(self, limits: Limits = Limits()) -> Session:  # noqa: B008
        """Begin a session in bubblewrap, as its programs cannot move; see `Executor.session`."""
        return self.full.session(limits)
