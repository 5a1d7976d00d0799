"""Code grading: what a verdict costs, and what is right of other people's reference solutions.

python benchmarks/code.py [--seconds S] [--rounds N] [--human-eval FILE] [--mbpp FILE]

Verdicts on a right program in `bwrap`, beside a baseline in the same run that does what most
graders do: one run for each test, with the test in the program's own process, where the program can
take its verdict from it. Rounds alternate; the best median of each is shown, with the CPU time of
all processes. With the files (HumanEval.jsonl or .jsonl.gz, mbpp.jsonl), the share of reference
solutions that pass, and of programs that return None.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sandbox import cpu_s

from gem_sandbox import Limits, resolve
from gem_sandbox.grading import code

PROGRAM = "def f(x):\n    return sorted(set(x))\n"
CASES = [([i, 1, i], sorted({i, 1})) for i in range(12)]
ASSERTS = [f"assert f({x}) == {y}" for x, y in CASES]
CHECK = "def check(g):\n" + "".join(f"    assert g({x}) == {y}\n" for x, y in CASES) + "check(f)"
LOOP = f"for x, y in {CASES}:\n    assert f(x) == y"
SETS: dict[str, Any] = {
    "1 assertion": ASSERTS[:1],
    "3 assertions": ASSERTS[:3],
    "12 assertions": ASSERTS,
    "check(candidate) of 12": [CHECK],
    "loop over 12": [LOOP],
    "3 loops over 12": [LOOP] * 3,
    "3 calls": {
        "fn_name": "f",
        "inputs": [[x] for x, _ in CASES[:3]],
        "outputs": [y for _, y in CASES[:3]],
    },
    "12 calls": {
        "fn_name": "f",
        "inputs": [[x] for x, _ in CASES],
        "outputs": [y for _, y in CASES],
    },
    "3 of stdin": {"inputs": ["3", "4", "5"], "outputs": ["6", "8", "10"]},
}
PRINTS = "print(2 * int(input()))"
_SHARED = """
import json as _json, sys as _sys
_task = _json.loads(_sys.stdin.read())
if "check" in _task:
    exec(_task["check"], globals())
    print("true")
else:
    print(_json.dumps(globals()[_task["fn_name"]](*_task["input"]), default=list))
"""


def shared(program: str, tests: Any) -> bool:
    """Grade as the baseline does."""
    sandbox = resolve("bwrap")
    if isinstance(tests, dict):
        pairs = zip(tests["inputs"], tests["outputs"], strict=True)
        name = tests.get("fn_name")
        if name is None:
            runs = [sandbox.run(program, given).stdout == f"{wanted}\n" for given, wanted in pairs]
            return all(runs)
        tasks = [({"fn_name": name, "input": given}, wanted) for given, wanted in pairs]
    else:
        tasks = [({"check": test}, True) for test in tests]
    for task, wanted in tasks:
        result = sandbox.run(program + _SHARED, json.dumps(task), Limits())
        if result.exit_code or json.loads(result.stdout) != wanted:
            return False
    return True


def apart(program: str, tests: Any) -> bool:
    return code.grade(program, tests, runner="bwrap").correct


def measure(grade: Callable[[str, Any], bool], name: str, seconds: float) -> tuple[float, float]:
    """Return milliseconds of a verdict: the median, and of CPU."""
    program = PRINTS if "stdin" in name else PROGRAM
    times: list[float] = []
    for _ in range(3):
        assert grade(program, SETS[name]), name
    spent = cpu_s()
    while sum(times) < seconds:
        began = time.perf_counter()
        grade(program, SETS[name])
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1000, (cpu_s() - spent) / len(times) * 1000


def costs(seconds: float, rounds: int) -> None:
    """Print the table of costs."""
    graders = {"in its process": shared, "apart (ours)": apart}
    best: dict[tuple[str, str], tuple[float, ...]] = {}
    for _ in range(rounds):
        for name in SETS:
            for which, grade in graders.items():
                figures = measure(grade, name, seconds)
                old = best.get((name, which), figures)
                best[name, which] = tuple(map(min, old, figures))
    print(f"{'tests':24}" + "".join(f"{which + ', ms':>19}{'CPU ms':>9}" for which in graders))
    for name in SETS:
        cells = "".join("{:19.1f}{:9.1f}".format(*best[name, which]) for which in graders)
        print(f"{name:24}{cells}")


def human_eval(path: Path) -> Iterator[tuple[str, str, str, list[str]]]:
    """Give name, right program, useless program and tests of each problem."""
    for row in rows(path):
        name = row["entry_point"]
        program = row["prompt"] + row["canonical_solution"]
        yield row["task_id"], program, name, [f"{row['test']}\ncheck({name})\n"]


def mbpp(path: Path) -> Iterator[tuple[str, str, str, list[str]]]:
    """Give the same of MBPP."""
    for row in rows(path):
        tests = [f"{row['test_setup_code']}\n{test}" for test in row["test_list"]]
        name = row["test_list"][0].removeprefix("assert ").partition("(")[0].strip()
        yield str(row["task_id"]), row["code"], name, tests


def rows(path: Path) -> Iterator[Any]:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        yield from map(json.loads, lines)


def labels(name: str, problems: Iterator[tuple[str, str, str, list[str]]]) -> None:
    """Print how many right programs pass, and which do not, and how many useless ones do."""
    total = right = useless = 0
    for problem, program, function, tests in problems:
        verdict = code.grade(program, tests)
        total += 1
        right += verdict.correct
        if not verdict.correct:
            print(f"{name} {problem}: {verdict.reason}")
        nothing = f"def {function}(*a, **k): return None\n" if function.isidentifier() else "x = 1"
        useless += code.grade(nothing, tests).correct
    print(f"{name}: {right} of {total} reference solutions pass, {useless} that return None")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=0.5, help="per figure and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--human-eval", type=Path)
    parser.add_argument("--mbpp", type=Path)
    arguments = parser.parse_args()
    if arguments.rounds:
        costs(arguments.seconds, arguments.rounds)
    if arguments.human_eval:
        labels("HumanEval", human_eval(arguments.human_eval))
    if arguments.mbpp:
        labels("MBPP", mbpp(arguments.mbpp))


if __name__ == "__main__":
    main()
