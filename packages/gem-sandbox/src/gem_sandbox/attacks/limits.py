"""Attacks on the resource limits."""

from __future__ import annotations

from gem_sandbox.attacks.base import CROWD, CROWD_PROGRAM, SMALL, Attack
from gem_sandbox.base import Limits

_FORKS = """
import os, time
started = 0
for _ in range(60):
    try:
        if os.fork() == 0:
            time.sleep(60); os._exit(0)
        started += 1
    except OSError:
        break
if started > 16:
    print("GOT processes", started)
"""
_DOUBLING = """
import os, time
for _ in range(6):
    try: os.fork()
    except OSError: pass
time.sleep(60)
"""
_MEMORY = """
taken = []
for _ in range(40):
    taken.append("x" * (10 << 20))
print("GOT memory")
"""
_DISK = """
import os
written = 0
for number in range(40):
    for folder in ("/tmp", "/dev/shm", "."):
        try:
            with open(f"{folder}/file{number}{len(folder)}", "wb") as file:
                written += file.write(b"x" * (1 << 20))
        except OSError: pass
files = 0
try:
    for number in range(20000):
        open(f"/tmp/empty{number}", "w").close(); files += 1
except OSError: pass
if written > 9 << 20 or files >= 20000: print("GOT disk", written, files)
"""
_IGNORE = """
import atexit, os, signal
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
atexit.register(lambda: [None for _ in iter(int, 1)])
while True:
    try:
        while True: pass
    except BaseException: pass
"""
_HANG = """
import atexit, threading, time
atexit.register(time.sleep, 60)
threading.Thread(target=time.sleep, args=(60,)).start()
"""
_RAISE = """
import resource
for name in ("AS", "NPROC", "FSIZE", "CPU", "NOFILE"):
    which = getattr(resource, "RLIMIT_" + name)
    attempt(name, lambda: resource.setrlimit(which, (resource.RLIM_INFINITY,) * 2) is None)
"""
_BRIEF = Limits(cpu_s=0.5, memory_mb=128)


def _limit(name: str, program: str, limit_hit: str | None = None, limits: Limits = SMALL) -> Attack:
    return Attack(name, "limits", program, limits, limit_hit=limit_hit)


LIMITS = [
    _limit("start processes without end", _FORKS),
    _limit("start processes that start processes", _DOUBLING, "time"),
    _limit("take memory", _MEMORY, "memory"),
    _limit("take memory in many processes", CROWD_PROGRAM, "memory", CROWD),
    _limit("fill the disk", _DISK),
    _limit("write 100 MB of output", "for _ in range(100): print('x' * (1 << 20))", "output"),
    _limit(
        "write a descriptor full of zeros",
        "import os\nwhile True: os.write(2, bytes(1 << 16))",
        "output",
    ),
    _limit("ignore the end of its time", _IGNORE, "time", _BRIEF),
    _limit("hang at its end", _HANG, "time", _BRIEF),
    _limit("raise its limits", _RAISE),
]
