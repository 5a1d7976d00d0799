"""The `docker` executor: one container per program (extra `docker`)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from gem.errors import ConfigurationError, UnreachableError
from gem.plugins import extra
from gem.sandbox.base import Executor, Limits, Result
from gem.sandbox.streams import encoded

INSTALL = "pip install 'gem-core[docker]'"
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


class DockerExecutor(Executor):
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
                f"the docker executor needs a running container engine: {error}"
            ) from error

    def run(self, code: str, stdin: str = "", limits: Limits = Limits()) -> Result:  # noqa: B008
        """Run a program; see `Executor.run`."""
        docker = _docker()
        program = encoded(code)
        given = b"%d\n" % len(program) + program + encoded(stdin)
        try:
            with contextlib.closing(docker.from_env()) as client:
                return self._run(client, given, limits)
        except (docker.errors.DockerException, OSError) as error:
            raise UnreachableError(f"the container engine failed: {error}") from error

    def _run(self, client: Any, given: bytes, limits: Limits) -> Result:
        with self._container(client, limits) as container:
            socket = container.attach_socket(params={"stdin": 1, "stream": 1})
            container.start()
            began = time.monotonic()
            stream = getattr(socket, "_sock", socket)
            with contextlib.suppress(OSError):
                stream.settimeout(limits.wall_s)
                stream.sendall(given)
                stream.shutdown(1)
            limit_hit, exit_code = None, -9
            try:
                left = max(0.1, limits.wall_s - (time.monotonic() - began))
                exit_code = container.wait(timeout=left)["StatusCode"]
            except OSError:
                # The SDK's errors of its HTTP client, time-outs included, are OSErrors.
                if time.monotonic() - began < limits.wall_s:
                    raise
                limit_hit = "time"
                container.kill()
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
            return Result(texts[0], texts[1], exit_code, seconds, limit_hit)

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
            log_config={
                "Type": "json-file",
                "Config": {"max-size": f"{2 * limits.output_bytes + 4096}"},
            },
            ulimits=[{"Name": "stack", "Soft": -1, "Hard": -1}],
            environment=_ENVIRONMENT,
        )
        try:
            yield container
        finally:
            container.remove(force=True)


def _docker() -> Any:
    return extra("docker", f"the docker executor needs the SDK: {INSTALL}")
