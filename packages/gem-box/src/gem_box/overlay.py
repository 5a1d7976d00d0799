"""The box `overlay`: namespaces and an overlay of the kernel, without a daemon and without rights.

`within` has what runs beside and inside the box; `link` is the caller's end of it.
"""

from __future__ import annotations

import contextlib
import os
import stat
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gem.admission import Core
from gem.errors import ConfigurationError, UnreachableError
from gem_box.archives import emptied, packed, unpack
from gem_box.box import ENVIRONMENT, Ran
from gem_box.link import Link, RefusedError
from gem_box.output import Kept
from gem_box.shell import LONGEST_COMMAND, Shell
from gem_box.watching import BoxClock, child, descendants, inner
from gem_box.within.messages import close
from gem_sandbox import Limits
from gem_sandbox.running import watch

# What the tests may write on top, so that a box that a policy filled can still be graded.
_MORE_MB, _MORE_FILES = 256, 1 << 16
_FILES = 1 << 18


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
        self._link: Link | None = None
        self._shell: Shell | None = None
        _boxes.add(self)

    @property
    def link(self) -> Link:
        """The running box.

        Raises:
            UnreachableError: It was not started, or is closed.
        """
        if self._link is None:
            raise UnreachableError("the box is not started")
        return self._link

    def start(self) -> None:
        """Begin with the image's files."""
        self.close()
        self._link = Link(
            {
                "host": self.host,
                "upper": str(self.upper.resolve()) if self.upper else "",
                "layers": [str(each.resolve()) for each in self.layers],
                "mb": self.limits.disk_mb,
                "files": _FILES,
                # A box is looked at while a command runs; these hold also in between.
                "limits": {
                    "NPROC": self.limits.processes,
                    "DATA": self.limits.memory_mb << 20,
                    "CORE": 0,
                },
            }
        )
        try:
            self._link.begin(())
        except BaseException:
            self.close()
            raise

    def run(self, command: str, timeout: float) -> Ran:
        """Run a command in the box's shell; see `Box.run`."""
        # Lone surrogates cannot be written.
        command = command.encode("utf-8", "replace").decode("utf-8")
        if len(command.encode()) > LONGEST_COMMAND or "\0" in command:
            said = f"a command has at most {LONGEST_COMMAND} bytes, and no NUL"
            return Ran(f"{said}\n".encode(), 2)
        link = self.link
        shell = self._shell = self._shell or self._new_shell(self.workdir)
        kept = Kept(self.limits.output_bytes)
        before = inner(descendants(shell.host_pid))

        def ended(seconds: float) -> bool:
            shell.wait(seconds, kept)
            return kept.flooded or shell.pid in link.ended or shell.code is not None

        with Core() as core:
            core.acquire()
            clock = self._clock(shell.host_pid, None)
            shell.begin(command)
            try:
                over = watch(clock, self._limits(timeout), core, ended) or kept.flooded
            except BaseException:  # the next command must not be taken for this one
                link.end(shell.pid, before)
                link.ended.pop(shell.pid, None)
                self._leave_shell()
                raise
        if not over and shell.code is not None and shell.pid not in link.ended:
            shell.drain(kept)
            return Ran(kept.text(), shell.code, left_out=kept.left_out)
        where = link.end(shell.pid, before)
        shell.drain(kept)
        shell.close()
        code = link.ended.pop(shell.pid)["code"]
        self._shell = None
        if over:
            self._shell = self._new_shell(where or self.workdir)
            return Ran(kept.text(), -9, _hit(kept, clock), True, kept.left_out)
        return Ran(kept.text(), code, None, True, kept.left_out)

    def _new_shell(self, where: str) -> Shell:
        names = ("/usr/bin/bash", "/bin/bash")
        has_bash = any(self.read(name, 0) is not None for name in names)
        return Shell(self.link, "/bin/bash" if has_bash else "/bin/sh", where, self.env)

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
        link, kept = self.link, Kept(self.limits.output_bytes)
        with contextlib.ExitStack() as stack:
            given = stack.enter_context(emptied())
            os.write(given, stdin)
            os.lseek(given, 0, os.SEEK_SET)
            output, theirs = os.pipe()
            stack.callback(os.close, output)
            os.set_blocking(output, False)
            if core is None:
                core = stack.enter_context(Core())
            core.acquire()
            variables = {**self.env, **(env or {})}
            try:
                pid = link.spawn(argv, cwd or self.workdir, variables, [given, theirs])
            finally:
                close([theirs])

            def ended(seconds: float) -> bool:
                link.wait(seconds, output, kept)
                return kept.flooded or pid in link.ended

            clock = self._clock(child(link.pid, pid), 0.0)
            try:
                over = watch(clock, self._limits(timeout), core, ended) or kept.flooded
            finally:
                link.end(pid)
            kept.drain(output)
            told = link.ended.pop(pid)
            if over or told["cpu_s"] > timeout:
                return Ran(kept.text(), -9, _hit(kept, clock), False, kept.left_out)
            return Ran(kept.text(), told["code"], None, False, kept.left_out)

    def put(self, source: Path | None, target: str, *, fresh: bool = False) -> None:
        """Copy into the box; see `Box.put`."""
        folder, name = (target, "") if source is None or source.is_dir() else os.path.split(target)
        with packed(source, name) as archive:
            self.link.ask({"do": "put", "path": f"/{folder}", "fresh": fresh}, [archive])

    def unpack(self, archive: Path) -> None:
        """Unpack a root file system.

        Raises:
            ConfigurationError: It cannot be read or unpacked.
        """
        try:
            with archive.open("rb") as file:
                self.link.ask({"do": "put", "path": "/", "fresh": False}, [file.fileno()])
        except (OSError, RefusedError) as error:
            raise ConfigurationError(f"{archive}: {error}") from None

    def get(self, path: str, target: Path) -> None:
        """Copy out of the box; see `Box.get`."""
        with emptied() as archive:
            try:
                self.link.ask({"do": "get", "path": f"/{path}"}, [archive])
            except RefusedError as error:
                raise FileNotFoundError(f"{path}: {error}") from None
            unpack(archive, target)

    def read(self, path: str, most: int) -> bytes | None:
        """Return the content of a regular file; see `Box.read`."""
        at = os.dup(self._link.root if self._link else -1)
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

    def tries(self) -> int:
        """Return how often processes of the box have tried to reach a network.

        The kernel counts them: names that are asked for, connections, packets without a way. It
        does not count what stays in the box.
        """
        count = 0
        for name in ("snmp", "snmp6"):
            with contextlib.suppress(OSError):
                lines = Path(f"/proc/{self.link.keeper.pid}/net/{name}").read_text().splitlines()
                if name == "snmp":
                    lines = [f"Ip{k} {v}" for k, v in zip(*map(str.split, lines[:2]), strict=True)]
                count += sum(int(x.split()[1]) for x in lines if "OutNoRoutes" in x)
        return count

    def restart(self, pristine: Sequence[str] = ()) -> list[str]:
        """End all processes; see `Box.restart`. The box gets some more room for files."""
        self._leave_shell()
        return self.link.begin(pristine, self.workdir, _MORE_MB, _MORE_FILES)

    def close(self) -> None:
        """End all processes and forget the files; safe to repeat."""
        self._leave(Link.close)

    def forget(self) -> None:
        """In a forked process: close its copies of the descriptors; the box is the parent's."""
        self._leave(Link.forget)

    def _leave(self, leave: Callable[[Link], None]) -> None:
        self._leave_shell()
        link, self._link = self._link, None
        if link is not None:
            leave(link)

    def _leave_shell(self) -> None:
        shell, self._shell = self._shell, None
        if shell is not None:
            shell.close()

    def _limits(self, timeout: float) -> Limits:
        return Limits(cpu_s=timeout, memory_mb=self.limits.memory_mb)

    def _clock(self, pid: int, spent_s: float | None) -> BoxClock:
        return BoxClock(pid, spent_s, self.link.pid, self.limits.memory_mb)


def _hit(kept: Kept, clock: BoxClock) -> str:
    return "output" if kept.flooded else clock.over or "time"


_boxes: weakref.WeakSet[OverlayBox] = weakref.WeakSet()


def _forget_boxes() -> None:
    for box in list(_boxes):
        box.forget()


os.register_at_fork(after_in_child=_forget_boxes)
