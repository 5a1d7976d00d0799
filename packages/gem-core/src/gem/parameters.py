"""Checks of parameters: each returns the value or raises an error that names the parameter."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

from gem.errors import ConfigurationError, UnknownParameterError

T = TypeVar("T")
Constructor = TypeVar("Constructor", bound=Callable[..., None])


def extending(base: type, *hidden: str, **defaults: Any) -> Callable[[Constructor], Constructor]:
    """Make the `**options` of a constructor stand for the parameters of its base class.

    The signature has them one by one, so that `gem.make` checks their names and the documentation
    lists them.

    Args:
        base: The base class.
        *hidden: Parameters of the base class that the constructor does not take.
        **defaults: Defaults other than those of the base class.
    """

    def extended(init: Constructor) -> Constructor:
        *own, _ = inspect.signature(init).parameters.values()
        left_out = {*hidden, *(parameter.name for parameter in own)}
        inherited = (
            parameter.replace(default=defaults.get(name, parameter.default))
            for name, parameter in inspect.signature(base).parameters.items()
            if name not in left_out
        )

        @functools.wraps(init)
        def wrapped(*args: Any, **given: Any) -> None:
            init(*args, **{**defaults, **given})

        wrapped.__signature__ = inspect.Signature([*own, *inherited])  # type: ignore[attr-defined]
        return cast(Constructor, wrapped)

    return extended


def require_known(
    what: str, function: Callable[..., Any], given: Iterable[str], *hidden: str
) -> None:
    """Raise if a function does not take a keyword, or lacks one that it needs.

    Args:
        what: What the parameters are of, for the message.
        function: The function or class.
        given: The keywords.
        *hidden: Parameters of the function that may not be given.

    Raises:
        UnknownParameterError: At least one keyword is unknown; the message names those it takes.
        ConfigurationError: A parameter without a default is not given.
    """
    # Cached: inspecting a constructor takes longer than running most of them.
    look = _parameters if isinstance(function, Hashable) else _parameters.__wrapped__
    parameters = look(function)
    given = list(given)
    needed = [
        name
        for name, p in parameters.items()
        if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    missing = [name for name in needed if name not in given and name not in hidden]
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        _check_given(what, missing)
        return
    unknown = [name for name in given if name not in parameters or name in hidden]
    if unknown:
        has = ", ".join(sorted(parameters.keys() - {*hidden})) or "none"
        raise UnknownParameterError(
            f"{what} has no parameter {', '.join(map(repr, unknown))}; it has {has}"
        )
    _check_given(what, missing)


def _check_given(what: str, missing: list[str]) -> None:
    if missing:
        several = "s" if len(missing) > 1 else ""
        raise ConfigurationError(f"{what} needs the parameter{several} {', '.join(missing)}")


@functools.lru_cache(maxsize=1024)
def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(function).parameters


def listed(name: str, value: Any, single: Callable[[Any], bool]) -> Sequence[Any]:
    """Return a parameter that is one thing or several as a sequence of them.

    Args:
        name: The parameter.
        value: A sequence, one thing, or names separated by commas.
        single: Tells one thing from a sequence.

    Raises:
        ConfigurationError: None of these.
    """
    if isinstance(value, str):
        return [part for part in map(str.strip, value.split(",")) if part]
    if isinstance(value, Mapping) or single(value):
        return [value]
    if not isinstance(value, Sequence):
        raise ConfigurationError(f"{name} must be a name, a mapping or a list, got {value!r:.80}")
    return value


def flag(name: str, value: Any) -> bool:
    """Check a boolean parameter.

    Raises:
        ConfigurationError: Not a bool.
    """
    if not isinstance(value, bool):
        raise ConfigurationError(f"{name} must be True or False, got {value!r}")
    return value


def choice(name: str, value: Any, allowed: tuple[T, ...]) -> T:
    """Check a parameter that is one of a few values.

    Raises:
        ConfigurationError: None of them.
    """
    for candidate in allowed:
        if value == candidate:
            return candidate
    raise ConfigurationError(
        f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}"
    )


def integer(name: str, value: Any, low: int, high: int) -> int:
    """Check an integer parameter with inclusive limits; numpy integers are taken too.

    Raises:
        ConfigurationError: Not an integer, or outside the limits.
    """
    try:
        number = int(value.__index__()) if not isinstance(value, bool) else None
    except AttributeError:
        number = None
    if number is None or not low <= number <= high:
        raise ConfigurationError(f"{name} must be an integer from {low} to {high}, got {value!r}")
    return number


def number(name: str, value: Any, above: float = -math.inf) -> float:
    """Check a parameter that is a finite number.

    Raises:
        ConfigurationError: It is not, or not above the limit.
    """
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    if not numeric or not above < value < math.inf:
        kind = "finite number" if above == -math.inf else f"number above {above:g}"
        raise ConfigurationError(f"{name} must be a {kind}, got {value!r}")
    return float(value)


def positive(name: str, value: Any) -> float:
    """Check a parameter that is a number above 0.

    Raises:
        ConfigurationError: It is not.
    """
    return number(name, value, above=0)


def text(name: str, value: Any) -> str:
    """Check a parameter that is a name.

    Raises:
        ConfigurationError: It is no text, or empty.
    """
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{name} must be a name, got {value!r}")
    return value


def optional(check: Callable[..., T], name: str, value: Any, *limits: Any) -> T | None:
    """Apply `check` unless the value is None, which means that the parameter is left open."""
    return None if value is None else check(name, value, *limits)
