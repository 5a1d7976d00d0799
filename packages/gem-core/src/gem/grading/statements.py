"""Tests that are statements: which of their names are the program's."""

from __future__ import annotations

import ast
import builtins
import symtable
from collections.abc import Iterator

from gem.errors import DataError
from gem.grading.inside.encoding import PREAMBLE

# Of functions that may be used without import, a test more likely means the program's.
_MODULES = frozenset([*PREAMBLE[""], "np"])
_PREAMBLE = _MODULES.union(PREAMBLE["typing"], PREAMBLE["collections"])
_BUILTINS = frozenset(dir(builtins))
_SHOWN = 200


class Statement:
    """A test: its source, and which of its names mean what."""

    def __init__(self, source: str) -> None:
        """Find out what the program must define.

        Names that neither the test nor Python defines are the program's, but for those that may
        be used without import (`gem.grading.inside.encoding.PREAMBLE`). If there are none, and
        the test calls one built-in function, or one of the preamble, the program has its own.

        Raises:
            DataError: It is no Python, or asserts a tuple, which is always true.
        """
        self.source = source
        try:
            self.tree = ast.parse(source)
            free = _free(symtable.symtable(source, "test", "exec"))
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise DataError(
                f"a test is not a Python statement ({error}): {source[:_SHOWN]!r}"
            ) from None
        if any(
            isinstance(node, ast.Assert) and isinstance(node.test, ast.Tuple) and node.test.elts
            for node in ast.walk(self.tree)
        ):
            raise DataError(f"a test asserts a tuple, which is always true: {source[:_SHOWN]!r}")
        known = _PREAMBLE - (_MODULES & _bare(self.tree))
        self.names = free - _BUILTINS - known
        if not self.names:
            called = _called(self.tree, free)
            self.names = called if len(called) == 1 else frozenset()
        self.preamble = (free & known) - self.names


def _bare(tree: ast.AST) -> set[str]:
    """Return the names that stand anywhere but before a dot."""
    bases = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and id(n) not in bases}


def _called(tree: ast.AST, free: frozenset[str]) -> frozenset[str]:
    """Return which of the names are called, or given to a function of the test; none in a test
    that imports, for that may be what it tests."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            return frozenset()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            given = [] if node.func.id in free else node.args
            names |= {part.id for part in (node.func, *given) if isinstance(part, ast.Name)}
    return free & names


def _free(module: symtable.SymbolTable) -> frozenset[str]:
    """Return the names that are used and not bound at the top level."""
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
