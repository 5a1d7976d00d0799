"""What gem-oat adds to an iteration of oat, what its dataset costs, and how it hides environments.

    gem-bench run recipes/guess-easy.toml --to oat --cpu --out runs/oat
    PYTHONPATH=packages/gem-cpu/src/gem_cpu/startup GEM_CPU=1 \\
        .venvs/oat/bin/python benchmarks/oat_overhead.py runs/oat

Everything that is neither oat's sampling nor its training is timed (CPU time) on the recorded
episodes of a real run and compared with the time that its shortest iteration took, as if nothing of
it happened while the engine samples: the actor (chat format, environments, requests) in the second
of two iterations, with an engine that answers at once with the recorded tokens, and rows,
advantages and the record. The baseline of the second table is PyTorch's `DistributedSampler`, which
oat uses by itself, of the third an environment without delay, of the last line the longest episode.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch.utils.data import DataLoader, DistributedSampler
from transformers import AutoTokenizer

from gem import Env, register
from gem.core import Step
from gem.rollout import ChatFormat
from gem.seeding import stream
from gem.tasks import Task, TaskSet
from gem_oat.advantage import Row, give_advantages
from gem_oat.data import Batches
from gem_oat.rollout import Actor
from gem_oat.settings import parse
from gem_oat.stepped import SteppedEngine
from gem_train.experiment.tasksets import DatasetRow
from gem_train.packed import PackedTrajectory
from gem_train.record import EpisodeRecord, RunRecord, read_run
from gem_train.recording import RunRecording
from gem_train.rows import placed_rows

EPISODES, DELAY_S, SAMPLING_S, REPEATS = 64, 0.2, 0.02, 5
BATCH = 128


class Engine:
    """vLLM's engine, as far as it is called: answers all requests in the next step."""

    def __init__(self) -> None:
        self.llm_engine = self
        self._asked: list[Any] = []

    def add_request(self, request_id: str, prompt: Any, params: Any) -> None:
        self._asked.append(
            SimpleNamespace(
                request_id=request_id,
                finished=True,
                prompt_token_ids=prompt["prompt_token_ids"],
                outputs=[self.answer(params)],
            )
        )

    def has_unfinished_requests(self) -> bool:
        return bool(self._asked)

    def abort_request(self, request_ids: list[str]) -> None:
        self._asked = []

    def step(self) -> list[Any]:
        answered, self._asked = self._asked, []
        return answered

    def answer(self, params: Any) -> Any:
        """Return vLLM's `CompletionOutput`, as far as it is read."""
        raise NotImplementedError


class RecordedLLM(Engine):
    """Answers at once with the tokens that were sampled in recorded episodes.

    Which turn is asked for is told by its seed (`Args.gem_seed`).
    """

    def __init__(self, episodes: Sequence[EpisodeRecord]) -> None:
        super().__init__()
        self._turns: dict[int, Any] = {}
        copies: Counter[int] = Counter()
        for episode in episodes:
            task = episode.trajectory.task.seed
            for number, turn in enumerate(episode.trajectory.turns):
                seed = stream(0, 0, 0, task, copies[task], number).getrandbits(31)
                pairs = zip(turn.response_ids, turn.logprobs, strict=True)
                known = [{token: SimpleNamespace(logprob=p)} for token, p in pairs]
                self._turns[seed] = SimpleNamespace(
                    token_ids=turn.response_ids, logprobs=known, finish_reason=turn.stop_reason
                )
            copies[task] += 1

    def answer(self, params: Any) -> Any:
        return self._turns[params.seed]


class SteadyLLM(Engine):
    """Takes the same time for every step."""

    def __init__(self, answer: list[int]) -> None:
        super().__init__()
        known = [{token: SimpleNamespace(logprob=-1.0)} for token in answer]
        self._answer = SimpleNamespace(token_ids=answer, logprobs=known, finish_reason="stop")

    def step(self) -> list[Any]:
        time.sleep(SAMPLING_S)
        return super().step()

    def answer(self, params: Any) -> Any:
        return self._answer


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


