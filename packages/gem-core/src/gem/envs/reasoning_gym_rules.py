"""What an answer to reasoning-gym must be before the library scores it, and what its scores mean.

Some of the library's own scoring (0.1.25) pays for answers that solve nothing: `nan`, a formula
of other numbers, a prefix of the number; or for a right answer that is taken back, `not 5`, or one
of several, `5 or 6`. `refusal` keeps such answers from it, and expressions whose evaluation would
take forever. `least` tells the scores of a solved task from those of a
wrong answer.
"""

from __future__ import annotations

import ast
import json
import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from gem.envs import reasoning_gym_logic as logic

Entry = Mapping[str, Any]
Rule = Callable[[str, Entry], str | None]
"""Returns why an answer is wrong, None if the rule does not say."""

# The lowest score of an answer that solves the task: in another notation, in more moves than
# needed, to fewer places. All other scores below 1 are credit for a wrong answer: for its form, for
# being near, for cells that the question gives, for containing the right one.
_LEAST = {
    "advanced_geometry": 0.5,
    "binary_matrix": 0.1,
    "knight_swap": 0.06,
    "n_queens": 0.5,
    "polynomial_equations": 0.99,
    "quantum_lock": 0.5,
    "shortest_path": 0.5,
    "spiral_matrix": 0.1,
    "string_insertion": 0.1,
    "tower_of_hanoi": 0.06,
}

DECIDED = {"countdown", "propositional_logic", "puzzle24"}
"""Generators whose rule here decides alone."""

_UNREADABLE = (
    *(AttributeError, MemoryError, OverflowError, RecursionError, SyntaxError, TypeError),
    *(ValueError, ZeroDivisionError),
)
_OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_MAX_FORMULA = 1000
# Exponents of numbers, and the product of those of nested powers.
_MAX_POWER = 100
_MAX_NUMBER = 10**40
_FUNCTION = re.compile("a?(?:sin|cos|tan)h?|cot|sec|csc|exp|log|ln|sqrt|[aA]bs")
_VARIABLE = re.compile(r"[^\W\d_]\d*|pi")
_NO_NUMBER = re.compile(r"(?<![^\W\d_])s?(?:nan|inf(?:inity)?)(?=[ij]?(?![^\W\d_]))", re.IGNORECASE)
_HUGE = re.compile(r"\d[eE][+-]?[\d_]{4,}")
_DIGITS = re.compile(r"maximum of (\d+) significant digits")
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?")


def least(name: str) -> float:
    """Return the lowest score with which a generator's task counts as solved."""
    return _LEAST.get(name, 1.0)


def refusal(name: str, text: str, entry: Entry) -> str | None:
    """Return why an answer is wrong whatever the library says; None if the library decides.

    Args:
        name: The generator; of an item of a composite, the one that made the item.
        text: The answer.
        entry: The item as the library made it.
    """
    if not text.strip():
        return "empty"
    gold = str(entry.get("answer") or "")
    if _NO_NUMBER.search(text) and not _NO_NUMBER.search(gold):
        return "not a finite number"
    if _HUGE.search(text) and not _HUGE.search(gold):
        return "not a finite number"
    rule = _RULES.get(name)
    try:
        return None if rule is None else rule(text, entry)
    except _UNREADABLE as error:
        return f"cannot be read ({type(error).__name__})"


def more_than_right(name: str, text: str, entry: Entry) -> bool:
    """Whether an answer that the library takes for right is the recorded one and more words.

    Some generators search the text for the answer, so that `not 5` and `5 or 6` are right. Those
    with a rule of their own have it say so.
    """
    return name not in _RULES and _nothing_beside(text, entry) is not None


def value(text: str) -> Fraction:
    """Return the exact value of a formula of numbers and + - * /.

    Raises:
        ValueError: There is something else in it.
        ZeroDivisionError: It divides by zero.
    """
    return _value(_tree(text))


def _tree(text: str) -> ast.expr:
    """Return a formula as a tree.

    Raises:
        ValueError: It is too long, or something else than a formula.
        SyntaxError: It is not an expression.
    """
    if len(text) > _MAX_FORMULA:
        raise ValueError(f"longer than {_MAX_FORMULA} characters")
    return ast.parse(text.strip(), mode="eval").body


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return Fraction(node.value)  # type: ignore[arg-type]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    raise ValueError("not a formula of numbers")


def _made_of(text: str, numbers: list[int], target: int) -> str | None:
    tree = _tree(text)
    named = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)]
    # Before anything is multiplied: the given numbers are few and small.
    if sorted(map(str, named)) != sorted(map(str, numbers)):
        return "not the given numbers"
    return None if _value(tree) == target else "another value"


