"""Attacks on other processes and on the kernel."""

from __future__ import annotations

from gem_sandbox.attacks.base import LIBC

PROCESSES = {
    "see and signal other processes": """
import os, signal
mine = str(os.getpid())
attempt("list", lambda: [p for p in os.listdir("/proc") if p.isdigit() and p != mine] or None)
for pid in ({victim}, os.getppid(), 2, 3, 4, 5):
    if pid not in (0, os.getpid()):
        attempt(f"signal {pid}", lambda: os.kill(pid, 0) is None)
attempt("everyone", lambda: os.kill(-1, 0) is None)
attempt("the user's", lambda: os.kill({victim}, signal.SIGKILL) is None)
parent = os.getppid()
# The first process of a namespace sees no parent; 0 would be its own group, which others try.
attempt("the parent", lambda: parent != 0 and os.kill(parent, signal.SIGKILL) is None)
attempt("priority", lambda: os.setpriority(os.PRIO_PROCESS, 0, -5) is None)
""",
    "trace and read other processes": LIBC
    + """
for pid in ({victim}, os.getppid(), 2, 3):
    if pid not in (0, os.getpid()):
        attempt(f"attach {pid}", lambda: libc.ptrace(16, pid, 0, 0) == 0)
        attempt(f"memory {pid}", lambda: open(f"/proc/{pid}/mem", "rb"))
        attempt(f"descriptors {pid}", lambda: os.listdir(f"/proc/{pid}/fd"))
        call(f"read {pid}", 310, pid, 0, 0, 0, 0, 0)
call("trace me", 101, 0, 0, 0, 0)
""",
    "change the kernel through /proc and /sys": """
import os
for path in ["/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sysrq-trigger",
             "/proc/1/oom_score_adj_", "/sys/kernel/uevent_helper", "/sys/fs/cgroup/cgroup.procs",
             "/proc/self/uid_map", "/proc/self/setgroups"]:
    attempt(path, lambda: os.open(path, os.O_WRONLY) if "self" not in path else
            os.write(os.open(path, os.O_WRONLY), b"0 0 1" if "uid" in path else b"allow"))
for path in ["/proc/kcore", "/proc/kallsyms", "/proc/cmdline", "/proc/mounts_", "/sys/class"]:
    attempt(path, lambda: os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(9))
""",
    "make namespaces and mounts": LIBC
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
    "use rare system calls": LIBC
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
}
