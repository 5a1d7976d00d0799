"""Runs tests that are statements without the program; asks for the results of its calls.

A test runs with the results known so far. A call without a known result returns a `_Pending`, and
the test goes on until it needs the value: so one run finds several calls. The grader then runs the
program with all of them (`gem_sandbox.grading.replay`) and runs the test again. Whether a test
passes is decided only when all of its calls, in the same order, have been answered.
"""

from __future__ import annotations

import ast
import builtins
import json
import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from gem_sandbox.grading.inside.batch import begin, work
    from gem_sandbox.grading.inside.encoding import (
        IMPORTED,
        PROGRAM,
        decode,
        differs,
        encode,
        preamble,
        same,
    )
    from gem_sandbox.grading.inside.stand_in import Failed, stand_in

_MAX_OPERATIONS = 10_000
_TAKEN = frozenset(
    ["breakpoint", "compile", "eval", "exec", "exit", "help", "input", "open", "quit"]
)
"""Built-ins withheld from tests: they could execute a text that the program returned, or block."""


_ALL_ITEMS = frozenset(
    [
        *("allclose", "assert_allclose", "assert_almost_equal", "assert_array_almost_equal"),
        *("assert_array_equal", "assert_array_less", "assert_equal"),
    ]
)
"""Functions of numpy that find an empty array equal, or close, to any number."""


def _size(value: Any) -> int:
    """Return the number of items of an array or a container; 1 of anything else."""
    if isinstance(value, (list, tuple)):
        return len(value)
    size = getattr(value, "size", 1)
    return size if isinstance(size, int) else 1


class _Stop(BaseException):
    """The test needs a result that is not known yet."""


class _Refused(BaseException):
    """The test needs something that a program in another process cannot give."""


class _Unusable(BaseException):
    """No program can pass the test, whatever it answers."""


class _Broken(BaseException):
    """The program's process returned something that cannot be read."""


_SIGNALS = (_Stop, _Refused, _Unusable, _Broken)
"""What the test itself must not catch."""


class ProgramError(Exception):
    """Stands for an exception of the program whose class is not one of Python's own."""


