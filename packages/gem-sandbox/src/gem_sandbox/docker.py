"""The `docker` runner: one container per program (extra `docker`)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from gem.admission import Core
from gem.errors import ConfigurationError, UnreachableError
from gem.plugins import extra
from gem_sandbox.base import Limits, Result, Runner
from gem_sandbox.running import attempted, watch
from gem_sandbox.streams import encoded

INSTALL = "pip install 'gem-core[docker]'"
_LOOK_S = 0.25
# Most own time between two looks.
_MOST_S = 2.0
# Most bytes of the engine's log for a byte that is printed: an empty line is an entry of 70.
_LOGGED = 80
# Stdin is the program's length in digits, a line break, the program, and the program's own stdin.
# The process then becomes an interpreter that runs a file and reads a file, as on judges.
_START = """import os, sys
with open(0, "rb", closefd=False) as given:
    size = int(given.readline())
    with open("program.py", "wb") as program:
        program.write(given.read(size))
    stdin = os.memfd_create("stdin")
    with open(stdin, "wb", closefd=False) as file:
        file.write(given.read())
os.lseek(stdin, 0, os.SEEK_SET)
os.dup2(stdin, 0)
os.execv(sys.executable, [sys.executable, "-s", os.path.abspath("program.py")])
"""
_ENVIRONMENT = {
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "PYTHONUTF8": "1",
    "PYTHONINTMAXSTRDIGITS": "0",
    "PYTHONHASHSEED": "0",
}


class DockerRunner(Runner):
    """Runs each program in a container of its own, which takes hundreds of milliseconds.

    The container has no network, a read-only image, a temporary folder in memory, an unprivileged
    user without capabilities, and the engine's memory and process limits. Nothing of this machine
    is mounted in it; the image must hold neither gem nor reasoning-gym nor golds.
    """

    isolates = frozenset({"files", "network", "processes"})

    def __init__(self, image: str = "python:3.11-slim") -> None:
        """Check that the engine answers and has the image; nothing is downloaded.

        Args:
            image: Image with a `python` on its PATH.

        Raises:
            ConfigurationError: No engine answers, or it has no such image.
            MissingExtraError: The extra `docker` is not installed.
        """
        docker = _docker()
        self.image = image
        try:
            with contextlib.closing(docker.from_env()) as client:
                client.images.get(image)
        except docker.errors.ImageNotFound as error:
            raise ConfigurationError(
                f"the container engine has no image {image!r}; get it: docker pull {image}"
            ) from error
        except docker.errors.DockerException as error:
            raise ConfigurationError(
                f"the docker runner needs a running container engine: {error}"
            ) from error

    def run(self, code: str, stdin: str = "", limits: Limits = Limits()) -> Result:  # noqa: B008
        """Run a program; see `Runner.run`."""
        docker = _docker()
        program = encoded(code)
        given = b"%d\n" % len(program) + program + encoded(stdin)

        def run(core: Core) -> Result:
            try:
                with contextlib.closing(docker.from_env()) as client:
                    return self._run(client, given, limits, core)
            except UnreachableError:
                raise
            except (docker.errors.DockerException, OSError) as error:
                raise UnreachableError(f"the container engine failed: {error}") from error

        return attempted(run)

    def _run(self, client: Any, given: bytes, limits: Limits, core: Core) -> Result:
        with self._container(client, limits) as container:
            socket = container.attach_socket(params={"stdin": 1, "stream": 1})
            core.acquire()
            container.start()
            began = time.monotonic()
            stream = getattr(socket, "_sock", socket)
            with contextlib.suppress(OSError):
                stream.settimeout(limits.wall_s)
                stream.sendall(given)
                stream.shutdown(1)
            clock = _ContainerClock(container)
            limit_hit, exit_code = None, -9
            try:
                if watch(clock, limits, core, clock.ended):
                    limit_hit = "time"
                    container.kill()
                else:
                    exit_code = clock.exit_code
            finally:
                seconds = time.monotonic() - began
            socket.close()
            container.reload()
            if container.attrs["State"].get("OOMKilled"):
                limit_hit = "memory"
            texts = []
            for name in ("stdout", "stderr"):
                kept = bytearray()
                for part in container.logs(
                    **{"stdout": False, "stderr": False, name: True}, stream=True
                ):
                    kept += part
                    if len(kept) > limits.output_bytes:
                        limit_hit = limit_hit or "output"
                        break
                texts.append(bytes(kept[: limits.output_bytes]).decode("utf-8", "replace"))
            return Result(texts[0], texts[1], exit_code, seconds, limit_hit, clock.cpu_s)

    @contextlib.contextmanager
    def _container(self, client: Any, limits: Limits) -> Iterator[Any]:
        container = client.containers.create(
            self.image,
            ["python", "-c", _START],
            stdin_open=True,
            network_mode="none",
            read_only=True,
            tmpfs={"/tmp": f"size={limits.disk_mb}m,mode=1777"},
            working_dir="/tmp",
            user="65534:65534",
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
            mem_limit=f"{limits.memory_mb}m",
            memswap_limit=f"{limits.memory_mb}m",
            pids_limit=limits.processes,
            # Two files: the older one holds more than is kept, so that a flood is noticed.
            log_config={
                "Type": "json-file",
                "Config": {"max-size": f"{2 * limits.output_bytes * _LOGGED}", "max-file": "2"},
            },
            ulimits=[{"Name": "stack", "Soft": -1, "Hard": -1}],
            environment=_ENVIRONMENT,
        )
        try:
            yield container
        finally:
            container.remove(force=True)


class _ContainerClock:
    """Measures a container as `gem.workers.clock` does a process.

    The engine counts the CPU time. Own time is estimated from whether a thread can run at a look;
    where the engine cannot list threads, it is wall time.
    """

    def __init__(self, container: Any) -> None:
        self.cpu_s = self.own_s = 0.0
        self.wants = self.asleep = False
        self.exit_code = -9
        self._container = container
        self._at = time.monotonic()

    def ended(self, seconds: float) -> bool:
        """Return whether the container ends within a quarter of a second, or longer if asked."""
        seconds, began = max(seconds, _LOOK_S), time.monotonic()
        try:
            self.exit_code = self._container.wait(timeout=seconds)["StatusCode"]
        except OSError:
            # The SDK's errors of its HTTP client, time-outs included, are OSErrors.
            if time.monotonic() - began < seconds:
                raise
            return False
        return True

    def look(self) -> None:
        now = time.monotonic()
        passed, self._at = now - self._at, now
        shown = self._container.stats(stream=False, one_shot=True)["cpu_stats"]["cpu_usage"]
        # Of a container that has just ended there is nothing.
        cpu_s = max(self.cpu_s, shown.get("total_usage", 0) / 1e9)
        used, self.cpu_s = cpu_s - self.cpu_s, cpu_s
        self.wants = self._wants()
        waited = max(0.0, passed - used) if self.wants else 0.0
        self.own_s += min(passed - waited, _MOST_S)
        self.asleep = not self.wants and used < passed / 10

    def _wants(self) -> bool:
        try:
            listed = self._container.top(ps_args="-eLo pid,stat")
            place = listed["Titles"].index("STAT")
            return any(process[place].startswith("R") for process in listed["Processes"] or ())
        except (_docker().errors.APIError, LookupError, ValueError):
            return False


def _docker() -> Any:
    return extra("docker", f"the docker runner needs the SDK: {INSTALL}")
