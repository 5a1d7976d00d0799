"""What gem-openrlhf adds to an iteration of OpenRLHF, and whether slow environments are hidden.

    gem-bench run recipes/guess-easy.toml --to openrlhf --cpu --out runs/openrlhf
    PYTHONPATH=packages/gem-cpu/src/gem_cpu/startup GEM_CPU=1 \\
        .venvs/openrlhf/bin/python benchmarks/openrlhf_overhead.py runs/openrlhf

Everything that is neither OpenRLHF's sampling nor its training is timed (CPU time) on the recorded
episodes of a real run and compared with the time that its shortest iteration took, as if nothing of
it happened while the engine samples: the executor (chat format, environments, rows) with an engine
that answers at once with the recorded tokens, and the experience maker with its record. The
baseline of the second table is an environment without delay.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.util
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from itertools import repeat
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from transformers import AutoTokenizer
from vllm import SamplingParams

from gem import Env, register
from gem.core import Step
from gem.tasks import Task
from gem.training.record import EpisodeRecord, RunRecord, read_run
from gem.training.tasksets import DatasetRow
from gem_openrlhf import worker
from gem_openrlhf.rollout import GemAgentExecutor
from gem_openrlhf.settings import Settings

EPISODES, DELAY_S, SAMPLING_S, REPEATS = 64, 0.2, 0.02, 5


class RecordedEngine:
    """Answers at once with the tokens that were sampled in a recorded episode."""

    def __init__(self, episode: EpisodeRecord) -> None:
        self._turns = iter(episode.trajectory.turns)

    async def generate(self, prompt_token_ids: list[int], sampling_params: Any) -> Any:
        turn = next(self._turns)
        pairs = zip(turn.response_ids, turn.logprobs, strict=True)
        known = [{token: SimpleNamespace(logprob=p)} for token, p in pairs]
        output = SimpleNamespace(
            token_ids=turn.response_ids, logprobs=known, finish_reason=turn.stop_reason
        )
        return SimpleNamespace(outputs=[output])


class Echo(Env):
    """Three turns, each of which takes a while."""

    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s

    def reset(self, seed: int | None = None, **options: Any) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._turn = 0
        return f"start {seed}", {}

    def step(self, action: str) -> Step:
        time.sleep(self.delay_s)
        self._turn += 1
        return "go on", 0.0, self._turn == 3, False, {}


class SteadyEngine:
    """Takes the same time for every turn, as many at once as wanted."""

    def __init__(self, answer: list[int]) -> None:
        self._answer = answer

    async def generate(self, prompt_token_ids: list[int], sampling_params: Any) -> Any:
        await asyncio.sleep(SAMPLING_S)
        output = SimpleNamespace(token_ids=self._answer, logprobs=None, finish_reason="stop")
        return SimpleNamespace(outputs=[output])


def executor(settings: Settings) -> GemAgentExecutor:
    agent = type("AgentExecutor", (GemAgentExecutor,), {"settings": settings})
    return agent()


async def play(
    agent: GemAgentExecutor, tasks: list[Task], engines: Iterable[Any], tokenizer: Any
) -> None:
    params = SamplingParams(max_tokens=64)
    plays = [
        agent.execute("", DatasetRow(task).encode(), params, 4096, tokenizer, engine)
        for task, engine in zip(tasks, engines, strict=False)
    ]
    await asyncio.gather(*plays)


def overhead(run: RunRecord, world: ModuleType, tokenizer: Any) -> None:
    train = [e for e in run.episodes() if e.split == "train"]
    last = max(e.iteration for e in train)
    episodes = [e for e in train if e.iteration == last]
    spec = run.meta["spec"]
    settings = Settings(
        prompt_tokens=spec["policy"]["prompt_tokens"], turn_tokens=spec["policy"]["turn_tokens"]
    )
    agent = executor(settings)
    tasks = [e.trajectory.task for e in episodes]
    rollout_s = min(
        timed(lambda: asyncio.run(play(agent, tasks, map(RecordedEngine, episodes), tokenizer)))
        for _ in range(REPEATS)
    )
    with tempfile.TemporaryDirectory() as folder:
        file = world.agent_file(
            Path(folder), advantage=spec["algorithm"]["advantage"], record_dir=f"{folder}/record"
        )
        flags = ("--logger.tensorboard_dir", f"{folder}/board", "--train.micro_batch_size", "1")
        maker = world.maker(file, *flags, samples=spec["training"]["group_size"])
        maker_s = min(
            timed(lambda batch=batch: make(maker, batch, f"{folder}/record"))
            for batch in [
                world.experiences(maker, [e.trajectory for e in episodes], rows=8)
                for _ in range(REPEATS)
            ]
        )
    # On a machine with other work the least disturbed iteration is the one to compare with.
    step_s = min(m["step_s"] for m in run.metrics if m["split"] == "train")
    print(f"{len(episodes)} episodes an iteration of {step_s * 1000:.0f} ms (the shortest)")
    for name, seconds in (
        ("executor", rollout_s),
        ("experience maker, record", maker_s),
        ("together (wanted: < 5 %)", rollout_s + maker_s),
    ):
        print(f"  {name:26} {seconds * 1000:8.1f} ms  {100 * seconds / step_s:5.2f} %")


def make(maker: Any, batch: list[Any], folder: str) -> None:
    """What happens between sampling and training, and after it."""
    from gem_openrlhf.record import recording

    maker.compute_advantages_and_returns(batch)
    recording(folder).write_iteration(0)


def timed(function: Callable[[], object]) -> float:
    """Run a function; return the CPU seconds it took, which other work hardly changes."""
    began = time.process_time()
    function()
    return time.process_time() - began


def hidden(tokenizer: Any) -> None:
    register("bench:Echo-v0", Echo)
    answer = [*tokenizer.encode("x"), tokenizer.eos_token_id]
    agent = executor(Settings(prompt_tokens=128))
    print(
        f"\n{EPISODES} episodes of 3 turns at once, {SAMPLING_S * 1000:.0f} ms of sampling a turn"
    )
    for delay_s in (0.0, DELAY_S):
        tasks = [Task("bench:Echo-v0", seed, {"delay_s": delay_s}) for seed in range(EPISODES)]
        asyncio.run(play(agent, tasks, repeat(SteadyEngine(answer)), tokenizer))
        began = time.perf_counter()
        asyncio.run(play(agent, tasks, repeat(SteadyEngine(answer)), tokenizer))
        took = time.perf_counter() - began
        alone = EPISODES * 3 * (delay_s + SAMPLING_S)
        print(f"  env {delay_s * 1000:4.0f} ms: {took:6.2f} s; one after the other {alone:6.1f} s")


def main() -> int:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path, help="folder of a run of OpenRLHF by gem-bench")
    run = read_run(parser.parse_args().run)
    path = Path(__file__).parents[1] / "tests" / "openrlhf" / "world.py"
    spec = importlib.util.spec_from_file_location("world", path)
    assert spec is not None and spec.loader is not None
    world = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(world)
    tokenizer = AutoTokenizer.from_pretrained(run.meta["model"])
    # As in a worker: trajectories travel with the rows.
    worker.setup()
    importlib.import_module("openrlhf.trainer.ppo_trainer")
    overhead(run, world, tokenizer)
    hidden(tokenizer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
