"""Which installed packages a bubblewrap sandbox shows to programs, as paths; used by `view`."""

from __future__ import annotations

import csv
import functools
import itertools
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.machinery import all_suffixes
from pathlib import Path

from gem.errors import ConfigurationError

DISTRIBUTIONS = (
    *("numpy", "scipy", "sympy", "gmpy2", "pandas", "networkx", "scikit-learn"),
    *("sortedcontainers", "more-itertools"),
)
"""Shown by default if installed, with their dependencies."""
HIDDEN = frozenset(
    {"gem", "gem_judge", "gem_math", "gem_sandbox", "gem_tau", "gem_vision", "reasoning_gym"}
)
"""Top-level packages with golds, tests or task generators: never shown to a program."""

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_EXTRA = re.compile(r"\bextra\b")
# Paths in RECORD that are metadata or bytecode, not modules.
_APART = re.compile(r"[^/]*\.(?:dist-info|egg-info|pth)(?:/|$)|__pycache__/")
COPIED = 1 << 20
"""Files of at most this many bytes are copied into the sandbox, larger ones mounted."""


@dataclass(frozen=True)
class Shown:
    """Paths to show, each with its place relative to the sandbox's folder of packages."""

    folders: tuple[tuple[Path, str], ...] = ()
    """Folders and large files, to be mounted."""
    files: tuple[tuple[Path, str], ...] = ()
    """Small files, to be copied."""


def names(what: str, given: object) -> tuple[str, ...]:
    """Return a sequence of strings as a tuple.

    Raises:
        ConfigurationError: `given` is not a sequence of strings.
    """
    whole = isinstance(given, Sequence) and not isinstance(given, (str, bytes))
    if not whole or not all(isinstance(name, str) for name in given):  # type: ignore[attr-defined]
        raise ConfigurationError(f"{what} must be a sequence of names, got {given!r}")
    return tuple(given)  # type: ignore[arg-type]


@functools.cache
def shown(distributions: tuple[str, ...] | None, modules: tuple[str, ...]) -> Shown:
    """Return the files of installed packages that programs see.

    Args:
        distributions: Names of installed distributions; None: the installed ones of
            `DISTRIBUTIONS`. Their dependencies, by metadata and without extras, are shown too.
        modules: Importable names; the distribution of each is shown, too, if it has one.

    Raises:
        ConfigurationError: A distribution name is malformed, not installed, or installed without
            its files; or the distribution depends on gem or reasoning-gym.
    """
    chosen: dict[str, metadata.Distribution] = {}
    for name in DISTRIBUTIONS if distributions is None else distributions:
        if not _NAME.fullmatch(name):
            raise ConfigurationError(f"distributions: {name!r} is not the name of a distribution")
        found = _installed(name)
        if found is None and distributions is not None:
            raise ConfigurationError(f"distributions: {name!r} is not installed")
        if found is not None:
            _add(chosen, found, (name,))
    for module in modules:
        for owner in _owners(module.partition(".")[0]):
            _add(chosen, owner, (module,))
    folders: dict[str, Path] = {}
    files: dict[str, Path] = {}
    for name, distribution in chosen.items():
        there = False
        for path, place in _entries(distribution):
            there = True
            small = path.is_file() and path.stat().st_size <= COPIED
            (files if small else folders).setdefault(place, path)
        if not there and name in map(_canonical, distributions or ()):
            raise ConfigurationError(
                f"distributions: {name!r} is installed without files of its own, as editable "
                "installs are; install it as a wheel"
            )
        if there and (about := _about(distribution)) is not None:
            files.setdefault(about[1], about[0])
    return Shown(
        tuple((path, place) for place, path in sorted(folders.items())),
        tuple((path, place) for place, path in sorted(files.items())),
    )


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _installed(name: str) -> metadata.Distribution | None:
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None


