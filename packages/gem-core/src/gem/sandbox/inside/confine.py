"""System calls that take rights away: namespaces, mounts, resource limits, the system call filter.

Linux on x86-64 and ARM64. The filter is classic BPF as in seccomp(2): what a program has no use for
and what reaches beyond its process is refused with EPERM.
"""

from __future__ import annotations

import ctypes
import os
import resource
import struct

NEWNS = 0x00020000
NEWUSER = 0x10000000
NEWPID = 0x20000000
_ANY_NAMESPACE = 0x7E020000

_NOSUID, _NODEV = 2, 4
_CLOSE_RANGE = 436
_SET_DUMPABLE, _SET_SECCOMP, _SET_NO_NEW_PRIVS = 4, 22, 38

# Numbers of the calls that are refused, by machine; from the kernel's tables. The first group is
# refused to servers, too; they need the second, with clone at its end, to confine programs.
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


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def unshare(flags: int) -> None:
    """Leave namespaces; raises OSError."""
    _checked("unshare", _libc.unshare(flags))


def rejoin(namespace: int, kind: int) -> None:
    """Have children begin in the namespace of this open file again; raises OSError."""
    _checked("setns", _libc.setns(namespace, kind))


def leave_proc() -> int:
    """Take /proc away from this process and all below it; return a descriptor of it."""
    descriptor = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    _checked("unmount /proc", _libc.umount2(b"/proc", 2))
    return descriptor


def private_folder(disk_mb: int) -> None:
    """Put an empty folder of limited size over /tmp; raises OSError."""
    options = f"size={disk_mb}m,nr_inodes=8192,mode=1777".encode()
    flags = ctypes.c_ulong(_NOSUID | _NODEV)
    _checked("mount", _libc.mount(b"tmpfs", b"/tmp", b"tmpfs", flags, options))


def close_from(descriptor: int) -> None:
    """Close a descriptor and all above it."""
    _checked("close_range", _libc.syscall(_CLOSE_RANGE, descriptor, 0x7FFFFFFF, 0))


def become(uid: int) -> None:
    """Take on an unprivileged user id of this user namespace for good."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def hide() -> None:
    """Keep the memory of this process from others of the same user."""
    _prctl(_SET_DUMPABLE, 0)


def drop_capabilities() -> None:
    """Give up all capabilities; the process may look at itself again. Raises OSError."""
    header = struct.pack("Ii", 0x20080522, 0)
    _checked("capset", _libc.capset(header, struct.pack("6I", *[0] * 6)))
    _prctl(_SET_DUMPABLE, 1)


def limit_resources(address_space: int, file_size: int, processes: int, cpu_s: int) -> None:
    """Set limits, in bytes and seconds, that cannot be raised again."""
    limits = {
        resource.RLIMIT_AS: address_space,
        resource.RLIMIT_FSIZE: file_size,
        resource.RLIMIT_NPROC: processes,
        resource.RLIMIT_CPU: cpu_s,
        resource.RLIMIT_NOFILE: 256,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
    }
    for which, value in limits.items():
        resource.setrlimit(which, (value, value))


def filters() -> tuple[bytes, bytes]:
    """Return the filters of this machine: one for servers, which their programs inherit, and one
    more for programs; raises OSError where there is none."""
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
    """Return a filter; with the number of clone, one that also refuses to make namespaces."""
    load, jump_eq, jump_ge, jump_set, ret = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, refuse, missing, kill = 0x7FFF0000, 0x50000 | _EPERM, 0x50000 | _ENOSYS, 0x80000000
    # Refused at the end of the program; i instructions later is as far as that is from test i.
    tests = [(jump_ge, 0x40000000), *((jump_eq, number) for number in refused)]
    last = 5 if clone is not None else 1
    code = [(load, 0, 0, 4), (jump_eq, 1, 0, arch), (ret, 0, 0, kill), (load, 0, 0, 0)]
    code += [(how, len(tests) + last - 1 - i, 0, n) for i, (how, n) in enumerate(tests)]
    if clone is not None:
        code += [(jump_eq, 5, 0, _CLONE3), (jump_eq, 0, 2, clone)]
        code += [(load, 0, 0, 16), (jump_set, 1, 0, _ANY_NAMESPACE)]
    code += [(ret, 0, 0, allow), (ret, 0, 0, refuse), (ret, 0, 0, missing)]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in code)


def install(program: bytes) -> None:
    """Put the filter on this process and all that it will start; raises OSError."""
    _prctl(_SET_NO_NEW_PRIVS, 1)
    pointer = ctypes.byref(_Program(len(program) // 8, program))
    _checked("seccomp", _libc.prctl(_SET_SECCOMP, 2, pointer, 0, 0))


def _prctl(option: int, value: int) -> None:
    _checked(f"prctl {option}", _libc.prctl(option, value, 0, 0, 0))


def _checked(what: str, result: int) -> None:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")
