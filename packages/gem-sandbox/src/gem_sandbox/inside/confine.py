"""System calls that drop privileges: namespaces, mounts, resource limits, the seccomp filter.

Linux on x86-64 and ARM64. The filter is classic BPF, see seccomp(2): calls that programs do not
need, or that reach beyond their process, fail with EPERM.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import struct

NEWNS = 0x00020000
NEWUSER = 0x10000000
NEWPID = 0x20000000
_ANY_NAMESPACE = 0x7E020000
_LIMITS = [
    getattr(resource, f"RLIMIT_{name}")
    for name in ("AS", "FSIZE", "NPROC", "CPU", "NOFILE", "CORE", "MEMLOCK")
]

_NOSUID, _NODEV, _BIND = 2, 4, 4096
_CLOSE_RANGE = 436
_LAST = 0x7FFFFFFE
_SET_PDEATHSIG, _SET_DUMPABLE, _SET_SECCOMP, _SET_NO_NEW_PRIVS = 1, 4, 22, 38
_SET_SECUREBITS, _NO_SETUID_FIXUP = 28, 4

# By machine, with numbers from the kernel's tables: the audit architecture; the calls refused to
# servers and programs; the calls refused to programs only, which servers need to confine them. The
# last of these is clone, which keeps working without namespace flags.
_COMMON = "425 426 427 428 429 430 431 432 433 438 440 442 443 447"
_CALLS = {
    "x86_64": (
        0xC000003E,
        "29 30 31 41 42 43 49 50 64 65 66 67 68 69 70 71 101 103 134 153 154 155 159 161 163 164 "
        "167 168 169 170 171 172 173 175 176 179 180 212 220 227 240 241 246 248 249 250 279 288 "
        "298 300 303 304 305 310 311 312 313 319 320 321 323",
        "165 166 272 308 56",
    ),
    "aarch64": (
        0xC00000B7,
        "18 41 51 58 60 89 104 105 106 112 116 117 142 161 162 170 171 180 181 186 187 188 189 190 "
        "191 192 193 194 195 196 197 198 200 201 202 203 217 218 219 224 225 239 241 242 262 264 "
        "265 266 270 271 272 273 279 280 282 294",
        "39 40 97 268 220",
    ),
}
_CLONE3 = 435
_EPERM, _ENOSYS = 1, 38

_libc = ctypes.CDLL(None, use_errno=True)
# Resolved once here, not in every fork.
_unshare, _setns, _mount = _libc.unshare, _libc.setns, _libc.mount
_capset, _control, _syscall = _libc.capset, _libc.prctl, _libc.syscall
_mount_flags = ctypes.c_ulong(_NOSUID | _NODEV)
_bind = ctypes.c_ulong(_BIND)
_no_capabilities = struct.pack("Ii", 0x20080522, 0), struct.pack("6I", *[0] * 6)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def unshare(flags: int) -> None:
    """Leave namespaces; raises OSError."""
    _require(_unshare(flags), "unshare")


def rejoin(namespace: int, kind: int) -> None:
    """Return to the namespace of this open file (a PID namespace: for children); raises OSError."""
    _require(_setns(namespace, kind), "setns")


def leave_proc() -> None:
    """Hide /proc in this mount namespace; keep only this process's descriptors, as /dev/fd.

    They belong to this process's current user id. Raises OSError.
    """
    _prctl(_SET_DUMPABLE, 1)
    for source, target in ((b"/proc/self/fd", b"/dev/fd"), (b"/empty", b"/proc")):
        _require(_mount(source, target, None, _bind, None), f"mount {target.decode()}")
    hide()


def private_folder(disk_mb: int) -> None:
    """Mount an empty tmpfs of limited size on /tmp; raises OSError."""
    options = b"size=%dm,nr_inodes=8192,mode=1777" % disk_mb
    _require(_mount(b"tmpfs", b"/tmp", b"tmpfs", _mount_flags, options), "mount /tmp")


def beside(*descriptors: int) -> list[tuple[int, int]]:
    """Return the ranges of descriptors, from 3 on, that leave out the given ones."""
    first, ranges = 3, []
    for descriptor in (*sorted(descriptors), _LAST + 1):
        if first < descriptor:
            ranges.append((first, descriptor - 1))
        first = descriptor + 1
    return ranges


def close_range(first: int, last: int = _LAST) -> None:
    """Close the descriptors from `first` to `last` (default: all from `first` on)."""
    _require(_syscall(_CLOSE_RANGE, first, last, 0), "close_range")


def keep_capabilities() -> None:
    """Let this process and its forks keep their capabilities when they change their user id."""
    _prctl(_SET_SECUREBITS, _NO_SETUID_FIXUP)


def become(uid: int) -> None:
    """Change to an unprivileged user id of this user namespace, irrevocably."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def hide() -> None:
    """Keep processes of the same user from reading this process's memory (not dumpable)."""
    _prctl(_SET_DUMPABLE, 0)


