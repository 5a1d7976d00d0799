"""Runs a program in the current process, as `python program.py` would."""

from __future__ import annotations

import atexit
import builtins
import gc
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, NoReturn

_PATH = "/tmp/program.py"


def make_streams() -> None:
    """Create `sys.stdin`, `stdout` and `stderr` for the forks that will become programs.

    Stream objects probe their descriptor when created, so descriptors of the right kind are in
    place meanwhile: a file for stdin, pipes for the others.
    """
    given = os.memfd_create("stdin")
    pipe = os.pipe()
    kept = [os.dup(descriptor) for descriptor in range(3)]
    for target, descriptor in enumerate((given, pipe[1], pipe[1])):
        os.dup2(descriptor, target)
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)
    sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]
    for target, descriptor in enumerate(kept):
        os.dup2(descriptor, target)
    for descriptor in (given, *pipe, *kept):
        os.close(descriptor)


def prepare(seed: int | None = None) -> ModuleType:
    """Return a program's `__main__` module; seed the random generators."""
    random: Any = sys.modules.get("random")
    if random is not None and seed is not None:
        random.seed(seed)
    numpy: Any = sys.modules.get("numpy.random")
    if numpy is not None:
        # All forks of one process would otherwise draw the same numbers.
        numpy.seed(None if seed is None else seed & 0xFFFFFFFF)
    main = type(sys)("__main__")
    main.__dict__.update(__builtins__=builtins, __file__=_PATH)
    sys.modules["__main__"] = main
    sys.argv = [_PATH]
    gc.enable()
    return main


def run(main: ModuleType, source: bytes) -> NoReturn:
    """Run a program in its module and exit the process with the program's exit code."""
    show(_PATH, source)
    exit_code = execute(source, _PATH, main.__dict__)
    finish(exit_code)


def contents(descriptor: int) -> bytes:
    """Return the content of an open file."""
    size, parts = os.fstat(descriptor).st_size, b""
    while len(parts) < size:
        parts += os.pread(descriptor, size - len(parts), len(parts))
    return parts


def show(path: str, source: bytes) -> None:
    """Write the source where tracebacks look for lines; leave no file if the disk is full."""
    try:
        write(path, source)
    except OSError:
        try:  # noqa: SIM105 - a module less in every fork
            os.unlink(path)
        except OSError:
            pass


def write(path: str, content: bytes) -> None:
    """Replace whatever is at `path` by a new file; raises OSError if the disk is full."""
    try:  # noqa: SIM105 - a module less in every fork
        os.unlink(path)
    except FileNotFoundError:
        pass
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(file, view) :]
    finally:
        os.close(file)


def execute(source: bytes, path: str, namespace: dict[str, Any]) -> int:
    """Run source in a namespace, printing an uncaught exception; return the exit code."""
    try:
        exec(compile(source, path, "exec", dont_inherit=True), namespace)
    except SystemExit as error:
        return _exit_code(error.code)
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return 1
    return 0


def finish(exit_code: int) -> NoReturn:
    """Join threads, run exit handlers, flush and exit, without the interpreter's slow teardown."""
    try:
        threading: Any = sys.modules.get("threading")
        if threading is not None:
            threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        exit_code = exit_code or 120
    finally:
        os._exit(exit_code)


def _exit_code(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1
