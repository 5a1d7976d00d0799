"""Mathematical answers as the tests of other graders label them; see docs/grading.md.

The labels are facts of those tests, whether we agree or not. Where a label contradicts a rule of
docs/math-answers.md, the pair names the rule.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from gem_math.grading import grade

needs_math = pytest.mark.skipif(
    importlib.util.find_spec("math_verify") is None, reason="needs the extra math"
)
# Marked pairs with whose label we agree all the same: the rule does not reach so far, and in the
# last one the values differ by less than can be seen. Marks stay as they were set before grading.
AGREED_MARKS = {
    ("42=x", "42"),
    (
        "arcsin(x) + arccos(x) + arctan(x) + sin(x)**2 + cos(x)**2 + tan(x)",
        "1 + tan(x) + arcsin(x) + arccos(x) + arctan(x)",
    ),
    ("x^2 + 2*x - (-1)", "x^2+2x+1"),
    ("10m", "10"),
    ("f(x) = 2x + 3", "y = 2x + 3"),
    (r"[1,+\infty)", r"[2^{\frac{1}{2^{1000}}}, \infty)"),
}
PAIRS: list[dict[str, Any]] = [
    json.loads(line)
    for line in (Path(__file__).parent / "data" / "math_graders.jsonl").read_text().splitlines()
]


@pytest.fixture(scope="module")
def agreed() -> list[bool]:
    verdicts = (grade(pair["prediction"], pair["gold"], timeout_s=60) for pair in PAIRS)
    return [verdict.correct == pair["equal"] for verdict, pair in zip(verdicts, PAIRS, strict=True)]


def test_every_pair_occurs_once_and_names_its_source() -> None:
    assert len({(pair["prediction"], pair["gold"]) for pair in PAIRS}) == len(PAIRS) >= 2400
    assert all(pair["source"] for pair in PAIRS)


@needs_math
def test_the_share_of_labels_that_we_agree_with_does_not_fall(agreed: list[bool]) -> None:
    assert sum(agreed) / len(agreed) >= 0.88
    ruled = [ok for ok, pair in zip(agreed, PAIRS, strict=True) if "rule" not in pair]
    assert sum(ruled) / len(ruled) >= 0.95


@needs_math
def test_where_a_rule_contradicts_a_label_the_rule_decides(agreed: list[bool]) -> None:
    contradicted = {
        (pair["prediction"], pair["gold"])
        for ok, pair in zip(agreed, PAIRS, strict=True)
        if ok and "rule" in pair
    }
    assert contradicted == AGREED_MARKS
