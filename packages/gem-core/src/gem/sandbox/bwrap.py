"""The executor that isolates: warm interpreters inside bubblewrap, a fork for each program."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gem.errors import ConfigurationError, UnreachableError
from gem.sandbox.base import Executor, Limits, Result
from gem.sandbox.inside.protocol import REPORT, REQUEST
from gem.sandbox.streams import Outputs, encoded, in_memory

INSTALL = "apt-get install bubblewrap"
MODULES = ("numpy", "sympy")

_INSIDE = Path(__file__).with_name("inside")
_START = "import sys; sys.path[0] = '/gem'; sys.path += sys.argv.pop(1).split(':'); from inside import server; server.main()"  # noqa: E501
_START_S = 60.0
# Beyond a program's own limit; then the server itself is stuck.
_GRACE_S = 10.0
_UIDS = 4096
_ATTEMPTS = 3
_ENVIRONMENT = {
    "HOME": "/tmp",
    "TMPDIR": "/tmp",
    "LANG": "C.UTF-8",
    "PYTHONUTF8": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    # Sets and dictionaries of text come out in the same order every time.
    "PYTHONHASHSEED": "0",
    "SYMPY_CACHE_SIZE": "20000",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}


class BwrapExecutor(Executor):
    """Runs each program in a fork of a warm interpreter inside a bubblewrap sandbox.

    The sandbox has no network, no file of the user, and of the system only the libraries, the
    interpreter and the folders of the installed `modules`, read-only; its environment is ours. In
    it each program has a process namespace, a user namespace and a temporary folder of its own,
    no capabilities, and a filter in front of the system calls. When it ends, so does everything
    that it started, and its folder is gone. The interpreters are shared by all executors of this
    process with the same parameters and start when first needed.

    A program is process 1 of its namespace: signals that it sends to itself without having
    installed a handler are ignored, as they are for any first process.
    """

    isolates = frozenset({"files", "network", "processes"})

    def __init__(self, servers: int | None = None, modules: Sequence[str] = MODULES) -> None:
        """Check that bubblewrap is there; nothing is started.

        Args:
            servers: Warm interpreters that start programs, each one after the other; None: one per
                core, at most 8. Any number of programs run at the same time.
            modules: Installed modules that programs may import along with everything else in
                their folders; programs that name one of them get it imported beforehand.

        Raises:
            ConfigurationError: A value is not allowed, or bubblewrap is not installed.
        """
        if servers is None:
            servers = min(8, os.cpu_count() or 1)
        if isinstance(servers, bool) or not isinstance(servers, int) or servers < 1:
            raise ConfigurationError(f"servers must be an integer of at least 1, got {servers!r}")
        if sys.platform != "linux" or shutil.which("bwrap") is None:
            raise ConfigurationError(
                "the bwrap executor needs Linux and bubblewrap, and `bwrap` is not on the PATH; "
                f"install it: {INSTALL}"
            )
        self.servers = servers
        self.modules = tuple(modules)

    def run(self, code: str, stdin: str = "", limits: Limits = Limits()) -> Result:  # noqa: B008
        """Run a program; see `Executor.run`."""
        source = encoded(code)
        level = _level(source, self.modules)
        for _ in range(_ATTEMPTS):
            with (
                contextlib.suppress(_NotSentError),
                _pool(self.servers, self.modules).server() as server,
            ):
                return server.run(source, encoded(stdin), limits, level)
        raise UnreachableError(f"the sandbox ended {_ATTEMPTS} times before a program began")

    def pids(self) -> list[int]:
        """Return the process ids of the running sandboxes."""
        return _pool(self.servers, self.modules).pids()


def _level(source: bytes, modules: tuple[str, ...]) -> int:
    """Return which of the interpreters has what the program seems to import."""
    for number in reversed(range(len(modules))):
        if modules[number].encode() in source:
            return 2 + number
    return int(b"import" in source)


@functools.cache
def _pool(servers: int, modules: tuple[str, ...]) -> _Pool:
    return _Pool(servers, modules)


class _NotSentError(OSError):
    """The server had ended before it was asked."""


class _Pool:
    """Servers that start when needed; each call goes to the one with the fewest."""

    def __init__(self, servers: int, modules: tuple[str, ...]) -> None:
        self.modules = modules
        self.lock = threading.Lock()
        self.places = [_Place() for _ in range(servers)]
        _pools.append(self)
        _watch()

    @contextlib.contextmanager
    def server(self) -> Iterator[_Server]:
        """Give a running server; one that has ended is replaced.

        Raises:
            UnreachableError: It cannot be started.
        """
        with self.lock:
            place = min(self.places, key=lambda place: place.calls)
            place.calls += 1
        try:
            with place.lock:
                if place.server is None or place.server.ended():
                    if place.server is not None:
                        place.server.end()
                    place.server = None
                    place.server = _spawner().submit(_Server, self.modules).result()
                server = place.server
            yield server
        finally:
            with self.lock:
                place.calls -= 1

    def pids(self) -> list[int]:
        servers = [place.server for place in self.places]
        return [server.process.pid for server in servers if server and not server.broken]

    def close(self) -> None:
        for place in self.places:
            if place.server is not None:
                place.server.end()
                place.server = None

    def forget(self) -> None:
        """Let go of the parent's servers in a forked child."""
        for place in self.places:
            if place.server is not None:
                place.server.forget()


