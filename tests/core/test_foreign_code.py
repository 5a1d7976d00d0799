"""Whatever foreign code raises, wherever: a failure with its cause, and the run goes on."""

from __future__ import annotations

import asyncio
import builtins
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from echo import BUDGET, scripted

import gem
from gem.blame import boundary, cause_of
from gem.core import Env
from gem.envs.multi.nim import Nim
from gem.errors import MisuseError
from gem.executors.threads import EnvThreads
from gem.foreign import MOST_CHARACTERS, contained, described, signal_name, trace
from gem.rollout import ChatFormat, Request, Sample, play, play_batch, play_match
from gem.tasks import Task
from gem.tools import Tool, ToolCall, ToolResult
from gem.trajectory import Failure
from gem.vector import make_vec
from gem.wrappers.tool_env import ToolEnv

HOSTILE, SEATS = "test:Hostile-v0", "test:HostileNim-v0"


Maker: TypeAlias = Callable[[], BaseException]


def of_python() -> Iterator[Maker]:
    """An exception of every class that Python has."""
    codecs = {UnicodeDecodeError: b"x", UnicodeEncodeError: "x", UnicodeTranslateError: "x"}
    for kind in vars(builtins).values():
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            continue
        if kind in codecs:
            names = () if kind is UnicodeTranslateError else ("ascii",)
            yield partial(kind, *names, codecs[kind], 0, 1, "told so")
        elif kind.__name__.endswith("ExceptionGroup"):
            yield partial(kind, "told so", [ValueError()])
        else:
            yield partial(kind, "told so")


def of_methods() -> Iterator[Maker]:
    """An exception of a class that raises wherever it is looked at, one method at a time."""

    def leave(*_: Any, **__: Any) -> Any:
        raise SystemExit("from a method")

    names = ("__str__", "__repr__", "__getattribute__", "__setattr__", "__eq__", "__hash__")
    for base in (Exception, BaseException):
        for name in (*names, "__reduce__", "__bool__", "with_traceback"):
            yield partial(type(f"Bad{name.strip('_').title()}", (base,), {name: leave}), "told so")
        for name in ("__dict__", "__class__", "__cause__", "__context__", "__traceback__", "args"):
            own = {name: property(leave)}
            yield partial(type(f"Bad{name.strip('_').title()}", (base,), own), "told so")


def of_words() -> Iterator[Maker]:
    """Exceptions whose messages are no ordinary texts."""

    class Text(str):
        def __getitem__(self, _: Any) -> Any:
            raise SystemExit("sliced")

    class SubError(Exception):
        def __str__(self) -> str:
            return Text("told so")

    class NumberError(Exception):
        def __str__(self) -> Any:
            return 3

    def circular() -> BaseException:
        first, second = ValueError("told so"), KeyError("told so")
        first.__cause__, second.__cause__ = second, first
        return first

    long = "x" * (20 << 20)
    yield circular
    yield partial(SystemExit, 0)
    yield partial(SystemExit, None)
    yield partial(asyncio.CancelledError, "told so")
    yield partial(ValueError, "\ud800 told so")
    yield partial(ValueError, long)
    yield SubError
    yield NumberError


KINDS = [*of_python(), *of_methods(), *of_words()]
# What an environment of this process may raise to end a run: the caller's own mistakes.
assert not any(issubclass(type(each()), MisuseError) for each in KINDS)
CAUSES = {"tool": "tool", "grader": "grader"}


class Hostile(Env):
    """Raises exception number `kind` at `place`, if it has one."""

    def __init__(self, kind: int = 0, place: str = "", *, seed: int | None = None) -> None:
        super().__init__(seed=seed)
        self.kind, self.place = kind, place
        self._raise("make")

    def _raise(self, place: str) -> None:
        if place == self.place:
            raise KINDS[self.kind]()

    def reset(self, seed: int | None = None, **options: Any) -> Any:
        super().reset(seed=seed)
        self._raise("reset")
        self.turns = 0
        return "go", {}

    def step(self, action: str) -> Any:
        self._raise("step")
        if self.place == "grader":
            with boundary("grader"):
                self._raise("grader")
        self.turns += 1
        return "went", 1.0, self.turns == 2, False, {}

    def close(self) -> None:
        self._raise("close")


