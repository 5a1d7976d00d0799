"""Benchmarks and examples: what they import of our packages is there."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = {
    folder.name: folder
    for folder in sorted(ROOT.glob("packages/*/src/*"))
    if (folder / "__init__.py").exists()
}
PROGRAMS = sorted(
    path.relative_to(ROOT)
    for pattern in ("benchmarks/**/*.py", "tools/*.py", "packages/*/examples/**/*.py")
    for path in ROOT.glob(pattern)
)


ORIGINAL = ("gem.utils.math_grader", "gem.tools.python_code_tool", "gem.vector.async_vector_env")
"""Modules of the original GEM, with which benchmarks compare ours in an environment of its own."""


def source(module: str) -> Path | None:
    """Return the file of a module of ours; None if there is none."""
    package, *rest = module.split(".")
    path = SOURCES[package].joinpath(*rest)
    found = (path.with_suffix(".py"), path / "__init__.py")
    return next((each for each in found if each.exists()), None)


def defined(path: Path) -> set[str]:
    """Return the names that a module defines, imports, or writes in a text (lazy modules)."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(each.asname or each.name).split(".")[0] for each in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def missing(path: Path) -> Iterator[str]:
    """Yield what a program imports of our packages and is not there."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            wanted = [(each.name, ()) for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            wanted = [(node.module, tuple(each.name for each in node.names))]
        else:
            continue
        for module, names in wanted:
            if module.split(".")[0] not in SOURCES or module in ORIGINAL:
                continue
            file = source(module)
            if file is None:
                yield module
                continue
            known = defined(file)
            yield from (
                f"{module}.{name}"
                for name in names
                if name not in known and source(f"{module}.{name}") is None
            )


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_what_a_program_imports_is_there(program: Path) -> None:
    assert not list(missing(ROOT / program))


def test_an_import_of_what_is_not_there_is_noticed(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("from gem.grading import tree\nimport gem.no_such\nfrom gem import make\n")
    assert list(missing(program)) == ["gem.grading.tree", "gem.no_such"]
