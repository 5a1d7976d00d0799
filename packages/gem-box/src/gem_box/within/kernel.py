"""System calls of a box: mounts, capabilities, the loopback device. Linux on x86-64 and ARM64."""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct

NEWIPC, NEWUTS, NEWNET = 0x08000000, 0x04000000, 0x40000000
PRIVATE, BIND, REC, NOSUID, NODEV, NOEXEC, REMOUNT = 1 << 18, 4096, 16384, 2, 4, 8, 32
_DETACH = 2
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_ATTR_READ_ONLY = 7  # read-only, nosuid, nodev
_MOUNT_SETATTR = 442  # On every machine.
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_KEYCTL = {"x86_64": 250, "aarch64": 219}
_JOIN_SESSION_KEYRING = 1
_NO_NEW_PRIVS, _DROP_BOUNDING = 38, 24
_LAST_CAPABILITY = 63
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 1

CAPABILITIES = {
    "CHOWN": 0,
    "DAC_OVERRIDE": 1,
    "FOWNER": 3,
    "FSETID": 4,
    "KILL": 5,
    "SETGID": 6,
    "SETUID": 7,
    "SETPCAP": 8,
    "NET_BIND_SERVICE": 10,
    "SETFCAP": 31,
}
"""What root of a box may do, to files and processes of the box alone. Out of the default of
containers it lacks those that make devices, raw packets and other roots."""

_libc = ctypes.CDLL(None, use_errno=True)


def _require(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str | None, flags: int = 0, options: str = "") -> None:
    """Mount; raises OSError."""
    kinds = None if kind is None else kind.encode()
    result = _libc.mount(
        os.fsencode(source), os.fsencode(target), kinds, ctypes.c_ulong(flags), options.encode()
    )
    _require(result, f"mount {kind or source} on {target}")


def unmount(target: str) -> None:
    """Take a mount, with those below it, out of the tree; raises OSError."""
    _require(_libc.umount2(os.fsencode(target), _DETACH), f"unmount {target}")


def read_only(target: str) -> None:
    """Make a mount and those below it read-only, without devices or set-user-id; raises OSError."""
    change = ctypes.create_string_buffer(struct.pack("QQQQ", _ATTR_READ_ONLY, 0, 0, 0), 32)
    result = _libc.syscall(
        _MOUNT_SETATTR, _AT_FDCWD, os.fsencode(target), _AT_RECURSIVE, change, ctypes.c_size_t(32)
    )
    _require(result, f"mount_setattr {target}")


def enter(root: str) -> None:
    """Make a mount the root of this mount namespace, and forget the one before; raises OSError."""
    machine = os.uname().machine
    if machine not in _PIVOT_ROOT:
        raise OSError(f"boxes do not know the machine {machine}")
    os.chdir(root)
    _require(_libc.syscall(_PIVOT_ROOT[machine], b".", b"."), "pivot_root")
    unmount(".")
    os.chdir("/")


def keep_capabilities(numbers: list[int]) -> None:
    """Give up all other capabilities, and for ever; raises OSError."""
    for number in range(_LAST_CAPABILITY + 1):
        # Those that this kernel does not know are refused.
        if number not in numbers and _libc.prctl(_DROP_BOUNDING, number, 0, 0, 0) < 0:
            break
    low, high = (sum(1 << (n % 32) for n in numbers if n // 32 == half) for half in (0, 1))
    header = struct.pack("Ii", 0x20080522, 0)
    data = struct.pack("6I", low, low, 0, high, high, 0)
    _require(_libc.capset(header, data), "capset")


def new_keyring() -> None:
    """Leave the keys of the caller's session, which belong to its user; raises OSError."""
    number = _KEYCTL.get(os.uname().machine, -1)
    _require(_libc.syscall(number, _JOIN_SESSION_KEYRING, None), "keyctl")


def no_new_privileges() -> None:
    """Have no program that is executed from now on gain rights; raises OSError."""
    _require(_libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


def loopback() -> None:
    """Switch on the loopback device of this network namespace; raises OSError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack("16sH14x", fcntl.ioctl(any_socket, _GET_FLAGS, request))[1]
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sH14x", b"lo", flags | _UP))
