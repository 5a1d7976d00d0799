"""Executors: the same episodes everywhere, nothing lost when a worker ends, clear refusals."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gem
from gem.core import Env
from gem.errors import (
    ConfigurationError,
    MissingExtraError,
    MisuseError,
    UnknownEnvError,
    UnknownParameterError,
)
from gem.executors import pool
from gem.executors.frames import FrameError
from gem.executors.held import EnvFailedError
from gem.executors.host import EnvHost
from gem.executors.named import check_name, make_executor
from gem.executors.pool import LONE_ENDS, PoolExecutor, Worker
from gem.executors.process import ProcessExecutor
from gem.executors.recipe import Recipe
from gem.vector import AsyncVectorEnv, VectorEnv, make_vec
from gem_serve.executed import ExecutedEnv

EASY = "game:GuessTheNumber-v0-easy"
TROUBLE = "test:Trouble-v0"
MODES = ["thread", "process"]


class Trouble(Env):
    """Does what it is told to: counts, waits, spins, raises, ends its process."""

    def __init__(self, folder: str = "", length: int = 10, *, seed: int | None = None) -> None:
        super().__init__(seed=seed)
        self.folder = folder
        self.length = length

    def reset(self, seed: int | None = None, **options: Any) -> Any:
        super().reset(seed=seed)
        self.shown: list[int] = []
        return f"start {self.rng.randrange(10**6)}", {"pid": os.getpid(), **options}

    def step(self, action: str) -> Any:
        name, _, value = action.partition(" ")
        if name == "wait":
            time.sleep(float(value))
        elif name == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        elif name == "die-once":
            mark = Path(self.folder, value)
            if not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        elif name == "hold":  # the interpreter (GIL): a search that takes practically for ever
            re.match(r"(a+)+$", "a" * 60 + "b")
        elif name == "raise":
            raise RuntimeError(value)
        elif name == "signal":
            os.kill(os.getpid(), int(value))
            time.sleep(60)  # another thread may be the one that gets it
        elif name == "input":
            subprocess.run([sys.executable, "-c", "input()"], check=False, timeout=60)
            sys.stdin.read()
        elif name == "children":
            name = f"children {_descriptors_of_children()}"
        elif name == "garbage":
            _own_socket().sendall(b"\x00\x00\x00\x05[1,2]")
            time.sleep(60)
        elif name == "misuse":
            raise ConfigurationError(value)
        self.shown.append(self.rng.randrange(10**6))
        done = len(self.shown) >= self.length
        return f"{self.shown} {name}", 0.5, done, False, {"pid": os.getpid()}


def _own_socket() -> socket.socket:
    """The socket by which this worker talks to its executor."""
    for number in range(3, 1024):
        try:
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                return socket.socket(fileno=os.dup(number))
        except OSError:
            continue
    raise AssertionError("this process has no socket")


def _descriptors_of_children() -> list[int]:
    """How many sockets this process's children have: started ones, and forked ones."""
    count = (
        "import os, stat\n"
        "def is_socket(n):\n"
        "    try: return stat.S_ISSOCK(os.fstat(n).st_mode)\n"
        "    except OSError: return False\n"
        "print(sum(map(is_socket, range(64))))"
    )
    program = [sys.executable, "-c", count]
    told = [
        subprocess.run(program, close_fds=close, capture_output=True, check=True).stdout
        for close in (True, False)
    ]
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.dup2(writing, 1)
        exec(count, {})
        sys.stdout.flush()
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as forked:
        told.append(forked.read())
    return [int(each) for each in told]


class Fickle(Trouble):
    """Shows something else when its actions are played again."""

    def step(self, action: str) -> Any:
        _, *rest = super().step(action)
        return (f"{time.perf_counter_ns()}", *rest)


class Outside(Trouble):
    """Says that it cannot be replayed."""

    replayable = False


@pytest.fixture(autouse=True, scope="session")
def registered() -> None:
    for kind in (Trouble, Fickle, Outside, Hungry):
        gem.register(f"test:{kind.__name__}-v0", f"{__name__}:{kind.__name__}")


