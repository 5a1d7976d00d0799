"""The command `doctor`: which executors work on this machine and withstand the audit's attacks."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterable

from gem.errors import GemError
from gem.sandbox import Executor, Limits, executor_class, executor_names, resolve
from gem.sandbox.attacks import ATTACKS
from gem.sandbox.audit import audit

_CALLS = 20


def doctor(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status, 1 if an executor is missing or did not hold."""
    if arguments.audit is None:
        return 0 if executors() else 1
    for name in arguments.audit:
        executor_class(name)
    return 0 if table(arguments.audit) else 1


def executors() -> bool:
    """Print which executors work here, what each isolates, and the latency of `print(1)`.

    Returns:
        Whether `executor=None` works, that is, `bwrap` is available.
    """
    print(f"{'executor':12}{'isolates':30}{'print(1)':>10}")
    for name in executor_names():
        there = _executor(name)
        if isinstance(there, str):
            print(f"{name:12}not available: {there}")
            continue
        isolates = ", ".join(sorted(there.isolates)) or "nothing (unsafe)"
        print(f"{name:12}{isolates:30}{_latency_ms(there):7.1f} ms")
    return not isinstance(_executor("bwrap"), str)


def table(names: Iterable[str] = ()) -> bool:
    """Run all attacks against executors and print the results as a Markdown table.

    Args:
        names: Names of executors; empty: all that are available and claim to isolate.

    Returns:
        Whether all of them held. A named executor that is not available counts as not held.
    """
    chosen = list(names) or executor_names()
    there = {name: _executor(name) for name in chosen}
    absent = [name for name in chosen if isinstance(there[name], str)]
    for name in absent:
        print(f"{name} is not available: {there[name]}\n")
    tested = {
        name: tier
        for name, tier in there.items()
        if isinstance(tier, Executor) and (names or tier.isolates)
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


def _executor(name: str) -> Executor | str:
    """Return a working executor, or the reason why it is not available."""
    try:
        there = resolve(name)
        there.run("print(1)", limits=Limits(cpu_s=60.0))
    except GemError as error:
        return str(error)
    return there


def _latency_ms(executor: Executor) -> float:
    """Return the median time of `print(1)` in milliseconds."""
    times = []
    for _ in range(_CALLS):
        began = time.perf_counter()
        executor.run("print(1)")
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1000
