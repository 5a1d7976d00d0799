"""What the commands of gem and its adapters have in common: exit status 2, lines of progress."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

from gem.errors import GemError
from gem.training.metrics import progress


def show(iteration: int, split: str, metrics: Mapping[str, float]) -> None:
    """Print a line about a batch; see `gem.training.metrics.progress`."""
    print(progress(iteration, split, metrics), flush=True)


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
