"""What lies beneath a program: frames of the sandbox, which it neither sees nor pays for.

CPython counts frames against `sys.getrecursionlimit()`. The sandbox's frames are not the program's,
so the count starts again, and they are marked as frames that have not begun, which nothing shows.

3.12 and 3.13 have a second, fixed limit for calls through C (`lru_cache`, `sum(f(x) for ...)`,
`sorted(key=f)`). Earlier versions have not: there the stack is the limit, as on judges. It is
raised to what the stack holds.

The counts lie beside each other in CPython's state of a thread, the mark lies in its code objects.
Where they are not found, nothing changes.
"""

from __future__ import annotations

import ctypes
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, ModuleType
    from typing import Any, TypeVar

    _F = TypeVar("_F", bound=Callable[..., Any])

_INTS = 64
_UNUSUAL = 12_347
# CPython's own limit of calls through C, and the stack for which it is meant.
_CALLS, _STACK_MB = 10_000, 8
_MOST = 1 << 30
_state = ctypes.pythonapi.PyThreadState_Get
_state.restype = ctypes.c_void_p
_counts = ctypes.c_int * _INTS
_is_cpython = sys.implementation.name == "cpython" and (3, 11) <= sys.version_info < (3, 14)


def _place() -> int | None:
    """Return the place of the count of frames left, which the limit follows."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(_UNUSUAL)
    try:
        counts = _counts.from_address(_state())
        found = [
            place
            for place in range(_INTS - 3)
            if counts[place + 1] == _UNUSUAL and _UNUSUAL - 200 < counts[place] < _UNUSUAL
        ]
    finally:
        sys.setrecursionlimit(limit)
    return found[0] if len(found) == 1 else None


def _first(code: CodeType) -> ctypes.c_int:
    """Return a code object's number of the instruction with which its frames begin."""
    # The pointer `co_extra` and the instructions follow it.
    return ctypes.c_int.from_address(id(code) + type(code).__basicsize__ - 16)


def _has_mark() -> bool:
    """Check that the number is where it is looked for: a closure begins later than others."""
    cell = 1

    def inner() -> int:
        return cell

    return (_first(_first.__code__).value, _first(inner.__code__).value) == (0, 1)


# Code objects to be hidden.
_codes: list[CodeType] = []
_left = _place() if _is_cpython else None
# The counts of the main thread, which are in the same place in forks.
_main = _counts.from_address(_state())
_hides = _is_cpython and _has_mark()
_has_calls = sys.version_info >= (3, 12)


def beneath(function: _F) -> _F:
    """Mark a function whose frames are beneath programs; `hide` hides them."""
    _codes.append(function.__code__)
    return function


def hide() -> None:
    """Hide the frames of this thread, and future ones of the functions marked by `beneath`.

    Done before any fork: a write to a page costs a fork more than its program may.
    """
    if not _hides:
        return
    frame: Any = sys._getframe()
    while frame is not None:
        _codes.append(frame.f_code)
        frame = frame.f_back
    for code in _codes:
        _codes.extend(each for each in code.co_consts if isinstance(each, type(code)))
        # The last instruction, which calls nothing.
        _first(code).value = len(code.co_code) // 2 - 1


def begin(memory_mb: int) -> None:
    """Give what the caller executes next the depth of a main module.

    Args:
        memory_mb: Memory of the program; half of it may become stack.
    """
    if _left is not None:
        # This function's frame ends when it returns; the call of `exec` counts where C is counted.
        _main[_left] = _main[_left + 1] - _has_calls
        _allow(_main, memory_mb // 2)


def _allow(counts: Any, stack_mb: int) -> None:
    """Allow as many calls through C as a stack of this size holds."""
    if _has_calls:
        calls = max(_CALLS, min(_MOST, _CALLS * stack_mb // _STACK_MB))
        counts[_left + 2] = calls  # type: ignore[operator]


def deepen_threads(threading: ModuleType) -> None:
    """Have threads allow the calls through C that their stacks hold; `threading` is the module."""
    if _left is None or not _has_calls:
        return
    left, of_thread = _left, threading.Thread._bootstrap

    @beneath
    def _bootstrap(self: Any) -> None:
        counts = _counts.from_address(_state())
        _allow(counts, threading.stack_size() >> 20)
        # The frame of this function is not the program's.
        counts[left] += 1
        of_thread(self)

    threading.Thread._bootstrap = _bootstrap
