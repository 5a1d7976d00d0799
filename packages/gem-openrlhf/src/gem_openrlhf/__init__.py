"""GEM in OpenRLHF: environments, multi-turn rollouts and turn-level advantages.

OpenRLHF's launcher stays what it is, `python -m openrlhf.cli.train_ppo_ray`. An agent file says
how episodes are played, and is given to it with `--train.agent_func_path`:

    from gem_openrlhf import GemAgentExecutor, Settings

    class AgentExecutor(GemAgentExecutor):
        settings = Settings(advantage="rebn", turn_tokens=512)

See docs/openrlhf.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gem_openrlhf.settings import Settings
from gem_openrlhf.version import SUPPORTED_OPENRLHF, TRAINER, __version__, check_openrlhf
from gem_train.imports import lazy

if TYPE_CHECKING:
    from gem_openrlhf.rollout import GemAgentExecutor

__all__ = [
    "SUPPORTED_OPENRLHF",
    "TRAINER",
    "GemAgentExecutor",
    "Settings",
    "__version__",
    "check_openrlhf",
]

# Needs OpenRLHF, which hooks and dataset tools must not import.
__getattr__ = lazy(__name__, {"GemAgentExecutor": "rollout"})