class _Known:
    """The operations of one test: those answered in earlier rounds, and all of this round."""

    def __init__(self, answered: list[Any]) -> None:
        self.answered = answered
        self.operations: list[Any] = []
        self.pending = False
        # By operation and place: a container that the program has, too, and a copy of it.
        self._crossed: dict[tuple[int, Any], list[Any]] = {}
        self._linked: list[list[Any]] = []
        self._raised: list[tuple[BaseException, list[Any]]] = []

    def ask(self, kind: str, target: Any, arguments: Any = (), named: Any = None) -> Any:
        """Return the value of an operation, raise its exception, or return `_Pending`."""
        if not self.pending:
            self._require_unchanged()
        place = len(self.operations)
        if place >= _MAX_OPERATIONS:
            raise _Stop if self.pending else _Refused(f"it has more than {place} calls")
        named = named or {}
        operation = [
            kind,
            target,
            [encode(value, _argument) for value in arguments],
            [[key, encode(value, _argument)] for key, value in named.items()],
        ]
        self.operations.append(operation)
        if not self.pending and place < len(self.answered):
            asked, result = self.answered[place]
            if json.dumps(self._filled(asked)) == json.dumps(operation):
                operation[:] = asked
                return self._value(place, operation, result, arguments, named)
        self.pending = True
        return _Pending(["result", place])

    def _require_unchanged(self) -> None:
        """Refuse a test that changed what the program has, too: it would have to see that."""
        if any(differs(*both) for both in self._crossed.values()):
            raise _Refused("it changes a container that the program holds, too")

    def changes_parts(self) -> bool:
        """Return whether the test changed a container whose parts belong to another one, too."""
        return any(differs(*both) for both in self._linked)

    def _filled(self, asked: Any) -> Any:
        """Return an operation in which results that are data replace the references to them."""
        if isinstance(asked, list):
            return [self._filled(part) for part in asked]
        if not isinstance(asked, dict):
            return asked
        ((tag, payload),) = asked.items()
        if tag == "p" and payload[0] == "result":
            result = self.answered[payload[1]][1]
            if "v" in result and not (isinstance(result["v"], dict) and "o" in result["v"]):
                return result["v"]
        return {tag: self._filled(payload)}

    def misuse(self, error: BaseException) -> BaseException:
        """Return what to raise where the test misuses pytest: the error that pytest raises.

        In the first round no value of the program is known, so the fault is the test's own.
        """
        return error if self.answered else _Unusable(str(error))

    def require(self, name: _Name) -> None:
        """Raise the program's NameError if it does not define a name."""
        name._ask("getattr", "__name__")

    def is_of(self, error: BaseException, kinds: Any) -> bool:
        """Return whether an exception is an instance of one of some classes.

        Those of the program are names.
        """
        for kind in kinds:
            if isinstance(kind, _Pending):
                raise _Stop
            if isinstance(kind, _Name):
                self.require(kind)
                target = object.__getattribute__(kind, "_target")
                names = next((names for of, names in self._raised if of is error), [])
                if target[0] == "name" and target[1] in names:
                    return True
            elif isinstance(error, kind):
                return True
        return False

    def _value(self, place: int, operation: Any, result: Any, arguments: Any, named: Any) -> Any:
        try:
            value = self._read(place, operation, result, arguments, named)
        except Exception as error:
            # Not an exception that the program raised: the test must not take it for one.
            raise _Broken("it returns data that cannot be read") from error
        if "x" in result:
            raise value
        return value

    def _read(self, place: int, operation: Any, result: Any, arguments: Any, named: Any) -> Any:
        """Return the value of an operation, or the exception that it raised."""
        for which, now in result.get("a", ()):
            changed = arguments[which] if isinstance(which, int) else named[which]
            _change(changed, decode(now, _no_object, arrays=True))
        for of, which, now in result.get("c", ()):
            if (of, which) not in self._crossed:
                raise _Refused("what the program holds differs from run to run")
            for container in self._crossed[of, which]:
                _change(container, decode(now, _no_object, arrays=True))
        value = self._result(place, operation, result)
        which = result.get("is")
        if which is not None:
            value = arguments[which] if isinstance(which, int) else named[which]
        for which in result.get("h", ()):
            held = value
            if which is not None:
                held = arguments[which] if isinstance(which, int) else named[which]
            copy = decode(encode(held, _no_copy), _no_object, arrays=True)
            self._crossed[place, which] = [held, copy]
            if result.get("l"):
                self._linked.append(self._crossed[place, which])
        return value

    def _result(self, place: int, operation: Any, result: Any) -> Any:
        if "x" in result:
            target = operation[1]
            iterates = target[0] == "method" and target[2] == "__next__"
            error = _exception(result, iterates)
            self._raised.append((error, list(result.get("p", ()))))
            return error
        raw = result["v"]
        if isinstance(raw, dict) and "o" in raw:
            kind, target = operation[:2]
            called = kind == "call" and target[0] == "name"
            made = called and target[1].lstrip("_")[:1].isupper()
            return _Object(self, ["result", place], raw["o"][0], made)
        return decode(raw, _no_object, arrays=True)


def _change(changed: Any, now: Any) -> None:
    """Apply the program's changes to an argument, in place."""
    if isinstance(changed, list) and isinstance(now, list):
        changed[:] = now
    elif isinstance(changed, (dict, set)) and type(changed) is type(now):
        changed.clear()
        changed.update(now)


def _exception(result: dict[str, Any], iterates: bool) -> Exception:
    """Return an exception like the program's, of the first base class that is a built-in.

    If its class is not that one, it is a subclass of the same name. It is StopIteration only if the
    test called `__next__`: elsewhere StopIteration would silently end a loop of the test.
    """
    names, message = result["x"], result["m"]
    for name in names:
        kind = getattr(builtins, name, None)
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            continue
        if issubclass(kind, StopIteration) and not iterates:
            break
        if name != names[0]:
            kind = _subclass(kind, names[0], message)
        for arguments in (_arguments(result), [message]):
            try:
                error = kind(*arguments)
            except TypeError:
                continue
            if str(error) == message or arguments == [message]:
                vars(error).update(_attributes(result))
                return error
    return ProgramError(f"{names[0]}: {message}")


