"""Attacks on other programs: earlier, concurrent and later ones."""

from __future__ import annotations

from typing import Any

from gem_sandbox.attacks.base import CROWD, CROWD_PROGRAM, LIBC, SMALL, Attack

_POISON_PROBE = """
import builtins, glob, json, os, sys
names = os.listdir("/tmp") + os.listdir("/dev/shm")
attempt("files", lambda: [name for name in names if name != "program.py"] or None)
attempt("builtins", lambda: hasattr(builtins, "poison") or builtins.len([1]) != 1)
attempt("module", lambda: json.loads("1") != 1 or hasattr(sys, "poison") or "poison" in sys.modules)
attempt("variable", lambda: "POISON" in os.environ)
attempt("path", lambda: "/tmp/poison" in sys.path or sys.path.count("/tmp") > 1)
attempt("hook", lambda: sys.meta_path and any("poison" in repr(f) for f in sys.meta_path))
"""
_POISON = """
import builtins, json, os, sys, types
for path in ["/tmp/sitecustomize.py", "/tmp/json.py", "/dev/shm/x", "/tmp/.pth"]:
    try: open(path, "w").write("poison = 1")
    except OSError: pass
builtins.poison = 1; builtins.len = lambda x: 7; json.loads = lambda x: 0; sys.poison = 1
sys.modules["poison"] = types.ModuleType("poison"); os.environ["POISON"] = "1"
sys.path[:0] = ["/tmp/poison", "/tmp"]
class poison: pass
sys.meta_path.insert(0, poison)
os.umask(0o777); os.chdir("/")
try: os.setpriority(os.PRIO_PROCESS, 0, 19)
except OSError: pass
"""

_LINKS = """
import json, os
inside = "/sandbox/inside/"
for target in (inside + "server.py", inside + "session.py", json.__file__, "/dev/zero"):
    for name in ("program.py", "program-2.py", "program-3.py", "json.py"):
        try: os.symlink(target, "/tmp/" + name)
        except OSError: pass
for kind in (os.mkfifo, os.mkdir):
    for number in range(4, 9):
        try: kind(f"/tmp/program-{number}.py")
        except OSError: pass
"""
_FORGE = """
import os, socket, struct
messages = [b"?", b".", b"", struct.pack("=iI", 0, 9), struct.pack("=id6sI", 0, 0.0, b"", 9),
            struct.pack("=i", -1), struct.pack("=i", 1), b"x" * 60000]
for descriptor in range(3, 256):
    for message in messages:
        try:
            os.set_blocking(descriptor, False)
            os.write(descriptor, message)
        except OSError: pass
    try: link = socket.socket(fileno=os.dup(descriptor))
    except (OSError, ValueError): continue
    for _ in range(5):
        try: socket.send_fds(link, [struct.pack("=i", 2)], [descriptor] * 200, socket.MSG_DONTWAIT)
        except OSError: pass
    attempt("message", lambda: link.recv(999, socket.MSG_DONTWAIT) or None)
"""
# A program can reach the objects on the stack below it; their sockets must be closed.
_WAITING = """
import _socket, gc, os, struct, sys
def things():
    frame = sys._getframe()
    while frame:
        for thing in frame.f_locals.values():
            yield thing
            yield from getattr(thing, "__dict__", {}).values()
        frame = frame.f_back
    yield from gc.get_objects()
links = [thing for thing in things() if isinstance(thing, _socket.socket)]
print("found", len(links), "sockets")
for link in links:
    attempt("descriptor", lambda: os.fstat(link.fileno()))
    attempt("request", lambda: link.recv(999, _socket.MSG_DONTWAIT))
    for number in range(64):
        attempt("word", lambda: link.send(struct.pack("=IddI", number, 0.0, 1e9, 1 << 20)))
"""
_DAEMON = """
import time
libc.prctl(15, b"{mark}", 0, 0, 0)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(60)
    os._exit(0)
"""
# A program in the sandbox's process group could kill the whole sandbox.
_SIGNALS = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for number in (signal.SIGTERM, signal.SIGKILL):
    for target in (0, -1, *range(1, 400)):
        if target != os.getpid():
            for send in (os.kill, os.killpg) if target > 0 else (os.kill,):
                try: send(target, number)
                except OSError: pass
