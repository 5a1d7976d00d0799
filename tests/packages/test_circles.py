"""No more than two files import each other in a circle, in any package and across packages."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from graph import ROOT, imports, modules, named, reach


def circles(files: Mapping[str, Path]) -> list[list[str]]:
    """Return the groups of modules that import each other, directly or through others."""
    edges = {name: set(imports(name, path)) & set(files) - {name} for name, path in files.items()}
    reached = {name: reach(edges, name) for name in edges}
    groups = {
        tuple(sorted(other for other in reached[name] if name in reached[other])) for name in edges
    }
    return sorted(map(list, groups - {()}))


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
    "gem_judge": {"gem"},
    "gem_train": {"gem", "gem_judge"},
    "gem_sandbox": {"gem"},
    "gem_check": {"gem"},
    "gem_math": {"gem"},
    "gem_serve": {"gem"},
    "gem_tau": {"gem"},
    "gem_box": {"gem", "gem_sandbox"},
    "gem_vision": {"gem"},
    "gem_verifiers": {"gem", "gem_serve"},
    **{f"gem_{name}": {"gem", "gem_train"} for name in ("oat", "openrlhf", "rl2", "skyrl")},
    **{f"gem_{name}": {"gem", "gem_train"} for name in ("template", "tinker", "trl", "verl")},
    # The original's functions that grade programs, by their old names.
    "gem_roll": {"gem", "gem_math", "gem_train", "gem_sandbox"},
    "gem_bench": {"gem", "gem_train", "gem_cpu"},
    "gem_eval": {"gem", "gem_judge", "gem_train", "gem_bench"},
}
"""What each package may import besides itself; gem-cpu may import everything."""


def test_packages_import_downwards_only_also_by_name() -> None:
    wrong = []
    for source in sorted(ROOT.glob("packages/*/src")):
        own = "gem_template" if source.parent.name == "_template" else source.parent.name
        own = "gem" if own == "gem-core" else own.replace("-", "_")
        if own == "gem_cpu":
            continue
        allowed = BELOW[own]
        for name, path in modules(source).items():
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
