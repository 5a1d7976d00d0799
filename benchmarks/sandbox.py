"""Running small programs: latency and calls per second, ours and the original GEM's side by side.

python benchmarks/sandbox.py [--seconds S] [--rounds N] [--without-original]

Wall time of whole calls. The original is measured as its PythonCodeTool runs programs, without
isolation; rounds alternate between all and the best of each is shown. `python -c` is what a fresh
interpreter costs.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from original import original_python

PROGRAMS = {
    "print(1)": "print(1)",
    "import numpy": "import numpy as np; print(np.arange(3).sum())",
    "sympy integral": "from sympy import *; x = Symbol('x'); print(integrate(x**2 * cos(x), x))",
}
CONCURRENCIES = [1, 4, 16, 64]
OURS = ["bwrap", "monty", "auto"]


def runner(which: str) -> Callable[[str], object]:
    """Return the function that runs a program."""
    if which == "python -c":
        return lambda code: subprocess.run([sys.executable, "-c", code], capture_output=True)
    if which == "original":
        # It takes the `python` that is on the PATH.
        os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        tool = importlib.import_module("gem.tools.python_code_tool").PythonCodeTool()
        return lambda code: tool.execute_action(f"<python>{code}</python>")
    from gem.sandbox import resolve

    return resolve(which).run


def measure(which: str, seconds: float) -> dict[str, float]:
    """Return the median milliseconds of each program, and calls per second at each concurrency."""
    run = runner(which)
    figures: dict[str, float] = {}
    for name, code in PROGRAMS.items():
        if which == "monty" and name != "print(1)":
            continue
        run(code)
        times: list[float] = []
        while sum(times) < seconds or len(times) < 3:
            began = time.perf_counter()
            run(code)
            times.append(time.perf_counter() - began)
        figures[f"{name}, ms"] = statistics.median(times) * 1000
    for concurrency in CONCURRENCIES:
        with ThreadPoolExecutor(concurrency) as threads:
            began, calls = time.perf_counter(), 0
            while time.perf_counter() - began < seconds:
                calls += len(list(threads.map(run, ["print(1)"] * (2 * concurrency))))
            figures[f"calls/s at {concurrency}"] = calls / (time.perf_counter() - began)
    return figures


def best(a: dict[str, float], b: dict[str, float]) -> dict[str, float]:
    """Return the better of two measurements, figure by figure."""
    return {
        name: (min if name.endswith("ms") else max)(a.get(name, value), value)
        for name, value in b.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="per figure and round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--without-original", action="store_true", help="measure ours only")
    parser.add_argument("--executors", nargs="*", default=OURS, help="of ours")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        print(json.dumps(measure(arguments.work, arguments.seconds)))
        return
    interpreters = dict.fromkeys([*arguments.executors, "python -c"], sys.executable)
    if not arguments.without_original:
        interpreters["original"] = str(original_python())
    found: dict[str, dict[str, float]] = {which: {} for which in interpreters}
    for _ in range(arguments.rounds):
        for which, python in interpreters.items():
            command = [python, __file__, "--work", which, "--seconds", str(arguments.seconds)]
            run = subprocess.run(command, capture_output=True, text=True, check=True)
            found[which] = best(found[which], json.loads(run.stdout.splitlines()[-1]))
    print(f"{'':20}" + "".join(f"{which:>12}" for which in found))
    for name in found["python -c"]:
        cells = (found[which].get(name) for which in found)
        print(f"{name:20}" + "".join(f"{'-' if x is None else f'{x:,.1f}':>12}" for x in cells))


if __name__ == "__main__":
    main()
