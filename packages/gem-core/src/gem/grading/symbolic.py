"""What runs in the workers: comparison by math-verify, which may take forever."""

from __future__ import annotations


def equal(prediction: str, gold: str) -> bool:
    """Return whether math-verify finds two LaTeX answers equal; without any limit of its own."""
    # Its own limits are signals, which work in a main thread only and do not always work there.
    from math_verify import parse, verify  # type: ignore[import-untyped, unused-ignore]

    answers = [parse(f"${text}$", parsing_timeout=None) for text in (prediction, gold)]
    return all(answers) and bool(verify(answers[1], answers[0], timeout_seconds=None))


def warm_up() -> None:
    """Import everything and build the parser's tables."""
    equal(r"\frac{x}{2}+\sqrt{5}", r"\sqrt{5}+0.5x")
