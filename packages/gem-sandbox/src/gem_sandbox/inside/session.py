"""Sessions inside the sandbox: each program runs in a fork of the previous program's process.

A session is a PID namespace. PID 1, the keeper, runs no program. The other processes are states:
the interpreter as it was after a program. A state never changes: to run the next program it forks,
and the fork becomes the next state when the program ends; if the program is killed, the old state
remains. The runner marks the states that it needs again. Between programs everything but the
keeper is stopped.

The keeper trusts its server only. Programs can forge the messages of states, so the keeper exits,
which ends the session, on any message that makes no sense. It holds no privileges or descriptors
worth attacking.
"""

from __future__ import annotations

import _socket
import os
import resource
import select
import signal
import struct
import sys

from . import program
from .beneath import beneath
from .protocol import ANSWER, ENDED, GONE, STEP, pair, receive, send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any, NoReturn

_FOLDER = "/tmp"
# Programs may replace the builtin.
_open = open
# Most states kept; to return to a dropped one the runner runs the programs again.
_KEPT = 8
_ORDER = struct.Struct("=I??")
"""Keeper to state: programs before, whether the state must be kept, whether the fork must restore
the files."""
_NUMBER = struct.Struct("=i")
_HOW_ENDED = b"?"
STOP = b"."
# Long, for a state may have to wait for a CPU.
_PATIENCE_S = 15.0
# Of the limit on open files, the share reserved for the state's own code.
_FILES_APART = 32
_FULL = b"earlier programs of the session have left too many processes\n"


@beneath
def keep(server: _socket.socket, seed: int, memory_mb: int, limit: Callable[[], None]) -> NoReturn:
    """Be the keeper of a session; never returns.

    Args:
        server: Socket for the server's orders (`STEP` with the descriptors of a program and its
            streams, or `STOP`) and for the answers.
        seed: Seed of the first state's random numbers.
        memory_mb: Memory of a program.
        limit: Sets the programs' resource limits on the calling process.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    ours, theirs = pair()
    pid = os.fork()
    if pid == 0:
        server.close()
        ours.close()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.setsid()
        limit()
        _be_state(theirs, seed, memory_mb)
    theirs.close()
    _Keeper(server, pid, ours).serve()


class _Keeper:
    def __init__(self, server: _socket.socket, pid: int, channel: _socket.socket) -> None:
        self.server = server
        self.states = {0: (pid, channel)}
        # Number of the state whose files are in the folder now.
        self.files: int | None = 0
        self.dropped: list[int] = []
        self.null = os.open("/dev/null", os.O_RDWR)

    def serve(self) -> NoReturn:
        while True:
            message, descriptors = receive(self.server)
            if not message:
                os._exit(0)
            if message == STOP:
                # The program had already ended.
                continue
            state, target, before, needed = STEP.unpack(message)
            # All programs see this process's descriptors as /dev/fd.
            use(descriptors[1:])
            if state in self.states:
                exit_code, done = self._step(state, target, before, needed, descriptors)
            else:
                exit_code, done = 0, GONE
            use([self.null] * 3)
            for descriptor in descriptors:
                os.close(descriptor)
            self.server.send(ANSWER.pack(ENDED, exit_code, done))
            self._reap()

    def _step(
        self, state: int, target: int, before: int, needed: bool, descriptors: list[int]
    ) -> tuple[int, int]:
        """Run a program in a fork of a state; return the exit code and the state after it."""
        pid, channel = self.states[state]
        ours, theirs = pair()
        os.kill(pid, signal.SIGCONT)
        order = _ORDER.pack(before, needed, self.files != state)
        try:
            send(channel, order, [theirs.fileno(), *descriptors])
        finally:
            theirs.close()
        exit_code, fork = self._wait(channel, ours)
        os.kill(-1, signal.SIGSTOP)
        if exit_code is None or fork is None:
            self.files = None
            if fork is not None:
                os.killpg(fork, signal.SIGKILL)
                exit_code = self._how_ended(pid, channel)
            ours.close()
            return -9 if exit_code is None else exit_code, state
        self.files = target
        self.states[target] = fork, ours
        if not needed:
            self._drop(state)
        while len(self.states) > 1 + _KEPT:
            self._drop(min(self.states))
        return exit_code, target

    def _wait(self, channel: _socket.socket, ours: _socket.socket) -> tuple[int | None, int | None]:
        """Wait for the program to end, or for the order to stop it.

        Returns:
            Exit code, unless it was stopped or ended its process; process id, if there is one.
        """
        poll = select.poll()
        for waiting in (self.server, channel, ours):
            poll.register(waiting.fileno(), select.POLLIN)
        fork = process = None
        try:
            while True:
                for descriptor, _ in poll.poll():
                    if descriptor == self.server.fileno():
                        if self.server.recv(64) != STOP:
                            os._exit(0)
                        return None, fork
                    if descriptor == channel.fileno():
                        # The state could not fork, or is gone.
                        failed = _number(channel)
                        return (failed, None) if failed is not None else os._exit(1)
                    if descriptor == process:
                        return None, fork
                    number = _number(ours)
                    if fork is not None:
                        return number, fork
                    if number is None or number < 2:
                        os._exit(1)
                    fork, process = number, os.pidfd_open(number)
                    poll.register(process, select.POLLIN)
        finally:
            if process is not None:
                os.close(process)

    def _how_ended(self, pid: int, channel: _socket.socket) -> int | None:
        """Return the exit code of a state's fork, which the state has to reap."""
        os.kill(pid, signal.SIGCONT)
        channel.send(_HOW_ENDED)
        if not select.select([channel], [], [], _PATIENCE_S)[0]:
            os._exit(1)
        number = _number(channel)
        os.kill(pid, signal.SIGSTOP)
        return number

    def _drop(self, state: int) -> None:
        pid, channel = self.states.pop(state)
        channel.close()
        os.kill(pid, signal.SIGKILL)
        self.dropped.append(pid)

    def _reap(self) -> None:
        """Reap dropped states and orphans."""
        for pid in self.dropped:
            _wait_for(pid, 0)
        self.dropped = []
        while _wait_for(-1, os.WNOHANG):
            pass