def _countdown(text: str, entry: Entry) -> str | None:
    return _made_of(text, entry["metadata"]["numbers"], entry["metadata"]["target"])


def _puzzle24(text: str, entry: Entry) -> str | None:
    return _made_of(text, entry["metadata"]["numbers"], 24)


def _expression(text: str, entry: Entry) -> str | None:
    """Let only names of mathematics and bounded powers get to the library's parser.

    The parser knows Python's built-in functions too, and calls them; and an integral that is only
    named would be its own solution.
    """
    return None if _bounded(_tree(text), 1) else "not a formula, or one of enormous size"


def _bounded(node: ast.expr, power: float) -> bool:
    if isinstance(node, ast.Constant):
        value = node.value
        if type(value) is int:
            return abs(value) < _MAX_NUMBER
        return isinstance(value, float) and math.isfinite(value)
    if isinstance(node, ast.Name):
        return _VARIABLE.fullmatch(node.id) is not None
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.USub | ast.UAdd) and _bounded(node.operand, power)
    if isinstance(node, ast.Call):
        known = isinstance(node.func, ast.Name) and _FUNCTION.fullmatch(node.func.id)
        return bool(known) and not node.keywords and all(_bounded(a, power) for a in node.args)
    if not isinstance(node, ast.BinOp):
        return False
    if isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.Div):
        return _bounded(node.left, power) and _bounded(node.right, power)
    if not isinstance(node.op, ast.Pow):
        return False
    if any(isinstance(part, ast.Name) for part in ast.walk(node.right)):
        return _bounded(node.left, power) and _bounded(node.right, power)
    total = power * max(1.0, abs(float(_value(node.right))))
    return total <= _MAX_POWER and _bounded(node.left, total)


def _number_sorting(text: str, entry: Entry) -> str | None:
    given, sorted_ = (json.loads(t.replace("'", '"')) for t in (text, entry["answer"]))
    if not isinstance(given, list) or any(isinstance(n, bool) for n in given):
        return "not a list of numbers"
    same = Counter(map(float, given)) == Counter(map(float, sorted_))
    return None if same else "not the given numbers"


def _written_in(characters: str, otherwise: str) -> Rule:
    """Return a rule: why an answer is wrong that has other characters, in either case."""
    allowed = {*characters, *characters.lower()}
    return lambda text, entry: otherwise if set(text) - allowed else None


def _coin_flip(text: str, entry: Entry) -> str | None:
    gold = float(entry["answer"])
    # The library's tolerance of 0.0001 is more than some of these probabilities.
    near = abs(float(Fraction(text.replace(",", ""))) - gold) <= min(1e-4, gold / 20)
    return None if near else "another number"


def _decimal(text: str, entry: Entry) -> str | None:
    # The library's tolerance is a unit of the last place of the question's numbers.
    digits = _DIGITS.search(entry["question"])
    if digits is None:
        return None
    given, gold = Fraction(text.strip()), Fraction(str(entry["answer"]).strip())
    # Two digits fewer than asked for: the library rounds what is between, too.
    near = abs(given - gold) <= max(Fraction(1), abs(gold)) / 10 ** (int(digits[1]) - 2)
    return None if near else "not to the digits asked for"


def _one_number(text: str, entry: Entry) -> str | None:
    numbers = _NUMBER.findall(text)
    if len(numbers) != 1:
        return "not one number"
    return None if float(numbers[0]) == float(entry["answer"]) else "another number"


def _same_letters(text: str, entry: Entry) -> str | None:
    letters = ("".join(part.lower().split()) for part in (text, str(entry["answer"])))
    return None if len(set(letters)) == 1 else "different"


def _boxes_only(text: str, entry: Entry) -> str | None:
    moved = (str(move) for turn in json.loads(text) for move in turn.values())
    return None if all(m.startswith("move(box_") for m in moved) else "moves more than boxes"


def _few_repeats(text: str, entry: Entry) -> str | None:
    return "a number of repeats without end" if re.search(r"\d{3}", text) else None


def _conclusion(text: str, entry: Entry) -> str | None:
    return logic.refusal(text, entry["metadata"]["premises"], entry["metadata"]["variables"])


def _recorded(text: str, entry: Entry) -> str | None:
    return None if text.lower() == str(entry["answer"]).lower() else "different"


def _nothing_beside(text: str, entry: Entry) -> str | None:
    """Refuse the recorded answer with words around it that it does not have: `not 5`, `5 or 6`."""
    gold = str(entry.get("answer") or "").strip()
    if not gold or gold not in text:
        return None
    more = set(_WORD.findall(text.replace(gold, " "))) - set(_WORD.findall(gold))
    return "more than the answer" if more else None


