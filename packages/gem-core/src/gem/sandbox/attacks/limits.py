"""Attacks on the resource limits."""

from __future__ import annotations

from gem.sandbox.attacks.base import SMALL, Attack
from gem.sandbox.base import Limits

LIMITS = [
    Attack(
        "start processes without end",
        "limits",
        """
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
""",
        SMALL,
    ),
    Attack(
        "start processes that start processes",
        "limits",
        """
import os, time
for _ in range(6):
    try: os.fork()
    except OSError: pass
time.sleep(60)
""",
        SMALL,
        limit_hit="time",
    ),
    Attack(
        "take memory",
        "limits",
        """
taken = []
for _ in range(40):
    taken.append("x" * (10 << 20))
print("GOT memory")
""",
        SMALL,
        limit_hit="memory",
    ),
    Attack(
        "take memory in many processes",
        "limits",
        """
import os, time
for _ in range(6):
    if os.fork() == 0:
        break
taken = bytearray(60 << 20)
time.sleep(60)
""",
        # Long enough that even on a busy machine the memory limit is reached first.
        Limits(wall_s=20.0, memory_mb=128, disk_mb=8, processes=16),
        limit_hit="memory",
    ),
    Attack(
        "fill the disk",
        "limits",
        """
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
""",
        SMALL,
    ),
    Attack(
        "write 100 MB of output",
        "limits",
        "for _ in range(100): print('x' * (1 << 20))",
        SMALL,
        limit_hit="output",
    ),
    Attack(
        "write a descriptor full of zeros",
        "limits",
        "import os\nwhile True: os.write(2, bytes(1 << 16))",
        SMALL,
        limit_hit="output",
    ),
    Attack(
        "ignore the end of its time",
        "limits",
        """
import atexit, os, signal
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
atexit.register(lambda: [None for _ in iter(int, 1)])
while True:
    try:
        while True: pass
    except BaseException: pass
""",
        Limits(wall_s=0.5, memory_mb=128),
        limit_hit="time",
    ),
    Attack(
        "hang at its end",
        "limits",
        """
import atexit, threading, time
atexit.register(time.sleep, 60)
threading.Thread(target=time.sleep, args=(60,)).start()
""",
        Limits(wall_s=0.5, memory_mb=128),
        limit_hit="time",
    ),
    Attack(
        "raise its limits",
        "limits",
        """
import resource
for name in ("AS", "NPROC", "FSIZE", "CPU", "NOFILE"):
    which = getattr(resource, "RLIMIT_" + name)
    attempt(name, lambda: resource.setrlimit(which, (resource.RLIM_INFINITY,) * 2) is None)
""",
        SMALL,
    ),
]
