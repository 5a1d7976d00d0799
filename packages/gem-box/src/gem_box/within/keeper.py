"""The keeper of a box: a process outside of it that holds its namespaces and its file system.

It makes a user, mount, network, IPC and UTS namespace, and on request begins the box: an overlay of
the image's layers and a folder for changes, in which `first` runs as process 1 of a new process
namespace. When it begins the box again, no process of before lives; changes stay, but for folders
that are to be as in the image. It ends, and the box with it, when its caller hangs up.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import stat
import sys

from . import first, kernel
from .messages import close, receive, send

try:
    from gem_sandbox.inside import confine
except ImportError:  # as a program, which sees the standard library and two folders
    from inside import confine  # type: ignore[import-not-found, no-redef]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

# In the keeper's own mount namespace, on which it mounts memory.
_PLACE = "/tmp"
_ROOT, _BASE, _ASIDE = f"{_PLACE}/root", f"{_PLACE}/base", f"{_PLACE}/aside"
# The image without what the box made of it; an overlay of one layer needs a second one.
_IMAGE, _NOTHING = f"{_PLACE}/image", f"{_PLACE}/nothing"
# What programs in `bin` or `sbin` load from beside it.
_LOADED = ("bin", "sbin", "lib", "lib32", "lib64", "libexec")
_MOST_LINKS = 40
# When memory is short, the kernel ends a box before the caller's processes.
_SOONER = "500"
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_SHARED_MEMORY = "size=64m,mode=1777"
# What a program needs of the machine's /etc where the machine's /usr is the image.
_ETC = ("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "os-release")
_TEXTS = {
    "etc/passwd": "root:x:0:0::/root:/bin/bash\nnobody:x:65534:65534::/:/usr/sbin/nologin\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/hosts": "127.0.0.1 localhost box\n::1 localhost\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
# An address of no machine: the kernel then counts who asks for a name, see `OverlayBox.tries`.
_NAME_SERVER = b"nameserver 192.0.2.1\n"
_FOLDERS = ("etc", "root", "home", "mnt", "opt", "run", "srv", "var/log", "var/lib", "usr")


def main() -> None:
    """Keep one box. The argument is the descriptor of the caller's messages."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    request, _ = receive(channel)
    if request is None:
        return
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write(_SOONER)
        keeper = _Keeper(channel, request)
        send(channel, {})
        keeper.serve()
    except OSError as error:
        send(channel, {"error": str(error)})


