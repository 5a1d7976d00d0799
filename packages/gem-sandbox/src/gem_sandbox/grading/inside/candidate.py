"""Runs the policy's program and the calls of its tests; expected values never enter its process.

Two processes. The parent reads the operations of all tests from stdin and never runs the program.
The child loads the program before that and forks for each test. A fork receives an operation only
after it answered the one before, so it answers without knowing later operations or other tests.
A program that tampers with its processes can only change its own answers.

In `bwrap` the child cannot reach the parent's memory: there is no /proc, and ptrace is refused.
Elsewhere the parent asks the kernel to hide its memory from processes of the same user.
"""

from __future__ import annotations

import builtins
import contextlib
import gc
import itertools
import json
import operator
import os
import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from gem_sandbox.grading.inside.batch import (
        _dumps,
        _fork,
        _write,
        begin,
        feed,
        leave,
        say,
        silence,
        used,
    )
    from gem_sandbox.grading.inside.encoding import MAX_ITERATED, decode, differs, encode, preamble

NAME = "program"
"""`__name__` of the program: code under an `if __name__ == "__main__"` guard does not run."""

_exec, _type = exec, type
_leave, _read, _waitpid = os._exit, os.read, os.waitpid
_loads = json.loads
_FORK, _LAST = b"f", b"l"
_LOADED = b"{}"
_SET_DUMPABLE = 4
_MAX_RAISED = 1_000
"""Most characters of an exception's message, and of its encoded arguments."""
_MUTABLE = (list, dict, set)
_MAX_COLLECTIONS = 50
"""Most garbage collections of a test; later ones trust the counts of references."""


def main(source: str) -> None:
    """Load a program, read operations from stdin and write their results."""
    # The folder of the program, which it can write to: the parent must import nothing from there.
    del sys.path[0]
    protect = _protection()
    protect(True)
    asked, ask = os.pipe()
    told, tell = os.pipe()
    if os.fork() == 0:
        protect(False)
        os.close(ask)
        os.close(told)
        silence()
        # What was buffered of stdin goes, too.
        sys.stdin.read()
        _program_side(source, asked, tell)
    os.close(asked)
    os.close(tell)
    tasks, answers = begin()
    loaded = _receive(told)
    if loaded is None:
        leave(0)
    if loaded != _LOADED:
        say(answers, ["load", json.loads(loaded)])
        leave(0)

    def receive() -> bytes:
        message = _receive(told)
        if message is None:
            raise EOFError
        return message

    def solve(operations: list[Any], last: bool, replies: list[Any]) -> None:
        _write(ask, _LAST if last else _FORK)
        for operation in operations:
            _send(ask, _dumps(operation).encode())
            reply = receive()
            if not reply:
                return
            replies.append(json.loads(reply))
        # An empty message tells the fork that the test ends; an empty reply confirms it, after one
        # with the CPU time.
        _send(ask, b"")
        while message := receive():
            spent[0] = float(message)

    spent = [0.0]
    feed(tasks, answers, solve, lambda: spent[0])


def _protection() -> Callable[[bool], None]:
    """Return a function that hides this process's memory from the user's others, or shows it."""
    if os.access("/proc/self/mem", os.F_OK):
        with contextlib.suppress(ImportError, OSError, AttributeError):
            import ctypes

            control = ctypes.CDLL(None).prctl
            return lambda hidden: control(_SET_DUMPABLE, 0 if hidden else 1, 0, 0, 0)
    return lambda hidden: None


def _program_side(source: str, asked: int, tell: int) -> None:
    """Load the program, then fork for each test; the last test needs no fork."""
    try:
        program = _load(source)
    except BaseException as error:
        _send(tell, _dumps(_raised(error)).encode())
        _leave(0)
    _send(tell, _LOADED)
    while True:
        order = _take(asked, 1)
        if not order:
            _leave(0)
        child = 0 if order == _LAST else _fork()
        if child == 0:
            process = _Process(program)
            while operation := _receive(asked):
                _send(tell, _dumps(process.result(*_loads(operation))).encode())
            if order == _LAST:
                _confirm(tell)
            _leave(0)
        _waitpid(child, 0)
        _confirm(tell)


def _confirm(tell: int) -> None:
    """Say that a test has ended, and how much CPU time this process and its children have used."""
    _send(tell, b"%.3f" % used())
    _send(tell, b"")


def _load(source: str) -> dict[str, Any]:
    code = compile(source, NAME + ".py", "exec", dont_inherit=True)
    module = types.ModuleType(NAME)
    names = _names(code)
    module.__dict__.update(preamble(names))
    if "random" in names:
        # A repeated run of the program must give the same answers.
        __import__("random").seed(0)
    sys.modules[NAME] = module
    with contextlib.suppress(SystemExit):
        _exec(code, module.__dict__)
    return module.__dict__