"""
# Without /proc/self/maps, write() to a pipe shows what is mapped: it fails for other addresses.
_MEMORY = """
import gc
size, word = 4096, b"{drow}"[::-1]
reading, writing = os.pipe()
os.set_blocking(writing, False)
libc.write.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
def page(address):
    return os.read(reading, size) if libc.write(writing, address, size) == size else b""
def look(bounds):
    for address in range(*bounds, size):
        # A page with many: the copies of this program's own variable are alone.
        if page(address).count(word) > 8:
            return hex(address)
def around(address):
    # The stretch of mapped pages, 64 MB of it at most.
    first = last = address // size * size
    while first > address - (32 << 20) and page(first - size): first -= size
    while last < address + (32 << 20) and page(last): last += size
    return first, last
try:
    lines = [line.split()[:2] for line in open("/proc/self/maps") if "[v" not in line]
    stretches = [[int(bound, 16) for bound in bounds.split("-")] for bounds, rights in lines
                 if "w" in rights]
except OSError:
    places = [id(object()), id(None), id([0] * 10000), id("x" * 10**6), id(os.__dict__),
              ctypes.addressof(ctypes.create_string_buffer(100)), id(gc.get_objects()[0]),
              ctypes.cast(libc.malloc, ctypes.c_void_p).value, id(compile("1", "1", "eval"))]
    stretches = {around(place) for place in places}
for bounds in stretches:
    attempt("memory at " + str(bounds), lambda: look(bounds))
print("looked at", sum(last - first for first, last in stretches) >> 20, "MB")
"""
_SEEN = """
import os
seen = [os.path.join(top, name) for top, _, names in os.walk("/tmp") for name in names]
attempt("files", lambda: [path for path in seen if "{drow}"[::-1] in open(path).read()] or None)
attempt("variables", lambda: [name for name in list(globals()) if name == "mine"] or None)
"""
# Has an import, like the attack, so that both are forks of the same server.
_HOLD = "import os\nheld = ['{word}' * 200 + str(i) for i in range(2000)]\nprint(len(str(held)))"


def _other(name: str, program: str, **more: Any) -> Attack:
    return Attack(name, "processes", program, SMALL, **more)


NEIGHBOURS = [
    Attack("find what earlier programs left in memory", "processes", LIBC + _MEMORY, before=_HOLD),
    Attack(
        "find in memory what other sessions hold",
        "processes",
        LIBC + _MEMORY,
        before=_HOLD,
        session=True,
    ),
    _other("live on as a daemon", LIBC + _DAEMON),
    _other("signal every process and group", _SIGNALS),
    _other("reach the next program", _POISON, after=_POISON_PROBE),
    _other("leave links where the next program is put", _LINKS, after=_POISON_PROBE),
    _other("live on after the end of a session", LIBC + _DAEMON, session=True),
    _other("signal other sessions", _SIGNALS, session=True),
    _other("reach other programs from a session", _POISON, after=_POISON_PROBE, session=True),
    _other("speak in place of a session", _FORGE, after=_POISON_PROBE, session=True),
    _other("speak in place of a process that waits for a program", _WAITING, after=_POISON_PROBE),
    _other(
        "leave links where a session puts its next program",
        _LINKS,
        after=_POISON_PROBE,
        session=True,
        further="print(1)",
    ),
    _other("read what other sessions have", _SEEN, session=True),
    Attack(
        "take memory in many processes of a session",
        "limits",
        CROWD_PROGRAM.replace("        break", "        os.setsid()\n        break"),
        CROWD,
        limit_hit="memory",
        session=True,
    ),
]
