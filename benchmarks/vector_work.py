"""One measurement of `vector.py`, in a process of its own.

python benchmarks/vector_work.py MEASUREMENT '{"who": ..., ...}'

Prints one line of JSON. `who` is a mode of `gem.make_vec`, `bare` threads that sleep, `gymnasium`
or `original`: the process runs in the environment that has it. For `remote` it starts
`python -m gem serve` on this machine.

CPU time and memory are those of this process and all its descendants, of a server or a Ray cluster
that it starts, too. Both are from /proc: user and system time (utime, stime, and cutime, cstime of
those that have ended), and PSS, in which a page that several processes share counts once.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import vector_envs

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
WARM_S = 1.0
WAIT, WALK = "bench:Wait-v0", "bench:Walk-v0"


def tree() -> list[int]:
    """Return the ids of this process and all its descendants."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and (fields := stat(int(folder.name))):
            children.setdefault(int(fields[1]), []).append(int(folder.name))
    found, left = [], [os.getpid()]
    while left:
        found.append(left.pop())
        left += children.get(found[-1], [])
    return found


def stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on, none if the process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def cpu_s() -> float:
    """Return the CPU time of this process and all its descendants so far."""
    return TICK_S * sum(int(ticks) for pid in tree() for ticks in stat(pid)[11:15])


class Span:
    """Time, and CPU time of this process with its descendants and of all others."""

    def __init__(self) -> None:
        self._began = time.monotonic(), cpu_s(), busy_s()

    def end(self) -> tuple[float, float, float]:
        """Return seconds, seconds of own CPU time, and how many cores others used."""
        took, used, busy = (
            now - before
            for now, before in zip((time.monotonic(), cpu_s(), busy_s()), self._began, strict=True)
        )
        return took, used, max(0.0, busy - used) / took


def busy_s() -> float:
    """Return the CPU time of everything on this machine so far."""
    user, nice, system, _, _, irq, soft, *_ = Path("/proc/stat").read_text().split()[1:]
    return TICK_S * sum(map(int, (user, nice, system, irq, soft)))


def pss_mb() -> float:
    """Return the memory of this process and all its descendants."""
    texts = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in tree()]
    return sum(int(text.partition("\nPss:")[2].split()[0]) for text in texts) * 1024 / 1e6


def vector(who: str, env_id: str, num_envs: int, **arguments: Any) -> Any:
    """Make a vector environment of GEM's; two workers where the mode has workers."""
    import gem

    workers = {"num_workers": 2} if who in ("process", "ray") else {}
    return gem.make_vec(
        env_id, num_envs=num_envs, vectorization_mode=who, **{**workers, **arguments}
    )


def ours(who: str, waits: Sequence[float]) -> Iterator[Sequence[int]]:
    """Play without a barrier; yield which environments' turns have ended."""
    with vector(who, WAIT, len(waits), vec_kwargs=[{"wait_s": wait} for wait in waits]) as envs:
        envs.reset(seed=0)
        ready = range(len(waits))
        while True:
            envs.send(dict.fromkeys(ready, "action"))
            ready = envs.recv()[0].tolist()
            yield ready


def gymnasium(who: str, waits: Sequence[float]) -> Iterator[Sequence[int]]:
    """Play with Gymnasium's `AsyncVectorEnv`: a process an environment, and a barrier."""
    from functools import partial

    from gymnasium.vector import AsyncVectorEnv

    envs = AsyncVectorEnv([partial(vector_envs.gymnasium_wait, wait) for wait in waits])
    envs.reset(seed=0)
    try:
        while True:
            envs.step(["action"] * len(waits))
            yield range(len(waits))
    finally:
        envs.close()


def original(who: str, waits: Sequence[float]) -> Iterator[Sequence[int]]:
    """Play with the original GEM's `AsyncVectorEnv`: a thread an environment, and a barrier."""
    from functools import partial

    from gem.vector.async_vector_env import AsyncVectorEnv

    makers = [partial(vector_envs.Wait, wait) for wait in waits]
    envs = AsyncVectorEnv([WAIT] * len(waits), makers)
    envs.reset(seed=0)
    while True:
        envs.step(["action"] * len(waits))
        yield range(len(waits))


