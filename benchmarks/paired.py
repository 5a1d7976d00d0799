"""This tree against another revision: what users wait for, case by case, in turns.

python benchmarks/paired.py --baseline REVISION [--rounds N] [--ms MS] [--case NAME ...]

One process has this tree's packages, another the baseline's, a clone in a temporary folder. They
take turns of about --ms milliseconds on the same case, in the order A B B A, so that both see the
same machine. A row shows the medians of both in ms, the median of the rounds' ratios (this tree
over the baseline) with its 95 % interval from a bootstrap, and the same ratio of CPU times, which
count all processes that a call involves. The baseline may be older than gem-sandbox and gem-math:
then gem-core has what they have.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
Case = Callable[[], Any]
TURNS = 20_000
GUESS, FAR = "game:GuessTheNumber-v0", {"max_number": 10**6, "max_turns": 100}
PROGRAM = "def f(x):\n    return sorted(set(x))\n"
CASES = [([i, 1, i], sorted({i, 1})) for i in range(12)]
ASSERTS = [f"assert f({x}) == {y}" for x, y in CASES]
CODE: dict[str, tuple[str, Any]] = {
    "1 assertion": (PROGRAM, ASSERTS[:1]),
    "3 assertions": (PROGRAM, ASSERTS[:3]),
    "12 assertions": (PROGRAM, ASSERTS),
    "check(candidate) of 12": (
        PROGRAM,
        [
            "def check(g):\n"
            + "".join(f"    {each.replace('f(', 'g(')}\n" for each in ASSERTS)
            + "check(f)"
        ],
    ),
    "3 calls": (
        PROGRAM,
        {
            "fn_name": "f",
            "inputs": [[x] for x, _ in CASES[:3]],
            "outputs": [y for _, y in CASES[:3]],
        },
    ),
    "12 calls": (
        PROGRAM,
        {"fn_name": "f", "inputs": [[x] for x, _ in CASES], "outputs": [y for _, y in CASES]},
    ),
    "3 of stdin": (
        "print(2 * int(input()))",
        {"inputs": ["3", "4", "5"], "outputs": ["6", "8", "10"]},
    ),
}


def module(*names: str) -> Any:
    """Import the first of `names` that there is."""
    for name in names:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
    raise SystemExit(f"none of {', '.join(names)} is in this revision")


def sandbox() -> dict[str, Case]:
    tools = module("gem.tools.python", "gem_sandbox.tool")
    runner = module("gem.sandbox", "gem_sandbox").resolve("bwrap")
    code = module("gem.grading.code", "gem_sandbox.grading.code")
    tool = tools.PythonTool()
    tool.reset()
    call = tool.parse("<python>print(1)</python>")
    session = runner.session()
    cases: dict[str, Case] = {
        "print(1) in the tool": lambda: tool.execute(call),
        "print(1) in a session": lambda: session.run("print(1)"),
        "print(1) by the runner": lambda: runner.run("print(1)"),
    }
    for name, (program, tests) in CODE.items():
        assert code.grade(program, tests).correct, name
        cases[f"code: {name}"] = lambda p=program, t=tests: code.grade(p, t)
    return cases


def mathematics() -> dict[str, Case]:
    grade = module("gem.grading.math", "gem_math.grading").grade
    pairs = {
        "equal integers": ("\\boxed{42}", "42"),
        "fractions": ("\\frac{1}{2}", "0.5"),
        "polynomials": ("(x+1)^2", "x^2+2x+1"),
        "math-verify": ("\\sin^2 x+\\cos^2 x", "1"),
    }
    return {
        f"math: {name}": lambda said=said, gold=gold: grade(said, gold)
        for name, (said, gold) in pairs.items()
    }


def core() -> dict[str, Case]:
    import gem

    # The interpreter's installed packages announce this tree's environments to the baseline, too.
    warnings.simplefilter("ignore")
    from gem.advantage import TurnTable, rebn

    rng = random.Random(0)
    rewards: list[list[float]] = []
    while sum(map(len, rewards)) < TURNS:
        rewards.append([rng.random() for _ in range(rng.randint(1, 20))])
    table = TurnTable.build(rewards)
    env = gem.make(GUESS, **FAR)
    sync = gem.make_vec(GUESS, **FAR, num_envs=64)
    threads = gem.make_vec(GUESS, **FAR, num_envs=64, vectorization_mode="thread")

    def episode(seed: int = 1) -> None:
        env.reset(seed=seed)
        for _ in range(20):
            env.step("\\boxed{1}")

    def batch(vector: Any) -> None:
        vector.reset(seed=1)
        for _ in range(5):
            vector.step(["\\boxed{1}"] * 64)

    return {
        f"ReBN of {TURNS:,} turns": lambda: rebn(table, 0.9),
        "TurnTable from lists": lambda: TurnTable.build(rewards),
        "20 steps of GuessTheNumber": episode,
        "5 steps of 64 of them, sync": lambda: batch(sync),
        "5 steps of 64 of them, threads": lambda: batch(threads),
    }


def rollout() -> dict[str, Case]:
    from transformers import AutoTokenizer

    from gem.rollout import Budget, ChatFormat, Sample, play_batch
    from gem.tasks import Task
    from gem_cpu.tiny_model import ensure

    packed = module("gem.packed", "gem_train.packed").PackedTrajectory
    chat = ChatFormat(AutoTokenizer.from_pretrained(ensure()))
    sample = Sample([*chat.encode_text("\\boxed{1}"), min(chat.stop_ids)], None, "stop")
    budget = Budget(turn_tokens=16, response_tokens=4096, prompt_tokens=512)
    params = {**FAR, "max_turns": 20}
    tasks = [Task(GUESS, seed, params) for seed in range(16)]

    def play() -> Any:
        return play_batch(tasks, lambda asked: [sample] * len(asked), chat, budget=budget)

    played = play()[0]
    assert len(played.turns) == params["max_turns"]
    return {
        "16 episodes of 20 turns": play,
        "training rows of one": played.training_rows,
        "one packed and unpacked": lambda: packed.of(played).unpack(),
        "rows of one packed": packed.of(played).training_rows,
    }


GROUPS: dict[str, Callable[[], dict[str, Case]]] = {
    "sandbox": sandbox,
    "math": mathematics,
    "core": core,
    "rollout": rollout,
}


def work(only: list[str]) -> None:
    """Answer requests of the parent: a case's name and how often it runs."""
    from sandbox import cpu_s

    cases = {name: case for group in GROUPS.values() for name, case in group().items()}
    print(
        json.dumps([name for name in cases if not only or any(o in name for o in only)]), flush=True
    )
    for line in sys.stdin:
        name, count = json.loads(line)
        case = cases[name]
        spent, began = cpu_s(), time.perf_counter()
        for _ in range(count):
            case()
        wall = time.perf_counter() - began
        print(json.dumps([wall / count, (cpu_s() - spent) / count]), flush=True)