class _Place:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.calls = 0
        self.server: _Server | None = None


class _Server:
    """One sandbox: bubblewrap, and in it interpreters that have imported more and more."""

    def __init__(self, modules: tuple[str, ...]) -> None:
        self.broken = False
        pairs = [_sockets() for _ in range(2 + len(modules))]
        self.requests = [ours for ours, _ in pairs]
        theirs = [end for _, end in pairs]
        as_root = os.geteuid() == 0
        uids = _UIDS if as_root else 0
        mapping = _Mapping() if as_root else None
        descriptors = [end.fileno() for end in theirs]
        passed = [*descriptors, *(mapping.theirs if mapping else ())]
        executable, binds, sites = _view(modules)
        command = ["bwrap", *_isolation(), *(mapping.options if mapping else ())]
        command += [*binds, "--chdir", "/tmp", executable, "-s", "-S", "-c", _START]
        command += [":".join(sites), str(uids), ",".join(map(str, descriptors)), *modules]
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=passed,
                env={**_ENVIRONMENT, "LD_LIBRARY_PATH": "/python/lib"},
                cwd="/",
            )
        except OSError as error:
            raise UnreachableError(f"cannot start bwrap: {error}") from error
        finally:
            for end in theirs:
                end.close()
            if mapping:
                mapping.close_theirs()
        try:
            if mapping:
                mapping.apply()
            # Shows that the kernel lets programs be confined, before anyone's program runs.
            self.run(b"print(1)", b"", Limits(wall_s=_START_S), 0)
        except (OSError, ValueError) as error:
            self.end()
            assert self.process.stderr is not None
            said = self.process.stderr.read().decode("utf-8", "replace").strip()
            raise UnreachableError(
                f"the bubblewrap sandbox does not start: {said or error}; "
                "`python -m gem doctor` says what this machine lacks"
            ) from error

    def run(self, source: bytes, stdin: bytes, limits: Limits, level: int) -> Result:
        report, theirs = _sockets()
        with contextlib.ExitStack() as stack:
            stack.enter_context(report)
            outputs = stack.enter_context(Outputs(limits.output_bytes))
            with theirs, in_memory(source) as code, in_memory(stdin) as given:
                request = REQUEST.pack(
                    limits.wall_s, limits.memory_mb, limits.disk_mb, limits.processes
                )
                descriptors = [theirs.fileno(), code, given, *outputs.theirs]
                try:
                    socket.send_fds(self.requests[level], [request], descriptors)
                except OSError as error:
                    self.broken = True
                    raise _NotSentError(str(error)) from error
            outputs.close_theirs()
            answer = self._await(report, outputs, limits)
        if len(answer) != REPORT.size:
            raise UnreachableError(f"the sandbox cannot start programs: {answer.decode()}")
        exit_code, seconds, ended = REPORT.unpack(answer)
        stdout, stderr = outputs.texts()
        limit_hit = ended.rstrip(b"\0").decode() or None
        if outputs.cut:
            limit_hit = limit_hit or "output"
        elif exit_code and "MemoryError" in stderr.rstrip().rpartition("\n")[2][:60]:
            limit_hit = limit_hit or "memory"
        return Result(stdout, stderr, exit_code, seconds, limit_hit)

    def _await(self, report: socket.socket, outputs: Outputs, limits: Limits) -> bytes:
        """Collect output until the program has ended; return the server's report."""
        poll = select.poll()
        poll.register(report, select.POLLIN)
        outputs.register(poll)
        began, patience = time.monotonic(), _START_S + limits.wall_s + _GRACE_S
        stopped = False
        while True:
            left = patience - (time.monotonic() - began)
            for descriptor, _ in poll.poll(max(0.0, left) * 1000):
                if descriptor == report.fileno():
                    message = report.recv(1 << 16)
                    if not message:
                        self.broken = True
                        raise UnreachableError("the sandbox ended while it ran a program")
                    # All that wrote have ended.
                    outputs.drain()
                    return message
                outputs.read(descriptor, poll)
            if outputs.cut and not stopped:
                stopped = True
                report.shutdown(socket.SHUT_WR)
            if left <= 0:
                self.broken = True
                raise UnreachableError("the sandbox does not answer")

    def ended(self) -> bool:
        """Whether it takes no more programs: its sockets may outlive bubblewrap for a moment."""
        return self.broken or self.process.poll() is not None

    def end(self) -> None:
        self.broken = True
        for end in self.requests:
            end.close()
        # At the end of its requests the server ends, and all of the sandbox with it.
        self.process.kill()
        self.process.wait()

    def forget(self) -> None:
        self.broken = True
        for end in self.requests:
            end.close()
        self.process.returncode = 0