class HostileTool(Tool):
    """Raises in every call."""

    tool_type = "hostile"

    def __init__(self, kind: int) -> None:
        self.kind = kind

    def instruction(self) -> str:
        return "call"

    def parse(self, text: str) -> ToolCall:
        return ToolCall("hostile")

    def execute(self, call: ToolCall) -> ToolResult:
        raise KINDS[self.kind]()

    def spawn(self) -> HostileTool:
        return HostileTool(self.kind)


class HostileNim(Nim):
    """A match whose reset or step raises."""

    def __init__(self, kind: int = 0, place: str = "step") -> None:
        super().__init__()
        self.kind, self.place = kind, place

    def reset(self, seed: int | None = None) -> Any:
        if self.place == "reset":
            raise KINDS[self.kind]()
        return super().reset(seed)

    def step(self, actions: Any) -> Any:
        if self.place == "step":
            raise KINDS[self.kind]()
        return super().step(actions)


def made(kind: int, place: str) -> Env:
    """Make an environment that raises at a place, which may be a tool's call."""
    if place == "tool":
        return ToolEnv(Hostile(), HostileTool(kind))
    return Hostile(kind, place)


def wrapped(env: Env) -> Env:
    """Put the tool around an environment that asks for it; a wrapper for other processes."""
    inner: Any = env.unwrapped
    return ToolEnv(env, HostileTool(inner.kind)) if inner.place == "tool" else env


@pytest.fixture(autouse=True, scope="session")
def registered() -> None:
    gem.register(HOSTILE, f"{__name__}:Hostile")
    gem.register(SEATS, f"{__name__}:HostileNim")


@pytest.mark.parametrize("mode", ["sync", "thread", "process:2"])
@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_vectors_count_every_kind_of_exception_as_a_failure_and_go_on(
    mode: str, autoreset: str
) -> None:
    mode, _, workers = mode.partition(":")
    places = ("reset", "step", "tool", "grader")
    raising = [(kind, place) for kind in range(len(KINDS)) for place in places]
    if mode == "process" and autoreset == "next_step":
        raising = raising[::5]
    own = [{"kind": kind, "place": place} for kind, place in raising]
    with make_vec(
        [HOSTILE] * (len(own) + 1),
        vec_kwargs=[*own, {}],
        wrappers=f"{__name__}:wrapped",
        vectorization_mode=mode,
        num_workers=int(workers) if workers else None,
        autoreset=autoreset,
        seed=3,
    ) as envs:
        _, infos = envs.reset()
        for turn in range(2):
            for (kind, place), info in zip(raising, infos, strict=False):
                if (place == "reset") == (turn == 0) or autoreset == "same_step":
                    failure = info.get("failure")
                    if place == "reset" or turn:
                        assert isinstance(failure, Failure), (place, kind)
                        assert failure.cause == CAUSES.get(place, "environment")
                        failure.message.encode()
                        assert len(failure.message) < MOST_CHARACTERS + 300
            _, rewards, _, truncated, infos = envs.step(["x"] * (len(own) + 1))
            assert rewards[:-1].sum() == 0
            assert truncated[:-1].all() or autoreset == "next_step"
            assert rewards[-1] == 1.0
            assert np.isfinite(rewards).all()


