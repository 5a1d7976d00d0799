"""`import gem`: CPU seconds, memory and modules, ours and the original GEM's side by side.

python benchmarks/import_cost.py [--rounds N] [--without-original]

Each row is a fresh process (best of several rounds); the bare interpreter is the zero line. Third
party: top-level modules from outside the standard library that the import brought in, other than
`gem` itself.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

from original import original_python

PROBE = """
import json, resource, sys, time
before = set(sys.modules)
began = time.process_time()
{statement}
spent = time.process_time() - began
new = {{m.partition('.')[0] for m in set(sys.modules) - before}} - set(sys.stdlib_module_names)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps([spent, peak, len(sys.modules), len(new - {{'gem'}})]))
"""


def probe(python: str, statement: str, rounds: int) -> list[float]:
    """CPU seconds, peak MiB, modules and third-party modules: the least of each over rounds."""
    runs = []
    for _ in range(rounds):
        code = PROBE.format(statement=statement)
        run = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
        runs.append(json.loads(run.stdout.splitlines()[-1]))
    return [min(column) for column in zip(*runs, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--without-original", action="store_true", help="measure ours only")
    arguments = parser.parse_args()
    make = "import gem; gem.make('game:GuessTheNumber-v0-easy').reset(seed=0)"
    rows = [
        ("bare Python", sys.executable, "pass"),
        ("import gem", sys.executable, "import gem"),
        ("  and make, reset a game", sys.executable, make),
        ("  and import gem.vector (numpy)", sys.executable, "import gem.vector"),
    ]
    if not arguments.without_original:
        python = str(original_python())
        rows += [
            ("original: import gem", python, "import gem"),
            ("  and make, reset a game", python, make),
        ]
    print(f"{'':34}{'CPU s':>8}{'peak MiB':>10}{'modules':>9}{'third party':>13}")
    for name, python, statement in rows:
        spent, peak, modules, foreign = probe(python, statement, arguments.rounds)
        print(f"{name:34}{spent:8.3f}{peak:10.1f}{modules:9.0f}{foreign:13.0f}")


if __name__ == "__main__":
    main()
