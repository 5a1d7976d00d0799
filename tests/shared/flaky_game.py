"""An environment that fails with some seeds, as source for a trainer's processes."""

from __future__ import annotations

ID = "test:Flaky-v0"


def source(fails: str) -> str:
    """Return source that registers the environment: GuessTheNumber whose steps may fail.

    Args:
        fails: Whether an episode does, an expression of its `seed`.
    """
    return f"""\
from gem import register
from gem.envs.games.guess_the_number import GuessTheNumber


class Flaky(GuessTheNumber):
    def reset(self, seed=None, **options):
        self.fails = {fails}
        return super().reset(seed, **options)

    def step(self, action):
        if self.fails:
            raise OSError("sandbox gone")
        return super().step(action)


register("{ID}", Flaky)
"""