class Worker:
    """A process that has the packages of one tree."""

    def __init__(self, root: Path, only: list[str]) -> None:
        folders = [Path(__file__).parent, *sorted(root.glob("packages/gem-*/src"))]
        path = os.pathsep.join(map(str, folders))
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--work", *only],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": path},
            cwd=root,
        )
        self.cases: list[str] = self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the worker ended with status {self._process.wait()}")
        return json.loads(line)

    def run(self, case: str, count: int) -> tuple[float, float]:
        """Return seconds and CPU seconds of a call, of `count` calls."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps([case, count]) + "\n")
        self._process.stdin.flush()
        wall, cpu = self._answer()
        return wall, cpu

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


def interval(ratios: list[float]) -> tuple[float, float]:
    rng = random.Random(0)
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(1000))
    return medians[25], medians[974]


def compare(ours: Worker, theirs: Worker, rounds: int, ms: float) -> None:
    print(f"{'':32}{'this, ms':>10}{'before':>10}{'ratio':>8}{'95 %':>16}{'CPU':>8}")
    for case in ours.cases:
        each = min(worker.run(case, 3)[0] for worker in (ours, theirs))
        count = max(1, round(ms / 1000 / each))
        walls: list[tuple[float, float]] = []
        cpus: list[tuple[float, float]] = []
        for turn in range(rounds):
            order = [ours, theirs] if turn % 2 == 0 else [theirs, ours]
            found = {id(worker): worker.run(case, count) for worker in order}
            walls.append((found[id(ours)][0], found[id(theirs)][0]))
            cpus.append((found[id(ours)][1], found[id(theirs)][1]))
        ratios = [a / b for a, b in walls]
        low, high = interval(ratios)
        here, there = (statistics.median(column) * 1000 for column in zip(*walls, strict=True))
        cpu = sum(a for a, _ in cpus) / sum(b for _, b in cpus)
        print(
            f"{case:32}{here:10.3f}{there:10.3f}{statistics.median(ratios):8.3f}"
            f"{f'{low:.3f} to {high:.3f}':>16}{cpu:8.3f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--baseline", required=True, help="a git revision")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--ms", type=float, default=200.0, help="length of a turn")
    parser.add_argument("--case", nargs="*", default=[], help="parts of names; all by default")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "baseline"
        subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
        subprocess.run(["git", "checkout", "--quiet", args.baseline], check=True, cwd=clone)
        workers = [Worker(root, args.case) for root in (ROOT, clone)]
        compare(*workers, args.rounds, args.ms)
        for worker in workers:
            worker.close()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(sys.argv[2:])
    else:
        main()
