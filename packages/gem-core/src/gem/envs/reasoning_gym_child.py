"""What runs in the processes of reasoning-gym: makes items and scores answers; see the worker."""

from __future__ import annotations

import ast
import contextlib
import json
import math
import random
import re
import string
import sys
from dataclasses import fields, replace
from datetime import datetime, timedelta
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from gem.envs import reasoning_gym_logic as logic
from gem.envs import reasoning_gym_rules as rules
from gem.errors import ConfigurationError, GemError, MissingExtraError
from gem.workers.process import limited

# These evaluate an answer in order to accept a list in Python's notation.
_EVALUATING = (
    "algorithmic.binary_matrix",
    "algorithmic.spiral_matrix",
    "algorithmic.string_insertion",
    "games.n_queens",
)
# Items of propositional logic without a conclusion that counts, and of arithmetic with a wrong
# recorded answer, are replaced by the item this far behind, which no stream of items reaches.
_ASIDE = 10**12
# How a part of a date is written that is not a number.
_WRITTEN = {**dict.fromkeys(("%A", "%a", "%B", "%b"), "[A-Z][a-z]+"), "%z": "[+-][0-9]{4}"}


def warm_up() -> None:
    """Import the package; that it is missing is said by the first request."""
    with contextlib.suppress(ImportError):
        import reasoning_gym  # noqa: F401
    _shadow_eval()


def answer(
    which: dict[str, Any], text: str | None = None, timeout_s: float = math.inf
) -> dict[str, Any]:
    """Return the question and recorded answer of an item, or the score of an answer to it.

    Making the item, where it is not at hand, does not count towards the time. A process that
    reaches it ends: nothing else stops a computation inside the interpreter.

    Args:
        which: The item.
        text: The answer; None asks for the item.
        timeout_s: CPU time that scoring may use.
    """
    key = json.dumps(which, sort_keys=True)
    try:
        data, entry = _entry(key)
        if text is None:
            gold = entry["answer"]
            return {
                "question": str(entry["question"]),
                "answer": None if gold is None else _carried_out(str(gold)),
                "about": {
                    name: value
                    for name, value in entry.get("metadata", {}).items()
                    if type(value) in (int, float) and name != "source_index"
                },
            }
        # An item of a composite says which generator it is from.
        name = entry.get("metadata", {}).get("source_dataset", which["name"])
        with limited("VIRTUAL", min(timeout_s, 1e6)):
            return _score(name, text, data, entry)
    except GemError as error:
        return {"error": str(error), "kind": type(error).__name__}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:1000], "kind": ""}


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
    entry = data[place]
    if which["name"] == "propositional_logic":
        entry = _conclusive(data, place, entry)
    made_by = entry.get("metadata", {}).get("source_dataset", which["name"])
    if made_by == "time_intervals":
        entry = {**entry, "answer": _elapsed(entry)}
    elif made_by == "basic_arithmetic":
        part = data if which["name"] == made_by else data.datasets[made_by]
        entry = _exact(part, place, entry)
    return data, entry


@lru_cache(maxsize=64)
def _dataset(key: str) -> Any:
    try:
        from reasoning_gym import factory
    except ImportError as error:
        raise MissingExtraError(
            f"the rg environments need reasoning-gym ({error}): "
            f"pip install 'gem-core[reasoning-gym]'"
        ) from error
    which = json.loads(key)
    name = which["name"]
    if name not in factory.DATASETS:
        raise ConfigurationError(
            f"reasoning-gym has no generator {name!r}; it has {', '.join(factory.DATASETS)}"
        )
    kind, settings = factory.DATASETS[name]
    extra = _checked(name, settings, json.loads(which["config"]))
    given = {"seed": which["seed"], "size": which["size"], **extra}
    try:
        level = which["level"]
        config = settings(**given) if level is None else _levelled(factory, name, level, given)
        return kind(config=config)
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(
            f"reasoning-gym {name!r} refuses {given}: {type(error).__name__}: {error}"
        ) from error


def _checked(name: str, settings: Any, extra: dict[str, Any]) -> dict[str, Any]:
    allowed = sorted({field.name for field in fields(settings)} - {"seed", "size"})
    unknown = [key for key in extra if key not in allowed]
    if unknown:
        raise ConfigurationError(
            f"config of reasoning-gym {name!r} has no field {', '.join(map(repr, unknown))}; "
            f"it has {', '.join(allowed)}"
        )
    if name == "composite" and isinstance(extra.get("datasets"), list):
        from reasoning_gym.composite import DatasetSpec

        extra["datasets"] = [DatasetSpec(**{"config": {}, **part}) for part in extra["datasets"]]
    return extra


