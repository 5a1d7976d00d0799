"""The box `overlay`: namespaces and an overlay of the kernel, without a daemon and without rights.

`within` has what runs beside and inside the box; this is the caller's side.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import shlex
import socket
import stat
import subprocess
import sys
import tarfile
import uuid
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gem_sandbox.inside
from gem.admission import Core
from gem.errors import BusyMachineError, ConfigurationError, UnreachableError
from gem_box.box import ENVIRONMENT, Ran
from gem_box.output import Kept
from gem_box.users import Ids, ids
from gem_box.watching import BoxClock, child, descendants, inner
from gem_box.within.messages import close, pair, receive, send
from gem_sandbox import Limits
from gem_sandbox.running import watch

# Processes of the box see the arguments of process 1, not its environment.
_START = """
import os, sys
sys.path[:0] = os.environ.pop("GEM_BOX").split(os.pathsep)
from within import keeper
keeper.main()
"""
_PACKAGES = (Path(__file__).parent, Path(gem_sandbox.inside.__file__).parents[1])
# With which its messages and those of process 1 have to be answered, on any machine.
_ANSWER_S = 120.0
# What the tests may write on top, so that a box that a policy filled can still be graded.
_MORE_MB, _MORE_FILES = 256, 1 << 16
_FILES = 1 << 18
# A pipe takes as much at once, so that writing a command never waits.
LONGEST_COMMAND = 60_000
_NEEDS = (
    "boxes need Linux 6.6 or newer with user namespaces and overlays in them "
    "(sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, "
    "kernel.apparmor_restrict_unprivileged_userns)"
)


class OverlayBox:
    """A box of namespaces and an overlay; see `Box`.

    The box has a root that may do to its own files and processes what the root of a container may
    (`within.kernel.CAPABILITIES`) and nothing else; no program gains rights (`no_new_privs`), and
    no further namespaces can be made. If the caller is root, the box's users are unused ids of the
    machine; otherwise the box's only user is the caller. What the box writes is in memory, up to
    `limits.disk_mb`, and ends with it.
    """

    def __init__(
        self,
        layers: Sequence[Path] = (),
        *,
        host: bool = True,
        env: Mapping[str, str] | None = None,
        workdir: str = "/",
        limits: Limits = Limits(cpu_s=60.0, disk_mb=1024, processes=512),  # noqa: B008
        upper: Path | None = None,
    ) -> None:
        """Store the parameters; nothing is started.

        Args:
            layers: Folders of the image, the highest first.
            host: Whether the lowest layer is this machine's system: /usr, read-only, and what it
                needs beside it.
            env: Variables on top of `ENVIRONMENT`.
            workdir: Where commands begin.
            limits: Of the box, but `cpu_s`.
            upper: Folder that keeps what the box writes, instead of memory.
        """
        self.layers, self.host, self.upper = list(layers), host, upper
        self.env = {**ENVIRONMENT, **(env or {})}
        self.workdir, self.limits = workdir, limits
        self._keeper: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._forget()
        _boxes.add(self)

    def _forget(self) -> None:
        self._first: socket.socket | None = None
        self._pid, self._root = 0, -1
        self._shell: _Shell | None = None
        self._ended: dict[int, dict[str, Any]] = {}

    def start(self) -> None:
        """Begin with the image's files."""
        self.close()
        ours, theirs = pair()
        self._channel = ours
        argv = [sys.executable, "-I", "-S", "-c", _START, str(theirs.fileno())]
        try:
            with theirs:
                # Not by preexec_fn or the like: a trainer has threads.
                self._keeper = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    env={"GEM_BOX": os.pathsep.join(map(str, _PACKAGES))},
                    cwd="/",
                    start_new_session=True,
                )
            self._prepare(ids())
            self._begin(())
        except BaseException:
            self.close()
            raise

    def _prepare(self, users: Ids) -> None:
        request = {
            "mapped": users.mapped,
            "ids": [os.geteuid(), os.getegid()],
            "host": self.host,
            "upper": str(self.upper.resolve()) if self.upper else "",
            "layers": [str(each.resolve()) for each in self.layers],
            "mb": self.limits.disk_mb,
            "files": _FILES,
            # The box is looked at while a command runs; this holds also for what runs in between.
            "limits": {
                "NPROC": self.limits.processes,
                "DATA": self.limits.memory_mb << 20,
                "CORE": 0,
            },
        }
        self._tell_keeper(request)
        if self._hear_keeper().get("map"):
            assert self._keeper is not None
            users.apply(self._keeper.pid)
            self._tell_keeper({})
            self._hear_keeper()

    def _begin(self, pristine: Sequence[str], more: bool = False) -> None:
        ours, theirs = pair()
        with theirs:
            mb, files = (_MORE_MB, _MORE_FILES) if more else (0, 0)
            request = {"pristine": list(pristine), "more_mb": mb, "more_files": files}
            self._tell_keeper(request, [theirs.fileno()])
        self._first = ours
        self._pid = self._hear_keeper()["pid"]
        said, (self._root,) = self._hear()
        del said

    def run(self, command: str, timeout: float) -> Ran:
        """Run a command in the box's shell; see `Box.run`."""
        text = command.encode("utf-8", "replace")
        if len(text) > LONGEST_COMMAND or b"\0" in text:
            said = f"a command has at most {LONGEST_COMMAND} bytes, and no NUL"
            return Ran(f"{said}\n".encode(), 2)
        if self._shell is None:
            self._shell = _Shell(self, self.workdir)
        shell = self._shell
        nonce = uuid.uuid4().hex
        quoted = shlex.quote(text.decode("utf-8", "surrogateescape")).encode()
        script = b"eval %s </dev/null 8>&-\nprintf '%%d %s\\n' \"$?\" >&8\n"
        script %= quoted, nonce.encode()
        kept = Kept(self.limits.output_bytes)
        before = inner(descendants(shell.host_pid))

        def ended(seconds: float) -> bool:
            shell.wait(seconds, kept)
            return kept.flooded or shell.pid in self._ended or shell.said(nonce) is not None

        with Core() as core:
            core.acquire()
            clock = BoxClock(shell.host_pid, None, self._pid, self.limits.memory_mb)
            shell.write(script)
            try:
                over = watch(clock, self._limits(timeout), core, ended) or kept.flooded
            except BusyMachineError:
                self._end(shell.pid, before)
                raise
        if over:
            where = self._end(shell.pid, before)
            shell.drain(kept)
            shell.close()
            self._shell = _Shell(self, where or self.workdir)
            hit = "output" if kept.flooded else clock.over or "time"
            return Ran(kept.text(), -9, hit, True, kept.left_out)
        shell.drain(kept)
        code = shell.said(nonce)
        if code is not None:
            return Ran(kept.text(), code, left_out=kept.left_out)
        code = self._ended.pop(shell.pid)["code"]
        shell.close()
        self._shell = None
        return Ran(kept.text(), code, None, True, kept.left_out)

    def execute(
        self,
        argv: Sequence[str],
        timeout: float,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        core: Core | None = None,
    ) -> Ran:
        """Run a program beside the shell; see `Box.execute`.

        Args:
            argv: The program's path and its arguments.
            timeout: As of `run`.
            cwd: Where; None: in the image's folder.
            env: Variables on top of the box's.
            stdin: Its standard input.
            core: Held already, or to be acquired; None: one of its own.
        """
        kept = Kept(self.limits.output_bytes)
        given = os.memfd_create("stdin", os.MFD_CLOEXEC)
        with os.fdopen(given, "wb", closefd=False) as file:
            file.write(stdin)
        os.lseek(given, 0, os.SEEK_SET)
        output, theirs = os.pipe()
        os.set_blocking(output, False)
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, output)
            if core is None:
                core = stack.enter_context(Core())
            core.acquire()
            try:
                pid = self._spawn(argv, cwd, {**self.env, **(env or {})}, [given, theirs])
            finally:
                close([given, theirs])

            def ended(seconds: float) -> bool:
                self.wait(seconds, output, kept)
                return kept.flooded or pid in self._ended

            clock = BoxClock(child(self._pid, pid), 0.0, self._pid, self.limits.memory_mb)
            try:
                over = watch(clock, self._limits(timeout), core, ended) or kept.flooded
            except BusyMachineError:
                self._end(pid)
                raise
            if over:
                self._end(pid)
            kept.drain(output)
            told = self._ended.pop(pid)
            if over or told["cpu_s"] > timeout:
                hit = "output" if kept.flooded else clock.over or "time"
                return Ran(kept.text(), -9, hit, False, kept.left_out)
            return Ran(kept.text(), told["code"], None, False, kept.left_out)

    def put(self, source: Path | None, target: str, *, fresh: bool = False) -> None:
        """Copy into the box; see `Box.put`."""
        folder, name = (target, "") if source is None or source.is_dir() else os.path.split(target)
        packed = os.memfd_create("archive", os.MFD_CLOEXEC)
        try:
            with (
                os.fdopen(packed, "wb", closefd=False) as file,
                tarfile.open(fileobj=file, mode="w|") as archive,
            ):
                if name and source is not None:
                    archive.add(source.resolve(), name, filter=_by_root)
                elif source is not None:
                    for each in sorted(source.iterdir()):
                        archive.add(each, each.name, filter=_by_root)
            os.lseek(packed, 0, os.SEEK_SET)
            self._unpack_in(folder, packed, fresh)
        finally:
            os.close(packed)

    def unpack(self, archive: Path) -> None:
        """Unpack a root file system.

        Raises:
            ConfigurationError: It cannot be read or unpacked.
        """
        try:
            with archive.open("rb") as file:
                self._unpack_in("/", file.fileno(), False)
        except (OSError, _RefusedError) as error:
            raise ConfigurationError(f"{archive}: {error}") from None

    def _unpack_in(self, folder: str, descriptor: int, fresh: bool) -> None:
        request = {"do": "put", "path": f"/{folder}", "fresh": fresh}
        self._ask(request, [descriptor])

    def get(self, path: str, target: Path) -> None:
        """Copy out of the box; see `Box.get`."""
        packed = os.memfd_create("archive", os.MFD_CLOEXEC)
        try:
            try:
                self._ask({"do": "get", "path": f"/{path}"}, [packed])
            except _RefusedError as error:
                raise FileNotFoundError(f"{path}: {error}") from None
            os.lseek(packed, 0, os.SEEK_SET)
            with io.FileIO(packed, closefd=False) as file, tarfile.open(fileobj=file) as archive:
                _unpack(archive, target)
        finally:
            os.close(packed)

    def read(self, path: str, most: int) -> bytes | None:
        """Return the content of a regular file; see `Box.read`."""
        at = os.dup(self._root)
        try:
            *folders, name = filter(None, path.split("/"))
            for part in folders:
                below = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
                os.close(at)
                at = below
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=at)
            try:
                if not stat.S_ISREG(os.fstat(file).st_mode):
                    return None
                with os.fdopen(file, "rb", closefd=False) as opened:
                    return opened.read(most + 1)
            finally:
                os.close(file)
        except OSError:
            return None
        finally:
            os.close(at)

    def restart(self, pristine: Sequence[str] = ()) -> None:
        """End all processes; see `Box.restart`. The box gets some more room for files."""
        self._leave()
        self._begin(pristine, more=True)

    def close(self) -> None:
        """End all processes and forget the files; safe to repeat."""
        self._leave()
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._keeper is not None:
            with self._keeper as keeper:
                try:
                    keeper.wait(_ANSWER_S)
                except subprocess.TimeoutExpired:
                    keeper.kill()
            self._keeper = None

    def forget(self) -> None:
        """In a forked process: close its copies of the descriptors; the box is the parent's."""
        self._leave()
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._keeper is not None:
            self._keeper.returncode = 0
            self._keeper = None

    def _leave(self) -> None:
        if self._shell is not None:
            self._shell.close()
        if self._first is not None:
            self._first.close()
        if self._root >= 0:
            os.close(self._root)
        self._forget()

    def _limits(self, timeout: float) -> Limits:
        return Limits(cpu_s=timeout, memory_mb=self.limits.memory_mb)

    # What the keeper and process 1 say.

    def _spawn(
        self, argv: Sequence[str], cwd: str | None, env: Mapping[str, str], ends: Sequence[int]
    ) -> int:
        request = {"do": "begin", "argv": list(argv), "cwd": cwd or self.workdir, "env": dict(env)}
        pid: int = self._ask({**request, "uid": 0, "gid": 0}, ends)["pid"]
        return pid

    def _end(self, pid: int, spared: Sequence[int] = ()) -> str:
        """Kill a command with what is below it; wait for its end, return where it was."""
        if pid in self._ended:
            return ""
        where: str = self._ask({"do": "end", "pid": pid, "spared": list(spared)})["cwd"]
        while pid not in self._ended:
            self._note(self._hear()[0])
        return where

    def _ask(self, request: dict[str, Any], descriptors: Sequence[int] = ()) -> dict[str, Any]:
        try:
            assert self._first is not None, "the box is not started"
            send(self._first, request, descriptors)
        except OSError as error:
            raise UnreachableError(f"the box is gone: {error}") from error
        while self._note(answer := self._hear()[0]):
            pass
        if "error" in answer:
            raise _RefusedError(f"the box: {answer['error']}")
        return answer

    def _note(self, message: dict[str, Any]) -> bool:
        """Note the end of a command; return whether the message was one."""
        if "ended" in message:
            self._ended[message["ended"]] = message
        return "ended" in message

    def _hear(self) -> tuple[dict[str, Any], list[int]]:
        assert self._first is not None
        message, descriptors = _heard(self._first)
        if "error" in message and descriptors == [] and self._root < 0:
            raise UnreachableError(f"no box can be started: {message['error']}; {_NEEDS}")
        return message, descriptors

    def _tell_keeper(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        try:
            assert self._channel is not None, "the box is not started"
            send(self._channel, message, descriptors)
        except OSError as error:
            raise UnreachableError(f"the box is gone: {error}") from error

    def _hear_keeper(self) -> dict[str, Any]:
        assert self._channel is not None
        message, _ = _heard(self._channel)
        if "error" in message:
            raise UnreachableError(f"no box can be started: {message['error']}; {_NEEDS}")
        return message

    def wait(self, seconds: float, output: int, kept: Kept, *others: int) -> None:
        """Wait for output, for a message of process 1, or for other descriptors; take them in."""
        poll = select.poll()
        assert self._first is not None
        for descriptor in (output, self._first.fileno(), *others):
            if descriptor != output or not kept.ended:
                poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll(seconds * 1000):
            if descriptor == output:
                kept.drain(output)
            elif descriptor == self._first.fileno():
                self._note(self._hear()[0])


class _RefusedError(UnreachableError):
    """Process 1 could not do what it was asked."""


class _Shell:
    """The shell of a box, and the pipes to it: its script, its output, its reports."""

    def __init__(self, box: OverlayBox, where: str) -> None:
        self.box = box
        script, self.script = os.pipe()
        self.output, output = os.pipe()
        self.reports, reports = os.pipe()
        self.heard = b""
        for descriptor in (self.script, self.output, self.reports):
            os.set_blocking(descriptor, False)
        argv = ["/bin/bash", "--noprofile", "--norc"]
        if box.read("/usr/bin/bash", 0) is None and box.read("/bin/bash", 0) is None:
            argv = ["/bin/sh"]
        try:
            self.pid = box._spawn(argv, where, box.env, [script, output, reports])
        finally:
            close([script, output, reports])
        self.host_pid = child(box._pid, self.pid)

    def write(self, script: bytes) -> None:
        # A shell that is gone is told of by process 1.
        with contextlib.suppress(OSError):
            os.write(self.script, script)

    def wait(self, seconds: float, kept: Kept) -> None:
        self.box.wait(seconds, self.output, kept, self.reports)
        with contextlib.suppress(OSError):
            self.heard = (self.heard + os.read(self.reports, 4096))[-8192:]

    def said(self, nonce: str) -> int | None:
        """Return the exit code that the shell reported of a command; None if it did not yet."""
        for line in self.heard.split(b"\n")[:-1]:
            code, _, name = line.partition(b" ")
            if name == nonce.encode() and code.isdigit():
                return int(code)
        return None

    def drain(self, kept: Kept) -> None:
        kept.drain(self.output)

    def close(self) -> None:
        close([self.script, self.output, self.reports])


def _heard(channel: socket.socket) -> tuple[dict[str, Any], list[int]]:
    channel.settimeout(_ANSWER_S)
    try:
        message, descriptors = receive(channel)
    except OSError as error:
        raise UnreachableError(f"the box does not answer: {error}") from error
    if message is None:
        raise UnreachableError("the box is gone")
    return message, descriptors


def _by_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _unpack(archive: tarfile.TarFile, target: Path) -> None:
    """Write what a box packed: a policy may have made it, so only plain files and folders."""
    for member in archive:
        _, *parts = member.name.split("/")
        place = target.joinpath(*parts)
        if ".." in parts:
            continue
        if member.isdir():
            place.mkdir(parents=True, exist_ok=True)
        elif (file := archive.extractfile(member) if member.isfile() else None) is not None:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(file.read())


_boxes: weakref.WeakSet[OverlayBox] = weakref.WeakSet()


def _forget_boxes() -> None:
    for box in list(_boxes):
        box.forget()


os.register_at_fork(after_in_child=_forget_boxes)
