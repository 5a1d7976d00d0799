"""What gem-rl2 adds to an iteration of RL2.

    gem-bench run recipes/guess-easy.toml --to rl2 --cpu --out runs/rl2
    PYTHONPATH=$(python -c 'from gem_cpu.rl2_plugin import folders; print(folders())') GEM_CPU=1 \\
        .venvs/rl2/bin/python benchmarks/rl2.py runs/rl2

Everything that is neither SGLang's sampling nor RL2's training is timed (CPU time) on the recorded
episodes of a real run and compared with the time that its shortest iteration took, as if nothing of
it happened while SGLang samples: episodes (chat format, environments, rows) with answers that are
there at once, without the HTTP that RL2 does, too; the advantage seam, and the record.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.util
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gem.tasks import Task
from gem_cpu import rl2_plugin
from gem_rl2 import advantage, rollout
from gem_rl2.record import RECORDED
from gem_rl2.rollout import Rollouts, state_dicts
from gem_rl2.sglang import SglangSampler
from gem_train.experiment.tasksets import DatasetRow
from gem_train.record import EpisodeRecord, RunRecord, read_run
from gem_train.recording import RunRecording

REPEATS = 5


def answer(ids: list[int], logprobs: list[float], reason: str) -> dict[str, Any]:
    """What SGLang says."""
    tokens = [[p, token, None] for token, p in zip(ids, logprobs, strict=True)]
    return {"meta_info": {"finish_reason": {"type": reason}, "output_token_logprobs": tokens}}


def recorded(episode: EpisodeRecord) -> type[SglangSampler]:
    """A sampler that answers at once with the tokens of a recorded episode."""
    turns = iter(episode.trajectory.turns)

    class Recorded(SglangSampler):
        async def _post(self, body: dict[str, Any]) -> Any:
            turn = next(turns)
            return answer(turn.response_ids, turn.logprobs or [], turn.stop_reason)

    return Recorded


async def play(
    rollouts: Rollouts, tasks: list[Task], samplers: list[type[SglangSampler]], tokenizer: Any
) -> None:
    plays = []
    for number, (task, sampler) in enumerate(zip(tasks, samplers, strict=True)):
        rollout.SglangSampler = sampler
        plays.append(
            asyncio.create_task(rollouts.play(DatasetRow(task, number=number), tokenizer, "", {}))
        )
        await asyncio.sleep(0)  # it takes its sampler
    await asyncio.gather(*plays)


def overhead(run: RunRecord, world: Any, tokenizer: Any) -> None:
    train = [e for e in run.episodes() if e.split == "train"]
    last = max(e.iteration for e in train)
    episodes = [e for e in train if e.iteration == last]
    spec: Mapping[str, Any] = run.meta["spec"]
    keys = [
        f"+gem.advantage={spec['algorithm']['advantage']}",
        f"+gem.prompt_tokens={spec['policy']['prompt_tokens']}",
        f"+gem.turn_tokens={spec['policy']['turn_tokens']}",
    ]
    settings, theirs = world.settings(*keys), world.keys(*keys)
    tasks = [e.trajectory.task for e in episodes]

    def episodes_s() -> float:
        rollouts = Rollouts(settings, theirs)
        samplers = [recorded(e) for e in episodes]
        seconds = timed(lambda: asyncio.run(play(rollouts, tasks, samplers, tokenizer)))
        return seconds + timed(lambda: [state_dicts(t, i) for i, t in enumerate(rollouts.take())])

    with tempfile.TemporaryDirectory() as folder:
        recording = RunRecording(folder, {"trainer": "rl2"}, RECORDED)

        def seam_s() -> float:
            played = [e.trajectory for e in episodes]
            tensors, edges = world.tensors(played)

            def seam() -> None:
                found = advantage.read(tensors, edges.tolist(), played)
                per_turn = advantage.compute(settings, theirs, tensors, found)
                recording.keep_batch([e.trajectory for e in found], per_turn)
                recording.write_iteration(0, {"timing/update_rollout": 0.0})

            return timed(seam)

        parts = {
            "episodes and their rows": min(episodes_s() for _ in range(REPEATS)),
            "advantages, record": min(seam_s() for _ in range(REPEATS)),
        }
    # On a machine with other work the least disturbed iteration is the one to compare with.
    names = ("rollout_s", "advantage_s", "update_s", "sync_s")
    lines = [m for m in run.metrics if m["split"] == "train"]
    step_s = min(sum(m[name] for name in names) for m in lines)
    print(f"{len(episodes)} episodes an iteration of {step_s * 1000:.0f} ms (the shortest)")
    parts["together (wanted: < 5 %)"] = sum(parts.values())
    for name, seconds in parts.items():
        print(f"  {name:26} {seconds * 1000:8.1f} ms  {100 * seconds / step_s:5.2f} %")


def timed(function: Callable[[], object]) -> float:
    """CPU time of a call in seconds."""
    began = time.process_time()
    function()
    return time.process_time() - began


def helpers() -> Any:
    """The helpers of RL2's tests, which make its configuration and tensors."""
    path = Path(__file__).parents[1] / "tests" / "rl2" / "world.py"
    spec = importlib.util.spec_from_file_location("world", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["world"] = module
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path, help="record of a run of RL2")
    run = read_run(parser.parse_args().run)
    rl2_plugin.install()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AutoTokenizer

        importlib.import_module("RL2.datasets")
    tokenizer = AutoTokenizer.from_pretrained(run.meta["model"])
    overhead(run, helpers(), tokenizer)


if __name__ == "__main__":
    main()