@pytest.mark.parametrize("executor", ["thread", "process:1"])
def test_rollouts_return_every_episode_whatever_its_environment_raises(
    small_tokenizer: Any, executor: str
) -> None:
    kinds = range(len(KINDS)) if executor == "thread" else range(0, len(KINDS), 7)
    places = ("reset", "step", "close", "grader", "make", "")
    tasks = [Task(HOSTILE, 1, {"kind": kind, "place": place}) for kind in kinds for place in places]
    sampler = scripted([[9]])
    batch = play_batch(
        tasks,
        lambda requests: [sampler(request) for request in requests],
        ChatFormat(small_tokenizer),
        budget=BUDGET,
        retries=1,
        executor=executor,
    )
    assert [each.task for each in batch] == tasks
    for task, each in zip(tasks, batch, strict=True):
        place = task.params["place"]
        if place in ("close", ""):
            assert each.rewards == [1.0, 1.0]
        else:
            assert each.failure is not None, task
            assert each.failure.cause == CAUSES.get(place, "environment")
            assert each.failure.attempts == 2


def test_asynchronous_rollouts_and_matches_survive_every_kind(small_tokenizer: Any) -> None:
    sampler, chat = scripted([[9]]), ChatFormat(small_tokenizer)

    async def answer(request: Request) -> Sample:
        return sampler(request)  # type: ignore[no-any-return]

    async def everything() -> list[Any]:
        plays: list[Any] = []
        for kind in range(len(KINDS)):
            for place in ("tool", "step"):
                make: Any = partial(made, kind, place)
                given: Any = {"make_env": lambda _, make=make: make(), "retries": 0}
                plays.append(play(Task("x", 1), answer, chat, budget=BUDGET, **given))
            for place in ("reset", "step"):
                task = Task(SEATS, 1, {"kind": kind, "place": place})
                plays.append(play_match(task, answer, chat, budget=BUDGET, retries=0))
        return await asyncio.gather(*plays)

    found = asyncio.run(everything())
    assert len(found) == 4 * len(KINDS)
    for each in found:
        for trajectory in each.values() if isinstance(each, dict) else [each]:
            assert trajectory.failure is not None


@pytest.mark.parametrize("number", range(len(KINDS)), ids=str)
def test_words_for_an_exception_never_raise(number: int) -> None:
    raised: BaseException | None = None
    try:
        with boundary("sandbox"):
            raise KINDS[number]()
    except BaseException as caught:
        raised = caught
    assert raised is not None
    assert cause_of(raised) == "sandbox"
    kept = contained(raised)
    # What is kept is an exception that futures, coroutines and logs can hold.
    assert issubclass(type(kept), Exception)
    assert not issubclass(type(kept), StopIteration)
    assert isinstance(kept, Exception)
    for words in (described(raised), described(kept), trace(kept)):
        words.encode()
        assert len(words) < 25_000
    assert described(kept) == described(raised)


def test_a_tool_that_exits_does_not_end_an_event_loop() -> None:
    numbers = [n for n, each in enumerate(KINDS) if not issubclass(type(each()), Exception)]

    async def calls() -> list[Any]:
        tools = [HostileTool(number) for number in numbers]
        called = [tool.aexecute(ToolCall("hostile")) for tool in tools]
        return await asyncio.gather(*called, return_exceptions=True)

    found = asyncio.run(calls())
    assert len(found) == len(numbers)
    assert all(isinstance(each, Exception) for each in found)


def test_a_sink_that_raises_loses_its_own_results_only(caplog: pytest.LogCaptureFixture) -> None:
    threads, results = EnvThreads(), asyncio.Queue[Any]()

    async def after(count: int) -> list[Any]:
        loop = asyncio.get_running_loop()

        def broken(_: Any) -> None:
            raise SystemExit("a sink")

        def take(found: list[Any]) -> None:
            loop.call_soon_threadsafe(results.put_nowait, found)

        for n in range(count):
            threads.submit(lambda: 1, broken, n)
            threads.submit(lambda: 2, take, n)
        seen: list[Any] = []
        while len(seen) < count:
            seen += await asyncio.wait_for(results.get(), 60)
        return seen

    assert sorted(asyncio.run(after(20))) == [(n, 2) for n in range(20)]
    assert "their sink raised" in caplog.text


