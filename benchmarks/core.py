"""Advantages, transcripts, threads and batches: speed against the naive way of doing the same.

python benchmarks/core.py [--tokenizer PATH]

Needs transformers for the transcript rows; without --tokenizer a small byte-level one is made.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gem.advantage import TurnTable, gae, grpo, rebn
from gem.contract import check_step
from gem.core import Env, Info, Observation, Step
from gem.executors.threads import EnvThreads
from gem.rollout import Budget, ChatFormat, Episode, Sample, TokenTranscript, play_batch
from gem.tasks import Task

TURNS = 100_000
EPISODES, STEPS = 128, 8


def best_of(function: Callable[[], Any], repeats: int = 7) -> float:
    """Shortest of several runs, in milliseconds."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        function()
        times.append(time.perf_counter() - began)
    return 1e3 * min(times)


def naive_rebn(rewards: list[list[float]], gamma: float) -> list[list[float]]:
    """The formula with Python lists."""
    returns = []
    for episode in rewards:
        g, column = 0.0, []
        for r in reversed(episode):
            g = r + gamma * g
            column.append(g)
        returns.append(column[::-1])
    flat = [g for column in returns for g in column]
    mean = math.fsum(flat) / len(flat)
    std = math.sqrt(math.fsum((g - mean) ** 2 for g in flat) / len(flat))
    return [[(g - mean) / std for g in column] for column in returns]


