"""Math grading: the worst answers of a fuzz corpus, in CPU time and in work counted.

python benchmarks/grading_limits.py [--random N] [--seed S] [--show N]

Everything here runs in the caller's process, without math-verify. Answers of 2, 4 and 10 kB: one
piece of notation repeated, nested, and at random; each against golds of every kind. Replies of
1 MB: extraction by every answer format, then grading. The baseline is an equal integer, graded in
the same run. "tokens" counts what the reader read, "work" what the comparison spent.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from gem.errors import MissingExtraError
from gem.grading.formats import FORMATS
from gem_math import compare, notation, tree
from gem_math.grading import grade

GOLDS = ["5", "x+1", "\\{1,2\\}", "[0,1)", "50\\%", "\\sqrt{2}", "(1,2)", "y=2x+1", "1,2,3,4,5,6"]
SIZES = [2_000, 4_000, 10_000]
REPLY = 1_000_000
PIECES = [
    "1", "x+", "(", "{", "\\frac{", "1,", "^2", "\0", " ", "\\frac{1}{", "\\pm", "1\\pm", "-",
    "1\\pm 1,", "\\text{", "\\text{a}", "a", "ab ", "cm ", "1 cm ", "\\", "|", "1!", "9^", "9**",
    "1e9", "1.", "\\sqrt", "\\sqrt[3]{9^9}+", "\\sqrt{", "sin ", "x_", "x_{1", "\\left(", "&",
    "\\begin{pmatrix}", "1=", "x=", "x=1,", "1<", "x<1 or ", "{1},", "\\{1\\},", "(1,2),",
    "(1,2)\\cup", "0.\\overline{3}", "1,000,", "1{,}", "1\\,", "1\\!", "1 1/2 ", "°", "²", "½",
    "1 million ", "1 and ", "ab/", "1/", "1:", "1%", "per ", "\\$", "$", "x'", "(x+1)^2", "x^x^",
    "2^{", "日", "x\\in ", "^\\circ", "f(x,", "AB=", "\\log_{2}", "max(1,", "gcd(", "x^{10^9}+",
    "1000!+", "\\binom{9^{999}}{999}+", "\\sqrt[3]{9^{999}}+", "1/97+", "x=\\pm y,", "\\approx ",
]  # fmt: skip
NESTED = [
    ("1\\pm(", ")"), ("\\{\\pm", "\\}"), ("{\\pm1,", "}"), ("\\frac{1}{", "}"), ("(x+1)^{", "}"),
    ("\\sqrt{2+", "}"), ("((", "+1)/2)"), ("|", "|"), ("\\{1,", "\\}"), ("\\text{", "}"),
    ("-(", ")"), ("f(", ")="), ("\\left(\\pm", ",2\\right)"), ("2^{\\pm", "}"),
]  # fmt: skip
TAGS = ["\\boxed{", "\\boxed{1}", "\\boxed ", "```", "```\n", "<answer>", "</answer>", "</think>"]


class Case(NamedTuple):
    """An answer or a reply, and what it cost."""

    seconds: float
    tokens: int
    work: int
    text: str
    against: str


class Counter:
    """Counts the reader's tokens and the work that comparisons spent since `reset`."""

    def __init__(self) -> None:
        self.tokens = self.work = 0
        advance, spend = notation._Reader.advance, tree.Work.spend

        def advanced(reader: notation._Reader) -> None:
            self.tokens += 1
            advance(reader)

        def spent(work: tree.Work, units: int) -> None:
            self.work += units
            spend(work, units)

        notation._Reader.advance = advanced  # type: ignore[method-assign]
        compare.Work.spend = spent  # type: ignore[method-assign]

    def case(self, work: Callable[[], Any], text: str, against: str) -> Case:
        self.tokens = self.work = 0
        began = time.thread_time()
        with contextlib.suppress(MissingExtraError):
            work()
        return Case(time.thread_time() - began, self.tokens, self.work, text, against)


def answers(size: int, rng: random.Random, n: int) -> Iterator[str]:
    for piece in PIECES:
        repeated = piece * (size // len(piece))
        yield from (repeated, "1" + repeated, repeated + "1")
    for opener, closer in NESTED:
        for depth in (8, 16, 30, size // len(opener + closer)):
            nest = opener * depth + "1" + closer * depth
            yield nest
            yield ",".join([nest] * max(1, size // (len(nest) + 1)))
    for _ in range(n):
        parts = [rng.choice(PIECES) for _ in range(rng.randint(1, 6))]
        text = "".join(parts)
        yield text * (size // len(text))
        text = "".join(rng.choice(PIECES) for _ in range(size // 3))
        yield text[:size]


def replies() -> Iterator[str]:
    for piece in PIECES + TAGS:
        body = piece * (REPLY // len(piece))
        yield from (body, f"\\boxed{{{body}}}", f"</think> <answer>{body}</answer>")
    yield ",".join(f"\\boxed{{{i}}}" for i in range(REPLY // 14))


def show(title: str, cases: list[Case], n: int, limit: float) -> None:
    over = sum(case.seconds > limit for case in cases)
    print(f"\n{title}: {len(cases):,} cases, {over} above {limit * 1000:.0f} ms of CPU")
    print(f"{'ms':>8}{'tokens':>8}{'work':>8}  {'text':34}against")
    for case in sorted(cases, reverse=True)[:n]:
        text = ascii(case.text[:20])[1:-1][:31]
        figures = f"{case.seconds * 1000:8.1f}{case.tokens:8,}{case.work:8,}"
        print(f"{figures}  {text:34}{case.against}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--random", type=int, default=20, help="random answers of each size")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", type=int, default=5, help="how many of the worst to show")
    arguments = parser.parse_args()
    rng, counter = random.Random(arguments.seed), Counter()
    for gold in GOLDS:
        grade("1", gold)
    baseline = min(counter.case(lambda: grade("176", "176"), "", "").seconds for _ in range(100))
    print(f"baseline, an equal integer: {baseline * 1e6:.1f} µs")
    for size in SIZES:
        cases = [
            counter.case(lambda a=text, g=gold: grade(a, g), text, gold)  # type: ignore[misc]
            for text in answers(size, rng, arguments.random)
            for gold in GOLDS
        ]
        show(f"answers of {size:,} characters", cases, arguments.show, 0.05)
    cases = [
        counter.case(lambda f=form, r=reply: grade(f.extract(r), "x+1"), reply, form.name)  # type: ignore[misc]
        for reply in replies()
        for form in FORMATS.values()
    ]
    show("replies of 1 MB, extraction and grading", cases, arguments.show, 0.2)


if __name__ == "__main__":
    main()