PROGRAM = """
import asyncio, os, signal, sys
import gem
from gem.core import Env
from gem.vector import SyncVectorEnv

class Slow(Env):
    def reset(self, seed=None, **options):
        super().reset(seed=seed)
        return "go", {}

    def step(self, action):
        if action == "raise":
            raise KeyboardInterrupt
        if action == "exit":
            sys.exit(0)
        try:
            if action == "signal":
                os.kill(os.getpid(), signal.SIGINT)
            elif action == "terminate":
                os.kill(os.getpid(), signal.SIGTERM)
            elif action == "loop":
                asyncio.run(interrupted())
            for _ in range(10**9):
                pass
        except BaseException as error:
            if sys.argv[2] == "converts":
                sys.exit(0)
            raise

async def interrupted():
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.sleep(60)

def leave(number, frame):
    raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(3)

if sys.argv[3] == "own":
    signal.signal(signal.SIGINT, leave)
signal.signal(signal.SIGTERM, leave)
with SyncVectorEnv([Slow]) as envs:
    envs.reset()
    *_, infos = envs.step([sys.argv[1]])
    print(type(infos[0]["failure"]).__name__)
"""


@pytest.mark.parametrize("action", ["raise", "exit", "signal", "terminate", "loop"])
@pytest.mark.parametrize("converts", ["passes", "converts"])
def test_only_a_signal_ends_a_run_in_the_calling_thread(
    tmp_path: Path, action: str, converts: str
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    handler = "own" if converts == "passes" else "python"
    command = [sys.executable, "program.py", action, converts, handler]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    if action in ("raise", "exit"):
        assert (ran.returncode, ran.stdout.strip()) == (0, "Failure"), ran.stderr
    else:
        assert ran.stdout == ""
        expected = 3 if action == "terminate" else -signal.SIGINT
        assert ran.returncode == (0 if converts == "converts" else expected)


def test_every_signal_has_words() -> None:
    for number in range(1, signal.SIGRTMAX + 1):
        assert signal_name(number)
    assert signal_name(signal.SIGKILL) == "SIGKILL"
    assert "40" in signal_name(40)


EXITS = ["sys.exit(0)", "argparse.ArgumentParser().parse_args(['--help'])"]


def command(exit: str, tmp_path: Path, *words: str) -> Any:
    """Run a command of a program that registers an environment that exits."""
    (tmp_path / "exits.py").write_text(
        textwrap.dedent("""
        import argparse
        import sys
        from gem.core import Env

        class Exits(Env):
            def reset(self, seed=None, **options):
                super().reset(seed=seed)
                return "go", {}

            def step(self, action):
                EXIT

            def sample_random_action(self):
                return "x"
        """).replace("EXIT", exit)
    )
    info = tmp_path / "exits-1.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: exits\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[gem.envs]\nexits = exits:registered\n")
    with (tmp_path / "exits.py").open("a") as file:
        file.write('\ndef registered():\n    import gem\n    gem.register("bad:x", Exits)\n')
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    given = [sys.executable, "-m", "gem", *words]
    return subprocess.run(
        given, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240, check=False
    )


@pytest.mark.parametrize(
    "words",
    [
        ("eval", "gem:bad:x?n=4", "--model", "random", "--out", "o"),
        ("check", "bad:x"),
        ("play", "bad:x", "--policy", "random"),
    ],
    ids=lambda words: words[0],
)
@pytest.mark.parametrize("exit", EXITS, ids=["exit", "argparse"])
def test_no_command_succeeds_because_an_environment_exits(
    tmp_path: Path, words: tuple[str, ...], exit: str
) -> None:
    if words[0] == "eval":
        pytest.importorskip("gem_eval")
    ran = command(exit, tmp_path, *words)
    assert ran.returncode not in (0, -signal.SIGKILL), ran.stdout + ran.stderr
    assert "SystemExit" in ran.stdout + ran.stderr
    if words[0] == "eval":
        lines = [json.loads(line) for line in (tmp_path / "o/episodes.jsonl").open()]
        assert lines
        assert all(line["trajectory"]["failure"]["cause"] == "environment" for line in lines)