@pytest.fixture
def vectors() -> Iterator[Callable[..., Any]]:
    """Make vector environments that are closed after the test."""
    made: list[VectorEnv] = []

    def make(mode: str, env_id: str = TROUBLE, **arguments: Any) -> Any:
        made.append(make_vec(env_id, vectorization_mode=mode, **arguments))
        return made[-1]

    yield make
    for each in made:
        each.close()


def without_pid(infos: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return infos without process ids, also those of the episode before."""
    kept = []
    for info in infos:
        info = {key: value for key, value in info.items() if key != "pid"}
        if "final_info" in info:
            (info["final_info"],) = without_pid([info["final_info"]])
        kept.append(info)
    return kept


def shown(vector: VectorEnv, turns: int) -> list[Any]:
    """Return everything that a vector environment returns for the same actions."""
    observations, infos = vector.reset()
    seen: list[Any] = [observations, without_pid(infos)]
    for turn in range(turns):
        actions = [f"\\boxed{{{(turn * 3 + i) % 10 + 1}}}" for i in range(vector.num_envs)]
        observations, rewards, terminated, truncated, infos = vector.step(actions)
        flags = [rewards.tolist(), terminated.tolist(), truncated.tolist()]
        seen.append([observations, *flags, without_pid(infos)])
    return seen


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
@pytest.mark.parametrize("env_id", [EASY, "game:Sudoku-v0-easy", "game:Wordle-v0-easy"])
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_plays_the_same_episodes(
    vectors: Callable[..., Any], mode: str, env_id: str, autoreset: str
) -> None:
    arguments: Any = {"num_envs": 5, "seed": 7, "autoreset": autoreset}
    expected = shown(make_vec(env_id, **arguments), 12)
    assert shown(vectors(mode, env_id, **arguments), 12) == expected


@pytest.mark.parametrize("mode", MODES)
def test_a_slow_environment_delays_only_itself(vectors: Callable[..., Any], mode: str) -> None:
    vector = vectors(mode, num_envs=4, seed=3, length=50)
    vector.reset()
    vector.send({0: "wait 60", 1: "a", 2: "a", 3: "a"})
    steps = 0
    while steps < 60:
        indices, observations, rewards, terminated, truncated, infos = vector.recv()
        assert 0 not in indices
        assert len(observations) == len(rewards) == len(infos) == len(indices)
        assert not terminated.any()
        assert not truncated.any()
        steps += len(indices)
        vector.send(dict.fromkeys(indices, "a"))


@pytest.mark.parametrize("mode", MODES)
def test_recv_waits_for_as_many_as_it_is_asked_for(vectors: Callable[..., Any], mode: str) -> None:
    vector = vectors(mode, num_envs=3, seed=3)
    vector.reset()
    with pytest.raises(ConfigurationError, match="min_ready must be from 1 to .* 0, got 1"):
        vector.recv()
    vector.send(["a", "a", "wait 60"])
    assert sorted(vector.recv(min_ready=2)[0].tolist()) == [0, 1]
    assert vector.recv(timeout_s=0.01)[0].tolist() == []
    with pytest.raises(ConfigurationError, match="got 2"):
        vector.recv(min_ready=2)
    with pytest.raises(ConfigurationError, match=r"environments \[2\] have calls"):
        vector.send({2: "a"})
    # A step of some leaves what was sent to others alone.
    assert vector.step({1: "b"})[0][0].endswith("b")


@pytest.mark.parametrize("mode", MODES)
def test_event_loops_step_environments_one_by_one(vectors: Callable[..., Any], mode: str) -> None:
    expected = make_vec(TROUBLE, num_envs=3, seed=5, length=3)
    expected.reset()
    last = [expected.step(["a"] * 3)[0] for _ in range(4)][-1]

    async def episode(vector: AsyncVectorEnv, i: int) -> Any:
        await vector.reset_one(i)
        for _ in range(4):
            observation, *_ = await vector.step_one(i, "a")
        return observation

    async def go(vector: AsyncVectorEnv) -> list[Any]:
        return await asyncio.gather(*(episode(vector, i) for i in range(3)))

    vector = vectors(mode, num_envs=3, seed=5, length=3)
    assert asyncio.run(go(vector)) == last
    assert vector.step(["a"] * 3)[0] == expected.step(["a"] * 3)[0]


@pytest.mark.parametrize("mode", MODES)
def test_nobody_waits_for_a_vector_that_is_closed(vectors: Callable[..., Any], mode: str) -> None:
    vector = vectors(mode, num_envs=2)

    async def go() -> None:
        await vector.reset_one(0)
        step = asyncio.create_task(vector.step_one(0, "wait 0.5"))
        await asyncio.sleep(0.1)
        vector.send({1: "wait 0.5"})
        vector.close()
        with pytest.raises(MisuseError, match="closed"):
            await asyncio.wait_for(step, 30)

    vector.reset(indices=[1])
    asyncio.run(go())
    for call in (vector.recv, vector.reset):
        with pytest.raises(MisuseError, match="closed"):
            call()


@pytest.mark.parametrize("mode", MODES)
def test_an_environment_that_raises_loses_its_own_episode_only(
    vectors: Callable[..., Any], mode: str
) -> None:
    vector = vectors(mode, num_envs=2, seed=3)
    vector.reset()
    observations, rewards, _, truncated, infos = vector.step(["raise no world", "a"])
    message = "environment 0 failed in step(): RuntimeError: no world"
    assert (infos[0]["failure"].message, infos[0]["failure"].cause) == (message, "environment")
    assert (rewards.tolist(), truncated.tolist()) == ([0.0, 0.5], [True, False])
    assert observations[0].startswith("start ")
    with pytest.raises(ConfigurationError, match="not like this"):
        vector.step(["misuse not like this", "a"])
    assert vector.step({1: "a"})[0][0].count(",") == 2


@pytest.mark.parametrize("mode", MODES)
def test_an_environment_that_hangs_is_replaced(vectors: Callable[..., Any], mode: str) -> None:
    expected = make_vec(TROUBLE, num_envs=2, seed=3)
    expected.reset()
    second = expected.reset(indices=[0])[0]
    vector = vectors(mode, num_envs=2, seed=3, step_timeout_s=5.0)
    vector.reset()
    observations, _, _, truncated, infos = vector.step(["wait 60", "a"])
    assert "time limit" in infos[0]["failure"].message
    assert truncated.tolist() == [True, False]
    assert observations[:1] == second


def test_a_killed_worker_loses_nothing(
    vectors: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One in each step at most: nothing goes on where no worker has the time to start."""
    arguments: Any = {"num_envs": 12, "seed": 9, "length": 6}
    expected = shown(make_vec(TROUBLE, **arguments), 14)
    vector = vectors("process", num_workers=2, **arguments)
    executor: Any = vector._executor
    step, killed = vector.step, 0

    def kill() -> None:
        nonlocal killed
        for pid in executor.pids()[:1]:
            os.kill(pid, signal.SIGKILL)
            killed += 1

    def stepped(actions: Any) -> Any:
        # Before the step, while it is played, or after its end.
        killer = threading.Timer(random.random() * 0.02, kill)
        killer.start()
        try:
            return step(actions)
        finally:
            killer.join()

    monkeypatch.setattr(vector, "step", stepped)
    assert shown(vector, 14) == expected
    assert killed > 7


def test_what_ends_its_worker_twice_fails_and_the_others_go_on(
    vectors: Callable[..., Any],
) -> None:
    expected = make_vec(TROUBLE, num_envs=8, seed=4)
    expected.reset()
    vector = vectors("process", num_workers=1, num_envs=8, seed=4)
    vector.reset()
    observations, _, _, truncated, infos = vector.step(["die", *["a"] * 7])
    assert observations[1:] == expected.step(["a"] * 8)[0][1:]
    assert truncated.tolist() == [True, *[False] * 7]
    assert "its worker ended 2 times during this call" in infos[0]["failure"].message
    assert "SIGKILL" in infos[0]["failure"].message
    assert vector.step(["a"] * 8)[0][1:] == expected.step(["a"] * 8)[0][1:]


def test_what_ends_its_worker_once_goes_on(vectors: Callable[..., Any], tmp_path: Path) -> None:
    arguments: Any = {"num_envs": 4, "seed": 4, "folder": str(tmp_path)}
    expected = make_vec(TROUBLE, **arguments)
    for i in range(4):
        (tmp_path / str(i)).touch()
    expected.reset()
    actions = [["a"] * 4, [f"die-once {i}" for i in range(4)], ["a"] * 4]
    wanted = [expected.step(each)[0] for each in actions]
    for i in range(4):
        (tmp_path / str(i)).unlink()
    vector = vectors("process", num_workers=1, **arguments)
    vector.reset()
    assert [vector.step(each)[0] for each in actions] == wanted


def test_an_episode_is_not_blamed_for_ends_while_it_is_played_again(
    vectors: Callable[..., Any],
) -> None:
    arguments: Any = {"num_envs": 1, "seed": 4}
    expected = make_vec(TROUBLE, **arguments)
    vector = vectors("process", num_workers=1, **arguments)
    for each in (expected, vector):
        each.reset()
        each.step(["wait 1"])
    executor: Any = vector._executor
    os.kill(executor.pids()[0], signal.SIGKILL)
    vector.send(["a"])
    for _ in range(LONE_ENDS + 1):
        until(lambda: any(w.answered and w.running for w in executor._workers))
        os.kill(executor.pids()[0], signal.SIGKILL)
        until(lambda: not any(w.answered for w in executor._workers))
    assert vector.recv()[1] == expected.step(["a"])[0]


def until(condition: Callable[[], bool]) -> None:
    """Wait until something is true."""
    ends = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("kind", "message"),
    [("Fickle", "did not give the same observations"), ("Outside", "cannot be replayed")],
)
def test_what_cannot_be_replayed_fails_when_its_worker_ends(
    vectors: Callable[..., Any], kind: str, message: str
) -> None:
    vector = vectors("process", f"test:{kind}-v0", num_workers=1, seed=1)
    vector.reset()
    vector.step(["a"])
    os.kill(vector._executor.pids()[0], signal.SIGKILL)
    _, _, _, truncated, infos = vector.step(["a"])
    assert truncated.tolist() == [True]
    assert message in infos[0]["failure"].message
    # The next episode is one like any other.
    assert not vector.step(["a"])[3].any()


