"""The `bwrap` runner: a pool of bubblewrap sandboxes whose warm interpreters fork per program.

`bwrap_server.Server` is one sandbox seen from outside; `inside` is the code that runs in it.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from gem.admission import Core
from gem.errors import ConfigurationError
from gem.parameters import integer, optional
from gem_sandbox.base import Limits, Result, Runner, Session
from gem_sandbox.bwrap_server import Server
from gem_sandbox.bwrap_session import BwrapSession
from gem_sandbox.packages import names, shown
from gem_sandbox.running import attempted
from gem_sandbox.streams import encoded

INSTALL = "apt-get install bubblewrap"
MODULES = ("numpy", "sympy")
_MOST_SERVERS = 4096


class BwrapRunner(Runner):
    """Runs each program in a fork of a warm interpreter inside a bubblewrap sandbox.

    The sandbox has no network and none of the user's files or environment variables; system
    libraries, the interpreter and the chosen `distributions` are mounted read-only. Gem and
    reasoning-gym, which hold golds and generate tasks, are never in it, nor is any distribution
    that needs them. Each program has its own PID namespace, user namespace and temporary folder,
    no capabilities, and a system call filter. When it ends, everything that it started is killed
    and its folder is deleted. All runners of this process with the same parameters share the
    interpreters, which start when first needed.

    A program is PID 1 of its namespace: the kernel ignores signals that it sends to itself without
    having installed a handler.
    """

    isolates = frozenset({"files", "network", "processes"})

    def __init__(
        self,
        servers: int | None = None,
        modules: Sequence[str] = MODULES,
        distributions: Sequence[str] | None = None,
    ) -> None:
        """Check that bubblewrap is installed; nothing is started.

        Args:
            servers: Sandboxes; each starts one program at a time, any number of programs run at the
                same time. None: one per core, at most 8.
            modules: Modules that programs may import if installed; they are imported before the
                fork for a program whose source contains their name.
            distributions: Names of installed distributions that programs may import, with their
                dependencies. None: the installed ones of `gem_sandbox.packages.DISTRIBUTIONS`. To
                add to these pass `[*DISTRIBUTIONS, "torch"]`; then all must be installed.

        Raises:
            ConfigurationError: A value is not allowed, a distribution is not installed or needs
                gem or reasoning-gym, or bubblewrap is not installed.
        """
        if servers is None:
            servers = min(8, os.cpu_count() or 1)
        self.servers = integer("servers", servers, 1, _MOST_SERVERS)
        _find_bwrap(os.environ.get("PATH"))
        self.modules = names("modules", modules)
        self.distributions = optional(names, "distributions", distributions)
        if distributions is not None or self.modules != MODULES:
            shown(self.distributions, self.modules)

    def run(self, code: str, stdin: str = "", limits: Limits = Limits()) -> Result:  # noqa: B008
        """Run a program; see `Runner.run`."""
        source = encoded(code)
        given, level = encoded(stdin), _level(source, self.modules)

        def run(core: Core) -> Result:
            with self._pool().server() as server:
                return server.run(source, given, limits, level, core)[0]

        return attempted(run)

    def session(self, limits: Limits = Limits()) -> Session:  # noqa: B008
        """Begin a session; see `Runner.session`.

        Each program runs in a fork of the previous program's process: a killed program leaves no
        trace, and a snapshot is a process that is kept. Processes that a program leaves behind are
        stopped (SIGSTOP) when it ends; its threads are not in the next fork. If there is no process
        to fork (a snapshot restored elsewhere, a spawned session, a sandbox that ended), the
        session runs its programs again in a sandbox.
        """
        return BwrapSession(self._connect, limits)

    def _pool(self) -> _Pool:
        return _pool(self.servers, self.distributions, self.modules)

    def _connect(self) -> Server:
        with self._pool().server() as server:
            return server

    def pids(self) -> list[int]:
        """Return the process ids of the running sandboxes."""
        return self._pool().pids()


@functools.lru_cache(maxsize=1)
def _find_bwrap(path: str | None) -> None:
    """Look for bubblewrap once for a PATH; raise ConfigurationError if it is not there."""
    if sys.platform != "linux" or shutil.which("bwrap", path=path) is None:
        raise ConfigurationError(
            "the bwrap runner needs Linux and bubblewrap, and `bwrap` is not on the PATH; "
            f"install it: {INSTALL}"
        )


def _level(source: bytes, modules: tuple[str, ...]) -> int:
    """Return the level of the interpreter that has imported what the program seems to need."""
    for number in reversed(range(len(modules))):
        if modules[number].encode() in source:
            return 2 + number
    return int(b"import" in source)


class _Pool:
    """The servers of one set of parameters; each call goes to the one with the fewest calls."""

    def __init__(
        self, servers: int, distributions: tuple[str, ...] | None, modules: tuple[str, ...]
    ) -> None:
        self.start = functools.partial(Server, distributions, modules)
        self.lock = threading.Lock()
        self.places = [_Place() for _ in range(servers)]
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self.forget)

    @contextlib.contextmanager
    def server(self) -> Iterator[Server]:
        """Yield a running server, replacing one that has ended.

        Raises:
            UnreachableError: No server can be started.
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
                    place.server = _spawner().submit(self.start).result()
                server = place.server
            yield server
        finally:
            with self.lock:
                place.calls -= 1

    def pids(self) -> list[int]:
        return [server.process.pid for server in self.servers() if not server.broken]

    def servers(self) -> list[Server]:
        """Return the servers that have been started, some of which may have ended."""
        return [place.server for place in self.places if place.server is not None]

    def close(self) -> None:
        for server in self.servers():
            server.end()

    def forget(self) -> None:
        """Close a forked child's copies of the descriptors without ending the parent's servers."""
        for server in self.servers():
            server.forget()
        self.places = []
        _pool.cache_clear()
        _spawner.cache_clear()


_pool = functools.cache(_Pool)


class _Place:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.calls = 0
        self.server: Server | None = None


@functools.cache
def _spawner() -> ThreadPoolExecutor:
    """Return the thread that starts all sandboxes; it lives as long as the process.

    `--die-with-parent` makes the kernel kill a sandbox when the thread that started it ends.
    """
    return ThreadPoolExecutor(1, "gem-sandbox")
