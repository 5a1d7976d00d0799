"""GEM-core: environments, token-exact rollouts and advantage maths for LLM agents.

Public are the names in `__all__` and those of the modules in docs/api. All other modules, and names
with a leading underscore, are private: they may change in any release.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gem import errors
from gem.core import ContentPart, Env, EnvSpec, Info, Observation, Step, Wrapper
from gem.making import make
from gem.registry import list_envs, register, spec
from gem.version import __version__ as __version__

if TYPE_CHECKING:
    from gem.advantage import TurnTable
    from gem.estimators import Estimator, estimator
    from gem.multi import MultiAgentEnv, MultiStep, make_multi
    from gem.rollout import Budget, ChatFormat, Request, Sample, play_batch
    from gem.rollout.play import play
    from gem.seat import Seat
    from gem.tasks import Task, TaskSet
    from gem.trajectory import TrainingRow, Trajectory, Turn
    from gem.vector import make_vec

# gem-llm, the original GEM, installs the same import name; a mixture of both breaks in odd ways.
if Path(__file__).with_name("envs").joinpath("registration.py").exists():
    raise ImportError(
        "gem-llm (the original GEM) is installed in the same place as gem-core and both are named "
        "'gem'; run: pip uninstall -y gem-llm gem-core && pip install gem-core"
    )

# Imported at their first use: callers that do not use them do not pay for the import of numpy.
_LAZY = {
    "gem.advantage": ("TurnTable",),
    "gem.estimators": ("Estimator", "estimator"),
    "gem.multi": ("MultiAgentEnv", "MultiStep", "make_multi"),
    "gem.rollout": ("Budget", "ChatFormat", "Request", "Sample", "play", "play_batch"),
    "gem.seat": ("Seat",),
    "gem.tasks": ("Task", "TaskSet"),
    "gem.trajectory": ("TrainingRow", "Trajectory", "Turn"),
    "gem.vector": ("make_vec",),
}

__all__ = [
    "Budget",
    "ChatFormat",
    "ContentPart",
    "Env",
    "EnvSpec",
    "Estimator",
    "Info",
    "MultiAgentEnv",
    "MultiStep",
    "Observation",
    "Request",
    "Sample",
    "Seat",
    "Step",
    "Task",
    "TaskSet",
    "TrainingRow",
    "Trajectory",
    "Turn",
    "TurnTable",
    "Wrapper",
    "errors",
    "estimator",
    "list_envs",
    "make",
    "make_multi",
    "make_vec",
    "play",
    "play_batch",
    "register",
    "spec",
]


def __getattr__(name: str) -> Any:
    for module, names in _LAZY.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'gem' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
