"""What this machine offers to run a policy's programs in, and whether it holds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable

from gem.errors import GemError
from gem.sandbox import EXECUTORS, Executor, Limits
from gem.sandbox.attacks import ATTACKS
from gem.sandbox.audit import Finding, audit

_CALLS = 20


def executors() -> bool:
    """Print which executors work here, what each isolates, and how long `print(1)` takes in it.

    Returns:
        Whether there is one for `executor=None`.
    """
    print(f"{'executor':12}{'isolates':30}{'print(1)':>10}")
    for name in EXECUTORS:
        there = _executor(name)
        if isinstance(there, str):
            print(f"{name:12}not available: {there}")
            continue
        isolates = ", ".join(sorted(there.isolates)) or "nothing (unsafe)"
        print(f"{name:12}{isolates:30}{_latency_ms(there):7.1f} ms")
    return not isinstance(_executor("bwrap"), str)


def table(names: Iterable[str] = ()) -> bool:
    """Attack executors and print what came of it, as a Markdown table.

    Args:
        names: Which; none: all that are available and claim to isolate.

    Returns:
        Whether all of them held. An executor that is named and not available did not.
    """
    chosen = list(names) or [name for name in EXECUTORS if name != "subprocess"]
    there = {name: _executor(name) for name in chosen}
    absent = [name for name in chosen if isinstance(there[name], str)]
    for name in absent:
        print(f"{name} is not available: {there[name]}\n")
    tested = {name: tier for name, tier in there.items() if isinstance(tier, Executor)}
    findings = {name: list(audit(tier)) for name, tier in tested.items()}
    print("| attack | tests | " + " | ".join(tested) + " |")
    print("|---|---|" + "---|" * len(tested))
    for number, attack in enumerate(ATTACKS):
        cells = " | ".join(_cell(findings[name][number]) for name in tested)
        print(f"| {attack.name} | {attack.isolation} | {cells} |")
    held = not any(finding.got for each in findings.values() for finding in each)
    return held and not (absent if names else ())


def _cell(finding: Finding) -> str:
    return finding.got or ("held" if finding.tried else "has no sessions")


def _executor(name: str) -> Executor | str:
    """Return an executor that ran a program, or why there is none."""
    try:
        there = EXECUTORS[name]()
        there.run("print(1)", limits=Limits(wall_s=60.0))
    except GemError as error:
        return str(error)
    return there


def _latency_ms(executor: Executor) -> float:
    """Return the median time of a small program."""
    times = []
    for _ in range(_CALLS):
        began = time.perf_counter()
        executor.run("print(1)")
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1000
