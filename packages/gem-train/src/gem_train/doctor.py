"""Checks that what is installed is what an adapter supports: `python -m gem_<trainer>.doctor`.

- `Requirement`: the versions of a distribution that an adapter supports, above all its trainer's.
- `entry_point`, `importable`, `engine`, `ray_cluster`: checks that several doctors make.
- `examine`, `doctor`: make checks in order, up to the first problem.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType, ModuleType
from typing import Any, TypeAlias

from gem.errors import GemError, MissingExtraError, UnsupportedVersionError

_CONNECT_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Requirement:
    """The versions of a distribution that an adapter supports."""

    distribution: str
    """Its name on the package index."""
    supported: str
    """Version specifier, such as `>=0.9.1,<0.10`."""
    by: str
    """Name and version of the adapter, such as `gem-verl 0.1.0`."""
    install: str
    """Command that installs a supported version."""

    def check(self) -> str:
        """Return the installed version.

        Raises:
            MissingExtraError: The distribution is not installed.
            UnsupportedVersionError: Its version is not supported.
        """
        try:
            found = version(self.distribution)
        except PackageNotFoundError:
            raise MissingExtraError(
                f"{self.distribution} is not installed; install it with: {self.install}"
            ) from None
        # packaging comes with every trainer; it is no dependency of what must work without one.
        from packaging.specifiers import SpecifierSet

        if not SpecifierSet(self.supported).contains(found, prereleases=True):
            raise UnsupportedVersionError(
                f"{self.distribution} {found} is installed, {self.by} supports {self.distribution} "
                f"{self.supported}; install a supported one with: {self.install}"
            )
        return found

    def describe(self) -> str:
        """Return the first line of a doctor: the version found, the range, the adapter's version.

        Raises:
            MissingExtraError: As `check` does.
            UnsupportedVersionError: As `check` does.
        """
        return f"{self.distribution} {self.check()} (supported: {self.supported}), {self.by}"

    def about(self, **others: Any) -> dict[str, Any]:
        """Return what a run's record says of the trainer: its name and the versions.

        Args:
            **others: What else is known of the run; see `gem_train.recording.RunRecording`.

        Raises:
            MissingExtraError: As `check` does.
            UnsupportedVersionError: As `check` does.
        """
        adapter, version = self.by.split()
        versions = {self.distribution: self.check(), adapter: version}
        return {"trainer": adapter.removeprefix("gem-"), "versions": versions, **others}


class ProblemError(Exception):
    """What is wrong with an installation and what to do about it."""


Check: TypeAlias = Callable[[], str]
"""Returns a line that says what was found; raises `ProblemError` or `GemError`."""


def entry_point(package: str, name: str, group: str = "gem.adapters") -> str:
    """Check that an adapter's entry point can be found, without loading it.

    Args:
        package: Distribution of the adapter.
        name: Name of the entry point.
        group: Its group; by default the one in which gem-bench looks for adapters.

    Raises:
        ProblemError: There is none.
    """
    if name not in {entry.name for entry in importlib.metadata.entry_points(group=group)}:
        raise ProblemError(
            f"{package}'s entry point is missing: the package is on the path but not installed. "
            f"Run: pip install {package} (in a clone: pip install -e packages/{package})"
        )
    return f"{package} is installed: {group} has its entry point"


def importable(
    *modules: str, what: str, hints: Mapping[str, str] = MappingProxyType({})
) -> list[ModuleType]:
    """Return imported modules.

    Args:
        modules: Their names.
        what: What they are, for the message.
        hints: What to do about an error whose text contains the key; the first that fits is used.
            The empty key fits all errors.

    Raises:
        ProblemError: One of them cannot be imported.
    """
    try:
        return [importlib.import_module(module) for module in modules]
    except Exception as error:
        hint = next((f"; {hint}" for part, hint in hints.items() if part in str(error)), "")
        raise ProblemError(
            f"{what} cannot be imported: {type(error).__name__}: {error}{hint}"
        ) from error


def engine(*distributions: str, install: str) -> str:
    """Return which inference engines are installed; they are not imported.

    Args:
        distributions: Those that the trainer can use.
        install: Command that installs one.

    Raises:
        ProblemError: None of them is.
    """
    found = []
    for name in distributions:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    if not found:
        raise ProblemError(
            f"no inference engine is installed ({' or '.join(distributions)}); install one with: "
            f"{install}"
        )
    return f"engine: {', '.join(found)}"


def ray_cluster() -> str:
    """Check that the Ray cluster answers that a launcher started from here would use.

    Raises:
        ProblemError: It does not.
    """
    address = os.environ.get("RAY_ADDRESS", "")
    if address in ("", "local", "auto"):
        return "Ray: the launcher starts or finds a cluster on this machine"
    host, _, port = address.removeprefix("ray://").removeprefix("http://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), _CONNECT_TIMEOUT_S).close()
    except (OSError, ValueError) as error:
        raise ProblemError(
            f"no Ray cluster answers at RAY_ADDRESS={address}: {error}; start one with "
            "`ray start --head`, or unset RAY_ADDRESS"
        ) from error
    return f"Ray: a cluster answers at {address}"


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
