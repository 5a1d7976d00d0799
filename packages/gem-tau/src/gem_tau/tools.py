"""What tools are, and those that all domains have: functions of `Records` and plain arguments."""

from __future__ import annotations

import ast
import inspect
import json
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gem_tau.data import Call, Record
from gem_tau.records import BadCallError, Records, RefusedError

_LONGEST_EXPRESSION = 200
_OPERATORS: dict[type, Callable[..., float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}
_KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "str": ("a text", {"type": "string"}),
    "int": ("an integer", {"type": "integer"}),
    "list[str]": ("a list of texts", {"type": "array", "items": {"type": "string"}}),
    "list[Record]": ("a list of objects", {"type": "array", "items": {"type": "object"}}),
}
"""Types of arguments: what they are called, and their JSON schemas."""


@dataclass(frozen=True)
class Tool:
    """A function that the agent can call."""

    run: Callable[..., Any]
    writes: bool
    """Whether it changes the database."""
    description: str
    parameters: Mapping[str, str]
    """Types by name, of `_KINDS`; all are required."""

    @property
    def schema(self) -> dict[str, Any]:
        """The function as JSON schema, in the form that chat APIs take."""
        return {
            "name": self.run.__name__,
            "description": self.description,
            "parameters": {
                "type": "object",
                "properties": {name: _KINDS[kind][1] for name, kind in self.parameters.items()},
                "required": list(self.parameters),
            },
        }


class Toolbox(dict[str, Tool]):
    """Tools by name."""

    def add(self, writes: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Return a decorator that adds a function, whose first parameter is the records.

        Args:
            writes: Whether it changes the database.
        """

        def added(function: Callable[..., Any]) -> Callable[..., Any]:
            parameters = list(inspect.signature(function).parameters.values())[1:]
            self[function.__name__] = Tool(
                function,
                writes,
                " ".join((function.__doc__ or "").split()),
                {each.name: each.annotation for each in parameters},
            )
            return function

        return added


def call(db: Records, wanted: Call, tools: Mapping[str, Tool]) -> str:
    """Execute a call and return what the agent is told.

    Args:
        db: The episode's records.
        wanted: Name and arguments, of any type.
        tools: Those that there are.

    Raises:
        RefusedError: The tool refuses the call; nothing is changed then.
        BadCallError: There is no such tool, or an argument is missing, unknown or of a wrong type.
    """
    if wanted.name not in tools:
        raise BadCallError(f"There is no tool {wanted.name!a:.80}. Tools: {', '.join(tools)}")
    tool = tools[wanted.name]
    given, needed = wanted.arguments, tool.parameters
    wrong = [f"missing {name!r}" for name in needed if name not in given]
    wrong += [f"unknown {name!a:.40}" for name in given if name not in needed]
    for name, kind in needed.items():
        if name in given and not _fits(given[name], kind):
            wrong.append(f"{name!r} must be {_KINDS[kind][0]}")
    if wrong:
        raise BadCallError(f"Arguments of {wanted.name}: {', '.join(wrong[:8])}")
    result = tool.run(db, **given)
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)


def _fits(value: Any, kind: str) -> bool:
    if kind.startswith("list["):
        inner = kind[len("list[") : -1]
        return isinstance(value, list) and all(_fits(each, inner) for each in value)
    if kind == "Record":
        return isinstance(value, dict)
    if kind == "int":
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, str)


def get_user_details(db: Records, user_id: str) -> Record:
    """Get a user's name, address, payment methods, and the ids of orders or reservations."""
    return db.read("users", user_id)


def calculate(db: Records, expression: str) -> str:
    """Calculate an arithmetic expression of numbers, +, -, *, / and parentheses."""
    try:
        if len(expression) > _LONGEST_EXPRESSION:
            raise ValueError("too long")
        value = _value(ast.parse(expression.strip(), mode="eval").body)
        if not math.isfinite(value):
            raise ValueError("not finite")
    except (ValueError, SyntaxError, ArithmeticError, RecursionError, MemoryError):
        raise RefusedError("The expression cannot be calculated") from None
    return str(round(value, 2))


def _value(node: ast.AST) -> float:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return float(node.value)  # type: ignore[arg-type]
    if isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.operand))
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    raise ValueError("not arithmetic")


def transfer_to_human_agents(db: Records, summary: str) -> str:
    """Transfer the user to a human agent, with a summary of the issue. This ends the conversation.
    Use it only if the request is outside of what the tools and the policy allow."""
    return "Transfer successful"
