"""Real RL2 and SGLang on the CPU: started, ended, and an environment of a test's own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from locks import one_at_a_time
from processes import left_over, marked

from gem_train.launch import Launch
from gem_train.record import RunRecord, read_run

TIMEOUT_S = 600


@contextlib.contextmanager
def started(launch: Launch, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a run; its processes are gone afterwards."""
    for name, text in launch.files.items():
        folder.joinpath(name).write_text(text)
    env = {k: v for k, v in os.environ.items() if k not in launch.unset}
    mark = f"GEM_TEST_RUN={folder}"
    with one_at_a_time("rl2"), folder.joinpath("log").open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *launch.argv[1:]],
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**env, **launch.env, "GEM_TEST_RUN": str(folder), "SPT_NOENV": "1"},
            cwd=folder,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()
            for pid in marked(mark):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            # The next run needs its port.
            left_over(folder)


def run(launch: Launch, folder: Path) -> tuple[int, str]:
    """Train to the end; return the exit status and the log. Nothing is left running."""
    with started(launch, folder) as process:
        status = process.wait(TIMEOUT_S)
        assert left_over(folder) == []
    return status, folder.joinpath("log").read_text(encoding="utf-8", errors="replace")


def train(launch: Launch, folder: Path) -> RunRecord:
    status, text = run(launch, folder)
    assert status == 0, text[-4000:]
    return read_run(folder)


def split(record: RunRecord, name: str = "train") -> list[dict[str, Any]]:
    return [m for m in record.metrics if m["split"] == name]


def with_env_file(launch: Launch, folder: Path, source: str, *overrides: str) -> Launch:
    path = folder / "my_env.py"
    argv = [w for w in launch.argv if not w.startswith("rollout.env_path=")]
    return replace(
        launch,
        argv=[*argv, f"rollout.env_path={path}", *overrides],
        files={**launch.files, path.name: source},
    )
