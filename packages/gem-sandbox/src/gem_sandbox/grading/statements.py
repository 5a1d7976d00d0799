"""Parses tests that are statements: finds the names that the program must define."""

from __future__ import annotations

import ast
import builtins
import re
import symtable
from collections.abc import Iterator

from gem.errors import DataError
from gem_sandbox.grading.inside.encoding import IMPORTED, PREAMBLE, PROGRAM
from gem_sandbox.grading.inside.stand_in import OFFERED

# Preamble names that a test may use. The preamble's functions are left out: a test that calls one
# more likely means a function of the program.
_MODULES = frozenset([*PREAMBLE[""], "np", "pytest"])
_PREAMBLE = _MODULES.union(PREAMBLE["typing"], PREAMBLE["collections"])
_BUILTINS = frozenset(dir(builtins))


class Statement:
    """A test: its source, syntax tree, and which names belong to the program and the preamble."""

    def __init__(self, source: str) -> None:
        """Find the names that the program must define.

        These are the names that neither the test nor Python nor the preamble (names usable
        without import, `gem_sandbox.grading.inside.encoding.PREAMBLE`) defines. If there are none
        and the test calls a single function, of Python or the preamble, the program must define
        that one.

        Raises:
            DataError: The source is not Python, asserts a tuple, which is always true, or cannot be
                passed by any program, as far as its syntax shows: it needs modules, or parts of
                pytest, that tests do not have, or calls nothing of the program.
        """
        self.source = source
        try:
            self.tree = ast.parse(source)
            free = _free(symtable.symtable(source, "test", "exec"))
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise DataError(
                f"a test is not a Python statement ({error}): {source!r:.200}"
            ) from None
        if any(
            isinstance(node, ast.Assert) and isinstance(node.test, ast.Tuple) and node.test.elts
            for node in ast.walk(self.tree)
        ):
            raise DataError(f"a test asserts a tuple, which is always true: {source!r:.200}")
        known = _PREAMBLE - (_MODULES & _bare(self.tree))
        self.names = free - _BUILTINS - known
        if not self.names:
            called = _called(self.tree, free)
            self.names = called if len(called) == 1 else frozenset()
        self.preamble = (free & known) - self.names
        fault = _fault(self.tree, self.names)
        if fault:
            raise DataError(f"no program can pass a test: {fault}: {source!r:.200}")


def _fault(tree: ast.Module, names: frozenset[str]) -> str:
    """Return why no program can pass a test, or '' if its syntax does not show that."""
    imported: set[str] = set()
    pytest, raises = {"pytest"}, set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
            pytest |= {str(a.asname) for a in node.names if a.name == "pytest" and a.asname}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module or ".")
            if node.module == "pytest":
                for alias in node.names:
                    if alias.name not in OFFERED:
                        return f"it uses pytest.{alias.name}"
                raises |= {a.asname or a.name for a in node.names if a.name == "raises"}
        elif type(node).__name__ == "TryStar":
            return "it uses except*"
    for name in sorted(imported - PROGRAM - {"pytest"}):
        if name.partition(".")[0] not in IMPORTED:
            return f"it imports {name!r}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _named(node.value, pytest):
            if node.attr not in OFFERED:
                return f"it uses pytest.{node.attr}"
        elif isinstance(node, ast.Call):
            called = node.func
            of_pytest = isinstance(called, ast.Attribute) and _named(called.value, pytest)
            if _named(called, raises) or (of_pytest and ast.unparse(called).endswith(".raises")):
                fault = _raises_fault(node)
                if fault:
                    return fault
    if not (names or imported & PROGRAM or "__import__" in _bare(tree)):
        return "it calls nothing of the program"
    return _definitions_fault(tree)


def _named(node: ast.expr, names: set[str]) -> bool:
    return isinstance(node, ast.Name) and node.id in names


def _raises_fault(node: ast.Call) -> str:
    """Return what is wrong with the arguments of `pytest.raises`, or ''."""
    keywords = {keyword.arg: keyword.value for keyword in node.keywords}
    stars = None in keywords or any(isinstance(part, ast.Starred) for part in node.args)
    if stars or len(node.args) > 1 or "func" in keywords:
        return ""
    if not node.args and not keywords:
        return "it uses pytest.raises without an exception"
    unknown = sorted(map(str, set(keywords) - {"expected_exception", "match", "check"}))
    if unknown:
        return f"it uses pytest.raises with an argument {unknown[0]!r}"
    match = keywords.get("match")
    if isinstance(match, ast.Constant) and isinstance(match.value, str):
        try:
            re.compile(match.value)
        except re.error as error:
            return f"the match of pytest.raises is not a regular expression ({error})"
    return ""


def _definitions_fault(tree: ast.Module) -> str:
    """Return why a test of definitions alone does nothing, or ''."""
    passive = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.Pass)
    for node in tree.body:
        constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not (constant or isinstance(node, passive) or _plain_class(node)):
            return ""
    defined = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    tests = [node for node in defined if node.name.startswith("test")]
    if not tests:
        return "it calls nothing of the program: no function is called, or named test..."
    for test in tests:
        given = test.args
        needed = [*given.posonlyargs, *given.args][: -len(given.defaults) or None]
        needed += [a for a, d in zip(given.kwonlyargs, given.kw_defaults, strict=True) if d is None]
        if needed:
            return f"{test.name} needs the fixture {needed[0].arg!r}"
    return ""


def _plain_class(node: ast.stmt) -> bool:
    """Return whether a statement is a class whose definition calls nothing."""
    return isinstance(node, ast.ClassDef) and not any(
        isinstance(part, (ast.Call, ast.Assert))
        for statement in node.body
        if not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef))
        for part in ast.walk(statement)
    )


def _bare(tree: ast.AST) -> set[str]:
    """Return the names that are used other than before a dot."""
    bases = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and id(n) not in bases}


def _called(tree: ast.AST, free: frozenset[str]) -> frozenset[str]:
    """Return which names are called, or passed to a function of the test.

    None in a test with imports: it may test what it imports.
    """
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            return frozenset()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            given = [] if node.func.id in free else node.args
            names |= {part.id for part in (node.func, *given) if isinstance(part, ast.Name)}
    return free & names


def _free(module: symtable.SymbolTable) -> frozenset[str]:
    """Return the names that are used but not bound at the top level."""
    bound = {
        symbol.get_name()
        for symbol in module.get_symbols()
        if symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()
    }

    def used(table: symtable.SymbolTable) -> Iterator[str]:
        for symbol in table.get_symbols():
            if symbol.is_referenced() and (table is module or symbol.is_global()):
                yield symbol.get_name()
        for child in table.get_children():
            yield from used(child)

    return frozenset(used(module)) - bound
