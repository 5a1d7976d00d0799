"""The sandbox is the Python that programs are written for: everywhere they do as in `python3`."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import idioms
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from idioms import DEPTHS, IDIOMS, INPUT, Idiom, Outcome, differing, expected, outcome
from processes import settles

import gem
import gem_sandbox
from gem.tools import ToolCall
from gem_sandbox import BwrapRunner, Limits, Result, Runner, SubprocessRunner, docker
from gem_sandbox.doctor import _judge
from gem_sandbox.grading import code
from gem_sandbox.tool import PythonTool

needs_bwrap = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="bubblewrap is not installed: apt-get install bubblewrap"
)
# Every so many idioms are enough where real interpreters do the work.
SAMPLE = IDIOMS[::13]
LIMITS = Limits(cpu_s=120.0)
# A session closes none of its own descriptors for a program, has files of its own for its programs,
# and has imported more.
NOT_IN_SESSIONS = {"os.closerange", "__file__", "warnings' filters"}


def seen(result: Result) -> Outcome:
    return outcome(result.stdout, result.exit_code, result.stderr)


def by(runner: Runner) -> Callable[[Idiom], Outcome]:
    return lambda idiom: seen(runner.run(idiom.program, idiom.stdin, LIMITS))


def in_session(idiom: Idiom) -> Outcome:
    with BwrapRunner(servers=1).session(LIMITS) as session:
        return seen(session.run(idiom.program, idiom.stdin))


def by_container(idiom: Idiom) -> Outcome:
    """What a container's first process does, without a container."""
    source = idiom.program.encode("utf-8", "replace")
    sent = b"%d\n" % len(source) + source + idiom.stdin.encode()
    shell = ["sh", "-c", 'ulimit -s unlimited; exec "$@"', "sh"]
    return idioms.started([*shell, sys.executable, "-c", docker._START], idiom, sent)


@needs_bwrap
@pytest.mark.parametrize("part", range(4))
def test_a_program_prints_and_ends_as_in_python_also_in_sessions_and_its_verdict_follows(
    part: int,
) -> None:
    some = IDIOMS[part::4]
    assert differing(some, by(BwrapRunner(servers=1)), expected) == []
    lasting = [each for each in some if not each.ends and each.name not in NOT_IN_SESSIONS]
    assert differing(lasting, in_session, expected) == []
    for idiom in some[::3]:
        right = expected(idiom)
        tests = {"inputs": [idiom.stdin], "outputs": ["6"]}
        passes = (right.stdout.strip(), right.exit_code) == ("6", 0)
        assert code.grade(idiom.program or " ", tests).correct == (passes and bool(idiom.program))


@pytest.mark.parametrize("run", [by(SubprocessRunner()), by_container])
@pytest.mark.parametrize(
    "some", [SAMPLE, pytest.param(IDIOMS, marks=pytest.mark.nightly)], ids=["sample", "all"]
)
def test_other_runners_do_the_same(run: Callable[[Idiom], Outcome], some: list[Idiom]) -> None:
    assert differing(some, run, expected) == []


@needs_bwrap
@pytest.mark.parametrize(
    "some", [SAMPLE, pytest.param(IDIOMS, marks=pytest.mark.nightly)], ids=["sample", "all"]
)
def test_the_python_tool_shows_what_python_prints(some: list[Idiom]) -> None:
    tool = PythonTool(max_output=10**7, timeout_s=120.0)
    tool.reset()
    for idiom in map(Idiom.alone, some):
        right = expected(idiom)
        result = tool.execute(ToolCall("python", {"code": idiom.program}, None, 0))
        # The tool shows what cannot be shown by other characters.
        shown, printed = (
            text.encode("ascii", "ignore")
            for text in (outcome(result.text, 0, "").stdout, right.stdout.strip("\n"))
        )
        assert printed in shown
        assert result.ok == (right.exit_code == 0), idiom


