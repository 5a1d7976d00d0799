"""What an attack is, and what their programs have in common."""

from __future__ import annotations

from dataclasses import dataclass, field

from gem.sandbox.base import Limits


@dataclass(frozen=True)
class Attack:
    """A program that tries one way out."""

    name: str
    isolation: str
    """The label that it tests: `files`, `network`, `processes`; or `limits`."""
    program: str
    limits: Limits = field(default_factory=lambda: Limits(wall_s=5.0, memory_mb=256))
    before: str = ""
    """A program that runs first, and leaves nothing, it is hoped."""
    after: str = ""
    """A program that runs next and prints `GOT` when the first one has reached it."""
    limit_hit: str | None = None
    """The limit that must end it."""
    session: bool = False
    """Whether the program runs in a session, which is then closed; `after` runs outside of it."""
    further: str = ""
    """The next programs of that session, before and after it goes back to a snapshot."""


TRY = """
def attempt(what, action):
    try:
        value = action()
    except BaseException:
        return
    if value is not None and value is not False:
        print("GOT", what, str(value)[:80], flush=True)
"""
LIBC = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def call(what, *arguments):
    attempt(what, lambda: libc.syscall(*map(ctypes.c_long, arguments)) >= 0)
"""
SMALL = Limits(wall_s=3.0, memory_mb=128, disk_mb=8, processes=16, output_bytes=65536)
