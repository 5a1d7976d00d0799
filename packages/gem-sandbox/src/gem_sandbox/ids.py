"""The ids of programming tasks; nothing is imported or loaded here."""

from __future__ import annotations

from typing import Any

from gem.registry import register

_TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "code:CodeContest": ("CodeContest", {"split": "train"}),
    "code:Taco8k": ("TACO-8k", {}),
    "code:PrimeIntellect15k": ("PrimeIntellect-15k", {}),
    "eval:CodeContest": ("CodeContest", {"split": "test", "eval": True}),
}


def register_all() -> None:
    """Register every id; the registry calls it through the entry-point group `gem.envs`."""
    for id, (name, parameters) in _TASKS.items():
        given = {"source": f"hub:axon-rl/{name}", "sample": "code", **parameters}
        register(id, "gem_sandbox.env:CodeEnv", **given)
