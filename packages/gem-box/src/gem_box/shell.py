"""The shell of a box, which runs one command after the other and reports the exit code of each."""

from __future__ import annotations

import contextlib
import os
import shlex
import uuid
from collections.abc import Mapping

from gem_box.link import Link
from gem_box.output import Kept
from gem_box.watching import child
from gem_box.within.messages import close

LONGEST_COMMAND = 60_000


class Shell:
    """A shell that reads its commands from a pipe, writes to a second, and reports to a third.

    Attributes:
        pid: Its id in the box.
        host_pid: Its id on this machine, 0 if it has ended already.
        silent: Whether nobody can report any more: another program is in the shell's place.
    """

    def __init__(self, link: Link, program: str, where: str, env: Mapping[str, str]) -> None:
        """Begin a shell.

        Args:
            link: Of the box.
            program: Path of the shell.
            where: The folder in which it begins.
            env: All of its variables.
        """
        self._link = link
        script, self._script = os.pipe()
        self._output, output = os.pipe()
        self._reports, reports = os.pipe()
        self._heard, self._nonce, self._unsent = b"", b"", b""
        self.silent = False
        for descriptor in (self._script, self._output, self._reports):
            os.set_blocking(descriptor, False)
        options = ["--noprofile", "--norc"] if program.endswith("bash") else []
        try:
            self.pid = link.spawn([program, *options], where, env, [script, output, reports])
        finally:
            close([script, output, reports])
        self.host_pid = child(link.pid, self.pid)

    def begin(self, command: str) -> None:
        """Have it run a command of at most `LONGEST_COMMAND` bytes."""
        self._nonce, self._heard = uuid.uuid4().hex.encode(), b""
        quoted = shlex.quote(command).encode()
        script = b"eval %s </dev/null 8>&-\nprintf '%%d %s\\n' \"$?\" >&8\n" % (quoted, self._nonce)
        self._unsent = script
        self._send()

    def _send(self) -> None:
        """Write what the pipe takes: in quotes a command may be longer than that."""
        try:
            self._unsent = self._unsent[os.write(self._script, self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:  # a shell that is gone is told of by process 1
            self._unsent = b""

    def wait(self, seconds: float, kept: Kept) -> None:
        """Wait for output, a report, or the end of a process of the box."""
        self._send()
        self._link.wait(seconds, self._output, kept, *([] if self.silent else [self._reports]))
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._reports, 4096)
            self.silent = not data
            self._heard = (self._heard + data)[-8192:]

    def drain(self, kept: Kept) -> None:
        """Take the output that is there."""
        kept.drain(self._output)

    @property
    def code(self) -> int | None:
        """Exit code of the command; None if the shell has not reported it."""
        for line in self._heard.split(b"\n")[:-1]:
            code, _, name = line.partition(b" ")
            if name == self._nonce and code.isdigit():
                return int(code)
        return None

    def close(self) -> None:
        """Close the pipes, upon which the shell ends."""
        close([self._script, self._output, self._reports])
