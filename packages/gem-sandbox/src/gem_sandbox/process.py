"""The `subprocess` runner: an ordinary child process with resource limits, no isolation."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import BinaryIO

from gem.admission import Core
from gem.errors import ConfigurationError, UnreachableError
from gem.workers.clock import Clock
from gem_sandbox.base import Limits, Result, Runner
from gem_sandbox.running import attempted, watch
from gem_sandbox.streams import encoded

# Its stdin is a pipe that ends with the process that asked for the program, however that ends. The
# shell starts a process that waits for this and then kills the program's group; it is no child of
# the program, which may wait for its children. The shell sets the limits that the platform has and
# becomes the interpreter. The stack may take all memory, as on judges.
_START = (
    '( (read -r _ <&3; kill -s KILL -- "-$$") >/dev/null 2>&1 & ) 3<&0; exec <stdin; '
    "ulimit -s unlimited 2>/dev/null; "
    'ulimit -v "$1" 2>/dev/null; ulimit -f "$2" 2>/dev/null; ulimit -t "$3" 2>/dev/null; shift 3; '
    'exec "$@"'
)
_ENVIRONMENT = {
    "LANG": "C.UTF-8",
    "PYTHONUTF8": "1",
    "PYTHONINTMAXSTRDIGITS": "0",
    "PYTHONHASHSEED": "0",
}
# These versions limit recursion through C, which the code in `inside` undoes.
_LIMITS_C = (3, 12) <= sys.version_info < (3, 14)
_BEGIN = "import sys; sys.path[0] = sys.argv[1]; from inside import program; program.main()"


class SubprocessRunner(Runner):
    """UNSAFE: the program runs as your own user, with your files and your network.

    The program is run by this process's interpreter, and ends with this process.

    Only for programs that you would run yourself. A policy's program can read the answers: golds of
    bundled and of your own data, and the expected output of its tests in the memory of the grading
    process. It has a private folder, none of your environment variables, a process group that is
    killed as a whole, and the time, memory and output limits (only time without a POSIX shell).
    `disk_mb` limits each file, not their total size. Nothing limits the number of processes.
    """

    def run(self, code: str, stdin: str = "", limits: Limits = Limits()) -> Result:  # noqa: B008
        """Run a program; see `Runner.run`. The start of its interpreter counts as CPU time.

        Raises:
            ConfigurationError: `limits.processes` is not the default.
        """
        if limits.processes != Limits.processes:
            raise ConfigurationError(
                f"processes={limits.processes}: the runner 'subprocess' cannot limit processes; "
                "leave it out, or use runner='bwrap'"
            )
        return attempted(lambda core: self._run(code, stdin, limits, core))

    def _run(self, code: str, stdin: str, limits: Limits, core: Core) -> Result:
        with tempfile.TemporaryDirectory(prefix="gem-run-", ignore_cleanup_errors=True) as name:
            folder = Path(name)
            (folder / "program.py").write_bytes(encoded(code))
            (folder / "stdin").write_bytes(encoded(stdin))
            with (
                (folder / "stdin").open("rb") as source,
                (folder / "stdout").open("w+b") as out,
                (folder / "stderr").open("w+b") as err,
            ):
                began = time.perf_counter()
                exit_code, timed_out, cpu_s = _run(folder, (source, out, err), limits, core)
                seconds = time.perf_counter() - began
                stdout, cut_out = _read(out, limits.output_bytes)
                stderr, cut_err = _read(err, limits.output_bytes)
        limit_hit = None
        if timed_out:
            limit_hit = "time"
        elif cut_out or cut_err:
            limit_hit = "output"
        elif exit_code and stderr.rstrip().rpartition("\n")[2].startswith("MemoryError"):
            limit_hit = "memory"
        return Result(stdout, stderr, exit_code, seconds, limit_hit, cpu_s)


def _run(
    folder: Path, streams: tuple[BinaryIO, BinaryIO, BinaryIO], limits: Limits, core: Core
) -> tuple[int, bool, float]:
    """Return the exit code, whether the program hit its time limit, and its CPU time."""
    program = [sys.executable, "-s", str(folder / "program.py")]
    if _LIMITS_C:
        here = str(Path(__file__).parent)
        program[2:] = ["-c", _BEGIN, here, program[2], str(limits.memory_mb)]
    source, out, err = streams
    kept = {name: os.environ[name] for name in ("PATH", "SYSTEMROOT") if name in os.environ}
    environment = {**kept, **_ENVIRONMENT, "HOME": str(folder), "TMPDIR": str(folder)}
    with contextlib.ExitStack() as stack:
        shell = shutil.which("sh")
        if shell is not None:
            # Streams are files, too. One block more, so that output at its limit is not cut.
            largest = max(limits.disk_mb << 20, limits.output_bytes)
            sizes = [str(limits.memory_mb * 1024), str(largest // 512 + 1)]
            # For a process that the watching thread does not end because it has no CPU itself.
            sizes.append(str(int(limits.cpu_s) + 2))
            program = [shell, "-c", _START, "sh", *sizes, *program]
            theirs, ours = os.pipe()
            stack.callback(os.close, ours)
            source = stack.enter_context(os.fdopen(theirs, "rb"))
        core.acquire()
        try:
            process = subprocess.Popen(
                program,
                stdin=source,
                stdout=out,
                stderr=err,
                cwd=folder,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            raise UnreachableError(f"cannot start {program[0]}: {error}") from error
        source.close()
        return _wait(process, limits, core)


def _wait(process: subprocess.Popen[bytes], limits: Limits, core: Core) -> tuple[int, bool, float]:
    """Wait for the program's end or its limit; return the same as `_run`."""
    clock = Clock(process.pid)
    timed_out, used_s = False, 0.0
    try:
        timed_out = watch(clock, limits, core, lambda seconds: _ends(process, seconds))
    finally:
        _kill_group(process)
        used_s = max(_waited(process), clock.cpu_s)
    # A program that is over its limit hits it, whether or not a look came before its end.
    return process.returncode, timed_out or used_s > limits.cpu_s, used_s


def _ends(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Return whether a process ends within so many seconds, without waiting for its status."""
    if not hasattr(os, "pidfd_open"):
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True
    descriptor = os.pidfd_open(process.pid)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(seconds * 1000))
    finally:
        os.close(descriptor)


def _waited(process: subprocess.Popen[bytes]) -> float:
    """Wait for a process; return the CPU time of it and its children, 0 where that is unknown."""
    if process.returncode is not None or not hasattr(os, "wait4"):
        process.wait()
        return 0.0
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return used.ru_utime + used.ru_stime


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the program and the processes of its group."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()


def _read(stream: BinaryIO, limit: int) -> tuple[str, bool]:
    stream.seek(0)
    data = stream.read(limit + 1)
    return data[:limit].decode("utf-8", "replace"), len(data) > limit
