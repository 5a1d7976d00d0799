"""What foreign code raises: contained, so that it ends a call and never a run, and put into words.

Foreign code is an environment, a tool, a grader or an opponent. It may raise anything: `SystemExit`
as a command line does, `KeyboardInterrupt`, `asyncio.CancelledError`, an exception whose message
cannot be read. Whoever calls it catches `BaseException` and goes on with `contained(error)`.
"""

from __future__ import annotations

import dis
import functools
import inspect
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Set
from types import CodeType, TracebackType
from typing import Any, TypeVar, cast

from gem.blame import cause_of, record_cause

T = TypeVar("T")

MOST_CHARACTERS = 4000
"""Longest message of an exception that is kept; the middle of a longer one is left out."""
_MOST_TRACE = 20_000
# Exceptions that override these run foreign code wherever they are looked at, even by `isinstance`.
_LOOKED_UP = ("__getattribute__", "__class__", "__dict__")
_CAUSE, _CONTEXT, _TRACEBACK = (
    vars(BaseException)[name] for name in ("__cause__", "__context__", "__traceback__")
)
_NAME, _FLAGS = vars(type)["__name__"], vars(type)["__flags__"]
# Of types that are made while a program runs (Py_TPFLAGS_HEAPTYPE).
_HEAP = 1 << 9
_ENDING = [getattr(signal, n) for n in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, n)]
_RAISES = {dis.opmap[name] for name in ("RAISE_VARARGS", "RERAISE")}


class ForeignExitError(Exception):
    """Foreign code raised what would end this program or a task of its event loop.

    The exception that it raised is `__cause__`, unless looking at it runs foreign code.
    """

    def __init__(self, name: str, message: str) -> None:
        """Store the name of the class that was raised, and the message."""
        super().__init__(name, message)
        self.name = name
        self.message = message

    def __str__(self) -> str:
        return f"{self.name}: {self.message}"


def contained(error: BaseException) -> Exception:
    """Return what foreign code raised, as an exception that ends its call only.

    Args:
        error: What was raised. An ordinary exception is returned as it is; any other, and the
            exceptions that futures and coroutines refuse, becomes a `ForeignExitError`.

    Raises:
        BaseException: `error` itself, if a signal ends this program, such as Ctrl-C.
    """
    kind = type(error)
    tame = not any(name in vars(each) for each in _foreign(kind) for name in _LOOKED_UP)
    refused = issubclass(kind, StopIteration | StopAsyncIteration)
    if tame and issubclass(kind, Exception) and not refused:
        return cast(Exception, error)
    if is_interrupt(error):
        raise error
    exit = ForeignExitError(*named(error))
    record_cause(exit, cause_of(error))
    if tame:
        exit.__cause__ = error
    return exit


def called(function: Callable[..., T], *arguments: Any) -> T:
    """Call foreign code; what it raises is raised as `contained` returns it."""
    try:
        return function(*arguments)
    except BaseException as error:
        failed = contained(error)
        if failed is error:
            raise
        raise failed from error


def is_interrupt(error: BaseException) -> bool:
    """Whether a signal that ends this program raised an exception, and not foreign code.

    Python runs handlers of signals in the main thread, between two instructions of the code that
    runs there. A `KeyboardInterrupt` that comes from a `raise` was raised by the code itself,
    unless a handler has that `raise`, or `asyncio.run`, whose handler cancels its task first.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    handlers = {_code(signal.getsignal(number)) for number in _ENDING} - {None}
    return any(_is_of_signal(each, handlers) for each in _chain(error))


def named(error: BaseException) -> tuple[str, str]:
    """Return the name of an exception's class, and its message.

    Never raises. The message is shortened, and can be written as UTF-8.
    """
    if type(error) is ForeignExitError:
        return error.name, error.message
    try:
        text = str.__str__(str(error))
    except BaseException as failed:
        text = f"(its message cannot be read: {_NAME.__get__(type(failed))})"
    return _NAME.__get__(type(error)), shortened(text, MOST_CHARACTERS)


def described(error: BaseException) -> str:
    """Return `Class: message` of an exception; see `named`."""
    name, message = named(error)
    return f"{name}: {message}"


def trace(error: BaseException) -> str:
    """Return an exception with its traceback, for a log; never raises."""
    try:
        text = "".join(traceback.format_exception(error))
    except BaseException:
        text = described(error)
    return shortened(text, _MOST_TRACE)


def signal_name(number: int) -> str:
    """Return the name of a signal; real-time signals have none of their own."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def shortened(text: str, most: int) -> str:
    """Return a text of about `most` characters at most that can be written as UTF-8."""
    if len(text) > most:
        cut = len(text) - most
        text = f"{text[: most // 2]} ... ({cut} characters left out) ... {text[-(most // 2) :]}"
    return text.encode(errors="backslashreplace").decode()


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and those that it was raised from or during."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        each = waiting.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            yield each
            waiting += [_CAUSE.__get__(each), _CONTEXT.__get__(each)]


def _foreign(kind: type[BaseException]) -> Iterator[type]:
    """Yield the classes of an exception that are written in Python."""
    return (each for each in type.mro(kind) if _FLAGS.__get__(each) & _HEAP)


def _is_of_signal(error: BaseException, handlers: Set[CodeType | None]) -> bool:
    last = None
    trace: TracebackType | None = _TRACEBACK.__get__(error)
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            return True
        last, trace = trace, trace.tb_next
    if not issubclass(type(error), KeyboardInterrupt):
        return False
    if last is None or last.tb_frame.f_globals.get("__name__") == "asyncio.runners":
        return True
    return last.tb_frame.f_code.co_code[last.tb_lasti] not in _RAISES


def _code(handler: Any) -> CodeType | None:
    """Return the code of a handler that is written in Python."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    function = inspect.unwrap(getattr(handler, "__func__", handler))
    if not hasattr(function, "__code__"):
        function = getattr(type(handler).__call__, "__func__", type(handler).__call__)
    code = getattr(function, "__code__", None)
    return code if isinstance(code, CodeType) else None
