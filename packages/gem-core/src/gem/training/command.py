"""What the commands of gem and its adapters have in common: exit status 2 and a message."""

from __future__ import annotations

import sys
from collections.abc import Callable

from gem.errors import GemError


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