def _subclass(kind: type[Exception], name: str, message: str) -> type[Exception]:
    """Return a class like one of the program's, for an exception with this message."""

    def missing(self: Any, name: str) -> Any:
        if name[:2] == "__":
            raise AttributeError(name)
        raise _Refused(f"it uses the attribute {name!r} of the program's exception")

    return type(name, (kind,), {"__str__": lambda self: message, "__getattr__": missing})


def _arguments(result: dict[str, Any]) -> list[Any]:
    try:
        return list(decode(result["e"], _no_object)) if "e" in result else [result["m"]]
    except Exception:
        return [result["m"]]


def _attributes(result: dict[str, Any]) -> dict[str, Any]:
    """Return what the program's exception had as attributes."""
    values = decode(result.get("d", {"d": []}), _no_object, arrays=True)
    return values if isinstance(values, dict) else {}


def _no_copy(value: Any) -> Any:
    raise _Refused("it gives the program containers of objects, which the program keeps")


def _no_object(tag: str, payload: Any) -> Any:
    raise _Refused(f"the program returns objects inside of data, of class {payload[0]!r:.60}")


def _argument(value: Any) -> Any:
    """Encode an argument that is not data."""
    if isinstance(value, _Pending):
        return {"p": value._source or _need()}
    if isinstance(value, (_Name, _Object)):
        return {"p": object.__getattribute__(value, "_target")}
    name = getattr(value, "__name__", None)
    is_builtin = isinstance(name, str) and getattr(builtins, name, None) is value
    if is_builtin and isinstance(value, (type, types.BuiltinFunctionType)):
        return {"B": name}
    raise _Refused(f"an argument of type {type(value).__name__!r} cannot be given to a program")


class _Pending:
    """A result that is not known yet; what is computed from it is a `_Pending`, too."""

    def __init__(self, source: list[Any] | None = None) -> None:
        self._source = source
        """Reference to the result, for use as an argument; None for a computed value."""


def _need(*_: Any, **__: Any) -> Any:
    raise _Stop


def _unknown(*_: Any) -> Any:
    return _Pending()


_BINARY = [
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "divmod"),
    *("and", "or", "xor", "lshift", "rshift"),
]
_COMPARED = ["eq", "ne", "lt", "le", "gt", "ge"]
_Pending.__copy__ = _Pending.__deepcopy__ = lambda self, *_: self  # type: ignore[attr-defined]
for _name in (*_BINARY, *("r" + _name for _name in _BINARY), *_COMPARED, "neg", "pos", "abs"):
    setattr(_Pending, f"__{_name}__", _unknown)
for _name in (
    *("bool", "hash", "len", "iter", "next", "getitem", "setitem", "delitem", "contains", "call"),
    *("str", "repr", "format", "int", "float", "complex", "index", "round", "enter", "exit"),
    *("getattr", "instancecheck", "reversed"),
):
    setattr(_Pending, f"__{_name}__", _need)


def _refuse(how: str) -> Callable[..., Any]:
    def refuse(self: Any, *_: Any, **__: Any) -> Any:
        what = object.__getattribute__(self, "_what")
        raise _Refused(f"it needs {how} of {what}, which the program could answer as it likes")

    return refuse


class _Name:
    """Stands in the test for something that the program defines, by its name."""

    def __init__(self, known: _Known, target: list[Any], what: str) -> None:
        for name, value in (("_known", known), ("_target", target), ("_what", what)):
            object.__setattr__(self, name, value)

    def _ask(self, kind: str, *arguments: Any) -> Any:
        return self._known.ask(kind, self._target, arguments)

    def __call__(self, /, *arguments: Any, **named: Any) -> Any:
        return self._known.ask("call", self._target, arguments, named)

    def __getattr__(self, name: str) -> Any:
        return self._ask("getattr", name)

    def __instancecheck__(self, value: Any) -> bool:
        if isinstance(value, BaseException):
            return bool(self._known.is_of(value, [self]))
        raise _Refused(f"it asks whether something is an instance of {self._what}")


class _Object(_Name):
    """Stands for an object in the program's process; `made` if the test called its class."""

    def __init__(self, known: _Known, target: list[Any], kind: str, made: bool) -> None:
        super().__init__(known, target, f"an object of the program's class {kind!r:.60}")
        object.__setattr__(self, "_made", made)

    def _data(self, kind: str, *arguments: Any) -> Any:
        if not self._made:
            raise _Refused(f"it uses {self._what}, which it has not made itself")
        value = self._ask(kind, *arguments)
        if isinstance(value, _Pending):
            raise _Stop
        return value


