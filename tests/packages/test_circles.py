"""No more than two files import each other in a circle, in any package and across packages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]


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


def circles(files: Mapping[str, Path]) -> list[list[str]]:
    """Return the groups of modules that import each other, directly or through others."""
    edges = {name: set(imports(name, path)) & set(files) - {name} for name, path in files.items()}
    reached = {name: reach(edges, name) for name in edges}
    groups = {
        tuple(sorted(other for other in reached[name] if name in reached[other])) for name in edges
    }
    return sorted(map(list, groups - {()}))


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


def test_no_circle_of_imports_has_more_than_two_files() -> None:
    files: dict[str, Path] = {}
    for source in ROOT.glob("packages/*/src"):
        files |= modules(source)
    assert "gem.core" in files
    found = [group for group in circles(files) if len(group) > 2]
    assert not found, "\n".join(" ".join(group) for group in found)


def test_gem_core_has_no_circle_of_imports() -> None:
    assert circles(modules(ROOT / "packages" / "gem-core" / "src")) == []


def test_an_experiment_knows_no_trainer() -> None:
    files = modules(ROOT / "packages" / "gem-train" / "src")
    room = "gem_train.experiment"
    below = [name for name in files if name.startswith(f"{room}.")]
    assert below
    for name in below:
        ours = [other for other in imports(name, files[name]) if other.startswith("gem_train")]
        wrong = [o for o in ours if not o.startswith((room, "gem_train.packed"))]
        assert not wrong, (name, wrong)


BELOW: dict[str, set[str]] = {
    "gem": set(),
    "gem_train": {"gem"},
    "gem_sandbox": {"gem"},
    "gem_serve": {"gem"},
    "gem_tau": {"gem"},
    **{f"gem_{name}": {"gem", "gem_train"} for name in ("oat", "openrlhf", "rl2")},
    **{f"gem_{name}": {"gem", "gem_train"} for name in ("template", "tinker", "trl", "verl")},
    # The original's functions that grade programs, by their old names.
    "gem_roll": {"gem", "gem_train", "gem_sandbox"},
    "gem_bench": {"gem", "gem_train", "gem_cpu"},
    "gem_eval": {"gem", "gem_train", "gem_bench"},
}
"""What each package may import besides itself; gem-cpu may import everything."""


def named(path: Path) -> Iterator[str]:
    """Yield the modules of ours that a file names in texts, as `module` or `module:attribute`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            match = re.fullmatch(r"(gem(?:_[a-z0-9]+)?(?:\.[a-z_0-9]+)+)(?::\w+)?", node.value)
            if match:
                yield match[1]


def test_packages_import_downwards_only_also_by_name() -> None:
    wrong = []
    for source in sorted(ROOT.glob("packages/*/src")):
        for name, path in modules(source).items():
            own = name.split(".")[0]
            allowed = BELOW.get(own)
            if allowed is None:  # gem-cpu, and modules that lie in other namespaces
                continue
            for other in (*imports(name, path), *named(path)):
                package = other.split(".")[0]
                if package in BELOW.keys() - allowed - {own}:
                    wrong.append(f"{name} -> {other}")
    assert not wrong, "\n".join(wrong)


def test_a_circle_is_found_through_packages_functions_and_relative_imports(tmp_path: Path) -> None:
    texts = {
        "p/__init__.py": "from p.a import x",
        "p/a.py": "def f():\n    import p.b",
        "p/b.py": "from . import c",
        "p/c.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import p.d",
        "p/d.py": "from .a import x",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert circles(modules(tmp_path)) == [["p", "p.a", "p.b"]]
