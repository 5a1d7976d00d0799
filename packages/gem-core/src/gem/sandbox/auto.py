"""The executor that takes the fastest tier that a program can run in."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from gem.sandbox.base import Executor, Limits, Result, Session
from gem.sandbox.bwrap import BwrapExecutor
from gem.sandbox.monty import MontyExecutor


class AutoExecutor(Executor):
    """Runs programs in Monty, and in bubblewrap what needs more than Monty has.

    A program that reads stdin goes to bubblewrap at once. One that fails in Monty, other than by
    a limit, runs there again from its beginning, for Monty to lack something looks like an error
    of the program; it has left nothing behind that the second run could see. What the two runs
    take together is limited as one.
    """

    isolates = BwrapExecutor.isolates & MontyExecutor.isolates

    def __init__(self, distributions: Sequence[str] | None = None) -> None:
        """Check that both are there.

        Args:
            distributions: Those that programs may import; see `BwrapExecutor`.

        Raises:
            ConfigurationError: Bubblewrap is not installed, or a distribution is not allowed.
            MissingExtraError: The extra `monty` is not installed.
        """
        self.fast = MontyExecutor()
        self.full = BwrapExecutor(distributions=distributions)

    def run(self, code: str, stdin: str = "", limits: Limits = Limits()) -> Result:  # noqa: B008
        """Run a program; see `Executor.run`."""
        spent = 0.0
        if not stdin:
            result = self.fast.run(code, stdin, limits)
            if result.exit_code == 0 or result.limit_hit is not None:
                return result
            spent = result.seconds
        left = max(limits.wall_s - spent, 1e-3)
        result = self.full.run(code, stdin, dataclasses.replace(limits, wall_s=left))
        return dataclasses.replace(result, seconds=result.seconds + spent)

    def session(self, limits: Limits = Limits()) -> Session:  # noqa: B008
        """Begin a session in bubblewrap, as its programs cannot move; see `Executor.session`."""
        return self.full.session(limits)
