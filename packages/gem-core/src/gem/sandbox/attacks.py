"""Programs that try to get out of a sandbox, each of which says what it got.

A program prints `GOT` and what, and nothing like it when it got nothing. In it, `{secret}` is the
path of a file of the user and `{home}` their folder, `{word}` what stands in it, in a variable of
the environment and in earlier programs, `{drow}` the same backwards, `{port}` and `{abstract}`
where the host listens, `{victim}` a process of the user.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from gem.sandbox.base import Limits


@dataclass(frozen=True)
class Attack:
    """A program that tries one way out."""

    name: str
    isolation: str
    """The label that it tests: `files`, `network`, `processes`; or `limits`."""
    program: str
    limits: Limits = field(default_factory=lambda: Limits(wall_s=5.0, memory_mb=256))
    after: str = ""
    """A program that runs next and prints `GOT` when the first one has reached it."""
    limit_hit: str | None = None
    """The limit that must end it."""


_TRY = """
def attempt(what, action):
    try:
        value = action()
    except BaseException:
        return
    if value is not None and value is not False:
        print("GOT", what, str(value)[:80], flush=True)
"""
_LIBC = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def call(what, *arguments):
    attempt(what, lambda: libc.syscall(*map(ctypes.c_long, arguments)) >= 0)
"""
_SMALL = Limits(wall_s=3.0, memory_mb=128, disk_mb=8, processes=16, output_bytes=65536)