def _owners(module: str) -> Iterator[metadata.Distribution]:
    """Find the distributions that a top-level module belongs to."""
    if module in HIDDEN:
        raise ConfigurationError(f"modules: programs must not see {module!r}")
    if module in sys.stdlib_module_names:
        return
    likely = _installed(module)
    if likely is not None and module in _tops(likely):
        yield likely
        return
    for name in metadata.packages_distributions().get(module, ()):
        if (found := _installed(name)) is not None:
            yield found


def _add(
    chosen: dict[str, metadata.Distribution],
    distribution: metadata.Distribution,
    chain: tuple[str, ...],
) -> None:
    """Add a distribution and its installed dependencies to `chosen`."""
    name = _canonical(distribution.metadata["Name"])
    if name in chosen:
        return
    if not HIDDEN.isdisjoint(_tops(distribution)) or name in map(_canonical, (*HIDDEN, "gem-core")):
        raise ConfigurationError(
            f"programs must not see {name!r}, which holds answers or makes tasks; it was asked "
            f"for by {' -> '.join(chain)}"
        )
    chosen[name] = distribution
    for requirement in distribution.requires or ():
        needed, _, marker = requirement.partition(";")
        match = _NAME.match(needed.strip())
        # Markers are not evaluated: requirements of other platforms are not installed anyway.
        if match and not _EXTRA.search(marker) and (found := _installed(match[0])) is not None:
            _add(chosen, found, (*chain, match[0]))


def _tops(distribution: metadata.Distribution) -> set[str]:
    """Return the names of the top-level modules and folders of a distribution."""
    return {place.partition("/")[0].partition(".")[0] for place in _places(distribution)}


def _places(distribution: metadata.Distribution) -> list[str]:
    """Return the paths of a distribution's files, relative to the folder it is installed in.

    Without a list of files (system package managers write none): its top-level packages.
    """
    record = distribution.read_text("RECORD")
    if record:
        places = [row[0] for row in csv.reader(record.splitlines()) if row]
    elif distribution.files:
        places = [file.as_posix() for file in distribution.files]
    else:
        text = distribution.read_text("top_level.txt")
        tops = text.split() if text else [distribution.metadata["Name"].replace("-", "_")]
        found = [top + suffix for top in tops for suffix in ("", *all_suffixes())]
        return [place for place in found if _path(distribution, place).exists()]
    return [
        place
        for place in places
        if not _APART.match(place) and ".." not in place.split("/") and not place.startswith("/")
    ]


def _path(distribution: metadata.Distribution, place: str) -> Path:
    return Path(str(distribution.locate_file(place)))


def _entries(distribution: metadata.Distribution) -> Iterator[tuple[Path, str]]:
    """Return the fewest folders and files that hold the distribution's files and nothing else."""
    places = [place.split("/") for place in _places(distribution)]
    within: dict[str, set[str]] = {}
    for parts in places:
        for depth in range(1, len(parts)):
            within.setdefault("/".join(parts[:depth]), set()).add(parts[depth])
    # Folders with files of others in them, and their parents, are shown piece by piece.
    apart: set[str] = set()
    for folder, own in within.items():
        path = _path(distribution, folder)
        if path.is_dir() and not own >= {each.name for each in path.iterdir()} - {"__pycache__"}:
            apart.update(itertools.accumulate(folder.split("/"), "{}/{}".format))
    taken: set[str] = set()
    for parts in places:
        depth = 1
        while "/".join(parts[:depth]) in apart:
            depth += 1
        whole = "/".join(parts[:depth])
        if whole not in taken and (path := _path(distribution, whole)).exists():
            taken.add(whole)
            yield path.resolve(), whole


def _about(distribution: metadata.Distribution) -> tuple[Path, str] | None:
    """Return the METADATA file, for programs that query a version, and its place."""
    for line in (distribution.read_text("RECORD") or "").splitlines():
        place = line.partition(",")[0]
        if place.endswith(".dist-info/METADATA"):
            return _path(distribution, place), place
    return None
