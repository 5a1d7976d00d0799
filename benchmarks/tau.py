"""Speed and memory of tau:Retail-v2, beside a deep copy of the database for each episode.

python benchmarks/tau.py [--episodes N] [--rounds R]

N episodes at once, each stepped once a round, reset when over; actions of the oracle and of random
play in turn. They are chosen outside of the measured time. The other line has the same tools and
rewards as they are usually built: each episode owns a copy of all records, and at its end both the
episode's and the recorded outcome are hashed as JSON.
"""

from __future__ import annotations

import argparse
import copy
import gc
import hashlib
import json
import time
import tracemalloc
from typing import Any

import gem
from gem_tau.data import database
from gem_tau.outcome import gold
from gem_tau.retail import Retail


class Copied(Retail):
    """Retail with a copy of the database for each episode."""

    def reset(self, seed: int | None = None, **options: Any) -> Any:
        """Begin an episode with a copy of its own."""
        self.copied = copy.deepcopy(database())
        return super().reset(seed=seed, **options)

    def step(self, action: str) -> Any:
        """Step, and at the end hash two databases."""
        result = super().step(action)
        if result[2] or result[3]:
            for changes in (self.records.changes, gold(self.task, self.semantics).changes):
                for (table, key), record in changes.items():
                    self.copied[table][key] = record
                hashlib.sha256(json.dumps(self.copied, sort_keys=True).encode()).hexdigest()
        return result


def measure(make: Any, episodes: int, rounds: int) -> tuple[float, float, float]:
    """Return steps per second, resets included, milliseconds a reset, and kB an episode."""
    make().reset(seed=0)
    gc.collect()
    tracemalloc.start()
    envs = [make() for _ in range(episodes)]
    for seed, env in enumerate(envs):
        env.reset(seed=seed)
        for _ in range(6):
            _, _, terminated, truncated, _ = env.step(env.oracle_action())
            if terminated or truncated:
                env.reset()
    gc.collect()
    memory = tracemalloc.get_traced_memory()[0] / episodes / 1e3
    tracemalloc.stop()
    stepping = resetting = 0.0
    resets = 0
    for number in range(rounds):
        actions = [
            env.oracle_action() if (number + place) % 4 else env.sample_random_action()
            for place, env in enumerate(envs)
        ]
        over = []
        began = time.perf_counter()
        for env, action in zip(envs, actions, strict=True):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                over.append(env)
        middle = time.perf_counter()
        for env in over:
            env.reset()
        stepping += middle - began
        resetting += time.perf_counter() - middle
        resets += len(over)
    rate = episodes * rounds / (stepping + resetting)
    return rate, 1e3 * resetting / max(1, resets), memory


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=200)
    given = parser.parse_args()
    print(f"{given.episodes} episodes at once, one process\n")
    print("| | steps/s | ms a reset | kB an episode |")
    print("|---|---|---|---|")
    # Fewer copies: 64 would take more than a GB.
    few = max(1, given.episodes // 8)
    for name, make, episodes in (
        ("overlay on a shared database", lambda: gem.make("tau:Retail-v2"), given.episodes),
        (f"copy of the database ({few} episodes)", lambda: Copied(), few),
    ):
        rounds = given.rounds if episodes == given.episodes else given.rounds // 5
        rate, reset_ms, memory = measure(make, episodes, max(1, rounds))
        print(f"| {name} | {rate:,.0f} | {reset_ms:.2g} | {memory:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
