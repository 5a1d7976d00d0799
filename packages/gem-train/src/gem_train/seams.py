"""Checks that a trainer still has the functions, with the parameters, that an adapter needs.

Trainers promise no interface to others. An adapter lists the functions that it replaces, extends
or calls (`Seam`); `check_seams` compares the list with the installed trainer before a run begins,
and in the doctor.
"""

from __future__ import annotations

import importlib
import inspect
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import Parameter
from typing import Any

from gem.errors import UnsupportedVersionError
from gem_train.doctor import Requirement

_RAYS_OWN = "_ray_trace_ctx"
"""Ray adds it to all methods of a class that becomes an actor, and to those of its bases."""


@dataclass(frozen=True)
class Seam:
    """A function, method or class of a trainer that an adapter replaces, extends or calls.

    A class stands for its constructor: `parameters` are those of `__init__` without `self`.
    """

    path: str
    """`package.module:Class.method`; without `package.module:` it is looked up in the owner that
    `check_seams` is given."""
    parameters: str | None = None
    """Names of parameters, separated by commas. None: any, because the replacement has `*args` and
    `**kwargs` and passes them on."""
    extensible: bool = False
    """Whether the trainer may add optional parameters.

    False, for what the adapter replaces or extends: `parameters` are all that the function has. A
    value for another one would be lost in the replacement.

    True, for what the adapter only calls, or replaces by a function that passes `**kwargs` on:
    `parameters` are those that the adapter gives values, by position before `*`, by name after it.
    The function may have others that are optional.
    """

    def fits(self, function: Callable[..., Any]) -> bool:
        """Return whether the function has the parameters."""
        if self.parameters is None:
            return True
        signature = _signature(function)
        before, _, after = self.parameters.partition("*")
        positional, named = _names(before), _names(after)
        if not self.extensible:
            return list(signature.parameters) == [*positional, *named]
        try:
            # Each argument is its parameter's name: one that reaches another parameter differs.
            bound = signature.bind(*positional, **{name: name for name in named})
        except TypeError:
            return False
        return all(name == value for name, value in bound.arguments.items())


def called(path: str, parameters: str) -> Seam:
    """Return the seam of a function that the adapter only calls."""
    return Seam(path, parameters, extensible=True)


def calls(module: str, functions: Mapping[str, str]) -> list[Seam]:
    """Return the seams of functions of a module that the adapter only calls.

    Args:
        module: Its name.
        functions: Name in the module, and parameters; see `Seam`.
    """
    return [called(f"{module}:{name}", given) for name, given in functions.items()]


def check_seams(
    trainer: Requirement, seams: Sequence[Seam], *, owner: Any = None, found: str | None = None
) -> str:
    """Make sure that a trainer has the functions that an adapter needs; return a doctor's line.

    Args:
        trainer: The trainer and the adapter, for the message.
        seams: The functions.
        owner: Module or class in which paths without a module are looked up.
        found: The trainer found, such as `tiny-grpo in /src/tiny-grpo`, where the distribution of
            `trainer` does not tell: a program without one, or of several forms.

    Raises:
        UnsupportedVersionError: A function is missing or has other parameters. The message has the
            versions of the adapter and of the trainer, what was found and the supported range.
        ImportError: Something that the trainer imports is missing, or cannot be imported.
    """
    for seam in seams:
        function = _resolve(seam.path, owner)
        if function is not None and seam.fits(function):
            continue
        has = "has none" if function is None else f"has {_signature(function)}"
        wanted = "" if seam.parameters is None else f"({seam.parameters})"
        installed = found or f"{trainer.distribution} {trainer.check()}"
        raise UnsupportedVersionError(
            f"{trainer.by} needs {seam.path.replace(':', '.')}{wanted}, but {installed} {has}; "
            f"supported is {trainer.distribution} {trainer.supported}"
        )
    return f"{len(seams)} functions of {found or trainer.distribution} are as expected"


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Give an attribute of a module or class another value for a while.

    Args:
        owner: Module or class.
        name: Of the attribute, which must exist.
        value: What takes its place.
    """
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _resolve(path: str, owner: Any) -> Callable[..., Any] | None:
    module, _, name = path.rpartition(":")
    if module:
        try:
            owner = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise
            return None
    try:
        function = operator.attrgetter(name)(owner)
    except AttributeError:
        return None
    return function if callable(function) else None


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    """Return a function's parameters without annotations."""
    parameters = inspect.signature(function).parameters.values()
    return inspect.Signature(
        [p.replace(annotation=Parameter.empty) for p in parameters if p.name != _RAYS_OWN]
    )


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
