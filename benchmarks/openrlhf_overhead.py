"""What gem-openrlhf adds to an iteration of OpenRLHF.

    gem-bench run recipes/guess-easy.toml --to openrlhf --cpu --out runs/openrlhf
    PYTHONPATH=packages/gem-cpu/src/gem_cpu/startup GEM_CPU=1 \\
        .venvs/openrlhf/bin/python benchmarks/openrlhf_overhead.py runs/openrlhf

Everything that is neither OpenRLHF's sampling nor its training is timed (CPU time) on the recorded
episodes of a real run and compared with the time that its shortest iteration took, as if nothing of
it happened while the engine samples: the executor (chat format, environments, rows) with an engine
that answers at once with the recorded tokens, and the experience maker with its record.
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
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from transformers import AutoTokenizer
from vllm import SamplingParams

from gem.tasks import Task
from gem_openrlhf import worker
from gem_openrlhf.rollout import GemAgentExecutor
from gem_openrlhf.settings import Settings
from gem_train.experiment.tasksets import DatasetRow
from gem_train.record import EpisodeRecord, RunRecord, read_run

REPEATS = 5


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


def main() -> int:
    """Print the table."""
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
    return 0


if __name__ == "__main__":
    sys.exit(main())