def bare(who: str, waits: Sequence[float]) -> Iterator[Sequence[int]]:
    """Wait in as many threads, without environments: what the machine can do meanwhile."""
    counts = [0] * len(waits)
    over = threading.Event()

    def wait(i: int) -> None:
        while not over.is_set():
            time.sleep(waits[i])
            counts[i] += 1

    for i in range(len(waits)):
        threading.Thread(target=wait, args=(i,), daemon=True).start()
    try:
        seen = list(counts)
        while True:
            time.sleep(0.05)
            now = list(counts)
            yield [i for i, count in enumerate(now) for _ in range(count - seen[i])]
            seen = now
    finally:
        over.set()


def turns(
    who: str, num_envs: int, seconds: float, wait_s: float = 0.0, slow_s: float = 0.0
) -> dict[str, float]:
    """Measure turns a second, and CPU microseconds a turn.

    Args:
        who: Plays.
        num_envs: Number of environments.
        seconds: How long; one second more before that does not count.
        wait_s: How long the answer of each environment takes.
        slow_s: That of the first one, if above 0; its turns do not count.
    """
    player = {"bare": bare, "gymnasium": gymnasium, "original": original}.get(who, ours)
    waits = [wait_s] * num_envs
    if slow_s:
        waits[0] = slow_s
    played = player(who, waits)
    next(played)
    until(played, WARM_S)
    span = Span()
    counted = sum(sum(i > 0 or not slow_s for i in ended) for ended in until(played, seconds))
    took, used, others = span.end()
    played.close()
    return {"per_s": counted / took, "cpu_us": 1e6 * used / max(1, counted), "others": others}


def until(played: Iterator[Sequence[int]], seconds: float) -> list[Sequence[int]]:
    """Return what a player yields in some seconds."""
    ends, seen = time.monotonic() + seconds, []
    while time.monotonic() < ends:
        seen.append(next(played))
    return seen


