"""Code of the worker processes: compares by math-verify, which may never return.

`gem_math.fallback` sends the requests and `gem.workers.pool` kills a worker at the time limit.
"""

from __future__ import annotations

# Decimal places that must agree; math-verify's default would accept 0.333333 for 1/3.
_DECIMALS = 11


def equal(prediction: str, gold: str) -> bool | None:
    """Return whether math-verify finds two cleaned answers equal, without a time limit.

    None if math-verify cannot parse one of them.
    """
    # Math-verify's own time limits are signals: main thread only, and unreliable there.
    from math_verify import (  # type: ignore[import-untyped, unused-ignore]
        LatexExtractionConfig,
        parse,
        verify,
    )

    # LaTeX extraction only: expression extraction takes the last number of any text.
    reading = (LatexExtractionConfig(),)
    answer, expected = (
        parse(f"${_latex(text)}$", reading, parsing_timeout=None) for text in (prediction, gold)
    )
    if verify(expected, answer, float_rounding=_DECIMALS, timeout_seconds=None):
        return True
    # A side that is still only strings was not parsed.
    read = all(any(not isinstance(each, str) for each in side) for side in (answer, expected))
    return False if read else None


def warm_up() -> None:
    """Import everything and build the parser's tables."""
    equal(r"\frac{x}{2}+\sqrt{5}", r"\sqrt{5}+0.5x")


def _latex(cleaned: str) -> str:
    return cleaned.replace("\\row ", r"\\ ").replace("\\dollar", r"\$")