def _send(to: int, message: bytes) -> None:
    """Write a message, preceded by its length."""
    left = memoryview(len(message).to_bytes(8, "big") + message)
    while left:
        left = left[_write(to, left) :]


def _receive(source: int) -> bytes | None:
    """Read exactly one message; None at the end."""
    size = _take(source, 8)
    return None if len(size) < 8 else _take(source, int.from_bytes(size, "big"))


def _take(source: int, size: int) -> bytes:
    """Read exactly `size` bytes, or fewer at the end of the stream."""
    parts = []
    while size:
        part = _read(source, min(size, 1 << 20))
        if not part:
            break
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _names(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant)
    return names


def _raised(error: BaseException, program: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return an exception as data: what it is and says, and under which names of the program."""
    kinds = _type(error).__mro__
    raised: dict[str, Any] = {"x": [kind.__name__ for kind in kinds], "m": _message(error)}
    # Arguments that are not data, or fail to encode, are left out: the message must do.
    with contextlib.suppress(BaseException):
        arguments = encode(list(error.args), _refuse)
        if len(repr(arguments)) <= _MAX_RAISED:
            raised["e"] = arguments
    attributes = {}
    for name, value in list(getattr(error, "__dict__", {}).items()):
        with contextlib.suppress(BaseException):
            attributes[name] = encode(value, _refuse)
    if attributes and len(repr(attributes)) <= _MAX_RAISED:
        raised["d"] = {"d": [[name, value] for name, value in attributes.items()]}
    of = set(map(id, kinds))
    raised["p"] = [name for name, value in list((program or {}).items()) if id(value) in of]
    return raised


def _message(error: BaseException) -> str:
    try:
        return str(error)[:_MAX_RAISED]
    except BaseException:
        return ""


def _object(value: Any) -> Any:
    return {"o": [_type(value).__name__, callable(value)]}


class _ObjectError(Exception):
    """An argument contains objects, whose changes are not reported."""


def _refuse(value: Any) -> Any:
    raise _ObjectError


def _no_data(tag: str, payload: Any) -> Any:
    raise ValueError("objects inside of data cannot be arguments")


def _references(items: list[Any], place: int) -> int:
    return sys.getrefcount(items[place])


_ALONE = _references([[]], 0)
"""References to an object that nothing but a list holds."""


def _held(boxes: list[Any], known: int) -> bool:
    """Return whether the only item of a list, or a container in it, is referred to from elsewhere.

    `known` references to the item itself do not count.
    """
    if _references(boxes, 0) > _ALONE + known:
        return True
    left = [boxes[0]]
    while left:
        outer = left.pop()
        items = [*outer.keys(), *outer.values()] if isinstance(outer, dict) else list(outer)
        for place in range(len(items)):
            if isinstance(items[place], _MUTABLE) and _references(items, place) > _ALONE + 1:
                return True
            if isinstance(items[place], (tuple, *_MUTABLE)):
                left.append(items[place])
    return False


def _containers(value: Any) -> set[int]:
    """Return the identities of a container and the containers in it."""
    found, left = set(), [value]
    while left:
        outer = left.pop()
        if isinstance(outer, _MUTABLE):
            found.add(id(outer))
        if isinstance(outer, dict):
            left += outer.values()
        elif isinstance(outer, (list, tuple)):
            left += outer
    return found


class _Crossed:
    """The containers that test and program both have: arguments and results that the program
    still holds when the operation is over.

    In one process they would be one object. So what the program does to them later is reported,
    and the test is told which they are.
    """

    def __init__(self) -> None:
        self.kept: list[tuple[int, Any, Any, Any]] = []
        """Operation, place (an argument, or None for the result), container, copy."""
        self.collections = 0

    def report(self, result: dict[str, Any], number: int, places: list[Any], boxes: Any) -> None:
        """Add to the result of an operation what became of its containers, and of earlier ones.

        Args:
            result: Of operation `number`.
            number: See above.
            places: Positions or names of the arguments, and None for the value.
            boxes: The arguments and the value, in lists of one item, with no other reference.
        """
        changes = []
        for each, (of, place, container, copy) in enumerate(self.kept):
            if differs(container, copy):
                now, copy = _copied(container)
                self.kept[each] = of, place, container, copy
                changes.append([of, place, now])
        if changes:
            result["c"] = changes
        containers = [each for each, box in enumerate(boxes) if isinstance(box[0], _MUTABLE)]
        if isinstance(boxes[-1][0], _MUTABLE):
            same = [each for each in containers[:-1] if boxes[each][0] is boxes[-1][0]]
            if same:
                result["is"] = places[same[0]]
        held = [each for each in containers if self._holds(boxes, each)]
        if held and self.collections < _MAX_COLLECTIONS:
            # Functions that call themselves are garbage that holds what they use.
            self.collections += 1
            gc.collect()
            held = [each for each in held if self._holds(boxes, each)]
        if len(held) > 1 and held[-1] == len(boxes) - 1:
            of_value = _containers(boxes[-1][0])
            # Parts of the value are parts of an argument, too.
            if any(of_value & _containers(boxes[each][0]) for each in held[:-1]):
                result["l"] = True
        for each in held:
            with contextlib.suppress(_ObjectError):
                self.kept.append((number, places[each], boxes[each][0], _copied(boxes[each][0])[1]))
                result.setdefault("h", []).append(places[each])

    def _holds(self, boxes: Any, each: int) -> bool:
        known = sum(box[0] is boxes[each][0] for box in boxes) - 1
        known += sum(kept[2] is boxes[each][0] for kept in self.kept)
        try:
            return _held(boxes[each], known)
        except Exception:
            # A container of the program's own class.
            return True


def _copied(value: Any) -> tuple[Any, Any]:
    """Return a value as data, and as new objects made from the data."""
    now = encode(value, _refuse)
    return now, decode(now, _no_data, arrays=True)


class _Process:
    """Runs the operations of one test; each sees the effects of those before it."""

    def __init__(self, program: dict[str, Any]) -> None:
        self.program = program
        self.values: list[Any] = []
        self.crossed = _Crossed()

    def result(self, kind: str, target: Any, arguments: Any = (), named: Any = ()) -> Any:
        """Run one operation; return its value or exception, and what it did to arguments."""
        value: Any = None
        values: list[Any] = []
        keywords: dict[str, Any] = {}
        try:
            values = [decode(item, self._reference, arrays=True) for item in arguments]
            keywords = {key: decode(item, self._reference, arrays=True) for key, item in named}
            of = self._target(target)
            value = _OPERATIONS[kind](of, *values) if kind != "call" else of(*values, **keywords)
            result = {"v": encode(value, _object)}
        except BaseException as error:
            result = _raised(error, self.program)
        if target[0] == "function":
            # Only the value of such a call is compared.
            return result
        places = [*range(len(values)), *keywords, None]
        # No other reference may stay: `_Crossed` counts them.
        boxes = [[item] for item in (*values, *keywords.values(), value)]
        of = value = values = keywords = None  # type: ignore[assignment]
        try:
            self._report(result, arguments, named, places, boxes)
        except BaseException as error:
            result = _raised(error, self.program)
        self.values.append(boxes[-1][0])
        return result

    def _report(self, result: Any, arguments: Any, named: Any, places: Any, boxes: Any) -> None:
        """Add to a result what became of the arguments; see `_Crossed.report`."""
        changed = []
        for place, box in zip(places[:-1], boxes, strict=False):
            if isinstance(box[0], _MUTABLE):
                given = arguments[place] if isinstance(place, int) else dict(named)[place]
                with contextlib.suppress(_ObjectError):
                    now = encode(box[0], _refuse)
                    if now != given:
                        changed.append([place, now])
        if changed:
            result["a"] = changed
        if self.crossed.kept or any(isinstance(box[0], _MUTABLE) for box in boxes):
            self.crossed.report(result, len(self.values), places, boxes)

    def _target(self, target: Any) -> Any:
        kind, of, *rest = target
        if kind == "name":
            return self._defined(of)
        if kind == "function":
            # A function, or a method of a class `Solution`, as on LeetCode.
            found = self.program.get(of)
            return getattr(self._defined("Solution")(), of) if found is None else found
        if kind == "method":
            return getattr(self._target(of), rest[0])
        if kind == "new":
            return self._defined(of)()
        return self.values[of]

    def _defined(self, name: str) -> Any:
        if name not in self.program:
            raise NameError(f"the program does not define {name!r}")
        return self.program[name]

    def _reference(self, tag: str, payload: Any) -> Any:
        if tag == "B":
            return getattr(builtins, payload)
        value = self._target(payload)
        if payload[0] != "result":
            return value
        # Data is passed as a copy, as if the test had written it.
        raw = encode(value, _object)
        return value if isinstance(raw, dict) and "o" in raw else decode(raw, _no_data, arrays=True)


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "getattr": getattr,
    "setattr": setattr,
    "len": len,
    "str": str,
    "repr": repr,
    "iter": lambda of: list(itertools.islice(of, MAX_ITERATED)),
    "getitem": operator.getitem,
    "setitem": operator.setitem,
    "delitem": operator.delitem,
    "contains": operator.contains,
}