def test_a_worker_that_is_held_by_c_code_is_ended(
    vectors: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "GRACE_S", 1.0)
    vector = vectors("process", num_workers=1, num_envs=2, seed=4, step_timeout_s=5.0)
    vector.reset()
    _, _, _, truncated, infos = vector.step(["hold", "a"])
    assert truncated.tolist() == [True, False]
    assert "its worker ended 2 times" in infos[0]["failure"].message


def test_workers_are_replaced_after_their_number_of_episodes() -> None:
    executor = ProcessExecutor(1, episodes_per_worker=3)
    vector = AsyncVectorEnv([Recipe(TROUBLE, {"length": 1})] * 2, executor, seed=1)
    try:
        pids = [info["pid"] for info in vector.reset()[1]]
        for _ in range(6):
            pids += [info["pid"] for info in vector.step(["a", "a"])[4]]
        assert len(set(pids)) >= 4
        assert max(map(pids.count, pids)) <= 4
    finally:
        vector.close()


def test_a_worker_has_no_more_memory_than_it_is_given() -> None:
    executor = ProcessExecutor(1, memory_mb=4096)
    vector = AsyncVectorEnv([Recipe("test:Hungry-v0")], executor)
    try:
        _, infos = vector.reset()
        assert "MemoryError" in infos[0]["failure"].message
    finally:
        vector.close()


