"""Hydra imports this in every process of a program that uses it; only RL2's trainer is of interest.

Nothing is imported elsewhere, so that other programs of the environment pay nothing.
"""

import sys

_program = sys.modules["__main__"]
if getattr(getattr(_program, "__spec__", None), "name", None) == "RL2.trainer.ppo":
    from gem_rl2.hook import install

    install(_program)