def _all_of(pattern: str) -> Rule:
    """Return a rule: why an answer is wrong that is not, as a whole, written in this way."""
    whole = re.compile(pattern)
    return lambda text, entry: None if whole.fullmatch(text.strip()) else "more than the answer"


def _number_of_things(text: str, entry: Entry) -> str | None:
    """Take one number; up to two words behind it must be the question's, for they name a unit."""
    several = _one_number(text, entry)
    if several is not None:
        return several
    found = _THINGS.fullmatch(_TEXT.sub(r" \1 ", text))
    if found is None:
        return "more than a number"
    said = set(found[1].lower().split())
    named = set(re.findall(r"[a-z]+", str(entry["question"]).lower())) - _NO_UNITS
    return None if said <= named | _UNITS else "more than a number"


def _as_many_words(text: str, entry: Entry) -> str | None:
    # The library compares as many words as there are to sort.
    return None if text.count(",") == str(entry["answer"]).count(",") else "not the given words"


def _pair_or_number(text: str, entry: Entry) -> str | None:
    # Of a point, the library reads what is between the first two commas.
    pair = str(entry["answer"]).startswith("(")
    return _PAIR(text, entry) if pair else _nothing_beside(text, entry)


def _duration(text: str, entry: Entry) -> str | None:
    gold = str(entry["answer"])
    if ":" not in gold:
        return _DAYS(text, entry)
    return (_DAYS_AND_TIME if "day" in gold else _TIME)(text, entry)


def _who_is_what(text: str, entry: Entry) -> str | None:
    # The library searches for sentences of the form "A is a b".
    known = {*_WORD.findall(str(entry["answer"]).lower()), "and", "is", "an"}
    return None if set(_WORD.findall(text.lower())) <= known else "more than the answer"


def _listed_numbers(text: str, entry: Entry) -> str | None:
    # The library passes over what is no number. Where there is no solution, that is what to write.
    for part in text.split(",") if entry["answer"] else ():
        float(part)
    return None


_WORD = re.compile(r"[^\W\d_]{2,}")
_THINGS = re.compile(r"[^\w.-]*-?\d+(?:\.\d+)?[^\w,]*((?:[A-Za-z]+(?: [A-Za-z]+)?)?)[^\w]*")
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_UNITS = frozenset({"cents", "dollars", "percent"})
_NO_UNITS = {
    *("a", "an", "and", "any", "are", "at", "false", "if", "is", "isn", "it", "less", "more"),
    *("most", "never", "no", "not", "or", "than", "that", "the", "to", "was", "wrong"),
}
_DAYS = _all_of(r"-?\d+(?: +days?)?")
_TIME = _all_of(r"\d+:\d+(?::\d+(?:\.\d+)?)?")
_DAYS_AND_TIME = _all_of(r"-?\d+ days, *\d+:\d+(?::\d+(?:\.\d+)?)?")
_PAIR = _all_of(r"\(?\s*-?\d+(?:\.\d+)?\s*,\s*-?\d+(?:\.\d+)?\s*\)?")

_RULES: dict[str, Rule] = {
    "advanced_geometry": _pair_or_number,
    "boxnet": _boxes_only,
    "coin_flip": _coin_flip,
    # The library takes spaces away first, also those in "n a n".
    "complex_arithmetic": _written_in("0123456789+-.,_EIJ() \t\n", "not a complex number"),
    "countdown": _countdown,
    "decimal_arithmetic": _decimal,
    "figlet_font": _same_letters,
    # The library takes every answer that is not empty for right.
    "game_of_life_halting": _recorded,
    "fraction_simplification": _all_of(
        r"\$*\s*(?:\\[dtc]?frac\s*\{\s*\d+\s*\}\s*\{\s*\d+\s*\}|\d+\s*/\s*\d+)\s*\$*"
    ),
    "gsm_symbolic": _number_of_things,
    "intermediate_integration": _expression,
    "kakurasu": _all_of(r"[01\s,;|\[\]]+"),
    "knights_knaves": _who_is_what,
    "letter_jumble": _same_letters,
    "number_sorting": _number_sorting,
    "polynomial_equations": _listed_numbers,
    "polynomial_multiplication": _expression,
    "propositional_logic": _conclusion,
    "puzzle24": _puzzle24,
    "quantum_lock": _all_of(r"""[A-Ca-c\s,;→>\[\]"'-]+"""),
    "rubiks_cube": _few_repeats,
    "rush_hour": _few_repeats,
    "simple_integration": _expression,
    "sokoban": _written_in("UDLR \t\r\n", "more than moves"),
    "spell_backward": _same_letters,
    "survo": _all_of(r"[\d\s|+-]+"),
    "time_intervals": _duration,
    "word_sorting": _as_many_words,
}