def _reading(kind: str, convert: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda self, *arguments: convert(self._data(kind, *arguments))


def _writing(kind: str) -> Callable[..., Any]:
    return lambda self, *arguments: self._ask(kind, *arguments)


_READ: dict[str, Callable[[Any], Any]] = {
    **{"len": int, "str": str, "repr": str, "iter": iter, "contains": bool},
    "getitem": lambda item: item,
}
for _name, _convert in _READ.items():
    setattr(_Object, f"__{_name}__", _reading(_name, _convert))
for _name in ("setattr", "setitem", "delitem"):
    setattr(_Object, f"__{_name}__", _writing(_name))
for _name in (*_COMPARED, *_BINARY, *("r" + _name for _name in _BINARY)):
    setattr(_Name, f"__{_name}__", _refuse("a comparison or arithmetic"))
for _name in ("bool", "hash", "float", "int", "index", "enter", "exit"):
    setattr(_Name, f"__{_name}__", _refuse(f"the {_name}"))


class _Rewritten(ast.NodeTransformer):
    """Rewrites assertions, `==`, method calls and `except` clauses to calls of `_Test`."""

    def visit_Assert(self, node: ast.Assert) -> Any:
        self.generic_visit(node)
        if any(isinstance(part, _KEPT) for part in ast.walk(node)):
            return node
        parts = [node.test] if node.msg is None else [node.test, node.msg]
        return ast.Expr(_calling("__gem_assert__", node, map(_lambda, parts)))

    def visit_Compare(self, node: ast.Compare) -> Any:
        self.generic_visit(node)
        if len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq):
            return _calling("__gem_equal__", node, [node.left, *node.comparators])
        return node

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        # A class's private names are other names outside of it.
        if isinstance(node.func, ast.Attribute) and not _private(node.func.attr):
            first = [node.func.value, ast.Constant(node.func.attr)]
            return _calling("__gem_method__", node, [*first, *node.args], node.keywords)
        return node

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> Any:
        self.generic_visit(node)
        kinds = node.type or ast.copy_location(ast.Name("BaseException", ast.Load()), node)
        node.type = _calling("__gem_kinds__", kinds, [kinds])
        return node


def _private(name: str) -> bool:
    return name[:2] == "__" and name[-2:] != "__"


_NO_CALL = "it calls nothing of the program"
_KEPT = (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)


def _calling(name: str, node: ast.AST, arguments: Any, named: Any = ()) -> ast.expr:
    """Return a call in place of a node."""
    call = ast.Call(ast.Name(name, ast.Load()), list(arguments), list(named))
    return ast.copy_location(call, node)


def _lambda(body: ast.expr) -> ast.expr:
    nothing = ast.arguments([], [], None, [], [], None, [])
    return ast.Lambda(nothing, body)


def _map(function: Callable[..., Any], *items: Any) -> Any:
    """`map` as a generator: a StopIteration that the function raises becomes an error."""
    for arguments in zip(*items):  # noqa: B905
        yield function(*arguments)


def _filter(function: Callable[[Any], Any] | None, items: Any) -> Any:
    """`filter` as a generator; see `_map`."""
    for item in items:
        if item if function is None else function(item):
            yield item


