"""ROLL's environment worker with gem-llm's names: named as `train_env_manager.worker_cls`.

Needed only where ROLL's own environment managers play; see `gem_roll.legacy`.
"""

from gem_roll import legacy

# Before anything of ROLL is imported in the worker's process.
legacy.install()

from roll.pipeline.agentic.environment_worker import EnvironmentWorker  # noqa: E402


class LegacyEnvironmentWorker(EnvironmentWorker):  # type: ignore[misc]
    """`EnvironmentWorker`, in whose process ROLL finds the names that it imports of gem-llm."""