def resets(who: str, num_envs: int, rounds: int) -> dict[str, float]:
    """Measure resets of Sokoban: how many times as fast as in this process alone."""
    env_id = "game:Sokoban-v0-hard"
    with vector("sync", env_id, num_envs) as alone, vector(who, env_id, num_envs) as envs:
        took: dict[Any, list[float]] = {alone: [], envs: []}
        cpu = dict.fromkeys(took, 0.0)
        whole = Span()
        for _ in range(rounds):
            for each in took:
                span = Span()
                each.reset(seed=0)
                wall, used, _ = span.end()
                took[each].append(wall)
                cpu[each] += used
        *_, others = whole.end()
    ratios = sorted(a / b for a, b in zip(*took.values(), strict=True))
    free = 2 * cpu[alone] / cpu[envs]
    return {"median": ratios[rounds // 2], "most": ratios[-1], "free": free, "others": others}


def many(who: str, num_envs: int) -> dict[str, float]:
    """Measure how long many environments of Wordle take to be made and reset, and their memory."""
    env_id = "game:Wordle-v0-easy"
    vector(who, env_id, 1).close()  # then Ray's cluster is there
    began = time.monotonic()
    with vector(who, env_id, num_envs) as envs:
        made = time.monotonic()
        envs.reset(seed=0)
        reset = time.monotonic()
        return {"made_s": made - began, "reset_s": reset - made, "mb": pss_mb()}


def killed(who: str, episodes: int, every_s: float) -> dict[str, float]:
    """Play episodes while a worker is killed now and then; count those that end as undisturbed.

    Args:
        who: The mode.
        episodes: Their number; 64 are played at a time, turns of 50 ms.
        every_s: Time between two kills.
    """
    import asyncio

    from gem.executors.named import make_executor

    expected = [asyncio.run(outcome("thread", seed, 0.0)) for seed in range(episodes)]

    async def play(executor: Any, number: int) -> list[str]:
        found: dict[int, str] = {}
        left = deque(range(number))

        async def player() -> None:
            while left:
                seed = left.popleft()
                found[seed] = await outcome(executor, seed, 0.05)

        await asyncio.gather(*(player() for _ in range(64)))
        return [found[seed] for seed in range(number)]

    # What is made once and stays belongs to the state before.
    first = make_executor(f"{who}:2")
    asyncio.run(play(first, 1))
    first.close()
    before = left_behind()
    executor = make_executor(f"{who}:2")
    over, kills = threading.Event(), 0

    def kill() -> None:
        nonlocal kills
        while not over.wait(every_s):
            if pids := workers():
                os.kill(random.choice(pids), signal.SIGKILL)
                kills += 1

    killer = threading.Thread(target=kill)
    killer.start()
    began = time.monotonic()
    shown = asyncio.run(play(executor, episodes))
    took = time.monotonic() - began
    over.set()
    killer.join()
    executor.close()
    ends = time.monotonic() + 10
    while workers() and time.monotonic() < ends:
        time.sleep(0.1)
    processes, descriptors = (b - a for a, b in zip(before, left_behind(), strict=True))
    equal = sum(a == b for a, b in zip(shown, expected, strict=True))
    return {
        "equal": equal,
        "kills": kills,
        "took_s": took,
        "workers": len(workers()),
        "processes": processes,
        "descriptors": descriptors,
    }


async def outcome(executor: Any, seed: int, wait_s: float) -> str:
    """Play an episode; return the outcome of its fingerprint, or its failure."""
    from gem.executors.asynchronous import AsyncEnv
    from gem.executors.held import EnvFailedError
    from gem.fingerprint import fingerprint
    from gem.tasks import Task
    from gem.trajectory import Trajectory, Turn

    task = Task(WALK, seed, {"wait_s": wait_s})
    env = AsyncEnv(task, None, executor)
    played = Trajectory(task)
    try:
        observation, _ = await env.reset(seed)
        over = False
        while not over:
            action = f"{observation} {len(played.turns)}"
            seen = observation
            observation, reward, terminated, truncated, _ = await env.step(action)
            turn = Turn(seen, [], True, [], None, action, reward, terminated, truncated, "stop")
            played.turns.append(turn)
            over = terminated or truncated
    except EnvFailedError as error:
        return str(error)
    finally:
        env.close()
    played.final_observation = observation
    return fingerprint(played).outcome


def workers() -> list[int]:
    """Return the process ids of workers: of the executor's processes and of Ray's actors."""
    found = []
    for pid in tree():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].startswith(b"ray::_EnvActor") or any(
            b"executors import worker" in w for w in words
        ):
            found.append(pid)
    return found


def left_behind() -> tuple[int, int]:
    """Return the number of processes and of this process's descriptors."""
    return len(tree()), len(list(Path("/proc/self/fd").iterdir()))


MEASUREMENTS = {"turns": turns, "resets": resets, "many": many, "killed": killed}


@contextlib.contextmanager
def served() -> Iterator[str]:
    """Start a server of environments; yield the mode of its vector environments."""
    code = (
        "import sys; from vector_work import register; from gem.__main__ import main; register(); "
        "sys.exit(main(['serve', '--port', '0', '--allow-parameters', '--max-envs', '20000', "
        "'--ids', 'bench:*', 'game:*']))"
    )
    command = [sys.executable, "-c", code]
    folder = Path(__file__).parent
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().rpartition(" at ")[2].partition("/envs")[0]
            yield f"remote:{url}"
        finally:
            server.kill()


def register() -> None:
    """Register the environments of this benchmark."""
    import gem

    gem.register(WAIT, "vector_envs:Wait")
    gem.register(WALK, "vector_envs:Walk")


def main() -> None:
    """Measure what the arguments say."""
    name, arguments = sys.argv[1], json.loads(sys.argv[2])
    if arguments["who"] in ("gymnasium", "original"):
        print(json.dumps(MEASUREMENTS[name](**arguments)), flush=True)
        return
    from gem.errors import GemError

    register()
    try:
        with contextlib.ExitStack() as stack:
            if arguments["who"] == "remote":
                arguments["who"] = stack.enter_context(served())
            print(json.dumps(MEASUREMENTS[name](**arguments)), flush=True)
    except GemError as error:
        print(json.dumps({"refused": str(error).splitlines()[0]}), flush=True)


if __name__ == "__main__":
    main()
