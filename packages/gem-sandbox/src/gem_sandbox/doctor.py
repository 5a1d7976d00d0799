"""The command `doctor`: which runners work on this machine and withstand the audit's attacks."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterable, Sequence

from gem.errors import GemError
from gem_sandbox import Limits, Runner, resolve, runner_class, runner_names
from gem_sandbox.attacks import ATTACKS
from gem_sandbox.audit import audit

_CALLS = 20
# Prints what judges programs.
_ABOUT = """
import platform, resource, sys
stack = resource.getrlimit(resource.RLIMIT_STACK)[0]
print(platform.python_implementation(), platform.python_version(), "at", sys.executable, end="")
print(", stack", "as large as memory" if stack == -1 else f"of {stack >> 20} MB", end="")
print(", integers of", sys.get_int_max_str_digits() or "any number of", "digits", end="")
"""
_DEEP = """
import sys
from functools import lru_cache
sys.setrecursionlimit(10**6)
def f(n): return n and 1 + f(n - 1)
if sys.stdin.read(): f = lru_cache(None)(f)
print(f(DEPTH))
"""
_DEPTHS = (10_000, 50_000, 100_000, 200_000)


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status, 1 if a runner is missing or did not hold."""
    about = "what programs of a policy can run in here"
    parser = argparse.ArgumentParser(prog="python -m gem doctor", description=about)
    about = "attack these runners (default: all that isolate) and print what came of it"
    parser.add_argument("--audit", nargs="*", metavar="RUNNER", help=about)
    arguments = parser.parse_args(argv)
    if arguments.audit is None:
        return 0 if runners() else 1
    for name in arguments.audit:
        runner_class(name)
    return 0 if table(arguments.audit) else 1


def runners() -> bool:
    """Print which runners work here, what each isolates, the latency of `print(1)`, and which
    Python runs programs there.

    Returns:
        Whether `runner=None` works, that is, `bwrap` is available.
    """
    print(f"{'runner':12}{'isolates':30}{'print(1)':>10}")
    for name in runner_names():
        there = _runner(name)
        if isinstance(there, str):
            print(f"{name:12}not available: {there}")
            continue
        isolates = ", ".join(sorted(there.isolates)) or "nothing (unsafe)"
        print(f"{name:12}{isolates:30}{_latency_ms(there):7.1f} ms")
        print(f"{'':12}programs run in {_judge(there)}")
    return not isinstance(_runner("bwrap"), str)


def table(names: Iterable[str] = ()) -> bool:
    """Run all attacks against runners and print the results as a Markdown table.

    Args:
        names: Names of runners; empty: all that are available and claim to isolate.

    Returns:
        Whether all of them held. A named runner that is not available counts as not held.
    """
    chosen = list(names) or runner_names()
    there = {name: _runner(name) for name in chosen}
    absent = [name for name in chosen if isinstance(there[name], str)]
    for name in absent:
        print(f"{name} is not available: {there[name]}\n")
    tested = {
        name: tier
        for name, tier in there.items()
        if isinstance(tier, Runner) and (names or tier.isolates)
    }
    findings = {name: list(audit(tier)) for name, tier in tested.items()}
    print("| attack | tests | " + " | ".join(tested) + " |")
    print("|---|---|" + "---|" * len(tested))
    for number, attack in enumerate(ATTACKS):
        row = [found[number] for found in findings.values()]
        cells = [each.got or ("held" if each.tried else "has no sessions") for each in row]
        print(f"| {attack.name} | {attack.isolation} | {' | '.join(cells)} |")
    held = not any(finding.got for each in findings.values() for finding in each)
    return held and not (absent if names else ())


def _runner(name: str) -> Runner | str:
    """Return a working runner, or the reason why it is not available."""
    try:
        there = resolve(name)
        there.run("print(1)", limits=Limits(cpu_s=60.0))
    except GemError as error:
        return str(error)
    return there


def _judge(runner: Runner) -> str:
    """Return which Python a runner runs programs in, and how deep they may recurse."""
    about = runner.run(_ABOUT)
    if about.exit_code or not about.stdout.endswith("digits"):
        return "an interpreter that does not say what it is"
    depths = [_depth(runner, stdin) for stdin in ("", "cached")]
    return f"{about.stdout}, recursion of {depths[0]:,} calls, {depths[1]:,} through lru_cache"


def _depth(runner: Runner, stdin: str) -> int:
    """Return the deepest recursion, out of those tried, that a runner's programs reach."""
    reached = 0
    for depth in _DEPTHS:
        program = _DEEP.replace("DEPTH", str(depth))
        if runner.run(program, stdin, Limits(cpu_s=60.0)).stdout != f"{depth}\n":
            break
        reached = depth
    return reached


def _latency_ms(runner: Runner) -> float:
    """Return the median time of `print(1)` in milliseconds."""
    times = []
    for _ in range(_CALLS):
        began = time.perf_counter()
        runner.run("print(1)")
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1000