class _Test:
    """One test, run with the results known so far."""

    def __init__(self, task: dict[str, Any]) -> None:
        self.task = task
        self.known = _Known(task["answered"])

    def outcome(self) -> list[Any]:
        """Return `[passed | failed | more | error | refused | unusable, details]`.

        A test is unusable if what is wrong with it does not depend on the program.
        """
        what, details = "passed", ""
        try:
            self._run()
        except _Refused as reason:
            # In the first round nothing of the program is known.
            return ["refused" if self.known.answered else "unusable", str(reason)]
        except _Unusable as reason:
            return ["unusable", str(reason)]
        except _Broken as reason:
            return ["error", str(reason)]
        except _Stop:
            pass
        except (AssertionError, Failed):
            what = "failed"
        except BaseException as error:
            what, details = "error", type(error).__name__
        if self.known.pending:
            return ["more", self.known.operations]
        if not self.known.operations:
            failed = f"it fails before it calls the program ({details or 'AssertionError'})"
            return ["unusable", _NO_CALL if what == "passed" else failed]
        if self.known.changes_parts():
            return ["refused", "it changes a container that shares parts with another one"]
        return [what, details]

    def _run(self) -> None:
        import random

        random.seed(0)
        tree = ast.fix_missing_locations(_Rewritten().visit(ast.parse(self.task["source"])))
        allowed = {k: v for k, v in vars(builtins).items() if k not in _TAKEN}
        scope = {
            "__builtins__": {**allowed, "__import__": self._import, "map": _map, "filter": _filter},
            "__name__": "__main__",
            "__gem_assert__": self._assert,
            "__gem_equal__": self._equal,
            "__gem_method__": self._method,
            "__gem_kinds__": self._kinds,
            **preamble(set(self.task["preamble"]) - {"pytest"}),
            **{name: self._named(name) for name in self.task["names"]},
        }
        if "pytest" in self.task["preamble"]:
            scope["pytest"] = self._import("pytest")
        before = set(scope)
        exec(compile(tree, "test", "exec"), scope)
        if self.known.operations:
            return
        # Like pytest, call test functions that the source defines without calling them.
        for name in [name for name in scope if name not in before and name.startswith("test")]:
            if isinstance(scope[name], types.FunctionType):
                scope[name]()

    def _named(self, name: str) -> _Name:
        return _Name(self.known, ["name", name], f"the program's {name!r}")

    def _import(self, name: str, scope: Any = None, local: Any = None, *more: Any) -> Any:
        if name == "pytest":
            return stand_in(self.known)
        if name in PROGRAM:
            module = types.ModuleType(name)
            # A star import adds nothing: names that the test does not define are the program's.
            vars(module).update({"__getattr__": self._named, "__all__": []})
            return module
        if name.partition(".")[0] not in IMPORTED:
            raise _Refused(f"it imports {name!r}")
        return __import__(name, scope, local, *more)

    def _assert(self, test: Callable[[], Any], message: Callable[[], Any] | None = None) -> None:
        try:
            holds = test()
            if isinstance(holds, _Pending) or holds:
                return
            if not self.known.pending:
                raise AssertionError(message() if message is not None else "")
        except (_Refused, _Unusable):
            raise
        except BaseException:
            # Go on to find more calls: failures count only when all results are known.
            if not self.known.pending:
                raise

    def _equal(self, left: Any, right: Any) -> Any:
        equal = left == right
        return equal if equal is not False else same(left, right)

    def _kinds(self, wanted: Any) -> Any:
        """Return the classes of an `except` clause that the exception at hand may be of.

        A name of the program stands for the exception's own class, or for none.
        """
        error = sys.exc_info()[1]
        if error is None or isinstance(error, _SIGNALS):
            return ()
        kinds: list[Any] = []
        for kind in wanted if isinstance(wanted, tuple) else (wanted,):
            if isinstance(kind, tuple):
                kinds += self._kinds(kind)
            elif isinstance(kind, (_Name, _Pending)):
                kinds += [type(error)] if self.known.is_of(error, [kind]) else []
            else:
                kinds.append(kind)
        return tuple(kinds)

    def _method(self, of: Any, name: str, /, *arguments: Any, **named: Any) -> Any:
        if isinstance(of, _Name):
            target = object.__getattribute__(of, "_target")
            if isinstance(of, _Object) and not of._made:
                raise _Refused(f"it calls a method of {of._what}, which it has not made itself")
            return self.known.ask("call", ["method", target, name], arguments, named)
        if name == "__eq__" and len(arguments) == 1:
            # For different types `__eq__` returns NotImplemented, which would count as true.
            return self._equal(of, arguments[0])
        if name in _ALL_ITEMS and len(arguments) > 1:
            sizes = [_size(argument) for argument in arguments[:2]]
            if 0 in sizes and sizes[0] != sizes[1]:
                # NumPy would broadcast: an empty array is close to any number.
                if name == "allclose":
                    return False
                raise AssertionError(f"{name} of {sizes[0]} and {sizes[1]} items")
        return getattr(of, name)(*arguments, **named)


def main(_: str) -> None:
    """Run the tests on stdin, each with its answers so far."""
    tasks, answers = begin()
    work(tasks, answers, lambda task: _Test(task).outcome())
