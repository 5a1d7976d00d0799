"""Runs a command against a Tinker server of its own, on this machine, without a GPU.

    python -m gem_cpu.tinker_server --model DIR -- python -m gem_tinker.train ...

Starts SkyRL's server (`gem_cpu.tinker_skyrl`) on a free port, waits until it is healthy, runs the
command with `TINKER_BASE_URL` and `TINKER_API_KEY` set, stops the server and exits with the
command's status. If the server dies, so does the command.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from types import FrameType

from gem.fetching import fetched
from gem_train.processes import free_port

START_TIMEOUT_S = 180.0
GRACE_S = 10.0
API_KEY = "tml-local"
"""The SDK checks a key's form; SkyRL ignores it."""

_POLL_S = 0.2


class ServerError(Exception):
    """The server did not start, or died; the message has the end of its log."""


@dataclass(frozen=True)
class Options:
    """How the server is started."""

    model: Path
    """Folder of the model; clients must name it by exactly this path."""
    max_rank: int = 8
    """Largest LoRA rank. The initial adapter depends on it."""
    sequences: int = 32
    """Most sequences in one sampling or training pass; passes are padded to it."""
    bucket: int = 256
    """Lengths are padded to multiples of this many tokens; each multiple is compiled once."""
    adapters: int = 4
    """Most training clients at a time, plus one."""


class Server:
    """A running server; use it as a context."""

    def __init__(self, options: Options, python: Path, state: Path) -> None:
        """Start the server.

        Args:
            options: See `Options`.
            python: Interpreter of the environment `tinker-server`.
            state: Existing folder for its log, database and checkpoints.
        """
        self.url = f"http://127.0.0.1:{free_port()}"
        self.log = state / "server.log"
        self.environment = {"TINKER_BASE_URL": self.url, "TINKER_API_KEY": API_KEY}
        """Environment variables for clients."""
        backend = {
            "max_lora_adapters": options.adapters,
            "max_lora_rank": options.max_rank,
            "train_micro_batch_size": options.sequences,
            "sample_max_num_sequences": options.sequences,
        }
        command = [str(python), "-m", "gem_cpu.tinker_skyrl"]
        command += ["--base-model", str(options.model), "--port", self.url.rpartition(":")[2]]
        command += ["--backend", "jax", "--backend-config", json.dumps(backend)]
        command += ["--database-url", f"sqlite:///{state / 'tinker.db'}"]
        command += ["--checkpoints-base", str(state / "checkpoints")]
        # Short timeouts free a dead client's adapter before the next client needs it.
        command += ["--session-timeout-sec", "60", "--session-cleanup-interval-sec", "5"]
        # A run that goes on has its folder's log, too.
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                env=_server_environment(options),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def wait_until_healthy(self) -> None:
        """Return when the server answers.

        Raises:
            ServerError: The server died, or does not answer in time.
        """
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            self.check()
            if time.monotonic() > deadline:
                raise ServerError(f"no answer within {START_TIMEOUT_S:g} s{self._tail()}")
            time.sleep(_POLL_S)

    def check(self) -> None:
        """Raise `ServerError` if the server has died."""
        status = self.process.poll()
        if status is not None:
            raise ServerError(f"ended with status {status}{self._tail()}")

    def stop(self) -> None:
        """Stop the server and its processes."""
        _end(self.process)

    def _answers(self) -> bool:
        try:
            fetched(f"{self.url}/api/v1/healthz", 2)
        except (OSError, HTTPException):
            return False
        return True

    def _tail(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:]
        return "; the end of its log:\n" + "\n".join(lines)


def find_python() -> Path:
    """Return the interpreter of the environment `tinker-server`.

    Looks beside this interpreter's environment, then in `.venvs` of this folder and its parents.

    Raises:
        ServerError: The environment is missing.
    """
    here = Path.cwd()
    folders = [Path(sys.prefix).parent, *(p / ".venvs" for p in (here, *here.parents))]
    for folder in folders:
        python = folder / "tinker-server" / "bin" / "python"
        if python.exists():
            return python
    raise ServerError("the environment tinker-server is missing; build it with: make env-tinker")


