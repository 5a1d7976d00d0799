"""What runs in the process of reasoning-gym: makes items and scores answers, see the worker."""

from __future__ import annotations

import ast
import json
import math
import os
import random
import re
import string
import sys
from dataclasses import fields, replace
from functools import lru_cache
from hashlib import blake2b
from typing import Any

# These evaluate an answer in order to accept a list in Python's notation.
_EVALUATING = (
    "algorithmic.binary_matrix",
    "algorithmic.spiral_matrix",
    "algorithmic.string_insertion",
    "games.n_queens",
)
# These give an answer to sympy's parser, which evaluates it.
_SYMBOLIC = {
    "countdown",
    "intermediate_integration",
    "polynomial_multiplication",
    "puzzle24",
    "simple_integration",
}
# Their own scoring takes every answer that is not empty for right (0.1.25).
_COMPARED = {"game_of_life_halting"}
_FORMULA = re.compile(r"(?!.*\.\s*[^\W\d])[\w\s+\-*/^().,=|]*", re.DOTALL)
_NAME = re.compile(r"[^\W\d]\w*")
_VARIABLE = re.compile(r"[^\W\d_]\d*")
_FUNCTION = re.compile("a?(?:sin|cos|tan)h?|cot|sec|csc|exp|log|ln|sqrt|[aA]bs|pi")
_MAX_FORMULA = 1000
_MEMORY_BYTES = 8 << 30


class _RefusedError(Exception):
    """A request that cannot be met; `kind` says which error it is on the other side."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def main() -> None:
    """Answer requests until standard input ends."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    # Some generators print.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    _limit_memory()
    for line in sys.stdin.buffer:
        try:
            reply = _answer(json.loads(line))
        except _RefusedError as error:
            reply = {"error": str(error), "kind": error.kind}
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"[:1000], "kind": "data"}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # not on this platform
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY or soft > _MEMORY_BYTES:
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, hard))


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    operation = request.pop("op")
    if operation == "begin":
        try:
            import reasoning_gym  # noqa: F401
        except ImportError:
            return {}  # said again, as an error, by the first request for an item
        return {}
    text = request.pop("text", None)
    key = json.dumps(request, sort_keys=True)
    if operation == "item":
        entry = _entry(key)[1]
        answer = entry["answer"]
        return {
            "question": str(entry["question"]),
            "answer": None if answer is None else _carried_out(str(answer)),
        }
    return _score(key, str(text))


@lru_cache(maxsize=1024)
def _entry(key: str) -> tuple[Any, dict[str, Any]]:
    """Return a data set and one of its items."""
    which = json.loads(key)
    place = which.pop("place")
    data = _dataset(json.dumps(which, sort_keys=True))
    import numpy as np

    # Some generators draw from the global generators; here nobody else does.
    number = int.from_bytes(blake2b(key.encode(), digest_size=4).digest(), "big")
    random.seed(number)
    np.random.seed(number)
    try:
        return data, data[place]
    except Exception as error:
        raise _RefusedError(
            "data",
            f"reasoning-gym {which['name']!r}, seed {which['seed']}, item {place}: "
            f"{type(error).__name__}: {error}",
        ) from error


@lru_cache(maxsize=64)
def _dataset(key: str) -> Any:
    try:
        from reasoning_gym import factory
    except ImportError as error:
        raise _RefusedError(
            "missing",
            f"the rg environments need reasoning-gym ({error}): "
            f"pip install 'gem-core[reasoning-gym]'",
        ) from error
    which = json.loads(key)
    name = which["name"]
    if name not in factory.DATASETS:
        raise _RefusedError(
            "config",
            f"reasoning-gym has no generator {name!r}; it has {', '.join(factory.DATASETS)}",
        )
    kind, settings = factory.DATASETS[name]
    extra = _checked(name, settings, json.loads(which["config"]))
    given = {"seed": which["seed"], "size": which["size"], **extra}
    try:
        level = which["level"]
        config = settings(**given) if level is None else _levelled(factory, name, level, given)
        return kind(config=config)
    except _RefusedError:
        raise
    except Exception as error:
        raise _RefusedError(
            "config", f"reasoning-gym {name!r} refuses {given}: {type(error).__name__}: {error}"
        ) from error


def _checked(name: str, settings: Any, extra: dict[str, Any]) -> dict[str, Any]:
    allowed = sorted({field.name for field in fields(settings)} - {"seed", "size"})
    unknown = [key for key in extra if key not in allowed]
    if unknown:
        raise _RefusedError(
            "config",
            f"config of reasoning-gym {name!r} has no field {', '.join(map(repr, unknown))}; "
            f"it has {', '.join(allowed)}",
        )
    if name == "composite" and isinstance(extra.get("datasets"), list):
        from reasoning_gym.composite import DatasetSpec

        extra["datasets"] = [DatasetSpec(**{"config": {}, **part}) for part in extra["datasets"]]
    return extra


def _levelled(factory: Any, name: str, level: int, given: dict[str, Any]) -> Any:
    if name not in factory.CURRICULA:
        raise _RefusedError("config", f"reasoning-gym {name!r} has no levels; level must be None")
    curriculum = factory.CURRICULA[name]()
    highest = max((len(a.levels) - 1 for a in curriculum.attributes.values()), default=0)
    if level > highest:
        raise _RefusedError(
            "config", f"level of reasoning-gym {name!r} must be from 0 to {highest}, got {level}"
        )
    curriculum.set_global_level(level)
    # The curriculum would overwrite the fields that were given by name.
    return replace(curriculum.generate_configuration(dict(given)), **given)


def _score(key: str, text: str) -> dict[str, Any]:
    data, entry = _entry(key)
    _shadow_eval()
    # An item of a composite says which generator it is from.
    name = entry.get("metadata", {}).get("source_dataset", json.loads(key)["name"])
    if name in _SYMBOLIC and not _is_formula(text):
        return {"score": 0.0, "reason": "not a formula"}
    if name in _COMPARED:
        text = entry["answer"] if text.lower() == str(entry["answer"]).lower() else ""
    try:
        score = float(data.score_answer(answer=text, entry=entry))
    except Exception as error:
        return {"score": 0.0, "reason": f"cannot be scored ({type(error).__name__})"}
    score = min(1.0, max(0.0, score)) if math.isfinite(score) else 0.0
    return {"score": score, "reason": "equal" if score == 1.0 else "different"}


def _carried_out(answer: str) -> str:
    """Return a recorded answer with the integrals solved that it only names."""
    if "Integral(" not in answer:
        return answer
    import sympy

    # Some letters mean something else to sympy.
    letters = {letter: sympy.Symbol(letter) for letter in string.ascii_letters}
    return str(sympy.parse_expr(answer, local_dict=letters).doit())


def _is_formula(text: str) -> bool:
    """Return whether all that a text can name are variables and functions of mathematics.

    The parser knows Python's built-in functions too, and calls them; and an integral that is only
    named would be its own solution.
    """
    if len(text) > _MAX_FORMULA or not _FORMULA.fullmatch(text):
        return False
    return all(
        (_VARIABLE.fullmatch(name) or _FUNCTION.fullmatch(name)) is not None
        for name in _NAME.findall(text)
    )


@lru_cache(maxsize=1)
def _shadow_eval() -> None:
    for name in _EVALUATING:
        module = sys.modules.get(f"reasoning_gym.{name}")
        if module is not None:
            module.eval = ast.literal_eval  # type: ignore[attr-defined]
