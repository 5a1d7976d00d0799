"""RL2's env file: `rollout.env_path=$(python -m gem_rl2 env-path)`.

A file of one's own may be used instead, to register environments for instance; it must import
`generate` from here.
"""

from gem_rl2.rollout import generate

__all__ = ["generate"]