def _levelled(factory: Any, name: str, level: int, given: dict[str, Any]) -> Any:
    if name not in factory.CURRICULA:
        raise ConfigurationError(f"reasoning-gym {name!r} has no levels; level must be None")
    curriculum = factory.CURRICULA[name]()
    highest = max((len(a.levels) - 1 for a in curriculum.attributes.values()), default=0)
    if level > highest:
        raise ConfigurationError(
            f"level of reasoning-gym {name!r} must be from 0 to {highest}, got {level}"
        )
    curriculum.set_global_level(level)
    # The curriculum would overwrite the fields that were given by name.
    return replace(curriculum.generate_configuration(dict(given)), **given)


def _conclusive(data: Any, place: int, entry: dict[str, Any]) -> dict[str, Any]:
    """Return an item with a conclusion that counts, which becomes its recorded answer."""
    for _ in range(1000):
        given = entry["metadata"]
        found = logic.conclusion(given["premises"], given["variables"])
        if found is not None:
            return {**entry, "question": f"{entry['question']}\n{logic.ASKED}", "answer": found}
        place += _ASIDE
        entry = data[place]
    raise ValueError("no premises with a conclusion that needs several of them")


def _elapsed(entry: dict[str, Any]) -> str:
    """Return the duration that an item of time_intervals asks for.

    The library (0.1.25) loses a millisecond where it cuts off a binary fraction, and the time of
    day behind a weekday in brackets. A time of day before the other one is of the next day.
    """
    about = entry["metadata"]
    written = re.sub("%.", lambda part: _WRITTEN.get(part[0], "[0-9]+"), re.escape(about["format"]))
    start, end = (
        datetime.strptime(moment, about["format"])
        for moment in re.findall(written, entry["question"])[:2]
    )
    elapsed = end - start
    if about["task_type"].startswith("time"):
        elapsed %= timedelta(days=1)
    minutes, seconds = divmod(elapsed.seconds, 60)
    answer: str = about["expected_format"].replace("D", str(elapsed.days))
    numbers = {"HH": minutes // 60, "MM": minutes % 60, "SS": seconds}
    for name, number in numbers.items():
        answer = answer.replace(name, f"{number:02d}")
    return answer.replace("mmm", f"{elapsed.microseconds // 1000:03d}")


def _exact(data: Any, place: int, entry: dict[str, Any]) -> dict[str, Any]:
    """Return an item of arithmetic whose recorded answer is its exact value.

    The library (0.1.25) rounds down what does not divide evenly, and without brackets in the
    expression it computes from the left.
    """
    for _ in range(1000):
        with contextlib.suppress(ZeroDivisionError):
            if rules.value(entry["metadata"]["expression"]) == int(entry["answer"]):
                return entry
        place += _ASIDE
        entry = data[place]
    raise ValueError("no expression whose recorded answer is its exact value")


def _score(name: str, text: str, data: Any, entry: dict[str, Any]) -> dict[str, Any]:
    """Return the library's score of an answer, whether it is one of a solved task, and why."""
    refused = rules.refusal(name, text, entry)
    if refused is not None:
        return {"score": 0.0, "solved": False, "reason": refused}
    if name in rules.DECIDED:
        return {"score": 1.0, "solved": True, "reason": "right"}
    try:
        score = float(data.score_answer(answer=text, entry=entry))
    except Exception as error:
        reason = f"cannot be scored ({type(error).__name__})"
        return {"score": 0.0, "solved": False, "reason": reason}
    score = min(1.0, max(0.0, score)) if math.isfinite(score) else 0.0
    solved = score >= rules.least(name)
    if solved and rules.more_than_right(name, text, entry):
        return {"score": 0.0, "solved": False, "reason": "more than the answer"}
    reason = "equal" if score == 1.0 else "right, in part" if solved else "different"
    return {"score": score, "solved": solved, "reason": reason}


def _carried_out(answer: str) -> str:
    """Return a recorded answer with the integrals solved that it only names."""
    if "Integral(" not in answer:
        return answer
    import sympy

    # Some letters mean something else to sympy.
    letters = {letter: sympy.Symbol(letter) for letter in string.ascii_letters}
    return str(sympy.parse_expr(answer, local_dict=letters).doit())


def _shadow_eval() -> None:
    for name in _EVALUATING:
        module = sys.modules.get(f"reasoning_gym.{name}")
        if module is not None:
            module.eval = ast.literal_eval  # type: ignore[attr-defined]
