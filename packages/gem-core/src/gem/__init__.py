"""GEM-core: environments, token-exact rollouts and advantage maths for LLM agents."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from gem import errors, moved
from gem.core import ContentPart, Env, EnvSpec, Info, Observation, Step, Wrapper
from gem.making import make
from gem.registry import list_envs, register, spec
from gem.version import __version__ as __version__

if TYPE_CHECKING:
    from gem.vector import make_vec

# gem-llm, the original GEM, installs the same import name; a mixture of both breaks in odd ways.
if Path(__file__).with_name("envs").joinpath("registration.py").exists():
    raise ImportError(
        "gem-llm (the original GEM) is installed in the same place as gem-core and both are named "
        "'gem'; run: pip uninstall -y gem-llm gem-core && pip install gem-core"
    )

moved.install()

__all__ = [
    "ContentPart",
    "Env",
    "EnvSpec",
    "Info",
    "Observation",
    "Step",
    "Wrapper",
    "errors",
    "list_envs",
    "make",
    "make_vec",
    "register",
    "spec",
]


def __getattr__(name: str) -> Any:
    # Vector environments return numpy arrays; callers that do not use them do not pay its import.
    if name == "make_vec":
        from gem.vector import make_vec

        return make_vec
    raise moved.missing("gem", name)
