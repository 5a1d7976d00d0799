"""Runs a program in the current process as `python program.py` would, from its start to its end.

What can be seen of an interpreter's end happens: threads are joined, exit handlers run, what is
buffered is written, objects that a program leaves behind are finalized. Where nothing is left that
a program could see the end of, the process just exits: the interpreter's own end takes longer than
a small program.
"""

from __future__ import annotations

import atexit
import builtins
import ctypes
import gc
import os
import sys
from _operator import is_ as _is
from _struct import Struct
from _weakref import ref
from io import BufferedRandom, BufferedWriter, TextIOWrapper

from .beneath import begin, beneath, deepen_threads, hide

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, NoReturn

_FOLDER = "/tmp"
_PATH = f"{_FOLDER}/program.py"
_INTERRUPTED = 130
"""Exit code that a shell reports for a process ended by SIGINT."""
_COLLECTED = 1 << 14
"""Flag of types whose instances the garbage collector knows."""

# Types without finalizers, whose attributes need no look.
_HARMLESS = frozenset(map(type, ({}, [], (), sys, lambda: None, gc.freeze))) | {Struct}

# Programs may replace these.
_open, _print = open, print
_trace, _profile = sys.settrace, sys.setprofile
_exit, _objects, _show = os._exit, gc.get_objects, sys.__excepthook__
_end = ctypes.pythonapi.Py_Exit
_end.argtypes, _end.restype = [ctypes.c_int], None
_keep = ctypes.pythonapi.Py_IncRef
_keep.argtypes, _keep.restype = [ctypes.py_object], None
_flush_c = ctypes.CDLL(None).fflush
# What a server has before any program.
_streams: list[Any] = []
_packages: list[str] = []
_names: dict[str, Any] = {}
# Of the streams that this module made, also those that a program has detached.
_buffers: list[Any] = []


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
    sys.stdin, sys.stdout, sys.stderr = (_stream(number) for number in range(3))
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]
    _streams[:] = sys.stdout, sys.stderr
    for target, descriptor in enumerate(kept):
        os.dup2(descriptor, target)
    for descriptor in (given, *pipe, *kept):
        os.close(descriptor)


def _stream(number: int) -> TextIOWrapper:
    """Return the standard stream of a descriptor, as an interpreter in UTF-8 mode makes it."""
    name = ("stdin", "stdout", "stderr")[number]
    stream = _open(
        number,
        "w" if number else "r",
        1 if number == 2 else -1,
        encoding="utf-8",
        errors="backslashreplace" if number == 2 else "surrogateescape",
        newline="\n",
        closefd=False,
    )
    _buffers.append(stream.buffer)
    stream.buffer.raw.name = f"<{name}>"  # type: ignore[attr-defined]
    return stream


def remember() -> None:
    """Note what is the same for all programs, before any fork."""
    standard = {*sys.stdlib_module_names, "__main__", "inside"}
    _packages[:] = [name for name in sys.modules if name.partition(".")[0] not in standard]
    _names.update(_names_of_main(_PATH))


def prepare(seed: int | None = None) -> ModuleType:
    """Make a program's `__main__` module; seed the random generators."""
    if seed is not None:
        # A program that imports it first would seed it from the system.
        import random

        random.seed(seed)
    numpy: Any = sys.modules.get("numpy.random")
    if numpy is not None:
        # All forks of one process would otherwise draw the same numbers.
        numpy.seed(None if seed is None else seed & 0xFFFFFFFF)
    # What the server has made since it froze its objects is not the program's, either.
    gc.freeze()
    main = _make_main(_PATH, _names)
    sys.path.insert(0, _FOLDER)
    # Copies the pages that compiling writes to before a program waits for it.
    compile("print(1)", _PATH, "exec", dont_inherit=True)
    gc.enable()
    return main


def _names_of_main(path: str) -> dict[str, Any]:
    """Return what a program's `__main__` module has at its start."""
    importers: Any = sys.modules["_frozen_importlib_external"]
    names = {
        "__annotations__": {},
        "__builtins__": builtins,
        "__file__": path,
        "__cached__": None,
        "__loader__": importers.SourceFileLoader("__main__", path),
    }
    if "__annotations__" not in sys.modules["__main__"].__dict__:
        # Versions differ in this.
        del names["__annotations__"]
    return names


def _make_main(path: str, names: dict[str, Any]) -> ModuleType:
    """Make and return the `__main__` module of a program, and its `sys.argv`."""
    main = type(sys)("__main__")
    main.__dict__.update(names)
    sys.modules["__main__"] = main
    sys.argv = [path]
    sys.orig_argv = [sys.executable, path]
    return main


@beneath
def run(source: bytes, memory_mb: int) -> NoReturn:
    """Run a program in `__main__` and exit the process with the program's exit code."""
    show(_PATH, source)
    finish(execute(source, _PATH, memory_mb))


@beneath
def main() -> NoReturn:
    """Run the program of `sys.argv`: after a folder, its path and its memory in MB.

    For an interpreter of its own, which ends in full.
    """
    import threading

    _, _, path, memory_mb = sys.argv
    deepen_threads(threading)
    _make_main(path, _names_of_main(path))
    sys.path[0] = os.path.dirname(path)
    with open(path, "rb") as file:
        source = file.read()
    hide()
    finish(execute(source, path, int(memory_mb)))


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


