"""Programs as people write them: what a runner runs as `python3 program.py` does.

Three numbers and their sum are the task of most: the input is `INPUT`, and what matters is how the
program reads it, how it writes `6`, and how it ends.

Needs only `gem_sandbox`, so that any interpreter can compare: `python idioms.py RUNNER SOURCES`.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

INPUT = "3\n1 2 3\n"
_READ = "n = int(input()); s = sum(map(int, input().split()))\n"
_TIMEOUT_S = 120
# A judge: no limit of the stack and of digits, UTF-8, input from a file.
_JUDGE = ("sh", "-c", 'ulimit -s unlimited; exec "$@"', "sh")
_ENVIRONMENT = {
    "LANG": "C.UTF-8",
    "PYTHONUTF8": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONINTMAXSTRDIGITS": "0",
}


@dataclass(frozen=True)
class Idiom:
    """A program, its input, and whether it is about the interpreter's end."""

    name: str
    program: str
    stdin: str = INPUT
    ends: bool = False
    """Whether it does something only when the interpreter ends, which in a session is not yet."""

    def alone(self) -> Idiom:
        """Return the idiom without its input."""
        return replace(self, program=self.program.replace(_READ, "n, s = 3, 6\n"), stdin="")


class Outcome(NamedTuple):
    """What came of a program."""

    stdout: str
    exit_code: int
    """As a shell reports it: 128 and the signal's number."""
    stderr: str


def outcome(stdout: str, exit_code: int, stderr: str) -> Outcome:
    """Return an outcome without what differs from run to run: addresses and folders."""
    texts = []
    for text in (stdout, stderr):
        text = re.sub(r"0x[0-9a-f]+", "0x", text)
        text = re.sub(r"/\S*?/lib/python3", "/lib/python3", text)
        texts.append(re.sub(r"/\S*/program(-\d+)?\.py|/\S*/helper\.py", "program", text))
    return Outcome(texts[0], exit_code if exit_code >= 0 else 128 - exit_code, texts[1])


def started(command: list[str], idiom: Idiom, stdin: bytes | None = None) -> Outcome:
    """Return what a command makes of an idiom, whose program is `program.py` in its folder.

    Args:
        command: What to start.
        idiom: What to run.
        stdin: Standard input through a pipe; None: the idiom's input as a file.
    """
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "program.py").write_bytes(idiom.program.encode("utf-8", "replace"))
        given = Path(folder, ".stdin")
        given.write_bytes(idiom.stdin.encode())
        own = {"PATH": os.environ["PATH"], "HOME": folder, "TMPDIR": folder}
        with given.open("rb") as file:
            process = subprocess.Popen(
                [part.format(folder=folder) for part in command],
                stdin=file if stdin is None else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=folder,
                env={**_ENVIRONMENT, **own},
            )
        with process:
            try:
                texts = process.communicate(stdin, timeout=_TIMEOUT_S)
            finally:
                process.kill()
    stdout, stderr = (text.decode("utf-8", "replace") for text in texts)
    return outcome(stdout, process.returncode, stderr)


@functools.cache
def expected(idiom: Idiom) -> Outcome:
    """Return what `python3 program.py` does."""
    # The interpreter itself: that of a virtual environment starts more slowly.
    python = getattr(sys, "_base_executable", None) or sys.executable
    return started([*_JUDGE, python, "-s", "{folder}/program.py"], idiom)


def differing(
    idioms: Iterable[Idiom], run: Callable[[Idiom], Outcome], wanted: Callable[[Idiom], Outcome]
) -> list[str]:
    """Return lines about the idioms with other output or exit status than wanted."""
    lines = []
    idioms = list(idioms)
    with ThreadPoolExecutor(2) as threads:
        pairs = threads.map(lambda idiom: (wanted(idiom), run(idiom)), idioms)
        for idiom, (right, found) in zip(idioms, pairs, strict=True):
            if found[:2] != right[:2]:
                lines.append(f"{idiom.name}: {found} and not {right}")
    return lines