def actor(llm: Any, tokenizer: Any, flags: Sequence[str]) -> Any:
    made = object.__new__(Actor)
    made.args = parse(["--gem_tasks=gem:x", "--gpus=1", "--collocate", *flags])
    made.actor_id = 0
    made.llm = llm
    made._chat = ChatFormat(tokenizer)
    made.ipc_client = SimpleNamespace(serialize_ipc=lambda episodes: episodes)
    return made


def flags(tasks: int, copies: int, prompt: int, response: int, turn: int) -> list[str]:
    sizes = {
        "rollout_batch_size": tasks,
        "num_samples": copies,
        "train_batch_size": tasks * copies,
        "max_train": tasks,
        "gem_seed": 0,
    }
    lengths = {"prompt_max_length": prompt, "max_model_len": prompt + response}
    given = {**sizes, **lengths, "generate_max_length": turn}
    return [f"--{name}={value}" for name, value in given.items()]


def overhead(run: RunRecord, tokenizer: Any) -> None:
    train = [e for e in run.episodes() if e.split == "train"]
    last = max(e.iteration for e in train)
    before, episodes = ([e for e in train if e.iteration == i] for i in (last - 1, last))
    spec = run.meta["spec"]
    policy, algorithm = spec["policy"], spec["algorithm"]
    lengths = (policy["prompt_tokens"], policy["response_tokens"], policy["turn_tokens"])
    copies = spec["training"]["group_size"]
    given = flags(len(episodes) // copies, copies, *lengths)

    def play(playing: Any, recorded: Sequence[EpisodeRecord]) -> None:
        playing.llm = RecordedLLM(recorded)
        rows = (DatasetRow(e.trajectory.task, number=n) for n, e in enumerate(recorded[::copies]))
        tasks = [row.encode() for row in rows]
        spent.append(timed(lambda: playing.step(tasks, None, ["0"] * len(tasks))))

    spent: list[float] = []
    for _ in range(REPEATS):
        playing = actor(None, tokenizer, given)
        # What a chat format has rendered it remembers, from iteration to iteration.
        play(playing, before)
        play(playing, episodes)
    actor_s = min(spent[1::2])
    batch = [PackedTrajectory.of(e.trajectory) for e in episodes]

    folder = tempfile.TemporaryDirectory()
    recording = RunRecording(folder.name, {"trainer": "oat"})

    def learner() -> None:
        rows = placed_rows(batch, Row)
        per_turn = give_advantages(
            batch,
            rows,
            algorithm["advantage"],
            gamma=algorithm["gamma"],
            lam=algorithm["lam"],
            max_failed_fraction=1.0,
        )
        recording.keep_batch(batch, per_turn, metrics={"rollout_s": 1.0, "advantage_s": 1.0})
        recording.write_iteration(0)

    with folder:
        learner_s = min(timed(learner) for _ in range(REPEATS))
    # On a machine with other work the least disturbed iteration is the one to compare with.
    step_s = min(m["step_s"] for m in run.metrics if m["split"] == "train")
    print(f"{len(episodes)} episodes an iteration of {step_s * 1000:.0f} ms (the shortest)")
    for name, seconds in (
        ("actor", actor_s),
        ("rows, advantages, record", learner_s),
        ("together (wanted: < 5 %)", actor_s + learner_s),
    ):
        print(f"  {name:26} {seconds * 1000:8.1f} ms  {100 * seconds / step_s:5.2f} %")


def memory() -> None:
    print(
        f"\n{'tasks':>14}  {'DistributedSampler':>20}  {'gem-oat':>10}   (peak, 1,000 tasks drawn)"
    )
    for n in (10**5, 10**6, 10**7, 10**12):
        tasks = TaskSet("game:GuessTheNumber-v0", n)
        theirs = f"{peak(sampled, tasks) / 2**20:.1f} MiB" if n <= 10**7 else "not tried"
        print(f"{n:17,}  {theirs:>18}  {peak(batched, tasks) / 2**20:6.2f} MiB")


def sampled(tasks: Any) -> Iterator[Task]:
    for index in islice(DistributedSampler(tasks, 8, 0, shuffle=False), 1000):
        yield tasks[index]


def batched(tasks: TaskSet) -> Iterator[Any]:
    return islice(DataLoader(Batches(tasks, BATCH, 8, 0), batch_size=None), 1000 // (BATCH // 8))


def peak(draw: Callable[[TaskSet], Iterator[Any]], tasks: TaskSet) -> int:
    tracemalloc.start()
    for _ in draw(tasks):
        pass
    used = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return used


def hidden(tokenizer: Any) -> None:
    register("bench:OatEcho", Echo)
    given = flags(EPISODES, 1, 300, 3000, 64)
    answer = [*tokenizer.encode("x"), tokenizer.eos_token_id]
    print(f"\n{EPISODES} episodes of three turns, {SAMPLING_S * 1000:.0f} ms a step of the engine")
    for delay in (0.0, DELAY_S):
        params = {"delay_s": delay}
        rows = [DatasetRow(Task("bench:OatEcho", i, params), number=i) for i in range(EPISODES)]
        tasks = [row.encode() for row in rows]
        playing = actor(SteadyLLM(answer), tokenizer, given)
        began = time.perf_counter()
        playing.step(tasks, None, ["0"] * EPISODES)
        seconds = time.perf_counter() - began
        alone = EPISODES * 3 * (delay + SAMPLING_S)
        print(
            f"  environment of {delay * 1000:3.0f} ms: {seconds:5.2f} s; one by one {alone:5.1f} s"
        )


class LongTurns(Engine):
    """Takes a step for every token of a turn, and 2 ms for a step; parameters are tokens."""

    def __init__(self) -> None:
        super().__init__()
        self._left: dict[str, int] = {}
        self.steps = 0

    def add_request(self, request_id: str, prompt: Any, params: int) -> None:
        self._left[request_id] = params

    def has_unfinished_requests(self) -> bool:
        return bool(self._left)

    def step(self) -> list[Any]:
        time.sleep(0.002)
        self.steps += 1
        self._left = {name: left - 1 for name, left in self._left.items()}
        ended = [name for name, left in self._left.items() if left == 0]
        for name in ended:
            del self._left[name]
        return [SimpleNamespace(request_id=name, finished=True) for name in ended]


def continuous() -> None:
    draws = [stream(episode) for episode in range(BATCH)]
    lengths = [[min(400, max(5, int(r.lognormvariate(3.5, 0.9)))) for _ in range(8)] for r in draws]
    llm = LongTurns()
    engine = SteppedEngine(llm)

    async def episode(turns: Sequence[int]) -> None:
        for tokens in turns:
            await engine.sample([1], tokens)

    asyncio.run(engine.run([episode(turns) for turns in lengths]))
    least, most, longest = min(map(min, lengths)), max(map(max, lengths)), max(map(sum, lengths))
    in_step = sum(map(max, zip(*lengths, strict=True)))
    print(f"\n{BATCH} episodes of eight turns of {least} to {most} tokens: {llm.steps} steps")
    print(f"  the longest episode alone: {longest}; turn by turn in step: {in_step}")


def timed(function: Callable[[], Any]) -> float:
    began = time.process_time()
    function()
    return time.process_time() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path, help="a recorded run of gem-bench in oat")
    run = read_run(parser.parse_args().run)
    tokenizer = AutoTokenizer.from_pretrained(
        run.meta["model"] or run.meta["spec"]["policy"]["model"]
    )
    overhead(run, tokenizer)
    memory()
    hidden(tokenizer)
    continuous()
    return 0


if __name__ == "__main__":
    sys.exit(main())