def advantage_rows() -> None:
    rng = random.Random(0)
    rewards: list[list[float]] = []
    while sum(map(len, rewards)) < TURNS:
        rewards.append([rng.random() for _ in range(rng.randint(1, 20))])
    table = TurnTable.build(rewards, groups=[i // 8 for i in range(len(rewards))], values=rewards)
    naive = best_of(lambda: naive_rebn(rewards, 0.9), repeats=3)
    print(f"{'advantages of ' + format(len(table), ',') + ' turns':44} {'ms':>10}")
    print(f"{'  ReBN, Python lists (baseline)':44} {naive:10.1f}")
    print(f"{'  gem.advantage.rebn':44} {best_of(lambda: rebn(table, 0.9)):10.1f}")
    print(f"{'  gem.advantage.grpo':44} {best_of(lambda: grpo(table)):10.1f}")
    print(f"{'  gem.advantage.gae':44} {best_of(lambda: gae(table, 0.9, 0.95)):10.1f}")
    build = best_of(lambda: TurnTable.build(rewards))
    print(f"{'  TurnTable.build from lists':44} {build:10.1f}")


class Counting:
    """A tokenizer that counts the characters rendered and encoded through it."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.characters = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> Any:
        rendered = self._tokenizer.apply_chat_template(conversation, **kwargs)
        self.characters += len(rendered)
        return rendered

    def encode(self, text: str, **kwargs: Any) -> Any:
        self.characters += len(text)
        return self._tokenizer.encode(text, **kwargs)


def small_tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(["guess higher lower user assistant"], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|im_end|>")
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    return tokenizer


def transcript_rows(tokenizer: Any) -> None:
    said_by_env = "At turn {}, you guessed 12, and the target number is higher than 12. " * 2
    observations = [said_by_env.format(turn, turn) for turn in range(100)]
    response = tokenizer.encode("I think the answer is \\boxed{12}", add_special_tokens=False)
    response.append(tokenizer.eos_token_id)
    print(f"\n{'prompts of one episode':44} {'characters':>10} {'ms':>10}")
    for turns in (10, 20, 40, 80):
        naive, ours = Counting(tokenizer), Counting(tokenizer)

        def rerender(counting: Any = naive, turns: int = turns) -> None:
            messages = [{"role": "user", "content": observations[0]}]
            for turn in range(turns):
                text = counting.apply_chat_template(
                    messages, tokenize=False, add_generation_prompt=True
                )
                counting.encode(text, add_special_tokens=False)
                said = counting.decode(response, skip_special_tokens=True)
                messages.append({"role": "assistant", "content": said})
                messages.append({"role": "user", "content": observations[turn + 1]})

        def append(counting: Any = ours, turns: int = turns) -> None:
            transcript = TokenTranscript(ChatFormat(counting))
            transcript.start(observations[0])
            for turn in range(1, turns):
                transcript.respond(response)
                transcript.observe(observations[turn])

        for name, function, counting in (
            (f"  {turns} turns, rendered anew (baseline)", rerender, naive),
            (f"  {turns} turns, TokenTranscript", append, ours),
        ):
            function()
            characters = counting.characters
            print(f"{name:44} {characters:10,} {best_of(function, 3):10.1f}")


def busy(rounds: int) -> int:
    """Compute for a few microseconds."""
    return sum(range(rounds))


def thread_rows() -> None:
    """Steps of a few microseconds in threads, by an event loop that has work of its own."""

    async def episode(step: Callable[[], Awaitable[int]]) -> None:
        for _ in range(STEPS):
            busy(2000)  # the event loop's part of a turn
            await step()

    async def all_of_them(step: Callable[[], Awaitable[int]]) -> None:
        await asyncio.gather(*(episode(step) for _ in range(EPISODES)))

    async def go() -> None:
        loop, threads, pool = asyncio.get_running_loop(), EnvThreads(), ThreadPoolExecutor(EPISODES)
        ways: dict[str, Callable[[], Awaitable[int]]] = {
            "ThreadPoolExecutor (baseline)": lambda: loop.run_in_executor(pool, busy, 200),
            "EnvThreads": lambda: threads.run(busy, 200),
        }
        spent: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for _ in range(15):
            for name, step in ways.items():
                began, cpu = time.perf_counter(), time.process_time()
                await all_of_them(step)
                elapsed = (time.perf_counter() - began, time.process_time() - cpu)
                spent[name].append(elapsed)
        for name, times in spent.items():
            wall, cpu = (1e3 * min(column) for column in zip(*times, strict=True))
            print(f"{'  ' + name:44} {wall:10.1f} {cpu:10.1f}")

    title = f"{EPISODES} episodes of {STEPS} quick steps"
    print(f"\n{title:44} {'ms':>10} {'CPU ms':>10}")
    asyncio.run(go())


class Quick(Env):
    """A game whose step takes a few microseconds."""

    def reset(self, seed: int | None = None, **options: Any) -> tuple[Observation, Info]:
        super().reset(seed=seed)
        self.turn = 0
        return "guess a number", {}

    def step(self, action: str) -> Step:
        self.turn += 1
        busy(200)
        return "higher", 0.5, self.turn == STEPS, False, {"success": False}


def batch_rows(tokenizer: Any) -> None:
    """`play_batch`, and the same state machines driven without threads and time limits."""
    chat = ChatFormat(tokenizer)
    ids = [*chat.encode_text("guess"), *sorted(chat.stop_ids)[:1]]
    tasks = [Task("benchmark:Quick", seed) for seed in range(EPISODES)]
    budget = Budget(turn_tokens=16, response_tokens=4096, prompt_tokens=512)
    sample = Sample(ids, None, "stop")

    def by_hand() -> None:
        episodes = [(Episode(task, chat, budget=budget), Quick()) for task in tasks]
        for episode, env in episodes:
            episode.begin(*env.reset(episode.trajectory.task.seed))
        while going := [each for each in episodes if each[0].request is not None]:
            for episode, env in going:
                episode.advance(check_step(env.step(episode.receive(sample))))

    def batch() -> None:
        play_batch(
            tasks,
            lambda requests: [sample] * len(requests),
            chat,
            budget=budget,
            make_env=lambda task: Quick(),
        )

    print(f"\n{f'{EPISODES} episodes of {STEPS} quick steps':44} {'ms':>10}")
    for name, function in (
        ("  Episode, in the calling thread (baseline)", by_hand),
        ("  play_batch", batch),
    ):
        function()
        print(f"{name:44} {best_of(function, 5):10.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", help="path of a Hugging Face tokenizer")
    args = parser.parse_args()
    advantage_rows()
    thread_rows()
    if args.tokenizer:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(args.tokenizer)
    else:
        tokenizer = small_tokenizer()
    batch_rows(tokenizer)
    transcript_rows(tokenizer)


if __name__ == "__main__":
    main()