_FILES = [
    (
        "read the user's and the system's files",
        """
import glob, os
for path in ["{secret}", "/etc/passwd", "/etc/shadow", "/etc/hostname", "{home}/.bashrc"]:
    attempt(path, lambda: open(path).read(1) or None)
for pattern in ["{home}/*", "{home}/../*", "/var/*", "/run/*", "/mnt/*", "/srv/*"]:
    attempt(pattern, lambda: glob.glob(pattern) or None)
""",
    ),
    (
        "read files through links and parents",
        """
import os
for number, target in enumerate(["{secret}", "/proc/1/root{secret}", "/proc/self/root{secret}",
                                 "/proc/1/cwd/../../../..{secret}", "../" * 20 + "{secret}"]):
    attempt(target, lambda: open(target).read(1))
    def follow():
        os.symlink(target, f"/tmp/link{number}")
        return open(f"/tmp/link{number}").read(1)
    attempt("link to " + target, follow)
    def hard():
        os.link(target, f"/tmp/hard{number}")
        return open(f"/tmp/hard{number}").read(1)
    attempt("hard link", hard)
""",
    ),
    (
        "write outside the temporary folder",
        """
import json, os, sys
folders = {os.path.dirname(json.__file__), *sys.path, "/", "/etc", "/usr", "/usr/lib", "/dev",
           "/gem", "/gem/inside", "/python", "/packages", "/packages/0", "{home}"}
for folder in folders - {""}:
    if not folder.startswith("/tmp"):
        attempt("file in " + folder, lambda: open(folder + "/sitecustomize.py", "w").write("x"))
for name in ["json", "os"]:
    attempt("module " + name, lambda: open(sys.modules[name].__file__, "a").write("#"))
attempt("chmod", lambda: os.chmod("/usr", 0o777) is None)
attempt("remove", lambda: os.rename("/usr", "/usr2") is None)
""",
    ),
    (
        "open devices",
        """
import os, stat
for name in "mem kmem kmsg sda vda nvme0n1 kvm fuse vsock net/tun ptmx".split():
    attempt(name, lambda: os.open("/dev/" + name, os.O_RDONLY))
for kind, number in ((stat.S_IFCHR, (1, 1)), (stat.S_IFBLK, (254, 0)), (stat.S_IFBLK, (8, 0))):
    def make():
        os.mknod("/tmp/node", kind | 0o600, os.makedev(*number))
        return os.open("/tmp/node", os.O_RDONLY)
    attempt(f"node {kind} {number}", make)
""",
    ),
    (
        "use descriptors that were left open",
        """
import os
for descriptor in range(3, 4096):
    attempt(f"descriptor {descriptor}", lambda: os.fstat(descriptor))
""",
    ),
    (
        "read the user's environment",
        """
import glob, os
attempt("variable", lambda: [name for name in os.environ if "{word}" in os.environ[name]] or None)
for path in glob.glob("/proc/*/environ") + glob.glob("/proc/*/task/*/environ"):
    attempt(path, lambda: b"{word}" in open(path, "rb").read())
""",
    ),
    (
        "become root through setuid programs",
        """
import os, stat, subprocess
for folder in ["/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/lib", "/usr/local/bin"]:
    for top, folders, names in os.walk(folder):
        folders[:] = folders[:5]
        for name in names[:300]:
            path = os.path.join(top, name)
            if os.path.isfile(path) and os.stat(path).st_mode & stat.S_ISUID:
                run = lambda: subprocess.run([path], capture_output=True, timeout=1, input=b"")
                attempt(path, lambda: run().returncode == 0 and "ran")
for uid in (0, 1, 1000):
    attempt(f"setuid {uid}", lambda: os.setuid(uid) is None)
""",
    ),
    (
        "get at modules through the object graph",
        """
import gc
def classes():
    seen = [object]
    for kind in seen:
        seen.extend(sub for sub in type.__subclasses__(kind) if sub not in seen)
        if len(seen) > 5000: break
    return seen
for kind in classes():
    scope = getattr(getattr(kind, "__init__", None), "__globals__", {})
    for name in ("sys", "os", "linecache", "io"):
        module = scope.get(name)
        opener = getattr(getattr(module, "modules", {}).get("io", module), "open", None)
        if opener:
            attempt("object graph", lambda: opener("{secret}").read(1))
attempt("loader", lambda: __loader__.get_data("{secret}"))
attempt("license", lambda: type(license)("", "{secret}", [], [""])._Printer__filenames and
        open("{secret}").read())
""",
    ),
    (
        "escape from a restricted interpreter without imports",
        """
for text in ["open('{secret}').read()", "__import__('os').listdir('{home}')",
             "__builtins__['open']('{secret}').read()", "(lambda: 0).__globals__['__builtins__']"
             ".open('{secret}').read()", "[].__class__.__base__.__subclasses__()[0]"
             ".__init__.__globals__['os'].listdir('{home}')",
             "print.__self__.open('{secret}').read()",
             "(lambda f: f.__code__.replace(co_code=b'x'))(lambda: 0) and open('{secret}').read()",
             "help.__class__.__call__.__globals__['sys'].modules['os'].listdir('{home}')"]:
    attempt(text, lambda: eval(text))
""",
    ),
]

_NETWORK = [
    (
        "connect to the host and to the world",
        """
import socket
for host, port in [("127.0.0.1", {port}), ("localhost", {port}), ("169.254.169.254", 80)]:
    attempt(host, lambda: socket.create_connection((host, port), 1))
udp = lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
attempt("udp", lambda: udp().sendto(b"x", ("127.0.0.1", {port})))
""",
    ),
    (
        "listen",
        """
import socket
def listen():
    server = socket.socket(); server.bind(("0.0.0.0", 0)); server.listen(); return server
attempt("listen", listen)
""",
    ),
    (
        "resolve names",
        """
import socket
attempt("name", lambda: socket.getaddrinfo("example.com", 80))
""",
    ),
    (
        "reach sockets that are no network",
        """
import socket
def connect(family, address, kind=socket.SOCK_STREAM):
    link = socket.socket(family, kind); link.settimeout(1); link.connect(address); return link
attempt("abstract", lambda: connect(socket.AF_UNIX, "\\0{abstract}"))
for path in ["/run/systemd/private", "/var/run/docker.sock", "/run/dbus/system_bus_socket"]:
    attempt(path, lambda: connect(socket.AF_UNIX, path))
attempt("vsock", lambda: connect(40, (2, 1024)))
attempt("netlink", lambda: socket.socket(16, socket.SOCK_RAW, 0))
attempt("packet", lambda: socket.socket(17, socket.SOCK_RAW, 0))
left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
attempt("bind of a pair", lambda: left.bind("\\0name") is None)
attempt("sendto from a pair", lambda: left.sendto(b"x", "\\0{abstract}"))
""",
    ),
]

