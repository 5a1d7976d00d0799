"""A program and calls of what it defines. Nothing that is expected of it is in this process.

It may do here what it likes: what it returns, prints or forges is its own answer.
"""

from __future__ import annotations

import builtins
import contextlib
import itertools
import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from gem.grading.inside.batch import begin, leave, say, work
    from gem.grading.inside.encoding import MAX_ITERATED, decode, encode, preamble

NAME = "program"
"""`__name__` of the program: a guard that asks for `__main__` does not run."""

_exec, _type = exec, type
_MAX_RAISED = 1_000
"""Characters of the message of an exception, and of its arguments."""


def main(source: str) -> None:
    """Load a program and do the operations that stdin asks for."""
    tasks, answers = begin()
    try:
        code = compile(source, NAME + ".py", "exec", dont_inherit=True)
        module = types.ModuleType(NAME)
        names = _names(code)
        module.__dict__.update(preamble(names))
        if "random" in names:
            # A program that is run again must not answer anew.
            __import__("random").seed(0)
        sys.modules[NAME] = module
        with contextlib.suppress(SystemExit):
            _exec(code, module.__dict__)
    except BaseException as error:
        say(answers, ["load", _raised(error)])
        leave(0)
    program = module.__dict__
    work(tasks, answers, lambda operations: _Process(program).results(operations))


def _names(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant)
    return names


def _raised(error: BaseException) -> dict[str, Any]:
    raised = {"x": [kind.__name__ for kind in _type(error).__mro__], "m": _message(error)}
    try:
        arguments = encode(list(error.args), _refuse)
        if len(repr(arguments)) <= _MAX_RAISED:
            raised["e"] = arguments
    except BaseException:
        # Only the message is told of what is no data, or writes itself badly.
        return raised
    return raised


def _message(error: BaseException) -> str:
    try:
        return str(error)[:_MAX_RAISED]
    except BaseException:
        return ""


def _object(value: Any) -> Any:
    return {"o": [_type(value).__name__, callable(value)]}


class _ObjectError(Exception):
    """An argument holds objects; what becomes of them is not told."""


def _refuse(value: Any) -> Any:
    raise _ObjectError


def _no_data(tag: str, payload: Any) -> Any:
    raise ValueError("objects inside of data cannot be arguments")


class _Process:
    """Operations of one test: each sees what those before it have left."""

    def __init__(self, program: dict[str, Any]) -> None:
        self.program = program
        self.values: list[Any] = []

    def results(self, operations: list[Any]) -> list[Any]:
        return [self._result(*operation) for operation in operations]

    def _result(self, kind: str, target: Any, arguments: Any = (), named: Any = ()) -> Any:
        """Do one operation; return its value or exception, and what became of its arguments."""
        value, changed = None, []
        try:
            values = [decode(item, self._reference, arrays=True) for item in arguments]
            keywords = {key: decode(item, self._reference, arrays=True) for key, item in named}
            of = self._target(target)
            value = _OPERATIONS[kind](of, *values) if kind != "call" else of(*values, **keywords)
            result = {"v": encode(value, _object)}
            for place, item in [*enumerate(values), *keywords.items()]:
                if isinstance(item, (list, dict, set)):
                    given = arguments[place] if isinstance(place, int) else dict(named)[place]
                    with contextlib.suppress(_ObjectError):
                        now = encode(item, _refuse)
                        if now != given:
                            changed.append([place, now])
            if changed:
                result["a"] = changed
        except BaseException as error:
            result = _raised(error)
        self.values.append(value)
        return result

    def _target(self, target: Any) -> Any:
        kind, *rest = target
        if kind == "name":
            (name,) = rest
            return self._defined(name)
        if kind == "function":
            # A function, or a method of a class `Solution`, as on LeetCode.
            (name,) = rest
            found = self.program.get(name)
            return getattr(self._defined("Solution")(), name) if found is None else found
        if kind == "method":
            return getattr(self._target(rest[0]), rest[1])
        if kind == "new":
            return self._defined(rest[0])()
        return self.values[rest[0]]

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
        # What is data is given as the test would give it.
        raw = encode(value, _object)
        return value if isinstance(raw, dict) and "o" in raw else decode(raw, _no_data, arrays=True)


def _set_item(of: Any, key: Any, value: Any) -> None:
    of[key] = value


def _delete_item(of: Any, key: Any) -> None:
    del of[key]


def _items(of: Any) -> list[Any]:
    return list(itertools.islice(of, MAX_ITERATED))


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "attr": getattr,
    "set": setattr,
    "len": len,
    "str": str,
    "repr": repr,
    "iter": _items,
    "item": lambda of, key: of[key],
    "setitem": _set_item,
    "delitem": _delete_item,
    "in": lambda of, item: item in of,
}