READERS = [
    "n = int(input()); a = list(map(int, input().split()))",
    "import sys\ninput = sys.stdin.readline\nn = int(input())\n"
    "a = [int(x) for x in input().split()]",
    "import sys\nn, *a = map(int, sys.stdin.buffer.read().split())",
    "n, *a = map(int, open(0).read().split())",
    "import os\nn, *a = map(int, os.read(0, 1 << 20).split())",
    "import fileinput\nn, a = [[int(x) for x in line.split()] for line in fileinput.input()]",
]
WRITERS = [
    "print(sum(a))",
    "import sys\nsys.stdout.write(f'{sum(a)}\\n')",
    "import sys\nsys.stdout.buffer.write(b'%d\\n' % sum(a))",
    "import os\nos.write(1, b'w\\n')",
    "o{i} = open(1, 'w', closefd=False)\nprint(*a, file=o{i})",
    "import os\no{i} = os.fdopen(os.dup(1), 'w')\no{i}.write(f'{n}\\n')",
    "import io, sys\no{i} = io.TextIOWrapper(sys.stdout.buffer)\no{i}.write('w')",
    "import io, sys\nsys.stdout = io.StringIO(); print(7)\n"
    "sys.__stdout__.write(sys.stdout.getvalue())",
    "import sys\nsys.stdout.flush()",
    "import sys\nprint('words', file=sys.stderr)",
    "import sys\nsys.stdout = open(1, 'w', closefd=False)",
]
LEAVERS = [
    "class W{i}:\n    def __del__(self): print('del', {i})\nw{i} = W{i}()",
    "class W{i}:\n    def __del__(self): print('del', {i})\nw{i} = W{i}(); w{i}.me = w{i}",
    "import atexit\natexit.register(print, 'atexit', {i})",
    "import weakref\nclass A{i}: pass\nx{i} = A{i}(); weakref.finalize(x{i}, print, {i})",
    "def g{i}():\n    try: yield\n    finally: print('finally', {i})\nh{i} = g{i}(); next(h{i})",
    "import threading\nthreading.Thread(target=print, args=('thread', {i})).start()",
    "import threading\nt{i} = threading.Thread(target=print, args=({i},))\n"
    "t{i}.start(); t{i}.join()",
    "def f{i}(k): return k and f{i}(k - 1)\nf{i}(900)",
    "import gc\ngc.collect()",
    "import sys\nsys.excepthook = lambda *_: print('hook', {i})",
]
ENDS = [
    *("", "exit()", "quit()", "exit(3)", "import sys\nsys.exit('words')", "raise SystemExit(0)"),
    *(
        "1 / 0",
        "import os\nos._exit(0)",
        "import sys\nsys.stdout.close()",
        "raise KeyboardInterrupt",
    ),
    *("import sys\nsys.stdout = None", "import os\nos.close(1)", "assert False, 'x'", "def f(:"),
    "import sys\nsys.stdout.flush()\nsys.stdout.detach()",
]


@st.composite
def composed(draw: st.DrawFn) -> Idiom:
    """A program of idioms, one after the other."""
    middle = draw(st.lists(st.sampled_from(WRITERS + LEAVERS), max_size=5))
    parts = [part.replace("{i}", str(number)) for number, part in enumerate(middle)]
    program = "\n".join([draw(st.sampled_from(READERS)), *parts, draw(st.sampled_from(ENDS))])
    return Idiom("composed", program, INPUT)


@needs_bwrap
@settings(max_examples=25)
@given(composed())
def test_so_does_any_program_made_of_them(idiom: Idiom) -> None:
    assert differing([idiom], by(BwrapRunner(servers=1)), expected) == []


@needs_bwrap
@pytest.mark.nightly
@settings(max_examples=1000)
@given(composed())
def test_so_do_many_programs_made_of_them_in_both_runners(idiom: Idiom) -> None:
    assert differing([idiom], by(BwrapRunner(servers=1)), expected) == []
    assert differing([idiom], by(SubprocessRunner()), expected) == []


@pytest.mark.parametrize("end", ["exit()", "quit()", "import sys\nsys.exit()", "raise SystemExit"])
@pytest.mark.parametrize("runner", [pytest.param("bwrap", marks=needs_bwrap), "subprocess"])
def test_a_module_may_exit_at_its_end(runner: str, end: str) -> None:
    program = f"def f(x):\n    return x + 1\n{end}"
    calls = {"fn_name": "f", "inputs": [[3]], "outputs": [4]}
    assert code.grade(program, calls, runner=runner).reason == "passed"
    assert code.grade(program, ["assert f(3) == 4"], runner=runner).reason == "passed"
    assert code.grade(program, ["assert f(3) == 5"], runner=runner).correct is False


@needs_bwrap
def test_what_a_program_of_a_session_holds_is_written_in_its_own_output() -> None:
    with BwrapRunner(servers=1).session() as session:
        first = session.run("out = open(1, 'w', closefd=False)\nprint('first', file=out)\nexit(3)")
        assert (first.stdout, first.exit_code) == ("first\n", 3)
        assert session.run("print('second', file=out)").stdout == "second\n"
        assert session.run("import sys\nsys.stdout.close()\nexit()").exit_code == 0
        assert session.run("print(input())", "third").stdout == "third\n"