def use(streams: list[int]) -> None:
    """Make these descriptors this process's stdin, stdout and stderr."""
    for target, descriptor in enumerate(streams):
        os.dup2(descriptor, target)


def _wait_for(pid: int, options: int) -> bool:
    """Return whether a child has ended; False if there is none (its parent may be a state)."""
    try:
        return os.waitpid(pid, options)[0] != 0
    except ChildProcessError:
        return False


def _exit_code(pid: int) -> int:
    """Wait for a child; return its exit code, -9 if a program's doing left none to wait for."""
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:
        return -9


@beneath
def _be_state(channel: _socket.socket, seed: int, memory_mb: int) -> NoReturn:
    """Be a state: answer the keeper's orders. A fork runs its program, then does the same."""
    main = program.prepare(seed)
    forks: list[int] = []
    files: _Files | None = None
    null = os.open("/dev/null", os.O_RDWR)
    while True:
        order, descriptors = receive(channel)
        if not order:
            os._exit(0)
        if order == _HOW_ENDED:
            channel.send(_NUMBER.pack(_exit_code(forks.pop())))
            continue
        forks = [pid for pid in forks if not _wait_for(pid, os.WNOHANG)]
        before, needed, restored = _ORDER.unpack(order)
        if needed and files is None:
            files = _Files()
        drawn = _random_state()
        try:
            pid = os.fork()
        except OSError:
            os.write(descriptors[-1], _FULL)
            channel.send(_NUMBER.pack(1))
            pid = -1
        if pid:
            forks += [pid] if pid > 0 else []
            for descriptor in descriptors:
                os.close(descriptor)
            continue
        os.setsid()
        channel.close()
        channel = _socket.socket(fileno=descriptors[0])
        mine = os.getpid()
        channel.send(_NUMBER.pack(mine))
        if restored and files is not None:
            files.restore()
        files, forks = None, []
        _draw_on(drawn)
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most - _FILES_APART, most))
        exit_code = _run(main, before, memory_mb, descriptors[1:])
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        if os.getpid() != mine:
            # The program forked, and this child also reached the program's end.
            os._exit(exit_code)
        use([null] * 3)
        channel.send(_NUMBER.pack(exit_code))


@beneath
def _run(main: ModuleType, before: int, memory_mb: int, descriptors: list[int]) -> int:
    """Run a program in the session's `__main__` module; return the exit code.

    The interpreter goes on: what the program registered for its end does not run, and what the
    program holds is not finalized. But all that it has written appears now, not in the output of a
    later program.
    """
    code, *streams = descriptors
    source = program.contents(code)
    use(streams)
    for descriptor in descriptors:
        os.close(descriptor)
    program.renew_streams()
    # One file per program: tracebacks through earlier programs' functions need their lines.
    path = f"{_FOLDER}/program-{before + 1}.py"
    main.__dict__["__file__"] = path
    program.show(path, source)
    exit_code = program.execute(source, path, memory_mb, main.__dict__)
    try:
        threading: Any = sys.modules.get("threading")
        pools: Any = sys.modules.get("concurrent.futures.thread")
        if pools is not None:
            # Threads of pools wait for work until they are told to end, and no fork has them.
            pools._python_exit()
            pools._shutdown = False
        for thread in threading.enumerate() if threading else ():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
    except BaseException:
        exit_code = exit_code or 120
    return exit_code if program.flush() else exit_code or 120


class _Files:
    """A copy of the folder's contents, to be restored later."""

    def __init__(self) -> None:
        self.folders: list[tuple[str, int]] = []
        self.files: list[tuple[str, int, bytes | str]] = []
        for top, folders, names in os.walk(_FOLDER):
            for name in folders + names:
                self._add(f"{top}/{name}")

    def _add(self, path: str) -> None:
        mode = os.lstat(path).st_mode
        kind = mode & 0o170000
        if kind == 0o040000:
            self.folders.append((path, mode & 0o777))
        elif kind == 0o120000:
            self.files.append((path, 0, os.readlink(path)))
        elif kind == 0o100000 and os.access(path, os.R_OK):
            with _open(path, "rb") as file:
                self.files.append((path, mode & 0o777, file.read()))

    def restore(self) -> None:
        for top, folders, names in os.walk(_FOLDER, topdown=False):
            for name in names:
                os.unlink(f"{top}/{name}")
            for name in folders:
                path = f"{top}/{name}"
                os.unlink(path) if os.path.islink(path) else os.rmdir(path)
        for path, _ in self.folders:
            os.mkdir(path)
        for path, mode, content in self.files:
            if isinstance(content, str):
                os.symlink(content, path)
            else:
                program.write(path, content)
                os.chmod(path, mode)
        for path, mode in self.folders:
            os.chmod(path, mode)
        os.chdir(_FOLDER)


def _random_state() -> object:
    random: Any = sys.modules.get("random")
    return random.getstate() if random else None


def _draw_on(state: object) -> None:
    """Restore the generator's state, as `random` reseeds itself in a fork."""
    if state is not None:
        sys.modules["random"].setstate(state)


def _number(channel: _socket.socket) -> int | None:
    message = channel.recv(64)
    return _NUMBER.unpack(message)[0] if len(message) == _NUMBER.size else None
