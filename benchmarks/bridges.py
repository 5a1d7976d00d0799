"""CPU, speed, memory and descriptors of bridges: agent programs, and verifiers there and back.

.venvs/verifiers/bin/python benchmarks/bridges.py [--episodes N] [--envs K]

A game, played by its oracle: alone; as `agent:`, where a program of the standard library plays it
through its chat model; and as `verifiers:gem_env`, where verifiers plays it through `gem_env`, so
that both directions are in the figure. K environments play in threads of this process. CPU is this
process's, without that of programs. Growth is from the end of the first fifth of the episodes to
the end of the last.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gem

GAME = "game:GuessTheNumber-v0-easy"
SHORT = {"hint": "range", "prompt": "short"}
PROGRAM = Path(__file__).parents[1] / "tests" / "shared" / "agents" / "guess.py"
SEEDS = 1000


def play(env: gem.Env, seed: int, by_row: bool) -> int:
    """Play an episode by the game's oracle; return its turns."""
    with gem.make(GAME, **SHORT) as game:
        game.reset(seed=seed)
        if by_row:
            env.reset(idx=seed)
        else:
            env.reset(seed=seed)
        turns, over = 0, False
        while not over:
            action = game.oracle_action()
            game.step(action)
            _, _, terminated, truncated, _ = env.step(action)
            turns, over = turns + 1, terminated or truncated
    return turns


def used() -> tuple[float, int, int]:
    """Return resident MB, open descriptors and threads of this process."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    files = len(list(Path("/proc/self/fd").iterdir()))
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6, files, threading.active_count()


def measured(make: Callable[[], gem.Env], by_row: bool, episodes: int, envs: int) -> list[str]:
    """Return the cells of a row."""
    made = [make() for _ in range(envs)]

    def series(place: int, begin: int, end: int) -> int:
        mine = range(begin + place, end, envs)
        return sum(play(made[place], seed % SEEDS, by_row) for seed in mine)

    with ThreadPoolExecutor(envs) as pool:

        def all_of(begin: int, end: int) -> int:
            return sum(pool.map(lambda place: series(place, begin, end), range(envs)))

        all_of(0, episodes // 5)
        before = used()
        cpu, wall = time.process_time(), time.perf_counter()
        turns = all_of(episodes // 5, episodes)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        after = used()
    for env in made:
        env.close()
    grown = [now - then for now, then in zip(after, before, strict=True)]
    return [
        *(f"{turns:,}", f"{1e3 * cpu / turns:.1f}", f"{turns / wall:,.0f}"),
        *(f"{grown[0]:+.1f}", f"{grown[1]:+d}", f"{grown[2]:+d}"),
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--envs", type=int, default=16)
    given = parser.parse_args()
    verifiers = {
        "taskset.env_id": GAME,
        "taskset.parameters": '{"hint": "range", "prompt": "short"}',
    }
    rows: dict[str, tuple[Callable[[], gem.Env], bool]] = {
        "the game alone": (lambda: gem.make(GAME, **SHORT), False),
        "agent: (a program)": (lambda: gem.make(f"agent:{sys.executable} {PROGRAM}"), False),
        "verifiers:gem_env": (lambda: gem.make("verifiers:gem_env", **verifiers), True),
    }
    print(f"{given.episodes} episodes, {given.envs} environments at a time\n")
    print("| | turns | CPU ms a turn | turns/s | MB | descriptors | threads |")
    print("|---|---|---|---|---|---|---|")
    for name, (make, by_row) in rows.items():
        cells = measured(make, by_row, given.episodes, given.envs)
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