_PROCESSES = [
    (
        "see and signal other processes",
        """
import os, signal
mine = str(os.getpid())
attempt("list", lambda: [p for p in os.listdir("/proc") if p.isdigit() and p != mine] or None)
for pid in ({victim}, os.getppid(), 2, 3, 4, 5):
    if pid not in (0, os.getpid()):
        attempt(f"signal {pid}", lambda: os.kill(pid, 0) is None)
attempt("everyone", lambda: os.kill(-1, 0) is None)
attempt("the user's", lambda: os.kill({victim}, signal.SIGKILL) is None)
parent = os.getppid()
attempt("the parent", lambda: parent != 0 and os.kill(parent, signal.SIGKILL) is None)
attempt("priority", lambda: os.setpriority(os.PRIO_PROCESS, 0, -5) is None)
""",
    ),
    (
        "trace and read other processes",
        _LIBC
        + """
for pid in ({victim}, os.getppid(), 2, 3):
    if pid not in (0, os.getpid()):
        attempt(f"attach {pid}", lambda: libc.ptrace(16, pid, 0, 0) == 0)
        attempt(f"memory {pid}", lambda: open(f"/proc/{pid}/mem", "rb"))
        attempt(f"descriptors {pid}", lambda: os.listdir(f"/proc/{pid}/fd"))
        call(f"read {pid}", 310, pid, 0, 0, 0, 0, 0)
call("trace me", 101, 0, 0, 0, 0)
""",
    ),
    (
        "change the kernel through /proc and /sys",
        """
import os
for path in ["/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sysrq-trigger",
             "/proc/1/oom_score_adj_", "/sys/kernel/uevent_helper", "/sys/fs/cgroup/cgroup.procs",
             "/proc/self/uid_map", "/proc/self/setgroups"]:
    attempt(path, lambda: os.open(path, os.O_WRONLY) if "self" not in path else
            os.write(os.open(path, os.O_WRONLY), b"0 0 1" if "uid" in path else b"allow"))
for path in ["/proc/kcore", "/proc/kallsyms", "/proc/cmdline", "/proc/mounts_", "/sys/class"]:
    attempt(path, lambda: os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(9))
""",
    ),
    (
        "make namespaces and mounts",
        _LIBC
        + """
flags = {"user": 0x10000000, "mount": 0x20000, "pid": 0x20000000, "net": 0x40000000}
for name, flag in flags.items():
    attempt("unshare " + name, lambda: libc.unshare(flag) == 0)
    attempt("clone " + name, lambda: libc.syscall(56, flag | 17, 0, 0, 0, 0) > 0)
attempt("mount", lambda: libc.mount(b"none", b"/tmp", b"tmpfs", 0, b"") == 0)
attempt("bind", lambda: libc.mount(b"/usr", b"/tmp", None, 4096, None) == 0)
attempt("unmount", lambda: libc.umount2(b"/tmp", 2) == 0 or libc.umount2(b"/proc", 2) == 0)
attempt("chroot", lambda: os.chroot("/tmp") is None)
""",
    ),
    (
        "use rare system calls",
        _LIBC
        + """
room = ctypes.create_string_buffer(200)
at = ctypes.addressof(room)
calls = [("io_uring", 425, 8, at), ("bpf", 321, 0, 0, 0), ("perf", 298, 0, 0, -1, -1, 0),
         ("keyctl", 250, 0, -3, 1), ("userfaultfd", 323, 1), ("memfd", 319, at, 0),
         ("shm", 29, 0, 4096, 0o1600), ("queue", 68, 0, 0o1600), ("fanotify", 300, 0, 0),
         ("open_tree", 428, -100, at, 0x1000), ("memfd_secret", 447, 0), ("iopl", 172, 3)]
for name, *arguments in calls:
    call(name, *arguments)
    call("x32 " + name, arguments[0] + 0x40000000, *arguments[1:])
""",
    ),
    (
        "find what earlier programs left in memory",
        """
for line in open("/proc/self/maps"):
    bounds, rights = line.split()[:2]
    if "w" in rights and "[v" not in line:
        first, last = (int(bound, 16) for bound in bounds.split("-"))
        def look():
            with open("/proc/self/mem", "rb") as memory:
                memory.seek(first)
                return memory.read(last - first)[::-1].find(b"{drow}") >= 0
        attempt(bounds, look)
""",
    ),
]

