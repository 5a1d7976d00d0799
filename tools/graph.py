"""The graph of imports: which module imports which, also lazily and by name.

    python tools/graph.py          # the test files that what git says is changed can break
    python tools/graph.py BRANCH   # what differs from that branch, besides what is not committed

Environments are made by their ids, which no import shows: `ENVIRONMENTS` names tests that do.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHARED = ("tests/shared", "tests/conformance", "tools")
"""Folders whose modules tests import by their bare names, as `pythonpath` of pytest says."""
HEAVY = (
    "verl",
    "openrlhf",
    "oat",
    "rl2",
    "skyrl",
    "tinker",
    "inspect",
    "verifiers",
    "site",
    "e2e",
    "learn",
)
"""Folders of tests that need another environment than the development's, or minutes."""
APART = {
    "Makefile": "tests/packages/test_makefile.py",
    "pyproject.toml": "tests/packages",
    "README.md": "tests/docs",
    "docs": "tests/docs",
    "recipes": "tests/conformance/test_recipes.py",
}
"""What no import shows: tests of what lies at a path."""
PLUGGED = ("sandbox", "serve", "tau", "judge", "box", "vision")
"""Packages, without `gem-`, that are found by entry points: their own tests see all of them."""
ENVIRONMENTS = {
    "packages/gem-core/src/gem/envs/games/": "tests/core/test_games.py",
    "packages/gem-core/src/gem/envs/multi/": "tests/core/test_multi*.py",
    "packages/gem-core/src/gem/envs/gym.py": "tests/core/test_plain_envs.py",
}
"""Tests that make the environments of a folder by their ids."""


def modules(source: Path) -> dict[str, Path]:
    """Return the files below a `src` folder by the name of their module."""
    found = {}
    for path in source.rglob("*.py"):
        parts = path.relative_to(source).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(module: str, path: Path) -> Iterator[str]:
    """Yield what a file imports, also inside functions, but not for type checking.

    `from package import name` is an import of the package, and of the module `package.name`.
    """
    package = module.split(".")
    if path.name != "__init__.py":
        package.pop()
    waiting: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
            continue
        waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            origin = ".".join([*above, *filter(None, [node.module])])
            yield origin
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def reach(edges: Mapping[str, set[str]], start: str) -> set[str]:
    """Return what `start` imports, directly or through others; with itself if in a circle."""
    found: set[str] = set()
    waiting = [*edges[start]]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += edges[name]
    return found


def named(path: Path) -> Iterator[str]:
    """Yield the modules of ours that a file names in texts, as `module` or `module:attribute`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            match = re.fullmatch(r"(gem(?:_[a-z0-9]+)?(?:\.[a-z_0-9]+)+)(?::\w+)?", node.value)
            if match:
                yield match[1]


@functools.cache
def sources() -> dict[str, Path]:
    """Return every module of the packages, and those that tests share, by name."""
    files: dict[str, Path] = {}
    for source in sorted(ROOT.glob("packages/*/src")):
        files |= modules(source)
    for folder in SHARED:
        files |= {path.stem: path for path in (ROOT / folder).glob("[a-z]*.py")}
    return files


@functools.cache
def importers() -> dict[str, set[str]]:
    """Return for each module those that import it; with a module each `__init__` above it."""
    files = sources()
    found: dict[str, set[str]] = {name: set() for name in files}
    for name, path in files.items():
        for other in _used(name, path):
            found[other].add(name)
    return found


def affected(changed: Sequence[str]) -> list[str]:
    """Return the test files that a change can break, those of `HEAVY` left out.

    Args:
        changed: Paths from the root.
    """
    names = {str(path.relative_to(ROOT)): name for name, path in sources().items()}
    hit = {names[path] for path in changed if path in names}
    hit |= {name for each in hit for name in reach(importers(), each)}
    tests = {each for path in changed for each in _apart(path)}
    for test in sorted(ROOT.glob("tests/*/test_*.py")):
        place = str(test.relative_to(ROOT))
        if place.split("/")[1] in HEAVY:
            continue
        around = [f for f in (test, test.parent / "conftest.py") if f.exists()]
        if hit & {m for f in around for m in _used("", f)} or {
            str(f.relative_to(ROOT)) for f in around
        } & set(changed):
            tests.add(place)
    whole = {each for each in tests if not each.endswith(".py")}
    return sorted(whole | {each for each in tests if str(Path(each).parent) not in whole})


@functools.cache
def _used(module: str, path: Path) -> frozenset[str]:
    """Return the modules of ours that a file imports or names, with each `__init__` above them."""
    files = sources()
    used = {*imports(module, path), *named(path)} & files.keys() - {module}
    return frozenset(used | {above for each in used for above in _above(each, files)})


def _above(module: str, files: dict[str, Path]) -> Iterator[str]:
    while "." in module:
        module = module.rpartition(".")[0]
        if module in files:
            yield module


def _apart(path: str) -> Iterator[str]:
    parts = Path(path).parts
    for name, tests in APART.items():
        if name in (parts[0], parts[-1]):
            yield tests
    # Environments are made by their ids, which no import shows; neither are files of data.
    if parts[0] == "packages" and "src" in parts:
        own = parts[1].removeprefix("gem-")
        for room, tests in ENVIRONMENTS.items():
            if path.startswith(room):
                yield from (str(each.relative_to(ROOT)) for each in sorted(ROOT.glob(tests)))
        plugged = own in PLUGGED or not path.endswith(".py")
        # A module that is gone has no place in the graph.
        unseen = plugged or not (ROOT / path).exists()
        if unseen and own not in HEAVY and (ROOT / "tests" / own).is_dir():
            yield f"tests/{own}"


def changed(base: str | None) -> list[str]:
    """Return the paths that git says are changed: not committed, or since a branch."""
    said = [["git", "status", "--porcelain", "--untracked-files=all", "--no-renames"]]
    if base is not None:
        said.append(["git", "diff", "--name-only", "--no-renames", f"{base}...HEAD"])
    lines: list[str] = []
    for command in said:
        out = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout
        lines += [line[3:] if command[1] == "status" else line for line in out.splitlines()]
    return sorted({line.strip().strip('"') for line in lines})


if __name__ == "__main__":
    print("\n".join(affected(changed(sys.argv[1] if len(sys.argv) > 1 else None))))
