"""Games: steps per CPU second and cost of a reset, ours and the original GEM's side by side.

python benchmarks/games.py [--seconds S] [--rounds N] [--without-original]

Both run the same random policy with the same word list, one thread, each in a process of its own;
rounds alternate between them and the best of each is shown. CPU time of `step` and `reset` alone.
The original's observations lack the request, ours have it.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from original import original_python

IDS = [
    f"game:{name}-v0-{level}"
    for name in ("GuessTheNumber", "Mastermind", "Wordle")
    for level in ("easy", "hard")
]
WORDS = Path(__file__).resolve().parents[1] / "packages/gem-core/src/gem/data/words.txt"
CHUNK = 20


def policy(env_id: str, env: Any, words: list[str], rng: random.Random) -> Callable[[], str]:
    """Random play that costs the same for both."""
    if "GuessTheNumber" in env_id:
        return lambda: f"\\boxed{{{rng.randint(env.min_number, env.max_number)}}}"
    if "Mastermind" in env_id:
        numbers = range(1, env.num_numbers + 1)
        return lambda: f"\\boxed{{{' '.join(map(str, rng.sample(numbers, env.code_length)))}}}"
    fitting = [word.upper() for word in words if len(word) == env.word_length]
    return lambda: f"\\boxed{{{rng.choice(fitting)}}}"


def measure(env_id: str, seconds: float, words: list[str]) -> tuple[float, float]:
    """Steps per CPU second, and the 95th percentile of a reset in microseconds."""
    import gem

    env = gem.make(env_id)
    env.reset(seed=0)
    act = policy(env_id, env, words, random.Random(0))
    resets = []
    for seed in range(500):
        began = time.process_time()
        env.reset(seed=seed)
        resets.append(time.process_time() - began)
    steps, spent, seed = 0, 0.0, 0
    while spent < seconds:
        actions = [act() for _ in range(CHUNK)]
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
    return steps / spent, 1e6 * sorted(resets)[int(0.95 * len(resets))]


def work(seconds: float, which: str) -> None:
    """Measure in this process; print JSON as the last line."""
    words = WORDS.read_text(encoding="ascii").split()
    if which == "original":
        import nltk
        from nltk.corpus import words as corpus

        # Its word list is a download; ours is used for both.
        nltk.download = lambda *args, **kwargs: True
        corpus.words = lambda *args: words
    print(json.dumps({env_id: measure(env_id, seconds, words) for env_id in IDS}))


def rounds(interpreters: dict[str, str], n: int, seconds: float) -> dict[str, dict[str, Any]]:
    """Best figures of `n` alternating rounds."""
    best: dict[str, dict[str, Any]] = {which: {} for which in interpreters}
    for _ in range(n):
        for which, python in interpreters.items():
            command = [python, __file__, "--work", which, "--seconds", str(seconds)]
            run = subprocess.run(command, capture_output=True, text=True, check=True)
            for env_id, (rate, reset) in json.loads(run.stdout.splitlines()[-1]).items():
                old = best[which].get(env_id, (0.0, float("inf")))
                best[which][env_id] = max(old[0], rate), min(old[1], reset)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=0.5, help="CPU seconds per id and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--without-original", action="store_true", help="measure ours only")
    parser.add_argument("--work", choices=["ours", "original"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.seconds, arguments.work)
        return
    interpreters = {"ours": sys.executable}
    if not arguments.without_original:
        interpreters["original"] = str(original_python())
    best = rounds(interpreters, arguments.rounds, arguments.seconds)
    columns = "".join(f"{which:>12}" for which in best)
    print(f"{'':30}{'steps per CPU second':^{12 * len(best)}}  {'reset p95, us':^{12 * len(best)}}")
    print(f"{'environment':30}{columns}  {columns}")
    for env_id in IDS:
        rates = "".join(f"{best[which][env_id][0]:12,.0f}" for which in best)
        resets = "".join(f"{best[which][env_id][1]:12.1f}" for which in best)
        print(f"{env_id:30}{rates}  {resets}")


if __name__ == "__main__":
    main()
