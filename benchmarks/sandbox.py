"""Running small programs: latency, calls per second and CPU time, ours and the original GEM's.

python benchmarks/sandbox.py [--seconds S] [--rounds N] [--without-original]

Side by side in one run: rounds alternate between all. Of the rounds, the best median, the best call
and the least CPU time are shown; CPU time counts all processes that a call involves, and depends
least on what else the machine does. `rested` are calls 10 ms apart: what is made ready for the next
call is then ready. The original is measured as its PythonCodeTool runs programs,
without isolation; `python -c` is what a fresh interpreter costs, `session` a program that goes on
where the one before ended.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from original import original_python

INTEGRAL = "from sympy import *; x = Symbol('x'); print(integrate({}, x))"
PROGRAMS = {
    "print(1)": "print(1)",
    "numpy": "import numpy as np; print(np.arange(3).sum())",
    "sympy x**2": INTEGRAL.format("x**2"),
    "sympy x*sin(x)": INTEGRAL.format("x*sin(x)"),
    "sympy x**2*cos(x)": INTEGRAL.format("x**2*cos(x)"),
}
CONCURRENCIES = [1, 4, 16, 64]
OURS = ["bwrap", "session"]
HUNG_S = 1.0
REST_S = 0.01


def runner(which: str) -> Callable[[str], object]:
    """Return the function that runs a program."""
    if which == "python -c":
        return lambda code: subprocess.run([sys.executable, "-c", code], capture_output=True)
    if which == "original":
        # It takes the `python` that is on the PATH.
        os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        tool = importlib.import_module("gem.tools.python_code_tool").PythonCodeTool()
        return lambda code: tool.execute_action(f"<python>{code}</python>")
    from gem_sandbox import resolve

    if which == "session":
        return resolve("bwrap").session().run
    return resolve(which).run


def below(pid: int) -> list[int]:
    """Return the ids of all processes below one."""
    try:
        paths = list(Path(f"/proc/{pid}/task").glob("*/children"))
        children = [int(child) for path in paths for child in path.read_text().split()]
    except OSError:
        return []
    return children + [process for child in children for process in below(child)]


def cpu_s() -> float:
    """Return the CPU seconds of this process and of all below it, ended ones included."""
    total = 0.0
    for kind in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(kind)
        total += usage.ru_utime + usage.ru_stime
    for pid in below(os.getpid()):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return total


def traces() -> tuple[int, int, int]:
    """Return the processes below this one, its descriptors, and gem's temporary files."""
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    return len(below(os.getpid())), descriptors, len(list(Path(tempfile.gettempdir()).glob("gem*")))


def measure(which: str, seconds: float) -> dict[str, float]:
    """Return the figures of one round; those that are better when larger end with `/s`."""
    run = runner(which)
    figures: dict[str, float] = {}
    # All interpreters of all servers are warm before one is measured.
    at_once = 4 * (os.cpu_count() or 1) if which in OURS else 1
    with ThreadPoolExecutor(at_once) as threads:
        for code in reversed(PROGRAMS.values()):
            list(threads.map(run, [code] * at_once))
    for name, code in PROGRAMS.items():
        times: list[float] = []
        spent = cpu_s()
        while sum(times) < seconds or len(times) < 3:
            began = time.perf_counter()
            run(code)
            times.append(time.perf_counter() - began)
        figures[f"{name}, p50 ms"] = statistics.median(times) * 1000
        figures[f"{name}, best ms"] = min(times) * 1000
        figures[f"{name}, CPU ms"] = (cpu_s() - spent) / len(times) * 1000
        figures[f"{name}, rested p50 ms"] = rested_ms(run, code, seconds)
    for concurrency in CONCURRENCIES if which != "session" else []:
        with ThreadPoolExecutor(concurrency) as threads:
            began, calls, spent = time.perf_counter(), 0, cpu_s()
            while time.perf_counter() - began < seconds:
                calls += len(list(threads.map(run, ["print(1)"] * (2 * concurrency))))
            figures[f"at {concurrency}, calls/s"] = calls / (time.perf_counter() - began)
            figures[f"at {concurrency}, calls/CPU-s"] = calls / max(cpu_s() - spent, 1e-9)
    return figures


def rested_ms(run: Callable[[str], object], code: str, seconds: float) -> float:
    """Return the median of calls with a pause before each."""
    times: list[float] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(times) < 3:
        time.sleep(REST_S)
        began = time.perf_counter()
        run(code)
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1000


def leavings(which: str) -> dict[str, float]:
    """Return what 1,000 calls leave behind, and what a hung call costs itself and others."""
    from gem_sandbox import Limits, resolve

    runner = resolve(which)
    for code in PROGRAMS.values():
        runner.run(code)
    time.sleep(1.0)
    before = traces()
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(runner.run, ["print(1)"] * 1000))
    # What has ended may take a moment to be gone.
    time.sleep(1.0)
    left = [now - then for now, then in zip(traces(), before, strict=True)]
    with ThreadPoolExecutor(1) as threads:
        began = time.perf_counter()
        hung = threads.submit(runner.run, "while True: pass", "", Limits(cpu_s=HUNG_S))
        hung.add_done_callback(lambda _: ended.append(time.perf_counter()))
        ended: list[float] = []
        times = []
        while not ended:
            call = time.perf_counter()
            runner.run("print(1)")
            times.append(time.perf_counter() - call)
    names = ("processes", "descriptors", "files")
    return {
        **{f"left by 1,000 calls, {name}": n for name, n in zip(names, left, strict=True)},
        f"hung call of {HUNG_S:g} s, ms more": (ended[0] - began - HUNG_S) * 1000,
        "print(1) beside it, p50 ms": statistics.median(times) * 1000,
    }


def better(a: dict[str, float], b: dict[str, float]) -> dict[str, float]:
    """Return the better of two measurements, figure by figure; of what is left, the worse."""

    def choose(name: str) -> Callable[[float, float], float]:
        return max if name.endswith("/s") or name.startswith("left") else min

    return {name: choose(name)(a.get(name, value), value) for name, value in b.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="per figure and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--without-original", action="store_true", help="measure ours only")
    parser.add_argument("--runners", nargs="*", default=OURS, help="of ours")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        figures = measure(arguments.work, arguments.seconds)
        if arguments.work == "bwrap":
            figures |= leavings(arguments.work)
        print(json.dumps(figures))
        return
    interpreters = dict.fromkeys([*arguments.runners, "python -c"], sys.executable)
    if not arguments.without_original:
        interpreters["original"] = str(original_python())
    found: dict[str, dict[str, float]] = {which: {} for which in interpreters}
    loads = [os.getloadavg()[0]]
    for _ in range(arguments.rounds):
        for which, python in interpreters.items():
            command = [python, __file__, "--work", which, "--seconds", str(arguments.seconds)]
            run = subprocess.run(command, capture_output=True, text=True, check=True)
            found[which] = better(found[which], json.loads(run.stdout.splitlines()[-1]))
            loads.append(os.getloadavg()[0])
    names = list(dict.fromkeys(name for figures in found.values() for name in figures))
    print(f"{'':30}" + "".join(f"{which:>12}" for which in found))
    for name in names:
        cells = (found[which].get(name) for which in found)
        print(f"{name:30}" + "".join(f"{'-' if x is None else f'{x:,.1f}':>12}" for x in cells))
    load = f"{min(loads):.1f} to {max(loads):.1f}"
    print(f"{os.cpu_count()} cores, load average {load}, {time.strftime('%Y-%m-%d')}")


if __name__ == "__main__":
    main()
