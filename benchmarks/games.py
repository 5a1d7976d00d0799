"""Games: steps per CPU second, cost of a reset and of gem.make, memory; ours and the original's.

python benchmarks/games.py [--seconds S] [--rounds N] [--only NAME] [--without-original]

Both play the same random actions with the same word list, one thread, each id in a process of its
own; rounds alternate between the two and the best of each is shown. CPU time of `step` and `reset`
alone. Memory is what 256 environments add to a process that already holds one, after a reset each.
The original's observations lack the board and the request, ours have them.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from original import original_python

WORDS = Path(__file__).resolve().parents[1] / "packages/gem-core/src/gem/data/words.txt"
LEVELS = ("easy", "hard")
CHUNK = 20
ENVS = 256
# Megabytes that the copies of one environment may take before the rest is extrapolated.
ENOUGH_MB = 512
COLUMNS = (
    ("steps per CPU s", "{:,.0f}", max),
    ("reset p95, ms", "{:.3f}", min),
    ("make, us", "{:.0f}", min),
    ("256 envs, MB", "{:.1f}", min),
)

Draw = Callable[[random.Random], object]


def one_of(*choices: str) -> Draw:
    return lambda rng: rng.choice(choices)


def numbers(*ranges: tuple[int, int], before: str = "") -> Draw:
    return lambda rng: before + " ".join(str(rng.randint(*each)) for each in ranges)


def sample(n: int, last: int) -> Draw:
    return lambda rng: " ".join(map(str, rng.sample(range(1, last + 1), n)))


def word(length: int) -> Draw:
    fitting = [w.upper() for w in WORDS.read_text(encoding="ascii").split() if len(w) == length]
    return lambda rng: rng.choice(fitting)


def letter_at(size: int) -> Draw:
    return lambda rng: f"{rng.randrange(size)} {rng.randrange(size)} {rng.choice('AEIORST')}"


DIRECTIONS = one_of("up", "down", "left", "right")
PEGS = one_of("A B", "A C", "B A", "B C", "C A", "C B")
ACTIONS: dict[str, tuple[Callable[[], Draw], Callable[[], Draw]]] = {
    "Crosswords": (lambda: letter_at(8), lambda: letter_at(12)),
    "FifteenPuzzle": (lambda: DIRECTIONS, lambda: DIRECTIONS),
    "Game2048": (lambda: DIRECTIONS, lambda: DIRECTIONS),
    "GuessTheNumber": (lambda: numbers((1, 10)), lambda: numbers((1, 50))),
    "Hangman": (lambda: one_of(*"ABCDEFGHIJKLMNOPQRSTUVWXYZ"),) * 2,
    "Mastermind": (lambda: sample(2, 6), lambda: sample(4, 8)),
    "Minesweeper": (
        lambda: numbers((0, 4), (0, 4), before="reveal "),
        lambda: numbers((0, 7), (0, 7), before="reveal "),
    ),
    "Sokoban": (lambda: DIRECTIONS, lambda: DIRECTIONS),
    "Sudoku": (lambda: numbers(*[(1, 4)] * 3), lambda: numbers(*[(1, 9)] * 3)),
    "TowerofHanoi": (lambda: PEGS, lambda: PEGS),
    "WordSearch": (lambda: numbers(*[(0, 9)] * 4), lambda: numbers(*[(0, 13)] * 4)),
    "Wordle": (lambda: word(3), lambda: word(5)),
}
"""Per game, what makes the random actions of its easy and of its hard id."""


def ids(only: str) -> list[str]:
    return [f"game:{name}-v0-{level}" for name in ACTIONS if only in name for level in LEVELS]


def play(env_id: str, env: Any, seconds: float) -> float:
    """Steps per CPU second."""
    name, level = env_id.removeprefix("game:").split("-v0-")
    draw = ACTIONS[name][LEVELS.index(level)]()
    rng = random.Random(0)
    env.reset(seed=0)
    steps, spent, seed = 0, 0.0, 0
    # Resets of the original can be slow; they count towards the limit, not towards the figure.
    limit = time.process_time() + 10 * seconds
    while spent < seconds and time.process_time() < limit:
        actions = [f"\\boxed{{{draw(rng)}}}" for _ in range(CHUNK)]
        done = False
        began = time.process_time()
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            steps += 1
            if terminated or truncated:
                done = True
                break
        spent += time.process_time() - began
        if done:
            seed += 1
            env.reset(seed=seed)
    return steps / spent


def resets(env: Any, seconds: float) -> float:
    """95th percentile of a reset in milliseconds."""
    times: list[float] = []
    while len(times) < 500 and (sum(times) < 4 * seconds or len(times) < 5):
        began = time.process_time()
        env.reset(seed=len(times))
        times.append(time.process_time() - began)
    return 1e3 * sorted(times)[int(0.95 * len(times))]


def making(make: Callable[[], Any], seconds: float) -> float:
    """Microseconds of a warm `make`."""
    times: list[float] = []
    while len(times) < 200 and (sum(times) < seconds or len(times) < 3):
        began = time.process_time()
        make()
        times.append(time.process_time() - began)
    return 1e6 * sum(times) / len(times)


def memory(make: Callable[[], Any], seconds: float) -> float:
    """Megabytes of 256 environments beyond the first."""
    page = os.sysconf("SC_PAGE_SIZE") / 1e6

    def resident() -> float:
        return int(Path("/proc/self/statm").read_text().split()[1]) * page

    before = resident()
    began = time.process_time()
    kept = []
    for seed in range(ENVS):
        env = make()
        env.reset(seed=seed)
        kept.append(env)
        slow = len(kept) >= 8 and time.process_time() - began > 10 * seconds
        if slow or resident() - before > ENOUGH_MB:
            break
    return (resident() - before) * ENVS / len(kept)


def work(env_id: str, seconds: float, which: str) -> None:
    """Measure in this process; print JSON as the last line."""
    import gem

    if which == "original":
        import nltk
        from nltk.corpus import words as corpus

        # Its word lists are downloads; ours is used for both.
        words = WORDS.read_text(encoding="ascii").split()
        nltk.download = lambda *args, **kwargs: True
        corpus.words = lambda *args: words

    def make() -> Any:
        return gem.make(env_id)

    env = make()
    steps = play(env_id, env, seconds)
    print(json.dumps([steps, resets(env, seconds), making(make, seconds), memory(make, seconds)]))


def measure(python: str, which: str, env_id: str, seconds: float) -> list[float] | None:
    command = [python, __file__, "--work", which, "--only", env_id, "--seconds", str(seconds)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        last = (run.stderr.strip().splitlines() or ["no message"])[-1]
        print(f"{which}, {env_id}: {last}", file=sys.stderr)
        return None
    figures: list[float] = json.loads(run.stdout.splitlines()[-1])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=0.5, help="CPU seconds per id and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="games whose name contains this")
    parser.add_argument("--without-original", action="store_true", help="measure ours only")
    parser.add_argument("--work", choices=["ours", "original"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.only, arguments.seconds, arguments.work)
        return
    interpreters = {"ours": sys.executable}
    if not arguments.without_original:
        interpreters["original"] = str(original_python())
    width = 10 * len(interpreters)
    print(f"{'':28}" + "".join(f"  {title:^{width}}" for title, _, _ in COLUMNS))
    heads = "".join(f"{which:>10}" for which in interpreters)
    print(f"{'environment':28}" + f"  {heads}" * len(COLUMNS))
    for env_id in ids(arguments.only):
        best: dict[str, list[float]] = {}
        for _ in range(arguments.rounds):
            for which, python in interpreters.items():
                figures = measure(python, which, env_id, arguments.seconds)
                if figures is None:
                    continue
                old = best.get(which, figures)
                pairs = zip(COLUMNS, figures, old, strict=True)
                best[which] = [better(new, was) for (_, _, better), new, was in pairs]
        row = f"{env_id:28}"
        for column, (_, form, _) in enumerate(COLUMNS):
            cells = (form.format(best[w][column]) if w in best else "-" for w in interpreters)
            row += "  " + "".join(f"{cell:>10}" for cell in cells)
        print(row, flush=True)


if __name__ == "__main__":
    main()
