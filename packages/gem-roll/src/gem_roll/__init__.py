"""GEM in ROLL's agentic pipeline: environments, token-exact episodes and turn-level advantages.

ROLL's launcher stays what it is, `examples/start_agentic_pipeline.py`, and so do its keys. Two
dotted paths in its YAML switch GEM on:

    pipeline_cls: gem_roll.pipeline.GemAgenticPipeline
    custom_envs:
      guess:
        env_manager_cls: gem_roll.env_manager.GemEnvManager

See docs/roll.md.
"""

from gem_roll.version import SUPPORTED_ROLL, __version__

__all__ = ["SUPPORTED_ROLL", "__version__"]