def main() -> None:
    """Print in which idioms a runner differs from this interpreter, and how deep it recurses."""
    name, *sources = sys.argv[1:]
    sys.path[:0] = sources
    from gem_sandbox import Limits, resolve

    runner = resolve(name)

    def run(idiom: Idiom) -> Outcome:
        result = runner.run(idiom.program, idiom.stdin, Limits(cpu_s=_TIMEOUT_S))
        return outcome(result.stdout, result.exit_code, result.stderr)

    for line in differing(IDIOMS, run, expected):
        print(line)
    for line in differing(DEPTHS, run, lambda idiom: Outcome(DEPTHS[idiom], 0, "")):
        print(line)


# Kinds of idioms whose programs begin with `_READ`.
_AFTER_READING = ("output", "ending", "left", "end")
_DEEP = "import sys\nsys.setrecursionlimit(10**6)\n"


def _written() -> dict[str, list[tuple[str, str]]]:
    """Return the names and programs of `idioms.txt` by kind.

    Kinds: `input`, `output`; `ending`, how programs end; `left`, what is still open when they end;
    `end`, what only the interpreter's end does; `world`, what programs see; `number`; `depth`, deep
    recursion, and `shallow`, recursion within the limit, with what is printed behind the name.
    """
    found: dict[str, list[tuple[str, str]]] = {}
    text = Path(__file__).with_name("idioms.txt").read_text("utf-8")
    for part in text.split("#### ")[1:]:
        title, _, program = part.partition("\n")
        kind, _, name = title.partition(": ")
        found.setdefault(kind, []).append((name, program.strip("\n")))
    return found


def _idioms() -> tuple[list[Idiom], dict[Idiom, str]]:
    """Return all idioms, and those about recursion with what they print."""
    idioms, depths = [], {}
    for kind, pairs in _written().items():
        for name, program in pairs:
            if kind in ("depth", "shallow"):
                name, _, printed = name.partition(" -> ")
                program = _DEEP + program if kind == "depth" else program
                depths[Idiom(name, program)] = f"{printed}\n"
            else:
                program = _READ + program if kind in _AFTER_READING else program
                idioms.append(Idiom(name, program, ends=kind == "end"))
    return idioms, depths


_ODD = [
    Idiom("no input", "print(input())", ""),
    Idiom("no last newline", "print(repr(input()), repr(input()))", "1\n2"),
    Idiom("carriage returns", "print(repr(input()), repr(input()))", "1\r\n2\r\n"),
    Idiom("carriage returns in bytes", "import sys\nprint(sys.stdin.buffer.read())", "1\r\n2\r\n"),
    Idiom("no ASCII", "s = input(); print(len(s), s[::-1])", "日本é\n"),
    Idiom("no ASCII in bytes", "import sys\nprint(sys.stdin.buffer.read())", "日本é\n"),
    Idiom("form feeds", "import sys\nprint(sys.stdin.read().splitlines())", "a\x0cb\x1c\n"),
    Idiom("NUL", "print(repr(input()))", "a\0b\n"),
    Idiom("many digits read", "n = int(input()); print(n % 97, len(str(n)))", "7" * 6000),
    Idiom("tabs and spaces", "if 1:\n        print(1)\n\tprint(2)"),
    Idiom("encoding of the source", "# -*- coding: latin-1 -*-\nprint('é')"),
    Idiom("byte order mark", "\ufeffprint(6)"),
    Idiom("Windows newlines", "x = '''a\r\nb'''\r\nprint(repr(x))\r\n"),
    Idiom("no newline at the end", "if True:\n    print(6)\n    # end"),
    Idiom("empty", ""),
    Idiom("only a comment", "# nothing"),
]
"""What a text file would not show."""
IDIOMS, DEPTHS = _idioms()
IDIOMS += _ODD


if __name__ == "__main__":
    main()