@contextlib.contextmanager
def running(
    options: Options, python: Path | None = None, state: Path | None = None
) -> Iterator[Server]:
    """Start a server, wait until it is healthy, stop it at the end.

    Args:
        options: See `Options`.
        python: Interpreter of the environment `tinker-server`; by default `find_python()`.
        state: Folder for its log, database and checkpoints; by default a temporary one.

    Raises:
        ServerError: The server does not start.
    """
    with contextlib.ExitStack() as stack:
        if state is None:
            state = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gem-tinker-")))
        state.mkdir(parents=True, exist_ok=True)
        server = stack.enter_context(Server(options, python or find_python(), state))
        server.wait_until_healthy()
        yield server


def supervise(command: Sequence[str], server: Server) -> int:
    """Run a command as the server's client; return its exit status.

    Raises:
        ServerError: The server died; the command has been ended.
    """
    client = subprocess.Popen(
        command, env={**os.environ, **server.environment}, start_new_session=True
    )
    try:
        while client.poll() is None:
            server.check()
            time.sleep(_POLL_S)
        return client.returncode
    finally:
        _end(client)


def initial_adapter(state: Path, folder: Path) -> Path:
    """Unpack the adapter that the first training client of a server began with.

    Args:
        state: The server's folder, kept with `--state`.
        folder: Where to unpack it; files in PEFT's format.

    Raises:
        ServerError: No sampler was made yet.
    """
    saved = (state / "checkpoints").glob("*/sampler_weights/*.tar.gz")
    oldest = min(saved, key=lambda archive: archive.stat().st_mtime, default=None)
    if oldest is None:
        raise ServerError(f"{state} holds no weights of a sampler")
    with tarfile.open(oldest) as archive:
        archive.extractall(folder, filter="data")
    return folder


def _server_environment(options: Options) -> Mapping[str, str]:
    own = {
        "GEM_CPU": "1",
        "GEM_TINKER_BUCKET": str(options.bucket),
        "JAX_PLATFORMS": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "TINKER_API_KEY": API_KEY,
    }
    # The server runs in another virtual environment: do not pass on the client's.
    inherited = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return inherited | own


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and its group: SIGTERM, then SIGKILL."""
    try:
        _signal(process, signal.SIGTERM)
    finally:
        # A signal to this process, such as a second Ctrl-C, ends the wait and not the clearing up.
        _signal(process, signal.SIGKILL)


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_S)


def _stop(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit status, or 3 if the server failed."""
    parser = argparse.ArgumentParser(
        prog="python -m gem_cpu.tinker_server", description=__doc__.partition("\n")[0]
    )
    default = Options(Path())
    parser.add_argument("--model", type=Path, required=True, help="folder of the model")
    parser.add_argument("--max-rank", type=int, default=default.max_rank, help="%(default)s")
    parser.add_argument("--sequences", type=int, default=default.sequences, help="%(default)s")
    parser.add_argument("--bucket", type=int, default=default.bucket, help="%(default)s")
    parser.add_argument("--state", type=Path, help="keep log, database and checkpoints here")
    parser.add_argument("--python", type=Path, help="interpreter of the server's environment")
    parser.add_argument("command", nargs="+", help="after --: what to run")
    args = parser.parse_args(argv)
    # Signals raise SystemExit, so that `finally` clauses end server and command.
    signal.signal(signal.SIGTERM, _stop)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # nohup: the run is to outlive a terminal
        signal.signal(signal.SIGHUP, _stop)
    options = Options(args.model, args.max_rank, args.sequences, args.bucket)
    try:
        with running(options, args.python, args.state) as server:
            return supervise(args.command, server)
    except ServerError as error:
        sys.stderr.write(f"Tinker server: {error}\n")
        return 3


if __name__ == "__main__":
    sys.exit(main())
