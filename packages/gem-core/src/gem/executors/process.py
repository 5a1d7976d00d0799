"""`ProcessExecutor`: environments in other processes of this machine."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections import deque

from gem.errors import ConfigurationError, UnreachableError
from gem.executors.pool import PoolExecutor, Worker
from gem.foreign import described, signal_name, trace
from gem.parameters import integer, optional

logger = logging.getLogger(__name__)

_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from gem.executors import worker; worker.main(*sys.argv[2:])"
)
_LENGTH = struct.Struct("!I")
_LOOK_S = 1.0
"""How often idle and silent workers are looked for."""
_END_S = 5.0
"""How long a worker may take to close its environments when it is asked to end."""


class ProcessExecutor(PoolExecutor):
    """Environments in processes: for those that compute, or block without letting others run.

    The processes are new interpreters, never forks of this one, whose threads could break a fork.
    They end when this process does, however it ends. After `os.fork` the child starts with none.
    """

    def __init__(
        self,
        workers: int | None = None,
        *,
        memory_mb: int | None = None,
        episodes_per_worker: int | None = None,
    ) -> None:
        """Store the parameters; processes start when they are needed.

        Args:
            workers: Most processes; one for each core by default.
            memory_mb: Limit on each process's address space; None for no limit.
            episodes_per_worker: Episodes after which a process is replaced; None for no limit.

        Raises:
            ConfigurationError: A number is below 1, or the platform has no `socketpair` that a
                process can inherit.
        """
        if os.name != "posix":
            raise ConfigurationError("environments in processes need Linux or macOS")
        self._memory_mb = optional(integer, "memory_mb", memory_mb, 1, 2**31)
        super().__init__(
            cores() if workers is None else workers, episodes_per_worker=episodes_per_worker
        )
        _executors.add(self)

    def _begin(self) -> None:
        super()._begin()
        self._io: _IO | None = None

    def _start(self) -> Worker:
        if self._io is None or self._io.failed is not None:
            self._io = _IO(self)
        return _Process(self._io, self._memory_mb, self._most)

    def close(self) -> None:
        """End all processes, once they have closed their environments."""
        super().close()
        if self._io is not None:
            self._io.close()

    def pids(self) -> list[int]:
        """Return the process ids of the workers."""
        with self._lock:
            return [worker.pid for worker in self._workers if isinstance(worker, _Process)]

    def broken(self, io: _IO) -> None:
        """Start no further process that a thread which has ended would have to read from."""
        with self._lock:
            if self._io is io:
                self._io = None

    def write(self, process: _Process) -> None:
        """Write what did not fit into a process's socket."""
        if process.unsent:
            with self._lock:
                process.write()

    def forget(self) -> None:
        """In a forked child: begin anew, and close what was inherited.

        Episodes that run go on here as in the parent: the next call plays them again.
        """
        if self._io is not None:
            self._io.forget()
        for worker in self._workers:
            for handle in worker.handles.values():
                handle.worker = handle.call = None
        self._lock = threading.RLock()
        self._begin()


_executors: weakref.WeakSet[ProcessExecutor] = weakref.WeakSet()


