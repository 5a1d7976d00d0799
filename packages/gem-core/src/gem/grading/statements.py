"""Parses tests that are statements: finds the names that the program must define."""

from __future__ import annotations

import ast
import builtins
import symtable
from collections.abc import Iterator

from gem.errors import DataError
from gem.grading.inside.encoding import PREAMBLE

# Preamble names that a test may use. The preamble's functions are left out: a test that calls one
# more likely means a function of the program.
_MODULES = frozenset([*PREAMBLE[""], "np"])
_PREAMBLE = _MODULES.union(PREAMBLE["typing"], PREAMBLE["collections"])
_BUILTINS = frozenset(dir(builtins))


class Statement:
    """A test: its source, syntax tree, and which names belong to the program and the preamble."""

    def __init__(self, source: str) -> None:
        """Find the names that the program must define.

        These are the names that neither the test nor Python nor the preamble (names usable
        without import, `gem.grading.inside.encoding.PREAMBLE`) defines. If there are none and the
        test calls a single function, of Python or the preamble, the program must define that one.

        Raises:
            DataError: The source is not Python, or asserts a tuple, which is always true.
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