@beneath
def execute(
    source: bytes, path: str, memory_mb: int, namespace: dict[str, Any] | None = None
) -> int:
    """Run source, printing an uncaught exception; return the exit code.

    Without a namespace it is that of `__main__`, and nothing here holds the module: the
    interpreter's end deletes it.
    """
    try:
        try:
            code = compile(source, path, "exec", dont_inherit=True)
            begin(memory_mb)
            exec(code, sys.modules["__main__"].__dict__ if namespace is None else namespace)
        finally:
            # The frames from here on are hidden, and cannot be traced.
            _trace(None)
            _profile(None)
            for name in ("stderr", "stdout"):
                try:  # noqa: SIM105 - a module less in every fork
                    getattr(sys, name).flush()
                except BaseException:
                    pass
    except SystemExit as error:
        return _left(error)
    except BaseException as error:
        return _failed(error)
    return 0


def _left(error: SystemExit) -> int:
    """Return the exit code of a SystemExit, as `handle_system_exit` in pythonrun.c finds it."""
    try:
        code: object = error.code
    except BaseException:
        code = error
    if code is None:
        return 0
    if isinstance(code, int):
        # As C does: what fits no `long` is -1.
        return (code if -(1 << 63) <= int(code) < 1 << 63 else -1) & 0xFF
    _complain(code)
    return 1


def _failed(error: BaseException) -> int:
    """Have `sys.excepthook` print an uncaught exception; return the exit code.

    This is `_PyErr_PrintEx` of pythonrun.c.
    """
    kind, trace = type(error), _own(error)
    sys.last_type, sys.last_value, sys.last_traceback = kind, error, trace
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    if not hasattr(sys, "excepthook"):
        _complain("sys.excepthook is missing")
        _show(kind, error, trace)
        return 1
    try:
        sys.excepthook(kind, error, trace)
    except SystemExit as left:
        return _left(left)
    except BaseException as second:
        second.__context__ = None
        _complain("Error in sys.excepthook:")
        _show(type(second), second, _own(second))
        _complain("\nOriginal exception was:")
        _show(kind, error, trace)
    return _INTERRUPTED if kind is KeyboardInterrupt else 1


def _own(error: BaseException) -> Any:
    """Leave in an exception the traceback from the program's own frames on; return it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    error.__traceback__ = trace
    return trace


def _complain(words: object) -> None:
    """Write a line to stderr, whatever the program has made of it."""
    for part in (words, "\n"):
        try:
            if getattr(sys, "stderr", None) is None:
                os.write(2, str(part).encode())
            else:
                _print(part, end="", file=sys.stderr)
        except BaseException:
            if part == "\n":
                os.write(2, b"\n")


@beneath
def finish(exit_code: int) -> NoReturn:
    """End the interpreter, in full only if the program has left what could see it."""
    try:
        threading: Any = sys.modules.get("threading")
        if threading is None or threading.active_count() == 1:
            if threading is not None:
                threading._shutdown()
            atexit._run_exitfuncs()
            if _has_streams() and not _leaves_something():
                for stream in _streams:
                    stream.flush()
                _flush_c(None)
                _exit(exit_code)
    except BaseException:
        # A stream is closed, detached, or cannot be written to: the interpreter says so.
        pass
    _trim()
    _end(exit_code)
    raise AssertionError("unreachable")


def _has_streams() -> bool:
    """Return whether the program has kept stdout and stderr as they were."""
    now = [getattr(sys, name, None) for name in ("stdout", "__stdout__", "stderr", "__stderr__")]
    return bool(_streams) and all(map(_is, now, (_streams[0],) * 2 + (_streams[1],) * 2))


def _leaves_something() -> bool:
    """Return whether the end would call something of what was made since the fork: a finalizer."""
    kinds = set(map(type, _objects()))
    if type(sys) not in kinds:
        # There is `__main__`: the program hid everything from the collector.
        return True
    kinds -= _HARMLESS
    if not kinds:
        return False
    if any(hasattr(kind, "__del__") for kind in kinds):
        return True
    for each in _objects():
        kind = type(each)
        if issubclass(kind, ref):
            if each.__callback__ is not None:
                return True
        elif (
            issubclass(kind, type) and not each.__flags__ & _COLLECTED and hasattr(each, "__del__")
        ):
            # The collector does not know the instances of such a class.
            return True
    return False


def _trim() -> None:
    """Keep the end from taking apart packages that were imported before the fork."""
    kept = {name: sys.modules.pop(name) for name in _packages if name in sys.modules}
    _keep(kept)


def renew_streams() -> None:
    """Give a further program of a session its stdin, and stdout and stderr if they were closed."""
    del _buffers[3:]
    sys.stdin = sys.__stdin__ = _stream(0)  # type: ignore[misc]
    for number, name in ((1, "stdout"), (2, "stderr")):
        if not _is_open(getattr(sys, name, None)):
            setattr(sys, name, _stream(number))
            setattr(sys, f"__{name}__", getattr(sys, name))


def _is_open(stream: Any) -> bool:
    try:
        return not stream.closed
    except AttributeError:
        # An object of the program, which needs no more than `write`.
        return hasattr(stream, "write")
    except BaseException:
        # Detached.
        return False


def flush() -> bool:
    """Write what is in the buffers of all streams; return whether stdout and stderr took it."""
    written = True
    for name in ("stdout", "stderr"):
        stream: Any = getattr(sys, name, None)
        try:
            if stream is not None and not getattr(stream, "closed", False):
                stream.flush()
        except BaseException as error:
            written = False
            _show(type(error), error, _own(error))
    _flush_all([*_objects(), *_streams, *_buffers])
    _flush_c(None)
    return written


def _flush_all(objects: list[Any]) -> None:
    # Text first: it goes to buffers of bytes.
    for kinds in ((TextIOWrapper,), (BufferedWriter, BufferedRandom)):
        for each in objects:
            if issubclass(type(each), kinds):
                try:  # noqa: SIM105
                    each.flush()
                except BaseException:
                    pass
