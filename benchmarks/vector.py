"""Vector environments: speed in each mode, beside Gymnasium and the original GEM.

python benchmarks/vector.py [--quick] [--modes MODE...] [--rows ROW...] [--python PYTHON]
                            [--seconds S] [--without-baselines] [--plot FILE]

- waiting: 256 environments whose answers take 50 ms; share of the 5,120 turns a second that they
  could play if nothing else took time. slow: the same while the first one takes 1 s; the others.
  bare: 256 threads that sleep and do nothing else, which is what the machine has left for it.
- step: CPU time of a turn of 256 environments that do nothing, sent and received together, and of
  one alone. That of the caller, of all workers, and of a Ray cluster (`vector_work`).
- resets: of Sokoban-hard, 2 workers; how many times as fast as one after the other in the caller:
  by CPU time, which is what two free cores give, and by the clock, beside other work.
- many: 10,000 environments of Wordle; memory after a reset (PSS of all processes).
- killed: 1,000 episodes of 20 turns of 50 ms, 64 at a time in 2 workers, one of which is killed
  every 2 s: how many have the fingerprints of an undisturbed run; what is left behind.

The modes play with `send` and `recv`; Gymnasium's `AsyncVectorEnv` (a process an environment) and
the original's (a thread an environment) know only steps of all. Each figure is of a process of its
own. Both baselines get environments under .venvs. The modes ray and remote run in an interpreter
that has Ray and the extra `serve`, such as .venvs/verl/bin/python; the server is on this machine.
At the end of a row: how many cores other work on the machine used meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from drawing import draw
from original import original_python, python_with

ROOT = Path(__file__).resolve().parents[1]
MODES = {"thread": 30, "process": 60, "ray": 400, "remote": 300}
"""Modes of `gem.make_vec` that wait for no environment, and most CPU time of a turn, in us."""
BASELINES = ("gymnasium", "original")
BARE = "bare"
ROWS = ("waiting", "slow", "step", "resets", "many", "killed")
WAIT_S, SLOW_S = 0.05, 1.0
CURVE = (16, 64, 256, 1024, 4096)
"""Numbers of environments in the plot."""
MOST = {"gymnasium": 256, "original": 1024}
"""Most environments of baselines, as they take a process or a thread each."""


class Bench:
    """Measures in processes of the interpreters that have what is measured."""

    def __init__(self, python: str, seconds: float) -> None:
        self.seconds = seconds
        self._python = python

    def measure(self, name: str, who: str, **arguments: Any) -> dict[str, Any]:
        """Return what a measurement of `vector_work` found; `refused` if it cannot be done."""
        python, environment = sys.executable, dict(os.environ)
        environment["PYTHONPATH"] = str(ROOT / "packages" / "gem-core" / "src")
        if who in BASELINES:
            del environment["PYTHONPATH"]
            original = who == "original"
            python = original_python() if original else python_with(who, ["gymnasium==1.4.0"])
        elif who in ("ray", "remote"):
            python = self._python
        command = [python, ROOT / "benchmarks" / "vector_work.py", name]
        command.append(json.dumps({"who": who, **arguments}))
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode or not lines:
            return {"refused": (done.stderr.strip().splitlines() or ["no answer"])[-1]}
        found: dict[str, Any] = json.loads(lines[-1])
        return found

    def turns(self, who: str, num_envs: int, **waits: float) -> dict[str, Any]:
        """Measure turns of environments."""
        return self.measure("turns", who, num_envs=num_envs, seconds=self.seconds, **waits)


def show(row: str, who: str, aim: str, found: dict[str, Any], words: str, met: bool | None) -> None:
    """Print a row; `words` is a format of what was found."""
    measured = found.get("refused") or words.format(**found)
    if "others" in found:
        measured += f"; {found['others']:.1f} cores"
    verdict = "" if met is None or "refused" in found else "met" if met else "MISSED"
    print(f"{row:10}{who:11}{aim:24}{verdict:8}{measured}", flush=True)


def waiting(bench: Bench, row: str, who: str) -> None:
    """Show turns a second of environments that wait."""
    slow = {"slow_s": SLOW_S} if row == "slow" else {}
    found = bench.turns(who, 256, wait_s=WAIT_S, **slow)
    found["share"] = found.get("per_s", 0.0) / ((256 - len(slow)) / WAIT_S)
    words = "{share:.1%} of ideal, {per_s:,.0f} turns/s, {cpu_us:.0f} us CPU"
    met = None if who in (BARE, *BASELINES) else found["share"] >= 0.97
    show(row, who, "97 % of ideal", found, words, met)


def step(bench: Bench, row: str, who: str) -> None:
    """Show the CPU time of a turn."""
    found = bench.turns(who, 256)
    if "refused" not in found:
        found["alone"] = bench.turns(who, 1)["cpu_us"]
    aim = MODES.get(who)
    words = "{cpu_us:.1f} us CPU, one alone {alone:.0f} us, {per_s:,.0f} turns/s"
    met = None if aim is None else found.get("cpu_us", 0.0) <= aim
    show(row, who, "" if aim is None else f"at most {aim} us", found, words, met)


def resets(bench: Bench, row: str, who: str, rounds: int) -> None:
    """Show how much faster two workers reset."""
    found = bench.measure("resets", who, num_envs=64, rounds=rounds)
    met = found.get("free", 0.0) >= 1.8
    words = "{free:.2f} times by CPU time; by the clock median {median:.2f}, best {most:.2f}"
    show(row, who, "1.8 times one core", found, words, met)


def many(bench: Bench, row: str, who: str, num_envs: int) -> None:
    """Show what many environments take."""
    found = bench.measure("many", who, num_envs=num_envs)
    met = found.get("mb", 0.0) < 1500 and found.get("made_s", 0.0) < 3
    words = "{mb:,.0f} MB, made in {made_s:.2f} s, reset in {reset_s:.2f} s"
    show(row, who, "1,500 MB, 3 s", found, words, None if who == "sync" else met)


def killed(bench: Bench, row: str, who: str, episodes: int) -> None:
    """Show how episodes end whose workers are killed."""
    found = bench.measure("killed", who, episodes=episodes, every_s=2.0)
    left = [found.get(name, 0) for name in ("workers", "processes", "descriptors")]
    words = (
        "{equal:,} equal, {kills} kills, {took_s:.1f} s, left: {workers} workers, "
        "{processes} processes, {descriptors} descriptors"
    )
    met = found.get("equal") == episodes and max(left) <= 0
    show(row, who, f"{episodes:,} equal, none left", found, words, met)


def curves(
    bench: Bench, players: list[str], numbers: tuple[int, ...]
) -> dict[str, list[tuple[int, float]]]:
    """Measure turns a second over the number of waiting environments; print them, too."""
    lines = {"nothing but the 50 ms of waiting": [(n, n / WAIT_S) for n in numbers]}
    for who in players:
        some = [n for n in numbers if n <= MOST.get(who, n)]
        found = [bench.turns(who, n, wait_s=WAIT_S).get("per_s", 0.0) for n in some]
        points = [(n, y) for n, y in zip(some, found, strict=True) if y]
        print(f"{who:11}", *(f"{n:,}: {y:,.0f}" for n, y in points), flush=True)
        if points:
            names = {
                "gymnasium": "Gymnasium, AsyncVectorEnv",
                "original": "the original GEM, async",
            }
            lines[names.get(who, who)] = points
    return lines


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="less of everything, in seconds")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--rows", nargs="*", choices=ROWS, default=ROWS)
    parser.add_argument("--python", default=sys.executable, help="of the modes ray and remote")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each figure")
    parser.add_argument("--without-baselines", action="store_true")
    parser.add_argument("--plot", type=Path, help="also draw turns a second over environments")
    args = parser.parse_args()
    bench = Bench(args.python, 1.0 if args.quick else args.seconds)
    baselines = [] if args.without_baselines else list(BASELINES)
    players = [*args.modes, *baselines]
    apart = [mode for mode in args.modes if mode != "thread"]
    if args.rows:
        print(f"{'':10}{'':11}{'aim':24}{'':8}measured")
    for row in args.rows:
        if row in ("waiting", "slow"):
            for who in [BARE, *players]:
                waiting(bench, row, who)
        elif row == "step":
            for who in players:
                step(bench, row, who)
        elif row == "resets":
            if "process" in args.modes:
                resets(bench, row, "process", 2 if args.quick else 8)
        elif row == "many":
            for who in ["sync", *apart]:
                many(bench, row, who, 100 if args.quick else 10_000)
        else:
            for who in apart:
                if who != "remote":  # a server's workers are its own
                    killed(bench, row, who, 50 if args.quick else 1000)
    if args.plot:
        lines = curves(bench, players, CURVE[:2] if args.quick else CURVE)
        plot = draw("Turns a second of environments that take 50 ms", "environments", lines)
        args.plot.write_text(plot, encoding="utf-8")


if __name__ == "__main__":
    main()
