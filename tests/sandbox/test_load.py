"""A verdict does not depend on how busy the machine is; what a busy machine prevents is void."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from echo import BUDGET, scripted

import gem
from gem import admission
from gem.blame import cause_of
from gem.envs import reasoning_gym_worker as puzzles
from gem.errors import BusyMachineError, UnreachableError
from gem.rollout import ChatFormat, play_batch
from gem.tasks import Task
from gem.tools import ToolCall
from gem.workers import pool as workers
from gem.workers.pool import Reply, WorkerPool
from gem_math import grading as maths
from gem_sandbox import BwrapRunner, Limits, Runner, SubprocessRunner, base, running
from gem_sandbox.env import CodeEnv
from gem_sandbox.grading import code
from gem_sandbox.inside.clock import Clock
from gem_sandbox.tool import PythonTool

pytestmark = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="bubblewrap is not installed: apt-get install bubblewrap"
)


@contextlib.contextmanager
def busy_machine(processes: int) -> Iterator[None]:
    """So many processes that only use the CPU."""
    command = [sys.executable, "-c", "while True: pass"]
    started = [subprocess.Popen(command) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def computing(cpu_s: float, then: str) -> str:
    """A program that uses so much CPU time."""
    return (
        f"import time\nbegan = time.process_time()\n"
        f"while time.process_time() - began < {cpu_s}: pass\n{then}"
    )


DOUBLE = {"inputs": ["3", "4"], "outputs": ["6", "8"]}
CALLED = {"fn_name": "f", "inputs": [[1], [2], [3]], "outputs": [2, 4, 6]}
CALLS = "def f(x):\n    s = 0\n    for i in range(400000): s += i\n    return 2 * x"


def gradings(limit_s: float) -> list[Callable[[], Any]]:
    """Ten gradings; those of programs that end use about a quarter of the limit."""

    def program(text: str, tests: Any) -> Callable[[], Any]:
        return lambda: code.grade(text, tests, timeout_s=limit_s)[:2]

    def formula(answer: str, gold: str) -> Callable[[], Any]:
        return lambda: maths.grade(answer, gold, timeout_s=2 * limit_s)[:2]

    def puzzle(name: str, wrong: str = "") -> Callable[[], Any]:
        def score() -> Any:
            env = gem.make(f"rg:{name}", timeout_s=limit_s)
            env.reset(seed=5)
            _, reward, _, _, info = env.step(wrong or env.oracle_action())
            return reward, info["reason"]

        return score

    return [
        program(computing(limit_s / 4, "print(2 * int(input()))"), DOUBLE),
        program(CALLS, CALLED),
        formula(r"(-\infty,3)\cup(3,\infty)", r"\mathbb{R}\setminus\{3\}"),
        puzzle("countdown"),
        program("import time; time.sleep(60)", DOUBLE),
        program(computing(limit_s / 4, "print(3)"), DOUBLE),
        program("def f(x):\n    while x: pass", CALLED),
        formula(r"(-\infty,2)\cup(2,3)\cup(3,\infty)", r"\mathbb{R}\setminus\{2,3\}"),
        puzzle("simple_integration"),
        puzzle("simple_integration", "\\boxed{((a+b+c+d+e+f+g+h)*x)**60}"),
    ]


@pytest.mark.parametrize(
    ("at_once", "busy", "limit_s"),
    [(30, 6, 0.3), pytest.param(200, 24, 0.5, marks=pytest.mark.nightly)],
)
def test_many_gradings_on_a_busy_machine_have_the_verdicts_of_a_quiet_one(
    at_once: int, busy: int, limit_s: float
) -> None:
    if any(map(missing, ("math_verify", "reasoning_gym"))):
        pytest.skip("needs the extras: pip install 'gem-core[math,reasoning-gym]'")
    kinds = gradings(limit_s)
    with ThreadPoolExecutor(2) as threads:
        quiet = list(threads.map(lambda grade: grade(), kinds * 2))[len(kinds) :]
    rights = [0, 1, 2, 3, 7, 8]
    assert [n for n, (paid, _) in enumerate(quiet) if paid] == rights, quiet
    with busy_machine(busy), ThreadPoolExecutor(at_once) as threads:
        loaded = list(threads.map(lambda n: kinds[n % len(kinds)](), range(at_once)))
    differing = {n % len(kinds): v for n, v in enumerate(loaded) if v != quiet[n % len(kinds)]}
    assert differing == {}


def missing(module: str) -> bool:
    return importlib.util.find_spec(module) is None


RUNNERS = [BwrapRunner, SubprocessRunner]
SLEEPS = {
    "sleep": "import time\ntime.sleep(600)",
    "short sleeps": "import time\nwhile True: time.sleep(0.01)",
    "a pipe that nobody writes to": "import os\nos.read(os.pipe()[0], 1)",
    "a lock nobody releases": "import threading\nx = threading.Lock()\nx.acquire()\nx.acquire()",
    "a child that sleeps": "import os, time\nif os.fork(): os.wait()\ntime.sleep(600)",
    "a stopped child": "import os\nif os.fork(): os.wait()\nos.kill(os.getpid(), 19)\nos.wait()",
    "many sleeping threads": "import threading, time\n"
    "for _ in range(50): threading.Thread(target=time.sleep, args=(600,)).start()",
}
BUSY = {
    "a loop": "while True: pass",
    "a loop in C": "sum(range(10**18))",
    "system calls": "import os\nwhile True: os.stat('/')",
    "threads": "import threading\ndef f():\n    while True: pass\n"
    "for _ in range(8): threading.Thread(target=f).start()",
    "processes": "import os\nfor _ in range(4): os.fork()\nwhile True: pass",
    "processes one after the other": "import os, time\nwhile True:\n    if os.fork() == 0:\n"
    "        while time.process_time() < 0.3: pass\n        os._exit(0)\n    os.wait()",
    "children that nobody waits for": "import os, signal, time\n"
    "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\nwhile True:\n    if os.fork() == 0:\n"
    "        while time.process_time() < 0.2: pass\n        os._exit(0)\n    time.sleep(0.1)",
    "threads after the end of the first one": "import ctypes, threading\ndef f():\n"
    "    while True: pass\nthreading.Thread(target=f).start()\n"
    "ctypes.CDLL(None).pthread_exit(None)",
    "a name that is no text": "import ctypes\n"
    "ctypes.CDLL(None).prctl(15, b'\\xff) R 1', 0, 0, 0)\nwhile True: pass",
    "a finished program that works at its end": "import atexit\n"
    "atexit.register(lambda: [0 for _ in iter(int, 1)])",
}


@pytest.mark.parametrize("kind", RUNNERS)
def test_a_program_that_waits_for_ever_hits_its_limit_and_is_not_void(
    kind: type[Runner],
) -> None:
    runner, limits = kind(), Limits(cpu_s=0.5)
    with ThreadPoolExecutor(len(SLEEPS)) as threads:
        results = list(threads.map(lambda p: runner.run(p, "", limits), SLEEPS.values()))
    for name, result in zip(SLEEPS, results, strict=True):
        assert result.limit_hit == "time", name
        assert result.cpu_s is not None
        assert result.cpu_s < 0.5, name


@pytest.mark.parametrize("kind", RUNNERS)
def test_no_program_multiplies_its_cpu_time(kind: type[Runner]) -> None:
    runner, limits = kind(), Limits(cpu_s=0.3)
    with ThreadPoolExecutor(len(BUSY)) as threads:
        results = list(threads.map(lambda p: runner.run(p, "", limits), BUSY.values()))
    for name, result in zip(BUSY, results, strict=True):
        assert result.limit_hit == "time", name
        assert result.cpu_s is not None
        # A look may come late: each of the cores was then used all the time.
        assert 0.3 <= result.cpu_s < 1.2, name


def test_the_programs_of_a_session_have_the_same_limits() -> None:
    with BwrapRunner().session(Limits(cpu_s=0.5)) as session:
        session.run("x = 1")
        for program in (SLEEPS["short sleeps"], BUSY["a loop"], BUSY["processes"]):
            result = session.run(program)
            assert (result.limit_hit, result.exit_code) == ("time", -9)
        # Each program has its own time.
        for _ in range(3):
            assert session.run(computing(0.3, "x += 1; print(x)")).limit_hit is None
        assert session.run("print(x)").stdout == "4\n"


def test_a_program_that_ends_over_its_limit_hits_it_also_if_nobody_looked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(running, "_LOOK_S", 60.0)
    program, limits = computing(0.3, "print(1)"), Limits(cpu_s=0.2)
    result = SubprocessRunner().run(program, "", limits)
    assert (result.stdout, result.exit_code, result.limit_hit) == ("1\n", 0, "time")
    assert BwrapRunner().run(program, "", limits).limit_hit == "time"


def test_the_own_time_of_a_program_stands_still_while_it_waits_for_a_cpu() -> None:
    program = computing(0.3, "")
    with busy_machine(6 * (os.cpu_count() or 1)):
        began = time.monotonic()
        process = subprocess.Popen([sys.executable, "-S", "-c", program])
        clock = Clock(process.pid)
        while process.poll() is None:
            time.sleep(0.05)
            clock.look()
        took = time.monotonic() - began
    assert clock.own_s < took / 2
    assert 0.2 < clock.cpu_s < 1.0


PARENT = f"""
import os, sys
print("begun", flush=True)
sys.stdin.readline()
child = os.fork()
if child == 0:
    exec({computing(0.4, "")!r})
    os._exit(0)