class _Mapping:
    """User ids for a sandbox that root starts: programs get ids that own nothing.

    Root of the sandbox is the user who starts it; that root may read the interpreter's folder,
    wherever it is, and never runs a program.
    """

    def __init__(self) -> None:
        self._info, info = os.pipe()
        block, self._block = os.pipe()
        self.theirs = (info, block)
        self.options = ["--info-fd", str(info), "--userns-block-fd", str(block)]

    def apply(self) -> None:
        with os.fdopen(self._info) as info, os.fdopen(self._block, "wb") as block:
            pid = json.loads(info.read())["child-pid"]
            first = _free_uids()
            for kind in ("gid", "uid"):
                Path(f"/proc/{pid}/{kind}_map").write_text(f"0 0 1\n1 {first} {_UIDS}\n")
            block.write(b"1")

    def close_theirs(self) -> None:
        for descriptor in self.theirs:
            os.close(descriptor)


def _free_uids() -> int:
    """Return the first of a range of user ids that nobody has."""
    inside, _, count = map(int, Path("/proc/self/uid_map").read_text().split("\n")[0].split())
    return inside + count - 2 * _UIDS


def _isolation() -> list[str]:
    options = ["--unshare-all", "--unshare-user", "--uid", "0", "--gid", "0", "--cap-add", "ALL"]
    return [*options, "--new-session", "--die-with-parent", "--hostname", "sandbox"]


@functools.cache
def _view(modules: tuple[str, ...]) -> tuple[str, list[str], list[str]]:
    """Return the interpreter's path inside, options for what is visible, folders of modules."""
    options: list[str] = []
    for place in (
        "/usr",
        "/usr/share",
        "/etc",
        "/python",
        "/python/bin",
        "/packages",
        "/gem",
        "/dev",
    ):
        # Parents that bubblewrap makes by itself are closed to programs.
        options += ["--perms", "0755", "--dir", place]

    def show(path: Path, at: str) -> None:
        if path.is_symlink() and str(path) == at:
            options.extend(["--symlink", str(path.readlink()), at])
        elif path.exists():
            options.extend(["--ro-bind", str(path), at])

    for name in ("/usr/lib", "/usr/lib64", "/lib", "/lib64"):
        show(Path(name), name)
    for name in ("/etc/ld.so.cache", "/etc/alternatives", "/usr/share/zoneinfo"):
        show(Path(name), name)
    # `sys.executable` of a virtual environment is a link to the interpreter itself.
    python = Path(getattr(sys, "_base_executable", None) or sys.executable).resolve()
    prefix = Path(sys.base_prefix).resolve()
    executable = str(python)
    if prefix != Path("/usr"):
        executable = f"/python/bin/{python.name}"
        show(prefix / "lib", "/python/lib")
    show(python, executable)
    sites: list[str] = []
    for folder in _folders(modules):
        sites.append(f"/packages/{len(sites)}")
        show(folder, sites[-1])
    show(_INSIDE, "/gem/inside")
    for name in ("null", "zero", "full", "random", "urandom"):
        options += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    options += ["--symlink", "/tmp", "/dev/shm", "--proc", "/proc", "--perms", "0755"]
    return executable, [*options, "--dir", "/tmp", "--remount-ro", "/"], sites


def _folders(modules: tuple[str, ...]) -> list[Path]:
    """Return the folders of installed packages that the modules are in."""
    folders: list[Path] = []
    for module in modules:
        spec = importlib.util.find_spec(module)
        if spec is not None and spec.origin:
            origin = Path(spec.origin)
            folder = origin.parents[1] if origin.name.startswith("__init__.") else origin.parent
            if folder.name in ("site-packages", "dist-packages") and folder not in folders:
                folders.append(folder)
    return folders


def _sockets() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


_threads: list[ThreadPoolExecutor] = []
_watching = False


def _spawner() -> ThreadPoolExecutor:
    """Return the thread that starts sandboxes: the kernel ends them when their thread ends."""
    if not _threads:
        _threads.append(ThreadPoolExecutor(1, "gem-sandbox"))
    return _threads[0]


def _watch() -> None:
    """Have sandboxes ended at exit and forgotten in forked children."""
    global _watching
    if not _watching:
        _watching = True
        atexit.register(_close_all)
        os.register_at_fork(after_in_child=_forget_all)


_pools: list[_Pool] = []


def _close_all() -> None:
    for pool in _pools:
        pool.close()


def _forget_all() -> None:
    for pool in _pools:
        pool.forget()
    _pools.clear()
    _pool.cache_clear()
    _threads.clear()
