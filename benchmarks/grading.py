"""Math grading: answers per CPU second, ours and the original GEM's side by side.

python benchmarks/grading.py [--seconds S] [--rounds N] [--without-original]

Replies with a boxed answer, extraction included, one thread, each in a process of its own; rounds
alternate between them and the best of each is shown. The original is measured as its MathEnv runs
it (slow mode), without the process around it. "right" is the share of verdicts that are.
The second table is ours alone: wall time of answers that hang or stall the original, each against
a gold that only math-verify can read, with a limit of one second.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from original import original_python

# Pairs of an answer and its gold, and whether they are equal.
SETS: dict[str, tuple[list[tuple[str, str]], bool]] = {
    "equal integers": ([(str(i), str(i)) for i in range(40)], True),
    "different integers": ([(str(i + 1), str(i)) for i in range(40)], False),
    "equal LaTeX": (
        [(f"\\frac{{{i}}}{{{i + 1}}}", f"\\dfrac{{{i}}}{{{i + 1}}}") for i in range(1, 20)]
        + [(f"2\\sqrt{{{i}}}", f"\\sqrt{{{4 * i}}}") for i in range(2, 20) if i not in (4, 9, 16)],
        True,
    ),
    "different LaTeX": (
        [(f"\\frac{{{i}}}{{{i + 2}}}", f"\\frac{{{i}}}{{{i + 1}}}") for i in range(1, 20)]
        + [(f"x^2+{i}x+1", f"(x+1)^2+{i}") for i in range(1, 20)],
        False,
    ),
    "equal sets, intervals": (
        [(f"\\{{1,{i}\\}}", f"\\{{{i},1\\}}") for i in range(2, 20)]
        + [(f"(1,{i}]", f"(1, {i}]") for i in range(2, 10)],
        True,
    ),
}
PATHOLOGICAL = ["9**9**9", "(10**8)!", "(" * 2000 + "1" + ")" * 2000, "\\int_0^1 x^{x^{x}} dx"]


def grader(which: str) -> Callable[[str, str], bool]:
    """Return the function from a reply and a gold to the verdict."""
    if which == "original":
        from gem.utils.math_grader import boxed_reward_fn

        logging.getLogger().setLevel(logging.CRITICAL)
        return lambda reply, gold: bool(boxed_reward_fn(reply, gold, fast=False)[1] > 0)
    from gem.grading.formats import BOXED
    from gem_math.grading import grade

    return lambda reply, gold: grade(BOXED.extract(reply), gold).correct


def measure(grade: Callable[[str, str], bool], name: str, seconds: float) -> tuple[float, float]:
    """Return answers per CPU second and the share of right verdicts."""
    pairs, equal = SETS[name]
    replies = [(f"Let me think. So the answer is \\boxed{{{a}}}.", gold) for a, gold in pairs]
    grade(*replies[0])
    graded = right = 0
    began = time.process_time()
    spent = 0.0
    for chunk in itertools.repeat(replies):
        right += sum(grade(reply, gold) == equal for reply, gold in chunk)
        graded += len(chunk)
        spent = time.process_time() - began
        if spent >= seconds:
            break
    return graded / spent, right / graded


def rounds(interpreters: dict[str, str], n: int, seconds: float) -> dict[str, dict[str, Any]]:
    """Best figures of `n` alternating rounds."""
    best: dict[str, dict[str, Any]] = {which: {} for which in interpreters}
    for _ in range(n):
        for which, python in interpreters.items():
            command = [python, __file__, "--work", which, "--seconds", str(seconds)]
            run = subprocess.run(command, capture_output=True, text=True, check=True)
            for name, figures in json.loads(run.stdout.splitlines()[-1]).items():
                best[which][name] = max(best[which].get(name, (0.0, 0.0)), tuple(figures))
    return best


def stalls() -> None:
    """Print how long ours takes for answers that stall the original."""
    from gem_math.grading import grade

    gold = "\\int_0^1 x\\,dx"
    grade("1/2", gold, timeout_s=60)
    print(f"\n{'answer that stalls the original':34}{'seconds':>10}  reason; then a right one")
    for answer in PATHOLOGICAL:
        verdict, after = grade(answer, gold), grade("1/2", gold, timeout_s=60)
        said = f"{verdict.reason}; {after.correct} in {after.seconds:.3f} s"
        print(f"{answer[:30]:34}{verdict.seconds:10.3f}  {said}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=0.5, help="CPU seconds per set and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--without-original", action="store_true", help="measure ours only")
    parser.add_argument("--work", choices=["ours", "original"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        grade = grader(arguments.work)
        print(json.dumps({name: measure(grade, name, arguments.seconds) for name in SETS}))
        return
    interpreters = {"ours": sys.executable}
    if not arguments.without_original:
        interpreters["original"] = str(original_python())
    best = rounds(interpreters, arguments.rounds, arguments.seconds)
    columns = "".join(f"{which:>12}{'right':>8}" for which in best)
    print(f"{'':24}{'answers per CPU second':^{20 * len(best)}}")
    print(f"{'set':24}{columns}" + ("   ratio" if len(best) == 2 else ""))
    for name in SETS:
        figures = [best[which][name] for which in best]
        row = "".join(f"{rate:12,.0f}{right:8.0%}" for rate, right in figures)
        ratio = f"{figures[0][0] / figures[1][0]:7,.0f}x" if len(figures) == 2 else ""
        print(f"{name:24}{row}{ratio}")
    stalls()


if __name__ == "__main__":
    main()