os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
print("a zombie", flush=True)
sys.stdin.readline()
os.waitpid(child, 0)
print("none", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("ended", [True, False])
def test_an_ended_process_counts_for_the_program_that_had_it_and_once(ended: bool) -> None:
    """Not for the next program of its session, which may see it reaped."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-S", "-c", PARENT]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        clock = None
        for said in ("begun", "a zombie", "none"):
            assert process.stdout.readline() == f"{said}\n"
            if said == ("a zombie" if ended else "begun"):
                clock = Clock(process.pid, None)
            if clock is not None:
                clock.look()
            process.stdin.write("\n")
            process.stdin.flush()
    assert clock is not None
    if ended:
        assert clock.cpu_s < 0.2
    else:
        assert 0.35 < clock.cpu_s < 0.7


STARVED = "while True: pass"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs and calls are given up after a time in which they cannot use up theirs."""
    monkeypatch.setattr(base, "LEAST_WALL_S", 0.3)
    monkeypatch.setattr(base, "WALL_TIMES", 0.01)
    monkeypatch.setattr(workers, "LEAST_WALL_S", 0.3)
    monkeypatch.setattr(workers, "WALL_TIMES", 0.01)


@pytest.mark.parametrize("kind", RUNNERS)
def test_a_starved_program_runs_again_alone_and_is_then_nobodys_fault(
    kind: type[Runner], impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def spied(*, alone: bool) -> admission.Core:
        asked.append(alone)
        return admission.Core(alone=alone)

    monkeypatch.setattr(running, "Core", spied)
    with pytest.raises(BusyMachineError, match="did not sleep"):
        kind().run(STARVED, "", Limits(cpu_s=10))
    assert asked == [False, True]


def test_a_starved_program_of_a_session_leaves_the_state_before_it(impatient: None) -> None:
    with BwrapRunner().session(Limits(cpu_s=10)) as session:
        session.run("x = 1")
        with pytest.raises(BusyMachineError):
            session.run(f"x += 1\nopen('f', 'w').close()\n{STARVED}")
        assert session.run("import os; print(x, os.listdir('.'))").stdout.startswith("1 ['program")


@pytest.mark.parametrize("tests", [DOUBLE, CALLED, ["assert f(1) == 2"], ["for x in [1]:\n f(x)"]])
def test_a_grading_that_starves_raises_with_the_cause(tests: Any, impatient: None) -> None:
    with pytest.raises(UnreachableError) as caught:
        code.grade(STARVED, tests, timeout_s=10)
    assert cause_of(caught.value) == "sandbox"


def test_an_episode_whose_program_starves_is_void_and_not_a_zero(
    impatient: None, small_tokenizer: Any
) -> None:
    def make_env(task: Task) -> CodeEnv:
        return CodeEnv([{"problem": "Double it.", "tests": DOUBLE}], timeout_s=10)

    reply = small_tokenizer.encode(f"```python\n{STARVED}\n```")
    sampler = scripted([reply])
    [trajectory] = play_batch(
        [Task("x", 0)],
        lambda requests: [sampler(request) for request in requests],
        ChatFormat(small_tokenizer),
        budget=BUDGET,
        make_env=make_env,
        retries=0,
    )
    assert trajectory.failure is not None
    assert trajectory.failure.cause == "sandbox"
    assert not trajectory.valid


def test_a_tool_call_that_starves_is_not_repeated_by_the_tool(impatient: None) -> None:
    tool = PythonTool(timeout_s=10, retries=50)
    tool.reset()
    with pytest.raises(BusyMachineError) as caught:
        tool.execute(ToolCall("python", {"code": STARVED}))
    assert cause_of(caught.value) == "sandbox"


LOOPS = "[0 for _ in iter(int, 1)]"


def test_a_call_of_a_worker_ends_at_its_cpu_time_or_if_it_sleeps() -> None:
    pool = WorkerPool("builtins:eval", 1, by_cores=True)
    for call in (LOOPS, "9**9**9", "__import__('time').sleep(600)"):
        assert pool.call(call, timeout_s=0.3) == Reply(None, "timeout")
    # Also where the request is too long for one write.
    assert pool.call(f"{LOOPS} #{'x' * 100_000}", timeout_s=0.3) == Reply(None, "timeout")
    assert pool.call("1", timeout_s=0.3) == Reply(1)
    pool.close()


def test_a_call_that_starves_runs_again_alone_and_is_then_nobodys_fault(impatient: None) -> None:
    pool = WorkerPool("builtins:eval", 1, by_cores=True)
    pool.call("1", timeout_s=60)
    with (
        busy_machine(4 * (os.cpu_count() or 1)),
        pytest.raises(BusyMachineError, match="twice, and did not sleep"),
    ):
        pool.call(LOOPS, timeout_s=0.5)
    pool.close()


@pytest.mark.parametrize("kind", ["math", "puzzle"])
def test_a_grader_that_starves_raises_with_the_cause(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def starved(self: WorkerPool, request: bytes, timeout_s: float) -> None:
        return None

    if kind == "math":
        env = gem.make("math:Math12K", source=[{"problem": "Which?", "answer": r"\mathbb{R}^2"}])
    else:
        env = gem.make("rg:gcd")
    env.reset(seed=0)
    monkeypatch.setattr(WorkerPool, "_answer", starved)
    with pytest.raises(BusyMachineError) as caught:
        env.step("\\boxed{(0,1)\\cup\\mathbb{Q}}")
    assert cause_of(caught.value) == "grader"
    assert puzzles.pool().workers >= 1
