"""Runs a block of Python and compares what its comments claim."""

from __future__ import annotations

import ast
import io
import tokenize
from contextlib import redirect_stdout
from typing import Any


def comments(code: str) -> dict[int, str]:
    """Return the comments of a program by line."""
    tokens = tokenize.generate_tokens(io.StringIO(code).readline)
    return {t.start[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}


def literal(text: str) -> tuple[bool, Any]:
    """Return whether a text is a Python literal, and its value."""
    try:
        return True, ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return False, None


def words(text: str) -> str:
    return " ".join(text.split())


def run_snippet(code: str, names: dict[str, Any]) -> int:
    """Run a program and check what its comments claim; return the number of claims.

    The comment of a `print` is the beginning of what is printed, up to `...`. The comment of an
    expression or an assignment is its value, if it is a literal; other comments are prose.
    """
    said, claims = comments(code), 0
    for statement in ast.parse(code).body:
        printed = io.StringIO()
        with redirect_stdout(printed):
            exec(compile(ast.Module([statement], []), "snippet", "exec"), names)
        out = words(printed.getvalue())
        for node in ast.walk(statement):
            claim = said.get(getattr(node, "end_lineno", None) or 0, "")
            if not claim or not isinstance(node, ast.Expr | ast.Assign):
                continue
            if isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "print":
                expected = words(claim.partition("...")[0])
                assert expected in out if node is not statement else out.startswith(expected), out
                claims += 1
                continue
            target = node.targets[0] if isinstance(node, ast.Assign) else node.value
            is_literal, value = literal(claim)
            if is_literal and isinstance(target, ast.Name | ast.Attribute | ast.Subscript):
                found = eval(ast.unparse(target), names)
                assert found == value, f"{ast.unparse(target)} is {found!r}, not {claim}"
                claims += 1
    return claims
