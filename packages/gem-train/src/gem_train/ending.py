"""`to_the_end`: a run that stops before its end says so, and does not end with exit status 0.

Foreign code that runs inside a trainer (an environment, a tool, a reward, a callback) may call
`sys.exit()`, and a trainer's loop may end early without an error. Both look like success to
whoever reads the exit status.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from gem.errors import UnfinishedError, exit_place


@contextlib.contextmanager
def to_the_end(
    done: Callable[[], int], wanted: Callable[[], int], what: str = "iterations"
) -> Iterator[None]:
    """Raise an error if the work of the `with` block ends before all of it is done.

    `sys.exit()` with status 0 inside the block is such an end, whatever is done already. With
    another status it goes on and is written to standard error: the exit status tells of it.

    Args:
        done: Returns how much is recorded; called when the block ends.
        wanted: Returns how much was asked for; called when the block ends.
        what: Name of what is counted, in the plural.

    Raises:
        UnfinishedError: Something in the block called `sys.exit()`, or less is recorded than was
            asked for.
    """
    try:
        yield
    except SystemExit as error:
        asked = wanted()
        after = f" after {done()} of {asked} {what}" if asked else ""
        message = (
            f"the run ended{after}, because code that runs in it called sys.exit({error.code!r}): "
            f"{exit_place(error)}"
        )
        # The system keeps the last eight bits of a status.
        if error.code is None or (isinstance(error.code, int) and error.code % 256 == 0):
            raise UnfinishedError(message) from error
        with contextlib.suppress(OSError):
            sys.stderr.write(f"{message}\n")
        raise
    recorded, asked = done(), wanted()
    if recorded < asked:
        raise UnfinishedError(
            f"the run ended without an error, but recorded only {recorded} of {asked} {what}"
        )
