"""Is the installation what the adapter supports: versions, and `python -m gem_<trainer>.doctor`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TypeAlias

from gem.errors import GemError, MissingExtraError, UnsupportedVersionError


def require(distribution: str, supported: str, *, by: str, install: str) -> str:
    """Return the installed version of a trainer.

    Args:
        distribution: Its name on the package index.
        supported: Version specifier, such as `>=0.9.1,<0.10`.
        by: Name and version of the adapter, for messages.
        install: Command that installs a supported version.

    Raises:
        MissingExtraError: It is not installed.
        UnsupportedVersionError: Its version is not supported.
    """
    try:
        found = version(distribution)
    except PackageNotFoundError:
        raise MissingExtraError(
            f"{distribution} is not installed; install it with: {install}"
        ) from None
    # packaging comes with every trainer; it is no dependency of what must work without one.
    from packaging.specifiers import SpecifierSet

    if not SpecifierSet(supported).contains(found, prereleases=True):
        raise UnsupportedVersionError(
            f"{distribution} {found} is installed, {by} supports {distribution} {supported}; "
            f"install a supported one with: {install}"
        )
    return found


class ProblemError(Exception):
    """What is wrong with an installation and what to do about it."""


Check: TypeAlias = Callable[[], str]
"""Returns a line that says what was found; raises `ProblemError` or `GemError`."""


def examine(checks: Sequence[Check]) -> Iterator[tuple[bool, str]]:
    """Yield for each check whether it passed and a line about it; ends at the first problem.

    Args:
        checks: In order; one may rely on those before it.
    """
    for check in checks:
        try:
            yield True, check()
        except (ProblemError, GemError) as error:
            yield False, str(error)
            return


def doctor(checks: Sequence[Check]) -> int:
    """Print the findings; return the exit status, 1 if something is wrong."""
    passed = True
    for passed, line in examine(checks):
        print(f"{'ok     ' if passed else 'PROBLEM'}  {line}")
    return 0 if passed else 1
