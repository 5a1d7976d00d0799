"""Process 1 of a box: forks its commands, and reads and writes files for the caller.

It is this interpreter, which began outside: nothing in the box can replace it. It runs no command
itself. Processes of the box cannot end it (the kernel keeps their signals from process 1) and
cannot read or trace it.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import resource
import select
import shutil
import signal
import socket
import tarfile
import traceback

from . import kernel
from .messages import close, receive, send

try:
    from gem_sandbox.inside import confine
except ImportError:  # as a program, which sees the standard library and two folders
    from inside import confine  # type: ignore[import-not-found, no-redef]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn


def main(root: str, descriptor: int, limits: dict[str, int]) -> NoReturn:
    """Be process 1 of the box at `root` until the caller hangs up."""
    code = 1
    channel = socket.socket(fileno=descriptor)
    try:
        kernel.mount("proc", f"{root}/proc", "proc", kernel.NOSUID | kernel.NODEV | kernel.NOEXEC)
        kernel.enter(root)
        with open("/proc/sys/user/max_user_namespaces", "w") as file:
            file.write("0")
        kernel.keep_capabilities(list(kernel.CAPABILITIES.values()))
        kernel.no_new_privileges()
        confine.hide()
        _First(channel, limits).serve()
        code = 0
    except BaseException as error:
        with contextlib.suppress(OSError):
            send(channel, {"error": _told(error)})
    finally:
        os._exit(code)


def _told(error: BaseException) -> str:
    return str(error) if isinstance(error, OSError) else traceback.format_exc()[-2000:]


class _First:
    def __init__(self, channel: socket.socket, limits: dict[str, int]) -> None:
        self.channel, self.limits = channel, limits
        self.commands: set[int] = set()
        self.woken, wakes = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)

    def serve(self) -> None:
        root = os.open("/", os.O_PATH | os.O_DIRECTORY)
        send(self.channel, {}, [root])
        os.close(root)
        poll = select.poll()
        poll.register(self.channel, select.POLLIN)
        poll.register(self.woken, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == self.woken:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self.woken, 4096)
                    self._reap()
                else:
                    request, descriptors = receive(self.channel)
                    if request is None:
                        return
                    self._answer(request, descriptors)

    def _answer(self, request: dict[str, Any], descriptors: list[int]) -> None:
        try:
            handle: Callable[[dict[str, Any], list[int]], dict[str, Any]] = getattr(
                self, f"_do_{request['do']}"
            )
            answer = handle(request, descriptors)
        except OSError as error:
            answer = {"error": str(error), "errno": error.errno}
        finally:
            close(descriptors)
        send(self.channel, answer)

    def _reap(self) -> None:
        """Collect processes that ended; tell of commands, with their CPU time."""
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self.commands:
                self.commands.remove(pid)
                code = os.waitstatus_to_exitcode(status)
                cpu_s = used.ru_utime + used.ru_stime
                send(self.channel, {"ended": pid, "code": code, "cpu_s": cpu_s})

    def _do_begin(self, request: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        """Fork a command; the descriptors become 0, 1 and 2, and 8 if there is a third one."""
        pid = os.fork()
        if pid == 0:
            try:
                self._become(request, descriptors)
            except BaseException as error:
                os.write(2, f"{_told(error)}\n".encode())
            finally:
                os._exit(127)
        self.commands.add(pid)
        return {"pid": pid}

    def _become(self, request: dict[str, Any], descriptors: list[int]) -> None:
        os.setsid()
        given, output, *others = descriptors
        numbers = {0: given, 1: output, 2: output, **{8 + n: d for n, d in enumerate(others)}}
        # Out of the way of the numbers that they are to have.
        moved = {to: fcntl.fcntl(at, fcntl.F_DUPFD, 64) for to, at in numbers.items()}
        for number, descriptor in moved.items():
            os.dup2(descriptor, number)
        for low, high in confine.beside(*(number for number in moved if number > 2)):
            confine.close_range(low, high)
        for which in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGINT):
            signal.signal(which, signal.SIG_DFL)
        for name, value in self.limits.items():
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))
        os.umask(0o022)
        if request["uid"]:
            os.setgroups([])
            os.setresgid(request["gid"], request["gid"], request["gid"])
            os.setresuid(request["uid"], request["uid"], request["uid"])
        with contextlib.suppress(OSError):
            os.chdir("/")
            os.chdir(request["cwd"])
        path, *_ = argv = request["argv"]
        os.execve(path, [os.path.basename(path), *argv[1:]], request["env"])

    def _do_end(self, request: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        """Kill a command with what is below it, but for some; tell where it was."""
        root, spared = request["pid"], set(request["spared"])
        where = ""
        with contextlib.suppress(OSError):
            where = os.readlink(f"/proc/{root}/cwd")
        # Stop first: what is stopped makes no further processes.
        seen: set[int] = set()
        while fresh := {root, *_below(root)} - seen - spared:
            seen |= fresh
            for pid in fresh:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
        for pid in seen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return {"cwd": where}

    def _do_put(self, request: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        """Unpack an archive into a folder, which is made anew if `fresh`."""
        return _forked(lambda: _unpack(request["path"], descriptors[0], request["fresh"]))

    def _do_get(self, request: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        """Pack a file or folder, named by its last part."""
        return _forked(lambda: _pack(request["path"], descriptors[0]))


def _below(root: int) -> list[int]:
    """Return the descendants of a process."""
    found = [root]
    for pid in found:
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/children") as file:
                    found += map(int, file.read().split())
    return found[1:]


def _forked(work: Callable[[], None]) -> dict[str, Any]:
    """Do work in a fork, so that nothing of it stays; return an error, if any."""
    told, tells = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        number = 0
        try:
            work()
        except BaseException as error:
            number = getattr(error, "errno", None) or -1
            os.write(tells, _told(error).encode()[:4000] or b"unknown error")
        finally:
            os._exit(1 if number else 0)
    os.close(tells)
    with os.fdopen(told, "rb") as file:
        said = file.read().decode("utf-8", "replace")
    os.waitpid(pid, 0)
    return {"error": said} if said else {}


def _unpack(path: str, descriptor: int, fresh: bool) -> None:
    os.umask(0o022)
    if fresh:
        # Also where a process of the box has put a link in place of a folder.
        at = "/"
        for part in filter(None, path.split("/")[:-1]):
            at = os.path.join(at, part)
            if os.path.islink(at) or (os.path.lexists(at) and not os.path.isdir(at)):
                os.unlink(at)
        if os.path.islink(path) or os.path.isfile(path):
            os.unlink(path)
        elif os.path.lexists(path):
            shutil.rmtree(path)
    os.makedirs(path, exist_ok=True)
    # Where there are filters: whatever the archive has may be in the box, and nowhere else.
    filters: Any = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
    with (
        io.FileIO(descriptor, closefd=False) as file,
        tarfile.open(fileobj=file, mode="r|") as archive,
    ):
        for member in archive:
            # A box has devices of its own.
            if not member.isdev():
                archive.extract(member, path, numeric_owner=True, **filters)


def _pack(path: str, descriptor: int) -> None:
    # What is packed may be large, so nothing waits for its end.
    with (
        io.FileIO(descriptor, "w", closefd=False) as file,
        tarfile.open(fileobj=file, mode="w|") as archive,
    ):
        archive.add(path, os.path.basename(path.rstrip("/")) or ".")
