"""The protocol of a box: a small machine in which a policy's commands and then the tests run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENVIRONMENT: Mapping[str, str] = {
    "PATH": PATH,
    "HOME": "/root",
    "TERM": "dumb",
    "LANG": "C.UTF-8",
}
"""Variables of every command; those of the image come on top."""
SYSTEM = ("usr", "etc", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
"""Folders of the system, which `restart` can put back to what the image has."""


class Ran(NamedTuple):
    """What came of a command. One that fails or is killed is an outcome, not an exception."""

    output: bytes
    """Standard output and error in the order of writing; of long ones head and tail."""
    code: int
    """Exit code; negative: the signal that ended it."""
    limit_hit: str | None = None
    """`time`, `memory` or `output` if that limit ended the command."""
    ended_shell: bool = False
    """Whether the shell is gone, so that the next command has a new one."""
    left_out: int = 0
    """Bytes of output between head and tail that are not kept."""


class Box(Protocol):
    """A system of its own: files, processes, an empty network.

    One thread at a time uses it. What the box's own machinery fails at is an `UnreachableError`.
    Commands cannot cause one: what they do to the box is an outcome of theirs.
    """

    def start(self) -> None:
        """Begin with the image's files."""

    def run(self, command: str, timeout: float) -> Ran:
        """Run a command in the box's shell, which keeps folder, variables and functions.

        It ends when the shell says so: a process in the background may live on and hold the output.

        Args:
            command: A text for the shell.
            timeout: Seconds of CPU time of the command; it may take twice that of own time (a
                clock that stands still while it waits for a CPU). What takes longer is killed,
                with what it began and with the shell.

        Raises:
            BusyMachineError: The command got too little CPU time.
            UnreachableError: The box is gone.
        """

    def execute(
        self,
        argv: Sequence[str],
        timeout: float,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
    ) -> Ran:
        """Run a program beside the shell; `env` is added to the box's own variables."""

    def put(self, source: Path | None, target: str, *, fresh: bool = False) -> None:
        """Copy the content of a folder, or a file under the target's name, into the box.

        Args:
            source: On the host; None makes the folder only.
            target: In the box; missing folders are made.
            fresh: Whether a folder is made anew, whatever is there.
        """

    def get(self, path: str, target: Path) -> None:
        """Copy a file, or the content of a folder, out of the box.

        Raises:
            FileNotFoundError: The box has no such path.
        """

    def read(self, path: str, most: int) -> bytes | None:
        """Return the content of a regular file, read by the host, which follows no link.

        Returns:
            At most `most + 1` bytes; None if there is no such file.
        """

    def restart(self, pristine: Sequence[str] = ()) -> list[str]:
        """End all processes; files stay, but these folders are the image's again.

        With a folder of programs comes what they load: `lib` and the like beside `bin`, and the
        programs that it has links to.

        Returns:
            The folders that could not be put back: one that has the box's folder in it, or below a
            folder in whose place the box has put something else.
        """

    def close(self) -> None:
        """End all processes and forget the files; safe to repeat."""
