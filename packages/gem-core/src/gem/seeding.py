"""Derives random generators from explicit integers; never reads or seeds a global generator."""

from __future__ import annotations

import random
from hashlib import blake2b
from operator import index as integer


def _digest(key: tuple[int, ...]) -> int:
    # `repr` separates (1, 23) from (12, 3) and works for integers of any size and sign. That of an
    # integer of NumPy is another text.
    text = repr(tuple(int(integer(each)) for each in key))
    return int.from_bytes(blake2b(text.encode(), digest_size=16).digest(), "big")


def stream(*key: int) -> random.Random:
    """Return a generator that depends on the integers of `key` and on nothing else.

    Equal keys give equal streams in every process and Python version. Different keys give
    practically independent streams (128-bit hash of the key).

    Raises:
        TypeError: A part of the key is not an integer.
    """
    return random.Random(_digest(key))


def env_seed(seed: int, index: int) -> int:
    """Return the seed of environment `index` in a vector that was seeded with `seed`.

    A hash instead of `seed + index`, so that vectors with consecutive seeds share no episodes.
    """
    return _digest((seed, index)) >> 65  # 63 bits: fits every signed 64-bit column