class _Keeper:
    def __init__(self, channel: socket.socket, request: dict[str, Any]) -> None:
        """Make the namespaces, and the folders of the box in memory.

        The request has `layers` (folders, the highest first), `host` (the machine's /usr is the
        lowest one), `upper` (the folder for changes; empty: in memory), `mb` and `files` (limits of
        what is in memory), `mapped` (the caller maps user ids), `limits` of processes.
        """
        self.channel, self.request = channel, request
        kernel.new_keyring()
        confine.unshare(
            confine.NEWUSER | confine.NEWNS | kernel.NEWNET | kernel.NEWIPC | kernel.NEWUTS
        )
        # As the caller's user, who may read them, but in this mount namespace.
        upper, *opened = [
            os.open(each, os.O_PATH | os.O_DIRECTORY)
            for each in (request["upper"] or "/", *request["layers"])
        ]
        if request["mapped"]:
            send(channel, {"map": True})
            receive(channel)
            os.setgroups([])
        else:
            _map_self(*request["ids"])
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
        socket.sethostname("box")
        kernel.loopback()
        kernel.mount("none", "/", None, kernel.PRIVATE | kernel.REC)
        kernel.mount("box", _PLACE, "tmpfs", kernel.NOSUID | kernel.NODEV, self._size())
        for name in (_ROOT, _BASE, _ASIDE, _IMAGE, _NOTHING):
            os.mkdir(name)
        self.changes = f"/proc/self/fd/{upper}" if request["upper"] else _PLACE
        for name in ("upper", "work"):
            with contextlib.suppress(FileExistsError):
                os.mkdir(f"{self.changes}/{name}", 0o755)
        layers = [f"/proc/self/fd/{each}" for each in opened]
        if request["host"]:
            _make_base()
            layers.append(_BASE)
        self.lower = ":".join(layers)
        self.begun = 0

    def _size(self) -> str:
        return f"mode=0755,size={self.request['mb']}m,nr_inodes={self.request['files']}"

    def serve(self) -> None:
        """Begin the box at each request, until the caller hangs up."""
        pid = 0
        try:
            while True:
                request, descriptors = receive(self.channel)
                if request is None:
                    return
                if pid:
                    self._end(pid)
                    pid = 0
                kept = self._restore(request["pristine"], request["work"].strip("/"))
                self.request["mb"] += request["more_mb"]
                self.request["files"] += request["more_files"]
                self._mount()
                pid = self._begin(descriptors[0])
                close(descriptors)
                send(self.channel, {"pid": pid, "kept": kept})
        finally:
            if pid:
                self._end(pid)

    def _restore(self, folders: Sequence[str], work: str) -> list[str]:
        """Put folders back to what the image has; return those that cannot be put back.

        The folder in which the box works, `work`, stays, and what the box put in place of a folder
        of the image stays, too: both hold more than what is to be put back.
        """
        if not folders:
            return []
        options = f"lowerdir={self.lower}:{_NOTHING},userxattr"
        kernel.mount("overlay", _IMAGE, "overlay", kernel.NODEV, options)
        try:
            kept = []
            for folder in folders:
                *links, end = _way(folder)
                if not all(self._put_back(place, work) for place in (*links, end)):
                    kept.append(folder)
                elif end.split("/")[0] not in folders:
                    for place in _loaded(end, work):
                        self._put_back(place, work)
            return kept
        finally:
            kernel.unmount(_IMAGE)

    def _put_back(self, place: str, work: str) -> bool:
        """Put what the box made of a place aside; return whether it is as in the image."""
        if not place or _holds(place, work):
            return False
        mine, image = f"{self.changes}/upper", _IMAGE
        parts = place.split("/")
        for number, part in enumerate(parts, 1):
            mine, image = f"{mine}/{part}", f"{image}/{part}"
            if not os.path.lexists(mine):
                break
            folder = os.path.isdir(mine) and not os.path.islink(mine)
            if number < len(parts) and os.path.isdir(image) and (not folder or _opaque(mine)):
                return False
            if number == len(parts) or not folder:
                self.begun += 1
                os.rename(mine, f"{_ASIDE}/{self.begun}")
                break
        return True

    def _mount(self) -> None:
        kernel.mount(
            "box", _PLACE, None, kernel.REMOUNT | kernel.NOSUID | kernel.NODEV, self._size()
        )
        options = f"lowerdir={self.lower},upperdir={self.changes}/upper,workdir={self.changes}/work"
        kernel.mount("overlay", _ROOT, "overlay", kernel.NODEV, f"{options},userxattr")
        for name in ("dev", "proc", "tmp", "var/tmp"):
            _folder(f"{_ROOT}/{name}", 0o1777 if name.endswith("tmp") else 0o755)
        if self.request["host"]:
            kernel.mount("/usr", f"{_ROOT}/usr", None, kernel.BIND | kernel.REC)
            kernel.read_only(f"{_ROOT}/usr")
        _mount_devices(f"{_ROOT}/dev")
        _set_name_server(f"{_ROOT}/etc")

    def _begin(self, descriptor: int) -> int:
        """Fork process 1 of a new process namespace; return its id."""
        told, tells = os.pipe()
        parent = os.fork()
        if parent == 0:
            code = 1
            try:
                os.close(told)
                this = os.pidfd_open(os.getpid())
                confine.unshare(confine.NEWPID | confine.NEWNS)
                pid = os.fork()
                if pid == 0:
                    os.close(tells)
                    confine.end_with_parent(this)
                    os.close(this)
                    self.channel.close()
                    first.main(_ROOT, descriptor, self.request["limits"])
                os.write(tells, str(pid).encode())
                os.close(tells)
                os.close(descriptor)
                os.waitpid(pid, 0)
                code = 0
            finally:
                os._exit(code)
        os.close(tells)
        self.parent = parent
        with os.fdopen(told) as file:
            said = file.read()
        if not said:
            raise OSError("no process namespace can be made")
        return int(said)

    def _end(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(self.parent, 0)
        kernel.unmount(_ROOT)


def _way(path: str) -> list[str]:
    """Return the links of the image that a path leads through, and where it ends."""
    links: list[str] = []
    at: list[str] = []
    parts = path.split("/")[::-1]
    while parts:
        part = parts.pop()
        if part == "..":
            at = at[:-1]
        elif part not in ("", "."):
            at.append(part)
            place = "/".join(at)
            if os.path.islink(f"{_IMAGE}/{place}") and len(links) < _MOST_LINKS:
                links.append(place)
                target = os.readlink(f"{_IMAGE}/{place}")
                at = [] if target.startswith("/") else at[:-1]
                parts += target.split("/")[::-1]
    return [*links, "/".join(at)]


def _loaded(folder: str, work: str) -> list[str]:
    """Return what the programs of a folder of the image load, and the programs it has links to."""
    found = _beside(folder, work)
    with contextlib.suppress(OSError):
        for name in os.listdir(f"{_IMAGE}/{folder}"):
            *links, end = _way(f"{folder}/{name}")
            if links and not _holds(work, end):
                above = os.path.dirname(end)
                found += _beside(above, work) or [end]
    return found


def _beside(folder: str, work: str) -> list[str]:
    prefix, _, name = folder.rpartition("/")
    if name not in ("bin", "sbin") or not prefix or _holds(prefix, work):
        return []
    places = [f"{prefix}/{each}" for each in _LOADED]
    here = [each for each in places if os.path.lexists(f"{_IMAGE}/{each}")]
    # It tells Python where its library is.
    return [*here, f"{prefix}/pyvenv.cfg"]


def _holds(folder: str, place: str) -> bool:
    """Whether a folder that is not the root is a place or above it."""
    return bool(folder) and f"{place}/".startswith(f"{folder}/")


def _opaque(folder: str) -> bool:
    """Whether a folder of the changes hides what the image has there."""
    try:
        return os.getxattr(folder, "user.overlay.opaque") == b"y"
    except OSError:
        return False


def _map_self(uid: int, gid: int) -> None:
    for name, text in (("setgroups", "deny"), ("gid_map", f"0 {gid} 1"), ("uid_map", f"0 {uid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def _folder(path: str, mode: int) -> None:
    """Make a folder of the box, whatever is there: a process of the box may have put a link."""
    if os.path.islink(path) or (os.path.lexists(path) and not os.path.isdir(path)):
        os.unlink(path)
    os.makedirs(path, exist_ok=True)
    os.chmod(path, mode)


def _make_base() -> None:
    """Make the lowest layer of the image `host`: all but /usr, which is mounted."""
    for name in _FOLDERS:
        os.makedirs(f"{_BASE}/{name}", mode=0o700 if name == "root" else 0o755)
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        if os.path.islink(f"/{name}"):
            os.symlink(os.readlink(f"/{name}"), f"{_BASE}/{name}")
        elif os.path.isdir(f"/{name}"):
            raise OSError(f"/{name} of this machine is no link into /usr: it is no image")
    for name in _ETC:
        source, target = f"/etc/{name}", f"{_BASE}/etc/{name}"
        if os.path.islink(source):
            os.symlink(os.readlink(source), target)
        elif os.path.isdir(source):
            shutil.copytree(source, target, symlinks=True, copy_function=shutil.copyfile)
        elif os.path.isfile(source):
            shutil.copyfile(source, target)
    for name, text in _TEXTS.items():
        with open(f"{_BASE}/{name}", "w") as file:
            file.write(text)


def _set_name_server(place: str) -> None:
    """Name a server if none is named; a process of the box may have put links."""
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        folder = os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
        stack.callback(os.close, folder)
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        file = os.open("resolv.conf", flags, 0o644, dir_fd=folder)
        stack.callback(os.close, file)
        found = os.fstat(file)
        if stat.S_ISREG(found.st_mode) and not found.st_size:
            os.write(file, _NAME_SERVER)


def _mount_devices(place: str) -> None:
    flags = kernel.NOSUID | kernel.NOEXEC
    kernel.mount("dev", place, "tmpfs", flags, "size=64k,mode=0755")
    for name in _DEVICES:
        with open(f"{place}/{name}", "w"):
            pass
        kernel.mount(f"/dev/{name}", f"{place}/{name}", None, kernel.BIND)
    links: Sequence[tuple[str, str]] = (
        ("/proc/self/fd", "fd"), ("fd/0", "stdin"), ("fd/1", "stdout"), ("fd/2", "stderr"),
        ("pts/ptmx", "ptmx"),
    )  # fmt: skip
    for target, name in links:
        os.symlink(target, f"{place}/{name}")
    for name, kind, options in (
        ("shm", "tmpfs", _SHARED_MEMORY),
        ("pts", "devpts", "newinstance,ptmxmode=0666,mode=620"),
    ):
        os.mkdir(f"{place}/{name}")
        kernel.mount(name, f"{place}/{name}", kind, flags, options)
