"""What gem-tinker adds to an iteration, and how it hides environments that take their time.

.venvs/tinker/bin/python benchmarks/tinker_overhead.py --model DIR [--iterations N] [--episodes N]

Trains on a server of this machine. The server works, or an environment steps, while at least one
of their calls is in progress; the rest of an iteration is what the adapter and the SDK's client
do themselves. Then the same batch is played with an environment that sleeps 200 ms a step. The
first iteration, in which the server compiles, is not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tinker

from gem import register
from gem.core import Step
from gem.envs.games.guess_the_number import GuessTheNumber
from gem_cpu.tinker_server import Options, running
from gem_tinker.advantage import Objective
from gem_tinker.settings import read
from gem_tinker.train import Run
from gem_train.checkpoints import Checkpoints
from gem_train.recording import RunRecording

SLEEP_S = 0.2
LIMIT = 5.0
"""Largest share of an iteration in %, as promised."""


class Busy:
    """Time during which something is in progress, however many things at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = 0
        self._since = 0.0
        self.seconds = 0.0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if not self._open:
                self._since = time.perf_counter()
            self._open += 1
        try:
            yield
        finally:
            with self._lock:
                self._open -= 1
                if not self._open:
                    self.seconds += time.perf_counter() - self._since


BUSY = Busy()


class Guess(GuessTheNumber):
    """The number game, whose steps are seen and may take long."""

    def __init__(self, sleep_s: float = 0.0) -> None:
        super().__init__(1, 10, 4, hint="range", prompt="short")
        self.sleep_s = sleep_s

    def step(self, action: str) -> Step:
        with BUSY():
            time.sleep(self.sleep_s)
            return super().step(action)


register("bench:Guess", Guess)


class Watched:
    """A client of the SDK whose answers are waited for under watch."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        if name == "get_tokenizer":
            return method
        return lambda *args, **kwargs: self._wait(method(*args, **kwargs))

    def _wait(self, future: Awaitable[Any]) -> Awaitable[Any]:
        async def wait() -> Any:
            with BUSY():
                answer = await future
            clients = (tinker.TrainingClient, tinker.SamplingClient)
            return Watched(answer) if isinstance(answer, clients) else answer

        return asyncio.ensure_future(wait())


async def measure(model: str, sleep_s: float, iterations: int, episodes: int) -> dict[str, float]:
    """Train and return medians over iterations: seconds in all, and of the adapter."""
    marks: list[tuple[float, float, float, float]] = []

    def mark(iteration: int, split: str, metrics: dict[str, float]) -> None:
        marks.append((time.perf_counter(), BUSY.seconds, time.process_time(), metrics["rollout_s"]))

    words = [f"model={model}", f"train=gem:bench:Guess?sleep_s={sleep_s}", "group_size=1", "seed=0"]
    words += [f"tasks={episodes}", f"iterations={iterations + 1}", "prompt_tokens=64"]
    words += ["response_tokens=128", "turn_tokens=8", "lora_rank=8"]
    config = read(words)
    objective = Objective(config.loss_aggregation, "skyrl_jax")
    with tinker.ServiceClient() as service:
        recording = RunRecording(None, {}, report=mark)
        run = Run(config, objective, Watched(service), recording, Checkpoints(None))
        await run.train()
    steps = list(itertools.pairwise(marks))
    wall = [b[0] - a[0] for a, b in steps]
    own = [(b[0] - a[0]) - (b[1] - a[1]) for a, b in steps]
    cpu = [b[2] - a[2] for a, b in steps]
    return {
        "iteration_s": statistics.median(wall),
        "own_s": statistics.median(own),
        "client_cpu_s": statistics.median(cpu),
        "rollout_s": statistics.median(m[3] for m in marks[1:]),
    }


def main() -> int:
    """Measure and print; exit status 1 if the adapter takes more than it may."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="folder of a model, such as gem-cpu's tiny")
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--episodes", type=int, default=32)
    args = parser.parse_args()
    options = Options(Path(args.model), sequences=args.episodes, bucket=192)
    with tempfile.TemporaryDirectory() as state, running(options, state=Path(state)) as server:
        os.environ.update(server.environment)
        fast, slow = (
            asyncio.run(measure(args.model, sleep_s, args.iterations, args.episodes))
            for sleep_s in (0.0, SLEEP_S)
        )
    share = 100 * fast["own_s"] / fast["iteration_s"]
    print(f"iteration of {args.episodes} episodes: {fast['iteration_s']:.2f} s")
    print(f"  neither server nor environment at work: {fast['own_s']:.3f} s = {share:.1f} %")
    print(f"  CPU time of the client, SDK included: {fast['client_cpu_s']:.2f} s")
    added = slow["rollout_s"] - fast["rollout_s"]
    alone = args.episodes * SLEEP_S
    print(f"environment with {SLEEP_S * 1000:g} ms a step: {added:+.2f} s a batch")
    print(f"  one after the other it would be {alone:.1f} s for every turn of all episodes")
    return 0 if share < LIMIT else 1


if __name__ == "__main__":
    raise SystemExit(main())
