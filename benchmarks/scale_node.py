"""Simulated time for `scale.py`: what computes takes its CPU time, what waits takes no real time.

- `Engines`, `Work`: what an iteration has to do, and how fast the engines are.
- `World`: the clock, the engines' work, and who holds each episode: engine, environment or driver.
- `Loop`: asyncio's event loop on that clock.
- `shortest`: how long the iteration takes with a driver that takes no time.

The clock shows the CPU time of this process, all threads together, and jumps to the next event
when the event loop waits and no environment computes. Other work on the machine does not change
it, an iteration of minutes is over when its computations are, and every callback, thread switch
and collection of garbage is as late as it makes others. Two threads that compute without Python's
lock at the same time are counted one after the other. What this module itself computes is left out.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import random
import selectors
import threading
import time
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

SPREAD = 0.5
"""Standard deviation of the logarithm of the number of tokens in a turn."""
SLACK_S = 1e-9
"""Events of which rounding says that they are this far ahead are due."""
KEY = 48
"""Number of tokens at the beginning of a prompt that tell its episode from the others."""


@dataclass(frozen=True)
class Engines:
    """Engines that sample together; each turn goes to the one with the fewest sequences.

    The defaults are one H100 80GB with Qwen3-8B in bf16 on vLLM 0.30.0, from the public
    measurements https://github.com/tgarg01/silybench-data (run 20260924T125045Z, CC BY 4.0): the
    median time between tokens is 6.8 ms + 0.011 ms a sequence + 0.046 us a token of context: 3 %
    less than measured, or nearer, with up to 128 sequences of 192 to 3,072 tokens, 8 % less with
    256 of them; the first token of a prompt of 1,024 to 8,192 tokens comes at 32,000 tokens/s; the
    cache holds 376,000 tokens.
    """

    number: int = 8
    step_s: float = 6.8e-3
    sequence_s: float = 0.011e-3
    context_s: float = 0.046e-6
    prefill: float = 32_000.0
    cache: int = 376_000
    speed: float = 1.0
    """Everything is this many times as fast: a smaller model, more engines, newer ones."""


@dataclass(frozen=True)
class Work:
    """An iteration: all episodes begin at once and have the same number of turns."""

    episodes: int = 1024
    turns: int = 20
    sampled: int = 192
    """Mean number of tokens that a turn samples."""
    read: int = 64
    """Tokens that the environment says a turn, with those of the chat template."""
    environment: str = "wait"
    """`compute` takes 1 ms of CPU, `wait` 200 ms, `rare` 10 s in one step of a hundred."""

    @property
    def context(self) -> int:
        """Mean number of tokens that a sequence holds while a turn is sampled."""
        return (self.turns * (self.sampled + self.read)) // 2

    def tokens(self, episode: int, turn: int) -> int:
        """Return how many tokens a turn samples."""
        drawn = random.Random(1000 * episode + turn)
        mean = math.log(self.sampled) - SPREAD**2 / 2
        return min(max(round(drawn.lognormvariate(mean, SPREAD)), 4), 4 * self.sampled)

    def waits_s(self, episode: int, turn: int) -> float:
        """Return how long a step of the environment waits."""
        if self.environment == "rare":
            return 10.0 if random.Random(-1000 * episode - turn).random() < 0.01 else 0.0
        return 0.2 if self.environment == "wait" else 0.0


class Answer(NamedTuple):
    """A sampled turn."""

    ids: list[int]
    logprobs: list[float]


@dataclass
class Texts:
    """What engines and environments say: parts of one text, which begin and end between words."""

    tokenizer: Any
    text: str
    ids: array[int] = field(init=False)
    logprobs: array[float] = field(init=False)

    def __post_init__(self) -> None:
        encoded = self.tokenizer(self.text, add_special_tokens=False, return_offsets_mapping=True)
        self.ids = array("i", encoded["input_ids"])
        self.starts = [start for start, _ in encoded["offset_mapping"]]
        self.words = [i for i, start in enumerate(self.starts) if self.text[start] == " "]
        drawn = random.Random(0)
        self.logprobs = array("d", (-drawn.expovariate(3.0) for _ in self.ids))

    def part(self, episode: int, turn: int, tokens: int) -> tuple[int, int]:
        """Return where a part of about so many tokens begins and ends, `[start, end)`."""
        room = len(self.words) - 2 * tokens - 2
        start = self.words[(7919 * episode + 104_729 * turn) % room]
        return start, self.words[bisect_left(self.words, start + tokens)]

    def said(self, episode: int, turn: int, tokens: int) -> str:
        """Return an observation, unlike all others."""
        start, end = self.part(-episode - 1, turn, max(tokens - 16, 4))
        return f"{episode}.{turn}:{self.text[self.starts[start] : self.starts[end]]}"

    def answer(self, episode: int, turn: int, tokens: int) -> Answer:
        """Return a sampled turn, with objects of its own for every number as an engine's has."""
        start, end = self.part(episode, turn, tokens)
        ids = self.ids[start:end].tolist()
        return Answer([*ids, self.tokenizer.eos_token_id], self.logprobs[start : end + 1].tolist())