@needs_bwrap
@pytest.mark.parametrize("idiom", DEPTHS, ids=lambda idiom: idiom.name)
def test_programs_recurse_as_deep_as_on_a_judge(idiom: Idiom) -> None:
    assert by(BwrapRunner(servers=1))(idiom) == (DEPTHS[idiom], 0, "")


@needs_bwrap
def test_the_memory_limit_is_the_stacks() -> None:
    [deep] = [idiom for idiom in DEPTHS if idiom.name == "lru_cache"]
    result = BwrapRunner(servers=1).run(deep.program, "", Limits(memory_mb=24))
    assert result.exit_code != 0


def pythons() -> dict[str, str]:
    """Return other interpreters of this machine by version."""
    beside = Path(sys.base_prefix).parent
    found = {}
    for version in ("3.11", "3.12", "3.13"):
        for path in (shutil.which(f"python{version}"), *beside.glob(f"{version}*/bin/python3")):
            if path is not None and version != f"3.{sys.version_info.minor}":
                run = subprocess.run([path, "--version"], capture_output=True, text=True)
                if run.returncode == 0 and f" {version}." in run.stdout:
                    found[version] = str(path)
    return found


@pytest.mark.parametrize("runner", [pytest.param("bwrap", marks=needs_bwrap), "subprocess"])
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
@pytest.mark.nightly
def test_every_version_of_python_judges_alike(version: str, runner: str) -> None:
    python = pythons().get(version)
    if python is None:
        pytest.skip(f"this is Python {version}, or it is not installed")
    sources = [str(Path(str(package.__file__)).parents[1]) for package in (gem, gem_sandbox)]
    command = [python, idioms.__file__, runner, *sources]
    run = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert (run.stdout, run.stderr, run.returncode) == ("", "", 0)


DEEP = """
import sys
sys.path[:0] = sys.argv[1:]
from gem_sandbox import resolve
from idioms import DEPTHS
for idiom in list(DEPTHS)[:4]:
    assert resolve("bwrap").run(idiom.program).stdout == DEPTHS[idiom], idiom
"""


@needs_bwrap
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_every_version_of_python_lets_programs_recurse_as_deep(version: str) -> None:
    python = pythons().get(version)
    if python is None:
        pytest.skip(f"this is Python {version}, or it is not installed")
    packages = [Path(str(package.__file__)).parents[1] for package in (gem, gem_sandbox)]
    sources = [*map(str, packages), str(Path(idioms.__file__).parent)]
    subprocess.run([python, "-c", DEEP, *sources], check=True, timeout=300)


ORPHAN = """
from gem_sandbox import Limits, SubprocessRunner
print("started", flush=True)
SubprocessRunner().run(
    "import os\\nif os.fork(): open({path!r}, 'w').write(f'{{os.getpid()}}')\\nwhile True: pass",
    limits=Limits(cpu_s=600),
)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_subprocess_ends_with_its_parent_however_that_ends(
    tmp_path: Path, number: signal.Signals
) -> None:
    note = tmp_path / "pid"
    parent = subprocess.Popen([sys.executable, "-c", ORPHAN.format(path=str(note))])
    try:
        assert settles(lambda: note.exists() and bool(note.read_text()))
        group = int(note.read_text())
        assert len(living(group)) >= 3
    finally:
        parent.send_signal(number)
        parent.wait()
    try:
        assert settles(lambda: not living(group))
    finally:
        if living(group):
            os.killpg(group, signal.SIGKILL)


def living(group: int) -> list[str]:
    """Return the processes of a group, without those that nobody has waited for."""
    command = ["ps", "-o", "pid=,stat=", "-g", str(group)]
    lines = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
    return [line for line in lines if "Z" not in line]


def test_programs_wait_for_no_child_that_is_not_theirs() -> None:
    program = "import os\ntry: os.wait()\nexcept ChildProcessError: print('none')"
    assert SubprocessRunner().run(program).stdout == "none\n"


def test_the_doctor_says_which_python_judges() -> None:
    said = _judge(SubprocessRunner())
    assert said.startswith(f"CPython {platform.python_version()} at {sys.executable}, stack ")
    assert said.endswith(
        ", integers of any number of digits, recursion of 200,000 calls, 200,000 through lru_cache"
    )