def _forget_all() -> None:
    for executor in list(_executors):
        executor.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _IO:
    """The thread that reads from all processes of an executor, and writes what would block."""

    def __init__(self, executor: ProcessExecutor) -> None:
        self._executor = executor
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        for end in (self._woken, self._waker):
            end.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._added = deque[_Process]()
        self._processes: set[_Process] = set()
        self._is_over = False
        self.failed: str | None = None
        """Why the thread has ended, if it ended too early."""
        self._thread = threading.Thread(target=self._run, name="gem-processes", daemon=True)
        self._thread.start()

    def add(self, process: _Process) -> None:
        """Read from a new process."""
        self._added.append(process)
        self.wake()

    def wake(self) -> None:
        """Look for new processes and for frames that were not written completely."""
        # A full pipe is read soon; a closed one belongs to a thread that has ended.
        with contextlib.suppress(OSError):
            self._waker.send(b"\0")

    def close(self) -> None:
        """Wait until all processes have ended."""
        self._is_over = True
        self.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def forget(self) -> None:
        """In a forked child: close what was inherited."""
        self._selector.close()
        self._woken.close()
        self._waker.close()
        for process in {*self._processes, *self._added}:
            process.socket.close()
            process.process.returncode = 0  # it is no child of this process

    def _run(self) -> None:
        """Serve all processes; whatever goes wrong, no call waits for a thread that has ended."""
        try:
            self._serve()
        except BaseException as error:
            self.failed = f"the thread that reads from all workers failed: {described(error)}"
            logger.error("%s\n%s", self.failed, trace(error))
            with contextlib.suppress(Exception):
                self._executor.broken(self)
            while self._processes or self._added:
                process = self._processes.pop() if self._processes else self._added.popleft()
                with contextlib.suppress(Exception):
                    process.process.kill()
                    process.socket.close()
                    process.process.wait(_END_S)
                self._executor.ended(process, self.failed, UnreachableError(self.failed))
        self._selector.close()
        self._woken.close()
        self._waker.close()

    def _serve(self) -> None:
        look_at = 0.0
        while not self._is_over or self._processes or self._added:
            ready = self._selector.select(_LOOK_S if self._processes or self._added else None)
            for key, events in ready:
                if key.data is None:
                    with contextlib.suppress(BlockingIOError):
                        self._woken.recv(4096)
                elif events & selectors.EVENT_READ:
                    self._guarded(key.data)
            while self._added:
                self._processes.add(process := self._added.popleft())
                self._selector.register(process.socket, selectors.EVENT_READ, process)
            for process in self._processes:
                self._executor.write(process)
                wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if process.unsent else 0)
                if self._selector.get_key(process.socket).events != wanted:
                    self._selector.modify(process.socket, wanted, process)
            if (now := time.monotonic()) >= look_at:
                look_at = now + _LOOK_S
                self._executor.look()
                for process in self._processes:
                    if process.kill_at is not None and now >= process.kill_at:
                        process.process.kill()

    def _guarded(self, process: _Process) -> None:
        """Read from a process; end it, and no other one, if what it sends cannot be used."""
        try:
            self._read(process)
        except Exception as error:
            why = f"it sent something that is not an answer: {described(error)}"
            logger.warning("a worker is ended: %s\n%s", why, trace(error))
            process.process.kill()
            self._gone(process, why)

    def _read(self, process: _Process) -> None:
        try:
            data = process.socket.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._gone(process)
            return
        received = process.received
        received += data
        while len(received) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(received)[0]
            if len(received) < end:
                break
            frame = bytes(received[_LENGTH.size : end])
            del received[:end]
            self._executor.received(process, frame)

    def _gone(self, process: _Process, why: str = "") -> None:
        self._selector.unregister(process.socket)
        self._processes.discard(process)
        process.socket.close()
        try:
            process.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.process.kill()
            process.process.wait()
        self._executor.ended(process, why or _described(process.process.returncode))


def _described(status: int) -> str:
    if status >= 0:
        return f"its process ended with exit status {status}"
    hint = " (out of memory?)" if status == -signal.SIGKILL else ""
    return f"its process was ended by {signal_name(-status)}{hint}"


class _Process(Worker):
    """One process and the socket to it."""

    def __init__(self, io: _IO, memory_mb: int | None, of: int) -> None:
        super().__init__()
        self.socket, theirs = socket.socketpair()
        limit = "" if memory_mb is None else str(memory_mb)
        number = theirs.fileno()
        command = [sys.executable, "-c", _START, json.dumps(sys.path), str(number), limit, str(of)]
        try:
            with theirs:
                self.process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, pass_fds=(number,)
                )
        except OSError as error:
            self.socket.close()
            raise UnreachableError(f"cannot start a worker ({sys.executable}): {error}") from error
        self.socket.setblocking(False)
        self.pid = self.process.pid
        self.received = bytearray()
        self.unsent = deque[memoryview]()
        self.kill_at: float | None = None
        self._io = io
        io.add(self)

    def send(self, frame: bytes) -> None:
        self.unsent.append(memoryview(_LENGTH.pack(len(frame)) + frame))
        if len(self.unsent) == 1:
            self.write()
            if self.unsent:
                self._io.wake()

    def write(self) -> None:
        """Write as much as the socket takes; the pool's lock is held."""
        # A worker that is gone is noticed where the socket is read.
        with contextlib.suppress(OSError):
            while self.unsent:
                sent = self.socket.send(self.unsent[0])
                if sent == len(self.unsent[0]):
                    self.unsent.popleft()
                else:
                    self.unsent[0] = self.unsent[0][sent:]

    def end(self, *, kill: bool = False) -> None:
        if kill:
            self.process.kill()
        elif self.kill_at is None:
            self.kill_at = time.monotonic() + _END_S
            # At the end of its input the process closes its environments and exits.
            with contextlib.suppress(OSError):
                self.socket.shutdown(socket.SHUT_WR)