class World:
    """Simulated time, and what happens in it.

    Between `with world:` and its end the caller's CPU time does not count, `time` is the time at
    which it entered, and everything that is due has happened.
    """

    used: float
    """Seconds, summed over sequences, in which they were sampled."""
    lost: float
    """Seconds, summed over the sequences that engines had room for, in which the driver had an
    episode for them."""

    def __init__(self, engines: Engines, work: Work, texts: Texts | None = None) -> None:
        self.work = work
        self.texts = texts
        self.held = work.episodes
        """Episodes that neither an engine nor an environment works on, and that are not over."""
        self.answers = 0
        self.lags: list[float] = []
        """Seconds from the end of each turn until the code that waits for it goes on."""
        self.environment_s = 0.0
        """CPU time of environments."""
        self.outstanding = 0
        """Calls in threads that the event loop waits for."""
        self._engines = engines
        self._slots = engines.number * max(engines.cache // work.context, 1)
        self._served = 0.0  # tokens that each sequence has got since the beginning
        self._running: list[tuple[float, int, Callable[[float], None]]] = []
        self._queue: deque[tuple[int, int, Callable[[float], None]]] = deque()
        self._prefill_s = 0.0
        self._timers: list[tuple[float, int, Callable[[float], None]]] = []
        self._count = 0
        self._ready: list[tuple[Callable[[float], None], float]] = []
        self._sleeping = 0
        self._known: dict[tuple[int, ...], list[int]] = {}
        self._lock = threading.RLock()
        self._depth = 0
        self.loop: Loop | None = None
        self.start()

    def start(self) -> None:
        """Begin the iteration, before anything was sampled."""
        self.time = self.used = self.lost = self._left_out = self._jumped = 0.0
        self._began = time.process_time()

    def now(self) -> float:
        """Return the simulated time in seconds."""
        return time.process_time() - self._began - self._left_out + self._jumped

    def __enter__(self) -> None:
        now = self.now()
        entered = time.thread_time()
        self._lock.acquire()
        if not self._depth:
            self._entered = entered
            self.advance(now)
        self._depth += 1

    def __exit__(self, *exception: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._left_out += time.thread_time() - self._entered
        self._lock.release()

    # What the driver's engine does.

    def ask(self, new: int, tokens: int, done: Callable[[float], None]) -> None:
        """Give the engines a turn.

        Args:
            new: Tokens of the prompt that are not in the engine's cache.
            tokens: Tokens to sample.
            done: Called with the time at which the turn ended, by `release`.
        """
        self.held -= 1
        self._queue.append((new, tokens, done))
        self._admit()

    def begin(self, prompt_ids: Sequence[int], done: Callable[[float], None]) -> tuple[int, int]:
        """Give the engines the turn that a prompt asks for; return its episode and number."""
        known = self._known.setdefault(tuple(prompt_ids[:KEY]), [len(self._known), 0, 0])
        episode, turn, cached = known
        tokens = self.work.tokens(episode, turn)
        known[1:] = turn + 1, len(prompt_ids) + tokens
        self.ask(max(len(prompt_ids) - cached, 0), tokens, done)
        return episode, turn

    def answer(self, episode: int, turn: int, due: float) -> Answer:
        """Return a turn to the code that waited for it."""
        assert self.texts is not None
        self.lags.append(self.time - due)
        self.answers += 1
        return self.texts.answer(episode, turn, self.work.tokens(episode, turn))

    async def generate(self, prompt_ids: Sequence[int]) -> Answer:
        """Sample a turn."""
        with self:
            future: asyncio.Future[float] = asyncio.get_running_loop().create_future()
            place = self.begin(prompt_ids, lambda due: future.done() or future.set_result(due))
        due = await future
        with self:
            return self.answer(*place, due)

    def sleep(self, seconds: float, due: Callable[[float], None] = lambda due: None) -> None:
        """Wait in a thread.

        Args:
            seconds: How long.
            due: Called when the time is over, before the thread goes on.
        """
        gate = threading.Event()

        def wake(_: float) -> None:
            self._sleeping -= 1
            gate.set()

        def over(at: float) -> None:
            due(at)
            self._ready.append((wake, at))

        with self:
            self._sleeping += 1
            self.at(self.time + seconds, over)
            if self.loop is not None:  # The loop waits, in real time, as long as threads compute.
                self.loop.call_soon_threadsafe(int)
        gate.wait()

    def at(self, due: float, call: Callable[[float], None]) -> None:
        """Call something when it is time."""
        self._count += 1
        heapq.heappush(self._timers, (due, self._count, call))

    def step_s(self) -> float:
        """Return the time that one token of every sequence takes."""
        engines, each = self._engines, len(self._running) / self._engines.number
        sequence_s = engines.sequence_s + engines.context_s * self.work.context
        return (engines.step_s + sequence_s * each) / engines.speed

    def _admit(self) -> None:
        rate = self._engines.prefill * self._engines.number * self._engines.speed
        while self._queue and len(self._running) < self._slots:
            new, tokens, done = self._queue.popleft()
            self._prefill_s += new / rate
            self._count += 1
            heapq.heappush(self._running, (self._served + tokens, self._count, done))

    # What happens meanwhile.

    def next(self) -> float:
        """Return when something is due next."""
        return min(self._turn_ends(), self._timers[0][0] if self._timers else math.inf)

    def advance(self, to: float) -> None:
        """Let everything happen that is due by then."""
        while (due := self.next()) <= to + SLACK_S:
            turn = self._turn_ends() == due
            self._flow(max(due, self.time))
            if turn:
                self._served, _, done = heapq.heappop(self._running)
                self.held += 1
                self._ready.append((done, due))
                self._admit()
            else:
                heapq.heappop(self._timers)[2](due)
        self._flow(max(to, self.time))

    def release(self) -> None:
        """Tell those who wait for it what has happened."""
        with self:
            ready, self._ready = self._ready, []
        for call, due in ready:
            call(due)

    def idle(self, timeout: float | None) -> float:
        """Jump to the next event if nothing computes; return how long to wait, in real seconds."""
        with self:
            wait = min(self.next() - self.time, math.inf if timeout is None else timeout)
            if self._ready:
                return 0.0
            if self.outstanding > self._sleeping or wait == math.inf:
                # A thread computes, and takes no more CPU time than that.
                return min(max(wait, 0.0), 0.05)
            self._jumped += max(wait, 0.0)
        return 0.0

    def _turn_ends(self) -> float:
        if not self._running:
            return math.inf
        left = max(self._running[0][0] - self._served, 0.0)
        return self.time + self._prefill_s + left * self.step_s()

    def _flow(self, to: float) -> None:
        seconds, running = to - self.time, len(self._running)
        room = max(self._slots - running - len(self._queue), 0)
        self.used += running * seconds
        self.lost += min(self.held, room) * seconds
        prefill_s = min(self._prefill_s, seconds)
        self._prefill_s -= prefill_s
        if running:
            self._served += (seconds - prefill_s) / self.step_s()
        self.time = to


def shortest(engines: Engines, work: Work) -> float:
    """Return the seconds of the iteration if the driver takes none; environments step at once."""
    world = World(engines, work)

    def ask(episode: int, turn: int) -> None:
        new = work.read if turn else 2 * work.read

        def done(due: float) -> None:
            seconds = 1e-3 if work.environment == "compute" else work.waits_s(episode, turn)
            world.held -= 1
            world.at(due + seconds, again)

        def again(_: float) -> None:
            if turn + 1 < work.turns:
                world.held += 1
                ask(episode, turn + 1)

        world.ask(new, work.tokens(episode, turn), done)

    for episode in range(work.episodes):
        ask(episode, 0)
    while (due := world.next()) < math.inf:
        world.advance(due)
        ready, world._ready = world._ready, []
        for call, at in ready:
            call(at)
    return world.time


class _Selector(selectors.DefaultSelector):
    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None or timeout > 0:
            timeout = self._world.idle(timeout)
        events = super().select(timeout)
        self._world.release()
        return events


class Loop(asyncio.SelectorEventLoop):
    """An event loop in simulated time."""

    def __init__(self, world: World) -> None:
        super().__init__(_Selector(world))
        self._world = world
        world.loop = self

    def time(self) -> float:
        """Return the simulated time."""
        return self._world.now()


class Policy(asyncio.DefaultEventLoopPolicy):
    """Makes `asyncio.run` use a `Loop`."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._made = world

    def new_event_loop(self) -> Loop:
        """Return an event loop."""
        return Loop(self._made)


def wait_s(world: World, episode: int, turn: int) -> None:
    """Spend a step of an environment, in its thread."""
    work, last = world.work, turn + 1 == world.work.turns
    with world:
        if world.outstanding <= world._sleeping:
            raise RuntimeError("the clock does not know that a thread computes this step")
        world.held -= 1
        seconds = work.waits_s(episode, turn)

    def over(_: float = 0.0) -> None:
        world.held += not last

    if seconds:
        world.sleep(seconds, over)
        return
    began = time.thread_time()
    if work.environment == "compute":
        while time.thread_time() - began < 1e-3:
            pass
    with world:
        world.environment_s += time.thread_time() - began
        over()
