"""The caller's end of a box: starts its keeper, and talks with the keeper and with process 1."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gem_sandbox.inside
from gem.errors import UnreachableError
from gem_box.output import Kept
from gem_box.users import ids
from gem_box.within.messages import pair, receive, send

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
_NEEDS = (
    "boxes need Linux 6.6 or newer with user namespaces and overlays in them "
    "(sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, "
    "kernel.apparmor_restrict_unprivileged_userns)"
)


class RefusedError(UnreachableError):
    """Process 1 could not do what it was asked."""


class Link:
    """A keeper and what it keeps.

    Attributes:
        pid: Process 1 of the box, as this machine calls it.
        root: Descriptor of the box's root folder; -1 before `begin`.
        ended: What process 1 told of commands that ended, by their ids in the box.
    """

    def __init__(self, request: Mapping[str, Any]) -> None:
        """Start a keeper; the box does not begin yet.

        Args:
            request: What the keeper is to make; see `within.keeper`.

        Raises:
            UnreachableError: No box can be made here.
        """
        self.pid, self.root = 0, -1
        self.ended: dict[int, dict[str, Any]] = {}
        self._first: socket.socket | None = None
        self._channel, theirs = pair()
        with theirs:
            # Not by preexec_fn or the like: a trainer has threads.
            self.keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _START, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={"GEM_BOX": os.pathsep.join(map(str, _PACKAGES))},
                cwd="/",
                start_new_session=True,
            )
        try:
            users = ids()
            own = [os.geteuid(), os.getegid()]
            self._tell_keeper({**request, "mapped": users.mapped, "ids": own})
            if self._hear_keeper().get("map"):
                users.apply(self.keeper.pid)
                self._tell_keeper({})
                self._hear_keeper()
        except BaseException:
            self.close()
            raise

    def begin(
        self, pristine: Sequence[str], work: str = "", more_mb: int = 0, more_files: int = 0
    ) -> list[str]:
        """Begin the box, or begin it again with its files; all processes of before end.

        Args:
            pristine: Folders that are to be as in the image.
            work: The folder in which the box works, which stays.
            more_mb: Room that the box gets on top, in MB.
            more_files: The same in files.

        Returns:
            The folders of `pristine` that could not be put back.
        """
        self._leave()
        self._first, theirs = pair()
        with theirs:
            request: dict[str, Any] = {"pristine": list(pristine), "work": work}
            request |= {"more_mb": more_mb, "more_files": more_files}
            self._tell_keeper(request, [theirs.fileno()])
        begun = self._hear_keeper()
        self.pid = begun["pid"]
        message, descriptors = _heard(self._first)
        if not descriptors:
            raise UnreachableError(f"no box can be started: {message.get('error')}; {_NEEDS}")
        [self.root] = descriptors
        kept: list[str] = begun["kept"]
        return kept

    def spawn(
        self, argv: Sequence[str], cwd: str, env: Mapping[str, str], ends: Sequence[int]
    ) -> int:
        """Begin a command; return its id in the box.

        Args:
            argv: The program's path and its arguments.
            cwd: Where.
            env: All of its variables.
            ends: Its standard input, its output, and perhaps what is to be descriptor 8.
        """
        request = {"do": "begin", "argv": list(argv), "cwd": cwd, "env": dict(env)}
        pid: int = self.ask({**request, "uid": 0, "gid": 0}, ends)["pid"]
        return pid

    def end(self, pid: int, spared: Sequence[int] = ()) -> str:
        """Kill a command with what is below it, unless it has ended; return where it was.

        It is in `ended` then.

        Args:
            pid: Its id in the box.
            spared: Processes below it that live on.
        """
        if pid in self.ended:
            return ""
        where: str = self.ask({"do": "end", "pid": pid, "spared": list(spared)})["cwd"]
        while pid not in self.ended:
            self._note(self._hear())
        return where

    def ask(self, request: dict[str, Any], descriptors: Sequence[int] = ()) -> dict[str, Any]:
        """Return the answer of process 1.

        Raises:
            RefusedError: It could not do it.
            UnreachableError: The box is gone.
        """
        if self._first is None:
            raise UnreachableError("the box is not started")
        _send(self._first, request, descriptors)
        while self._note(answer := self._hear()):
            pass
        if "error" in answer:
            raise RefusedError(f"the box: {answer['error']}")
        return answer

    def wait(self, seconds: float, output: int, kept: Kept, *others: int) -> None:
        """Wait for output, for a message of process 1, or for other descriptors; take them in."""
        if self._first is None:
            raise UnreachableError("the box is not started")
        poll = select.poll()
        for descriptor in (output, self._first.fileno(), *others):
            if descriptor != output or not kept.ended:
                poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll(seconds * 1000):
            if descriptor == output:
                kept.drain(output)
            elif descriptor == self._first.fileno():
                self._note(self._hear())

    def close(self) -> None:
        """End the box and its keeper."""
        self._leave()
        self._channel.close()
        with self.keeper as keeper:
            try:
                keeper.wait(_ANSWER_S)
            except subprocess.TimeoutExpired:
                keeper.kill()

    def forget(self) -> None:
        """In a forked process: close its copies of the descriptors; the box is the parent's."""
        self._leave()
        self._channel.close()
        self.keeper.returncode = 0

    def _leave(self) -> None:
        if self._first is not None:
            self._first.close()
            self._first = None
        if self.root >= 0:
            os.close(self.root)
            self.root = -1
        self.ended.clear()

    def _note(self, message: dict[str, Any]) -> bool:
        """Note the end of a command; return whether the message was one."""
        if "ended" in message:
            self.ended[message["ended"]] = message
        return "ended" in message

    def _hear(self) -> dict[str, Any]:
        assert self._first is not None
        try:
            return _heard(self._first)[0]
        except BaseException:
            # What comes late would be taken for the answer to a later message.
            self._leave()
            raise

    def _tell_keeper(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        _send(self._channel, message, descriptors)

    def _hear_keeper(self) -> dict[str, Any]:
        try:
            message, _ = _heard(self._channel)
        except BaseException:
            self._leave()
            self._channel.close()
            raise
        if "error" in message:
            raise UnreachableError(f"no box can be started: {message['error']}; {_NEEDS}")
        return message


def _send(channel: socket.socket, message: dict[str, Any], descriptors: Sequence[int]) -> None:
    try:
        send(channel, message, descriptors)
    except OSError as error:
        raise UnreachableError(f"the box is gone: {error}") from error


def _heard(channel: socket.socket) -> tuple[dict[str, Any], list[int]]:
    channel.settimeout(_ANSWER_S)
    try:
        message, descriptors = receive(channel)
    except OSError as error:
        raise UnreachableError(f"the box does not answer: {error}") from error
    if message is None:
        raise UnreachableError("the box is gone")
    return message, descriptors
