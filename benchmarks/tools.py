"""Tools: time of a call, ours and a baseline's side by side.

python benchmarks/tools.py [--calls N] [--passages N] [--without-original] [--only python]

Python: whole steps of an environment with `tools=["python"]` in the default sandbox, against the
original GEM's PythonCodeTool (which does not isolate) and a new interpreter for every program.
Search: the index of passages of 80 words, then queries of six words, against `bm25s.retrieve` on
the same index. MCP: a call of the time server over a connection that is kept open, against a new
connection for every call, as the original makes one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

PROGRAMS = {
    "print(1)": "print(1)",
    "numpy": "import numpy; print(numpy.arange(9).sum())",
    "sympy": "import sympy; x = sympy.Symbol('x'); print(sympy.integrate(x * sympy.exp(x), x))",
}
_AT_ONCE = 16


def timed(call: Callable[[], Any], n: int) -> list[float]:
    """Return the milliseconds of `n` calls, sorted, after two that do not count."""
    for _ in range(2):
        call()
    taken = []
    for _ in range(n):
        began = time.perf_counter()
        call()
        taken.append((time.perf_counter() - began) * 1e3)
    return sorted(taken)


def at_once(call: Callable[[], Any], n: int) -> float:
    """Return calls per second with 16 at a time."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(lambda _: call(), range(_AT_ONCE)))
        began = time.perf_counter()
        list(pool.map(lambda _: call(), range(n)))
        return n / (time.perf_counter() - began)


def python_call(which: str, program: str) -> Callable[[], Any]:
    """Return what runs a program once."""
    action = f"<python>{program}</python>"
    if which == "original":
        from gem.tools.python_code_tool import PythonCodeTool

        return lambda: PythonCodeTool().execute_action(action)
    if which == "new interpreter":
        command = [sys.executable, "-I", "-c", program]
        return lambda: subprocess.run(command, capture_output=True, check=True)
    import gem

    def step() -> None:
        env = gem.make("math:GSM8K", source="sample", tools=["python"])
        env.reset(seed=0)
        observation = env.step(action)[0]
        assert "Error" not in observation, observation

    return step


def measure_python(which: str, calls: int) -> dict[str, list[float]]:
    """Return p50 and p95 in ms of each program, and calls per second of the first one."""
    rows = {}
    for name, program in PROGRAMS.items():
        taken = timed(python_call(which, program), calls)
        rows[name] = [statistics.median(taken), taken[int(len(taken) * 0.95)]]
    rows["print(1)"].append(at_once(python_call(which, "print(1)"), 2 * calls))
    return rows


def python(arguments: argparse.Namespace) -> None:
    interpreters = {"ours": sys.executable, "new interpreter": sys.executable}
    if not arguments.without_original:
        from original import original_python

        interpreters["original"] = str(original_python())
    print(f"{'Python: step':34}{'p50 ms':>9}{'p95 ms':>9}{'calls/s, 16 at once':>21}")
    for which, interpreter in interpreters.items():
        command = [interpreter, __file__, "--work", which, "--calls", str(arguments.calls)]
        run = subprocess.run(command, capture_output=True, text=True, check=True)
        for name, (p50, p95, *rate) in json.loads(run.stdout.splitlines()[-1]).items():
            shown = f"{rate[0]:21,.0f}" if rate else ""
            print(f"{which + ': ' + name:34}{p50:9.2f}{p95:9.2f}{shown}")


def corpus(path: Path, passages: int) -> list[str]:
    """Write passages of words as frequent as in a language; return queries."""
    rng = random.Random(0)
    words = [f"w{number}" for number in range(60_000)]
    weights = list(itertools.accumulate(1 / (rank + 1) for rank in range(len(words))))
    with path.open("w") as file:
        for number in range(passages):
            text = " ".join(rng.choices(words, cum_weights=weights, k=80))
            file.write(json.dumps({"title": f"passage {number}", "text": text}) + "\n")
    return [" ".join(rng.choices(words, cum_weights=weights, k=6)) for _ in range(200)]


def search(arguments: argparse.Namespace) -> None:
    import bm25s

    from gem.tools.search_index import build_folder, open_index

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        queries = corpus(folder / "corpus.jsonl", arguments.passages)
        began, began_cpu = time.perf_counter(), time.process_time()
        build_folder(folder / "corpus.jsonl", folder / "index")
        wall, cpu = time.perf_counter() - began, time.process_time() - began_cpu
        print(
            f"\nSearch: {arguments.passages:,} passages indexed in {wall:.1f} s ({cpu:.1f} CPU s)"
        )
        began = time.perf_counter()
        index = open_index(str(folder / "index"))
        print(f"opened in {(time.perf_counter() - began) * 1e3:.0f} ms")
        theirs = bm25s.BM25.load(str(folder / "index"), mmap=True, show_progress=False)
        next_query = itertools.cycle(queries).__next__
        calls: dict[str, Callable[[], Any]] = {
            "ours": lambda: index.search(next_query(), 3),
            "bm25s.retrieve": lambda: theirs.retrieve(
                [next_query().split()], k=3, show_progress=False
            ),
        }
        print(f"{'query':34}{'p50 ms':>9}{'p95 ms':>9}")
        for which, call in calls.items():
            taken = timed(call, 400)
            print(f"{which:34}{statistics.median(taken):9.3f}{taken[380]:9.3f}")


def mcp(arguments: argparse.Namespace) -> None:
    from gem.tools import MCPTool, ToolCall

    server = {"time": {"command": sys.executable, "args": ["-m", "gem_cpu.time_server"]}}
    call = ToolCall("days_in_month", {"date": "2024-02-01"})
    kept = MCPTool(server)
    kept.reset()

    def anew() -> None:
        tool = MCPTool(server)
        tool.reset()
        tool.execute(call)
        tool.close()

    print(f"\n{'MCP: call over stdio':34}{'p50 ms':>9}{'p95 ms':>9}")
    for which, function, n in (
        ("connection kept open", lambda: kept.execute(call), arguments.calls),
        ("new connection for every call", anew, 3),
    ):
        taken = timed(function, n)
        print(f"{which:34}{statistics.median(taken):9.2f}{taken[int(n * 0.95)]:9.2f}")
    kept.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--calls", type=int, default=60, help="calls of each kind")
    parser.add_argument("--passages", type=int, default=100_000)
    parser.add_argument("--without-original", action="store_true", help="do not build or run it")
    parser.add_argument("--only", choices=["python", "search", "mcp"])
    parser.add_argument("--work", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        print(json.dumps(measure_python(arguments.work, arguments.calls)))
        return
    for part in (python, search, mcp):
        if arguments.only in (None, part.__name__):
            part(arguments)


if __name__ == "__main__":
    main()