class Hungry(Env):
    """Takes 8 GiB of address space."""

    def reset(self, seed: int | None = None, **options: Any) -> Any:
        super().reset(seed=seed)
        self.held = bytes(8 * 2**30)
        return "full", {}


def test_nothing_is_left_behind() -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    make_vec(TROUBLE, num_envs=2, vectorization_mode="process", num_workers=2).close()
    before = descriptors()
    vector: Any = make_vec(TROUBLE, num_envs=4, vectorization_mode="process", num_workers=2)
    vector.reset()
    pids = vector._executor.pids()
    assert len(pids) == 2
    vector.send({0: "wait 60", 1: "wait 60"})
    vector.close()
    vector.close()
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
    assert descriptors() <= before
    with pytest.raises(MisuseError, match="closed"):
        vector.step({2: "a"})


def test_workers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    code = (
        "import os, signal, gem\n"
        f"v = gem.make_vec({EASY!r}, num_envs=2, vectorization_mode='process', num_workers=2)\n"
        "v.reset()\nprint(*v._executor.pids(), flush=True)\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, text=True)
    pids = done.stdout.split()
    assert len(pids) == 2, done.stderr
    ends = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < ends:
        time.sleep(0.05)
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []


def test_a_forked_process_starts_workers_of_its_own() -> None:
    code = (
        "import os\nfrom gem.executors.asynchronous import AsyncEnv\n"
        "from gem.tasks import Task\nimport asyncio\n"
        "def run():\n"
        f"    env = AsyncEnv(Task({EASY!r}, 1), 60, 'process:1')\n"
        "    asyncio.run(asyncio.wait_for(env.reset(1), 60))\n"
        "run()\nchild = os.fork()\nrun()\n"
        "if child: assert os.waitpid(child, 0)[1] == 0\nelse: os._exit(0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], timeout=120, check=False)
    assert done.returncode == 0


def test_a_forked_process_goes_on_with_the_episodes_of_its_parent() -> None:
    code = (
        "import os, signal\nfrom gem.vector import make_vec\n"
        f"vector = make_vec({EASY!r}, num_envs=2, vectorization_mode='process', num_workers=1)\n"
        "vector.reset(seed=3)\nvector.step(['\\\\boxed{3}'] * 2)\n"
        "reading, writing = os.pipe()\nchild = os.fork()\nsignal.alarm(60)\n"
        "seen = repr(vector.step(['\\\\boxed{5}'] * 2)[0]).encode()\nvector.close()\n"
        "if child: assert os.read(reading, 4096) == seen and os.waitpid(child, 0)[1] == 0\n"
        "else: os.write(writing, seen)\nos._exit(0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], timeout=120, check=False)
    assert done.returncode == 0


def test_what_reads_standard_input_takes_nothing_from_its_neighbours(
    vectors: Callable[..., Any],
) -> None:
    env = vectors("process", num_envs=3, num_workers=1, step_timeout_s=60)
    env.reset()
    for turn in range(4):
        _, rewards, _, _, infos = env.step(["input", "a", "b"])
        assert rewards.tolist() == [0.5] * 3, (turn, infos)


def test_children_of_environments_have_nothing_of_the_executor(vectors: Callable[..., Any]) -> None:
    env = vectors("process", num_envs=1, num_workers=1)
    env.reset()
    observations, *_ = env.step(["children"])
    assert "children [0, 0, 0]" in observations[0]


@pytest.mark.parametrize("number", [40, signal.SIGSEGV])
def test_any_signal_that_ends_a_worker_is_a_failure_of_its_call(
    vectors: Callable[..., Any], number: int
) -> None:
    env = vectors("process", num_envs=2, num_workers=1, autoreset="disabled")
    env.reset()
    _, _, _, truncated, infos = env.step([f"signal {int(number)}", "on"])
    assert truncated.tolist() == [True, False]
    assert "was ended by" in infos[0]["failure"].message
    _, rewards, *_ = env.step({1: "on"})
    assert rewards.tolist() == [0.5]


def test_a_worker_that_sends_garbage_is_ended_alone(vectors: Callable[..., Any]) -> None:
    env = vectors("process", num_envs=2, num_workers=1, autoreset="disabled")
    env.reset()
    _, _, _, truncated, infos = env.step(["garbage", "on"])
    assert truncated.tolist() == [True, False]
    assert "sent something that is not an answer" in infos[0]["failure"].message
    _, rewards, *_ = env.step({1: "on"})
    assert rewards.tolist() == [0.5]


@pytest.mark.parametrize("where", ["look", "received", "write"])
def test_a_thread_that_all_calls_wait_for_fails_by_name(
    vectors: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    env = vectors("process", num_envs=2, num_workers=1, autoreset="disabled")
    env.reset()

    def broken(*_: Any) -> None:
        raise LookupError("a mistake of ours")

    with monkeypatch.context() as patched:
        patched.setattr(env._executor, where, broken)
        _, _, _, truncated, infos = env.step(["wait 3", "wait 3"])
        assert truncated.all()
        for info in infos:
            assert "a mistake of ours" in info["failure"].message
    env.reset()
    _, rewards, *_ = env.step(["on", "on"])
    assert rewards.tolist() == [0.5, 0.5]


FRAMES = [
    {},
    None,
    "x",
    [[]],
    [["open"]],
    [["run", 1, 2]],
    [[1, 2, 3]],
    [["step", 0]],
    [["step", True, "x"]],
    [["step", 1.0, "x"]],
    [["step", "0", "x"]],
    [["step", -1, "x"]],
    [["step", 0, 3]],
    [["open", 0, {}, None, None]],
    [["open", 0, {"id": 1, "params": {}, "wrappers": []}, None, None]],
    [["reset", 0, "7", {}]],
    [["reset", 0, True, {}]],
    [["resume", 0, [1], {}, [], "", "x"]],
    [["resume", 0, [1, 2], {}, [1], "", "x"]],
    [["load", 0]] * 1025,
]


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: json.dumps(frame)[:40])
def test_a_frame_that_is_none_is_named_and_begins_nothing(frame: Any) -> None:
    opened: list[Any] = []
    host = EnvHost(lambda _: None, lambda recipe: opened.append(recipe))  # type: ignore[func-returns-value,arg-type]
    first = ["open", 5, {"id": EASY, "params": {}, "wrappers": []}, None, None]
    frame = [first, *frame] if isinstance(frame, list) else frame
    with pytest.raises(FrameError):
        host.receive(json.dumps(frame))
    assert not opened


@pytest.mark.parametrize("text", ["[" * 100_000, "1" * 5000, "[1", "\ud800", '{"a": [}'])
def test_text_that_the_parser_gives_up_on_is_no_frame(text: str) -> None:
    with pytest.raises(FrameError):
        EnvHost(lambda _: None).receive(text)


def test_a_number_that_is_opened_again_closes_what_it_had() -> None:
    made: list[Trouble] = []
    closed: list[int] = []
    answers: list[Any] = []

    def admit(recipe: Any) -> Any:
        number = len(made)
        env = Trouble()
        made.append(env)
        return lambda: env, lambda: closed.append(number)

    host = EnvHost(lambda frame: answers.extend(json.loads(frame)), admit)
    recipe = {"id": TROUBLE, "params": {}, "wrappers": []}
    for _ in range(5):
        host.receive(json.dumps([["open", 3, recipe, None, None], ["load", 3]]))
        until(lambda: not host.calls)
    # One that was never used, one during a call, and one whose frame has more.
    host.receive(json.dumps([["open", 3, recipe, None, None]]))
    host.receive(json.dumps([["reset", 3, 1, {}]]))
    until(lambda: not host.calls)
    host.receive(json.dumps([["step", 3, "wait 0.2"], ["open", 3, recipe, None, None]]))
    host.receive(json.dumps([["load", 3]]))
    until(lambda: not host.calls)
    until(lambda: len(closed) == 6)
    host.close(5)
    until(lambda: sorted(closed) == list(range(len(made))))
    # The answer of the environment that lost its number is not sent under it.
    assert [each[1] for each in answers] == ["loaded"] * 5 + ["reset", "loaded"]


def test_an_environment_has_one_call_at_a_time_and_unknown_ones_an_answer() -> None:
    answers: list[Any] = []
    host = EnvHost(lambda frame: answers.extend(json.loads(frame)))
    host.receive('[["load", 9], ["close", 9], ["step", 9, "x"]]')
    assert [(n, name) for n, name, _ in answers] == [(9, "error")] * 2
    assert "no environment has the number 9" in answers[0][2][1]
    recipe = Recipe(TROUBLE).to_dict()
    host.receive(json.dumps([["open", 1, recipe, None, None], ["reset", 1, 1, {}]]))
    until(lambda: not host.calls)
    host.receive('[["step", 1, "wait 0.3"]]')
    with pytest.raises(FrameError, match="before its last call has an answer"):
        host.receive('[["step", 1, "x"]]')
    until(lambda: not host.calls)
    host.close(5)


@pytest.mark.parametrize("limit", [float("nan"), float("inf"), -1, 0, 1e300, 10**400, None])
def test_a_limit_that_a_client_names_is_no_longer_than_the_hosts(limit: Any) -> None:
    answers: list[Any] = []
    host = EnvHost(lambda frame: answers.extend(json.loads(frame)), limit_s=0.3)
    recipe = Recipe(TROUBLE).to_dict()
    host.receive(json.dumps([["open", 1, recipe, limit, None], ["reset", 1, 1, {}]]))
    until(lambda: not host.calls)
    host.receive('[["step", 1, "wait 3"]]')
    until(lambda: not host.calls)
    assert [each[1] for each in answers] == ["reset", "timeout"]


def test_a_replay_is_no_longer_than_the_host_allows() -> None:
    answers: list[Any] = []
    host = EnvHost(
        lambda frame: answers.extend(json.loads(frame)),
        most_replayed=3,
        limit_s=0.2,
        most_replay_s=0.2,
    )
    recipe = Recipe(TROUBLE, {"length": 10**9}).to_dict()
    for actions in (["a"] * 4, ["wait 1"] * 3):
        request = ["resume", 1, [1, 0], {}, actions, "", "x"]
        host.receive(json.dumps([["open", 1, recipe, None, None], request]))
        until(lambda: not host.calls)
    assert "4 actions to play again; 3 are allowed" in str(answers[0])
    assert answers[1][1] == "timeout"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("episode", [0, 1, 7, 10**9])
def test_any_episode_of_a_series_begins_at_once(mode: str, episode: int) -> None:
    recipe = Recipe(EASY)
    local = recipe.make()
    local.seek(5, episode)
    executor = make_executor(mode)
    env = ExecutedEnv(executor, recipe, 60)
    try:
        for _ in range(2):
            env.seek(5, episode)
            assert env.reset()[0] == local.reset()[0]
            local.seek(5, episode)
    finally:
        env.close()
        executor.close()


@pytest.mark.parametrize(
    ("env_id", "arguments", "error", "message"),
    [
        ("test:No-v0", {}, UnknownEnvError, "test:No-v0"),
        (EASY, {"size": 3}, UnknownParameterError, "'size'"),
        (TROUBLE, {"folder": object()}, ConfigurationError, r"cannot be sent .* params\.folder"),
        (TROUBLE, {"folder": {1: 2}}, ConfigurationError, "cannot be sent .* has the key 1"),
        (
            TROUBLE,
            {"wrappers": [lambda env: env]},
            ConfigurationError,
            r"cannot be sent .* wrappers\[0\] .*module:Class",
        ),
        (TROUBLE, {"num_workers": 0}, ConfigurationError, "unknown executor 'process:0'"),
    ],
)
def test_what_cannot_be_made_elsewhere_is_named(
    vectors: Callable[..., Any], env_id: str, arguments: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        vectors("process", env_id, **arguments)


def test_an_id_stands_for_what_it_was_registered_as(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gem.registry._registry", dict(gem.registry._registry))
    monkeypatch.setattr("gem.registry._registered_by_hand", set(gem.registry._registered_by_hand))
    game = "gem.envs.games.guess_the_number:GuessTheNumber"
    executor = ProcessExecutor(1)
    try:
        # A worker knows the id, as something else, from the beginning or from the vector before.
        for turns in (3, 5):
            with pytest.warns(UserWarning, match="registered again"):
                gem.register(EASY, game, max_turns=turns)
            vector = AsyncVectorEnv([Recipe(EASY)], executor)
            (observation,), _ = vector.reset(seed=0)
            assert f"within {turns} turns" in observation
            assert observation == make_vec(EASY, seed=0).reset(seed=0)[0][0]
    finally:
        executor.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workers": 0}, "workers must be an integer from 1 to 1024, got 0"),
        ({"workers": 5000}, "workers must be an integer from 1 to 1024, got 5000"),
        ({"memory_mb": 0}, "memory_mb must be"),
        ({"episodes_per_worker": 0}, "episodes_per_worker must be"),
    ],
)
def test_numbers_out_of_range_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ProcessExecutor(**arguments)


@pytest.mark.parametrize(
    ("name", "module"), [("ray", "ray"), ("remote:http://localhost:1", "websockets.sync.client")]
)
def test_an_extra_that_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=r"gem-core\["):
        make_executor(name)


@pytest.mark.parametrize("name", ["threads", "thread:2", "process:", "process:x", "process:0", ""])
def test_unknown_executors_are_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="unknown executor"):
        check_name(name)


def test_a_worker_that_cannot_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gem.executors.process._START", "raise SystemExit(3)")
    executor = make_executor("process:1")
    with pytest.raises(EnvFailedError, match="exit status 3"):
        AsyncVectorEnv([Recipe(EASY)], executor)


class Here(Worker):
    """A worker in this process; one that does not start keeps what it is sent."""

    def __init__(self, executor: PoolExecutor, starts: bool) -> None:
        super().__init__()
        self.executor = executor
        self.host = EnvHost(lambda frame: executor.received(self, frame)) if starts else None

    def send(self, frame: bytes) -> None:
        if self.host is not None:
            self.host.receive(frame)

    def end(self, *, kill: bool = False) -> None:
        threading.Thread(target=self.executor.ended, args=(self, "it was ended")).start()


class Half(PoolExecutor):
    """A cluster that has room for the first of its workers only."""

    def _start(self) -> Worker:
        return Here(self, starts=not self._workers)


def test_a_worker_that_there_is_no_room_for_is_done_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    executor = Half(2)
    looks = threading.Timer(0.2, executor.look)
    looks.start()
    monkeypatch.setattr(pool, "START_S", 0.0)
    vector = AsyncVectorEnv([Recipe(EASY)] * 4, executor, seed=3)
    try:
        expected = make_vec(EASY, num_envs=4, seed=3)
        assert vector.reset() == expected.reset()
        assert len(executor._workers) == 1
    finally:
        vector.close()


def test_wrong_options_and_seeds_are_refused(vectors: Callable[..., Any]) -> None:
    vector = vectors("process", num_workers=1)
    with pytest.raises(ConfigurationError, match="an option of reset cannot leave this process"):
        vector.reset(folder=object())
    with pytest.raises(ConfigurationError, match="leave this process: options.level has the key 1"):
        vector.reset(level={1: 2})
    with pytest.raises(ConfigurationError, match="seed must be an integer"):
        vector.reset(seed=["a"])
    assert vector.reset(seed=[np.int64(3)], level=2)[1][0]["level"] == 2
