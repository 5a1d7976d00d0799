"""A module of PettingZoo with a parallel game."""

from plain_envs import Same


def parallel_env() -> Same:
    """As the modules of PettingZoo have it."""
    return Same()
