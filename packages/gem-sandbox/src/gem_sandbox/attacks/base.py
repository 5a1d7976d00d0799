"""The type `Attack`, and helpers that attack programs share as source text."""

from __future__ import annotations

from dataclasses import dataclass, field

from gem_sandbox.base import Limits


@dataclass(frozen=True)
class Attack:
    """A program that tries one way to break out."""

    name: str
    isolation: str
    """What it tests: a label of `Runner.isolates`, or `limits`."""
    program: str
    limits: Limits = field(default_factory=lambda: Limits(cpu_s=5.0, memory_mb=256))
    before: str = ""
    """A harmless program run before; `program` looks for traces of it."""
    after: str = ""
    """A program run next; prints `GOT` if `program` could influence it."""
    limit_hit: str | None = None
    """The limit that must end `program`."""
    session: bool = False
    """Whether `program` runs in a session, which is then closed; `after` runs outside of it."""
    further: str = ""
    """The session's next program, run before and after the session restores a snapshot."""


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
SMALL = Limits(cpu_s=3.0, memory_mb=128, disk_mb=8, processes=16, output_bytes=65536)
CROWD = Limits(cpu_s=20.0, memory_mb=128, disk_mb=8, processes=16)
"""Long enough that even on a busy machine many processes reach the memory limit first."""
CROWD_PROGRAM = """
import os, time
for _ in range(6):
    if os.fork() == 0:
        break
taken = bytearray(60 << 20)
time.sleep(60)
"""
