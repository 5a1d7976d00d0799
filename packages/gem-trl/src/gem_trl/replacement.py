"""Tells whether a GRPOTrainer class is TRL's where GEM's episodes and advantages go.

Packages such as Unsloth put a class of their own, made from TRL's source with changed methods, in
the place of `trl.GRPOTrainer`. A changed method may have the same parameters and still drop an
advantage for each token, without an error. So the source of each method of `METHODS` is
compared with that in TRL's file; what else the class does is its own affair.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent
from typing import Any

from gem.errors import UnsupportedVersionError
from gem_trl import TRAINER

MODULE, CLASS = "trl.trainer.grpo_trainer", "GRPOTrainer"

METHODS: Mapping[str, str] = {
    "_prepare_inputs": "cuts a batch and its advantages into those of the steps",
    "_generate": "calls the rollout function, which plays GEM's episodes",
    "_generate_single_turn": "samples a turn from token ids",
    "_generate_and_score_completions": "makes the tensors that GEM's advantages belong to",
    "_get_per_token_logps_and_entropies": "computes the log-probability of each token",
    "compute_loss": "computes the loss",
    "_compute_loss": "weighs each token with its advantage",
}
"""Methods whose source must be TRL's, and what each does for GEM."""

_WRAPPERS = ("trl.", "torch.")
"""Modules whose decorators TRL puts around its methods."""


def check_class(trainer: type) -> None:
    """Make sure that a class has TRL's source of each of `METHODS`.

    Unchanged copies of a method pass, wherever they are defined.

    Args:
        trainer: A GRPOTrainer, or what has taken its place.

    Raises:
        UnsupportedVersionError: A method is missing or another one. The message names the method,
            who defines it, and what to do.
    """
    methods = _trls()
    for name in METHODS:
        if name not in methods:
            raise UnsupportedVersionError(
                f"{TRAINER.by} needs {MODULE}.{CLASS}.{name}, which {METHODS[name]}, but trl "
                f"{TRAINER.check()} has none; supported is trl {TRAINER.supported}"
            )
        found = getattr(trainer, name, None)
        function = None if found is None else _undecorated(found)
        if function is not None and _is(function, methods[name]):
            continue
        by = f"{trainer.__module__}.{trainer.__qualname__}"
        where = "is missing" if function is None else f"is {_place(function)}, with other code"
        raise UnsupportedVersionError(
            f"{TRAINER.by} needs {MODULE}.{CLASS}.{name} as trl {TRAINER.check()} has it, because "
            f"it {METHODS[name]}; in {by} it {where}. Something has replaced or changed TRL's "
            "trainer, as Unsloth does when it is imported: train in a process that does not import "
            "it, or import gem_trl.trainer first, so that GemGRPOTrainer extends TRL's own class"
        )


def check_kept(trainer: Any, rollout: Callable[..., Any], rewards: list[Any]) -> None:
    """Make sure that a constructor has kept the functions that it was given.

    Args:
        trainer: A constructed GRPOTrainer.
        rollout: Its `rollout_func`.
        rewards: Its `reward_funcs`.

    Raises:
        UnsupportedVersionError: It has others; the message names the constructor.
    """
    given = {"rollout_func": rollout, "reward_funcs": rewards}
    for name, value in given.items():
        if getattr(trainer, name, None) != value:
            constructor = next(
                _place(vars(cls)["__init__"])
                for cls in type(trainer).__mro__
                if "__init__" in vars(cls) and not cls.__module__.startswith("gem_trl.")
            )
            raise UnsupportedVersionError(
                f"{TRAINER.by} gives {CLASS} a {name}, and {constructor} drops it: without it "
                "nothing of GEM's is trained on. Train in a process that does not import what has "
                f"replaced {MODULE}.{CLASS}, or import gem_trl.trainer first"
            )


@cache
def _trls() -> dict[str, str]:
    """Return `METHODS` as TRL's file has them, whatever its class has been replaced by."""
    spec = find_spec(MODULE)
    assert spec is not None and spec.origin is not None  # the caller has imported it
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    [body] = [each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == CLASS]
    found = {each.name: each for each in body.body if isinstance(each, ast.FunctionDef)}
    return {name: ast.dump(found[name]) for name in METHODS if name in found}


def _is(function: Any, method: str) -> bool:
    """Return whether a function's source is that of a method, wherever it is."""
    try:
        [tree] = ast.parse(dedent(inspect.getsource(function.__code__))).body
    except (OSError, SyntaxError, ValueError):
        return False  # no source: it cannot be told
    return ast.dump(tree) == method


def _undecorated(function: Any) -> Any:
    """Return a method without TRL's own decorators; None if it is not a Python function."""
    while inspect.isfunction(function):
        inner = getattr(function, "__wrapped__", None)
        if inner is None or not function.__globals__["__name__"].startswith(_WRAPPERS):
            return function
        function = inner
    return None


def _place(function: Any) -> str:
    """Return where a function is defined; decorators copy its `__module__`, not its globals."""
    names = getattr(function, "__globals__", {})
    return f"{names.get('__name__', function.__module__)}:{function.__qualname__}"
