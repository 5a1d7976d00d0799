"""System calls that take rights away: namespaces, mounts, resource limits, the system call filter.

Linux on x86-64 and ARM64. The filter is classic BPF as in seccomp(2): what a program has no use for
and what reaches beyond its process is refused with EPERM.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import struct

NEWNS = 0x00020000
NEWUSER = 0x10000000
NEWPID = 0x20000000
_ANY_NAMESPACE = 0x7E020000

_NOSUID, _NODEV, _NOEXEC, _BIND = 2, 4, 8, 4096
_SET_DUMPABLE, _SET_SECCOMP, _SET_NO_NEW_PRIVS = 4, 22, 38

# Numbers of the calls that are refused, and of clone, by machine; from the kernel's tables.
_COMMON = "425 426 427 428 429 430 431 432 433 438 440 442 443 447"
_CALLS = {
    "x86_64": (
        0xC000003E,
        "29 30 31 41 42 43 49 50 64 65 66 67 68 69 70 71 101 103 134 153 154 155 159 161 163 164 "
        "165 166 167 168 169 170 171 172 173 175 176 179 180 212 220 227 240 241 246 248 249 250 "
        "272 279 288 298 300 303 304 305 308 310 311 312 313 319 320 321 323",
        56,
    ),
    "aarch64": (
        0xC00000B7,
        "18 39 40 41 51 58 60 89 97 104 105 106 112 116 117 142 161 162 170 171 180 181 186 187 "
        "188 189 190 191 192 193 194 195 196 197 198 200 201 202 203 217 218 219 224 225 239 241 "
        "242 262 264 265 266 268 270 271 272 273 279 280 282 294",
        220,
    ),
}
_CLONE3 = 435
_EPERM, _ENOSYS = 1, 38

_libc = ctypes.CDLL(None, use_errno=True)


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def unshare(flags: int) -> None:
    """Leave namespaces; raises OSError."""
    _checked("unshare", _libc.unshare(flags))


def rejoin(namespace: int, kind: int) -> None:
    """Have children begin in the namespace of this open file again; raises OSError."""
    _checked("setns", _libc.setns(namespace, kind))


def private_folders(disk_mb: int) -> None:
    """Put empty folders of one size limit over /tmp and /dev/shm, and a view of this process's own
    process namespace over /proc; raises OSError."""
    options = f"size={disk_mb}m,nr_inodes=8192,mode=1777".encode()
    _mount(b"tmpfs", b"/tmp", b"tmpfs", _NOSUID | _NODEV, options)
    _mount(b"/tmp", b"/dev/shm", None, _BIND, None)
    _mount(b"proc", b"/proc", b"proc", _NOSUID | _NODEV | _NOEXEC, b"subset=pid")


def become(uid: int) -> None:
    """Take on an unprivileged user id of this user namespace for good."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    _prctl(_SET_DUMPABLE, 1)


def hide() -> None:
    """Keep the memory of this process from others of the same user."""
    _prctl(_SET_DUMPABLE, 0)


def drop_capabilities() -> None:
    """Give up all capabilities; raises OSError."""
    header = struct.pack("Ii", 0x20080522, 0)
    _checked("capset", _libc.capset(header, struct.pack("6I", *[0] * 6)))


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


def filter_program() -> bytes:
    """Return the system call filter of this machine; raises OSError where there is none."""
    if platform.machine() not in _CALLS or struct.calcsize("P") != 8:
        raise OSError(f"no system call filter for {platform.machine()}")
    arch, refused, clone = _CALLS[platform.machine()]
    numbers = [int(number) for number in f"{refused} {_COMMON}".split()]
    load, jump_eq, jump_ge, jump_set, ret = 0x20, 0x15, 0x35, 0x45, 0x06
    # After the tests: allow, the test of clone's flags, allow, refuse, not implemented.
    tests = [(jump_ge, 0x40000000), *((jump_eq, number) for number in numbers)]
    refuse = len(tests) + 5
    code = [(load, 0, 0, 4), (jump_eq, 1, 0, arch), (ret, 0, 0, 0x80000000), (load, 0, 0, 0)]
    code += [(how, refuse - i, 0, number) for i, (how, number) in enumerate(tests)]
    code += [(jump_eq, 6, 0, _CLONE3), (jump_eq, 1, 0, clone), (ret, 0, 0, 0x7FFF0000)]
    code += [(load, 0, 0, 16), (jump_set, 1, 0, _ANY_NAMESPACE), (ret, 0, 0, 0x7FFF0000)]
    code += [(ret, 0, 0, 0x00050000 | _EPERM), (ret, 0, 0, 0x00050000 | _ENOSYS)]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in code)


def install(program: bytes) -> None:
    """Put the filter on this process and all that it will start; raises OSError."""
    _prctl(_SET_NO_NEW_PRIVS, 1)
    pointer = ctypes.byref(_Filter(len(program) // 8, program))
    _checked("seccomp", _libc.prctl(_SET_SECCOMP, 2, pointer, 0, 0))


def _mount(
    source: bytes, target: bytes, kind: bytes | None, flags: int, options: bytes | None
) -> None:
    result = _libc.mount(source, target, kind, ctypes.c_ulong(flags), options)
    _checked(f"mount {os.fsdecode(target)}", result)


def _prctl(option: int, value: int) -> None:
    _checked(f"prctl {option}", _libc.prctl(option, value, 0, 0, 0))


def _checked(what: str, result: int) -> None:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")
