"""Boxes: commands a second, and the time of a box's parts, beside what one would take instead.

python benchmarks/boxes.py [--boxes N] [--commands N] [--tasks N]

Each box runs the same commands of a policy that works on files. The baselines run them without a
box (a new shell on this machine, which isolates nothing) and in a new bubblewrap sandbox for each
command, whose files stay in a folder. Whole episodes are tasks of `harbor:sample`, played by their
solutions: reset, command, tests.
"""

from __future__ import annotations

import argparse
import contextlib
import resource
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import gem
from gem_box import OverlayBox

COMMANDS = (
    "echo word > file; cat file",
    "ls -la | head -n 5",
    "grep -c root /etc/passwd",
    "for i in 1 2 3; do echo $i; done | sort -r",
    "sed -i s/word/other/ file && wc -c file",
)
Run = Callable[[str], object]


def box(stack: contextlib.ExitStack) -> Run:
    """Return what runs a command in a box of its own."""
    made = OverlayBox()
    made.start()
    stack.callback(made.close)
    made.run("cd /root", 10)
    return lambda command: made.run(command, 10)


def shell(stack: contextlib.ExitStack) -> Run:
    """Return what runs a command in a new shell, without a box."""
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    return lambda command: subprocess.run(
        ["bash", "-c", command], cwd=folder, capture_output=True, check=False
    )


def bubblewrap(stack: contextlib.ExitStack) -> Run:
    """Return what runs a command in a new bubblewrap sandbox."""
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    around = ["bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/usr", "/usr"]
    for name in ("bin", "lib", "lib64"):
        around += ["--symlink", f"usr/{name}", f"/{name}"]
    around += ["--ro-bind", "/etc/passwd", "/etc/passwd", "--proc", "/proc", "--dev", "/dev"]
    around += ["--bind", folder, "/root", "--chdir", "/root", "bash", "-c"]
    return lambda command: subprocess.run([*around, command], capture_output=True, check=False)


def cpu_s() -> float:
    """Return the CPU time of this process and of children that have ended, in seconds."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def measured(make: Callable[[contextlib.ExitStack], Run], boxes: int, commands: int) -> list[float]:
    """Return commands a second, CPU milliseconds a command, median and 95th percentile in ms."""
    taken: list[float] = []

    def work(run: Run) -> None:
        for number in range(commands):
            began = time.perf_counter()
            run(COMMANDS[number % len(COMMANDS)])
            taken.append(1e3 * (time.perf_counter() - began))

    used = cpu_s()
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(boxes) as pool:
        runs = list(pool.map(lambda _: make(stack), range(boxes)))
        began = time.perf_counter()
        list(pool.map(work, runs))
        seconds = time.perf_counter() - began
    # Children of boxes are counted when the boxes have ended.
    used = cpu_s() - used
    number = boxes * commands
    centiles = statistics.quantiles(taken, n=20)
    return [number / seconds, 1e3 * used / number, statistics.median(taken), centiles[-1]]


def episodes(boxes: int, tasks: int) -> list[float]:
    """Return steps a second of whole episodes, and median ms of a reset, a command, the tests."""
    parts: dict[str, list[float]] = {"reset": [], "command": [], "tests": []}

    def timed(name: str, call: Callable[[], object]) -> object:
        began = time.perf_counter()
        result = call()
        parts[name].append(1e3 * (time.perf_counter() - began))
        return result

    def play(number: int) -> None:
        with gem.make("harbor:sample?eval=true") as env:
            for seed in range(number, tasks, boxes):
                timed("reset", lambda seed=seed: env.reset(seed=seed))
                action = env.oracle_action()
                timed("command", lambda action=action: env.step(action))
                action = env.oracle_action()
                timed("tests", lambda action=action: env.step(action))

    with gem.make("harbor:sample?eval=true") as env:  # builds the images
        for seed in range(min(tasks, 26)):
            env.reset(seed=seed)
    began = time.perf_counter()
    with ThreadPoolExecutor(boxes) as pool:
        list(pool.map(play, range(boxes)))
    seconds = time.perf_counter() - began
    return [2 * tasks / seconds, *map(statistics.median, parts.values())]


def main() -> None:
    """Print two tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--boxes", type=int, default=8, help="at once (8)")
    parser.add_argument("--commands", type=int, default=100, help="in each box (100)")
    parser.add_argument("--tasks", type=int, default=52, help="whole episodes (52)")
    arguments = parser.parse_args()
    print(f"{arguments.boxes} at once          commands/s   CPU ms    median ms   95 % ms")
    ways = {"box": box, "new shell, no box": shell, "new bwrap each": bubblewrap}
    for name, make in ways.items():
        if make is bubblewrap and shutil.which("bwrap") is None:
            print(f"{name:20}bubblewrap is not installed")
            continue
        row = measured(make, arguments.boxes, arguments.commands)
        print(f"{name:20}" + "".join(f"{value:11.1f}" for value in row))
    row = episodes(arguments.boxes, arguments.tasks)
    print(f"\nwhole episodes: {row[0]:.1f} steps/s; median ms of a reset {row[1]:.0f}, ", end="")
    print(f"of a solution's command {row[2]:.0f}, of the tests {row[3]:.0f}")


if __name__ == "__main__":
    main()
