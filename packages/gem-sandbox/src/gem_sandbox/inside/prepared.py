"""What a server imports and precomputes before it forks programs."""

from __future__ import annotations

import importlib
import sys

from .beneath import deepen_threads

# Imported by every server but the first; see `server.main`.
COMMON = """
    abc array bisect cmath collections copy ctypes dataclasses datetime decimal enum fractions
    functools heapq io itertools json math operator random re statistics string struct textwrap
    threading time traceback types typing
"""
_INTEGRANDS = (
    "x x**2 x**3 sin(x) cos(x) tan(x) exp(x) log(x) sqrt(x) 1/x 1/(x+1) 1/(x**2+1) x*sin(x) "
    "x*cos(x) x*exp(x) x**2*sin(x) x**2*cos(x) x**2*exp(x) x*log(x) exp(-x) exp(2*x) sin(x)**2 "
    "cos(x)**2 sin(2*x) x/(x**2+1) exp(x)*sin(x) sqrt(1-x**2)"
)


def load(modules: str) -> None:
    """Import the modules of this list that are installed."""
    for module in modules.split():
        try:
            loaded = importlib.import_module(module)
        except ImportError:
            continue
        if module == "threading":
            deepen_threads(loaded)


def warm_up() -> None:
    """Fill sympy's caches, if it is loaded, with first uses and textbook functions."""
    if "sympy" not in sys.modules:
        return
    sympy = importlib.import_module("sympy")
    x = sympy.Symbol("x")
    for text in _INTEGRANDS.split():
        sympy.integrate(sympy.sympify(text), x)
    sympy.integrate(sympy.exp(-x) * x, (x, 0, sympy.oo))
    sympy.solve(x**3 - 2 * x + 1, x)
    sympy.solve(x**2 - 4, x)
    sympy.simplify(sympy.sin(x) ** 2 + sympy.cos(x) ** 2)
    sympy.diff(sympy.sin(x) * sympy.exp(x) / x, x)
    str(sympy.factor(x**4 - 1) + sympy.limit(sympy.sin(x) / x, x, 0) + sympy.sqrt(8).evalf())