_POISON_PROBE = """
import builtins, glob, json, os, sys
names = os.listdir("/tmp") + os.listdir("/dev/shm")
attempt("files", lambda: [name for name in names if name != "program.py"] or None)
attempt("builtins", lambda: hasattr(builtins, "poison") or builtins.len([1]) != 1)
attempt("module", lambda: json.loads("1") != 1 or hasattr(sys, "poison") or "poison" in sys.modules)
attempt("variable", lambda: "POISON" in os.environ)
attempt("path", lambda: "/tmp" in sys.path)
attempt("hook", lambda: sys.meta_path and any("poison" in repr(f) for f in sys.meta_path))
"""
_POISON = """
import builtins, json, os, sys, types
for path in ["/tmp/sitecustomize.py", "/tmp/json.py", "/dev/shm/x", "/tmp/.pth"]:
    try: open(path, "w").write("poison = 1")
    except OSError: pass
builtins.poison = 1; builtins.len = lambda x: 7; json.loads = lambda x: 0; sys.poison = 1
sys.modules["poison"] = types.ModuleType("poison"); os.environ["POISON"] = "1"
sys.path.insert(0, "/tmp")
class poison: pass
sys.meta_path.insert(0, poison)
os.umask(0o777); os.chdir("/")
try: os.setpriority(os.PRIO_PROCESS, 0, 19)
except OSError: pass
"""

_LIMITS = [
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
        _SMALL,
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
        _SMALL,
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
        _SMALL,
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
        # Long enough for a busy machine to hand out the memory; the limit comes first.
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
        _SMALL,
    ),
    Attack(
        "write 100 MB of output",
        "limits",
        "for _ in range(100): print('x' * (1 << 20))",
        _SMALL,
        limit_hit="output",
    ),
    Attack(
        "write a descriptor full of zeros",
        "limits",
        "import os\nwhile True: os.write(2, bytes(1 << 16))",
        _SMALL,
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
        _SMALL,
    ),
    Attack(
        "live on as a daemon",
        "processes",
        """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(60)
    os._exit(0)
""",
        _SMALL,
        after="""
import os
attempt("daemon", lambda: os.kill(-1, 0) is None)
""",
    ),
    Attack("reach the next program", "processes", _POISON, _SMALL, after=_POISON_PROBE),
]

ATTACKS: list[Attack] = [
    *(Attack(name, "files", _TRY + program) for name, program in _FILES),
    *(Attack(name, "network", _TRY + program) for name, program in _NETWORK),
    *(Attack(name, "processes", _TRY + program) for name, program in _PROCESSES),
    *(
        replace(attack, program=_TRY + attack.program, after=attack.after and _TRY + attack.after)
        for attack in _LIMITS
    ),
]
"""Bounded: where one succeeds, it takes some hundred MB or some dozen processes at most."""