def end_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; a change of user id undoes this.

    Exits if the parent has ended already: the kernel kills only processes that asked before.

    Args:
        parent: A descriptor of the parent (pidfd).
    """
    _prctl(_SET_PDEATHSIG, 9)
    ended = select.poll()
    ended.register(parent, select.POLLIN)
    if ended.poll(0):
        os._exit(1)


def drop_capabilities() -> None:
    """Drop all capabilities and make the process dumpable again; raises OSError."""
    _require(_capset(*_no_capabilities), "capset")
    _prctl(_SET_DUMPABLE, 1)


def limit_thread_stacks(size: int) -> None:
    """Set the size in bytes of the stacks of threads for which the program sets none.

    Otherwise the C library takes 2 MB for them where the main thread's stack has no limit.
    """
    attributes = ctypes.create_string_buffer(256)
    if not _libc.pthread_attr_init(attributes):
        _libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(size))
        _libc.pthread_setattr_default_np(attributes)


def limit_resources(address_space: int, file_size: int, processes: int, cpu_s: int) -> None:
    """Set hard resource limits, in bytes and seconds."""
    values = address_space, file_size, processes, cpu_s, 256, 0, 0
    for which, value in zip(_LIMITS, values, strict=True):
        resource.setrlimit(which, (value, value))


def filters() -> tuple[bytes, bytes]:
    """Return this machine's two filters: one for servers, which programs inherit, and one more for
    programs. Raises OSError on other machines."""
    machine = os.uname().machine
    if machine not in _CALLS or struct.calcsize("P") != 8:
        raise OSError(f"no system call filter for {machine}")
    arch, never, programs = _CALLS[machine]
    *refused, clone = map(int, programs.split())
    return (
        _filter(arch, sorted(map(int, f"{never} {_COMMON}".split()))),
        _filter(arch, refused, clone),
    )


def _filter(arch: int, refused: list[int], clone: int | None = None) -> bytes:
    """Return a filter; given the number of clone, it also refuses clone's namespace flags."""
    load, jump_eq, jump_ge, jump_set, ret = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, refuse, missing, kill = 0x7FFF0000, 0x50000 | _EPERM, 0x50000 | _ENOSYS, 0x80000000
    # Each test jumps forward to the `refuse` instruction near the end of the filter.
    tests = [(jump_ge, 0x40000000), *((jump_eq, number) for number in refused)]
    last = 5 if clone is not None else 1
    code = [(load, 0, 0, 4), (jump_eq, 1, 0, arch), (ret, 0, 0, kill), (load, 0, 0, 0)]
    code += [(how, len(tests) + last - 1 - i, 0, n) for i, (how, n) in enumerate(tests)]
    if clone is not None:
        code += [(jump_eq, 5, 0, _CLONE3), (jump_eq, 0, 2, clone)]
        code += [(load, 0, 0, 16), (jump_set, 1, 0, _ANY_NAMESPACE)]
    code += [(ret, 0, 0, allow), (ret, 0, 0, refuse), (ret, 0, 0, missing)]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in code)


class Filter:
    """A compiled filter."""

    def __init__(self, program: bytes) -> None:
        self._pointer = ctypes.byref(_Program(len(program) // 8, program))

    def install(self) -> None:
        """Install the filter in this process and its descendants; raises OSError."""
        _prctl(_SET_NO_NEW_PRIVS, 1)
        _require(_control(_SET_SECCOMP, 2, self._pointer, 0, 0), "seccomp")


def _prctl(option: int, value: int) -> None:
    _require(_control(option, value, 0, 0, 0), "prctl")


def _require(result: int, what: str) -> None:
    """Raise the error of a system call that failed."""
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")
