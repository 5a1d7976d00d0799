"""What runs in the workers: comparison by math-verify, which may take forever."""

from __future__ import annotations

# Digits behind the point that have to agree; math-verify's default would take 0.333333 for 1/3.
_DECIMALS = 11


def equal(prediction: str, gold: str) -> bool | None:
    """Return whether math-verify finds two cleaned answers equal, without any limit of its own.

    None if it cannot read one of them.
    """
    # Its own limits are signals, which work in a main thread only and do not always work there.
    from math_verify import (  # type: ignore[import-untyped, unused-ignore]
        LatexExtractionConfig,
        parse,
        verify,
    )

    # Only the whole text: its other way of reading takes the last number of any text.
    reading = (LatexExtractionConfig(),)
    answer, expected = (
        parse(f"${_latex(text)}$", reading, parsing_timeout=None) for text in (prediction, gold)
    )
    if verify(expected, answer, float_rounding=_DECIMALS, timeout_seconds=None):
        return True
    # What is left as text was not read.
    read = all(any(not isinstance(each, str) for each in side) for side in (answer, expected))
    return False if read else None


def warm_up() -> None:
    """Import everything and build the parser's tables."""
    equal(r"\frac{x}{2}+\sqrt{5}", r"\sqrt{5}+0.5x")


def _latex(cleaned: str) -> str:
    return cleaned.replace("\\row ", r"\\ ").replace("\\dollar", r"\$")
