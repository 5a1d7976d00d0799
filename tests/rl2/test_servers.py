"""Servers that end with their trainer, and a trainer that ends with its servers."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

HUNG = """
import multiprocessing, os, signal, threading, time
from gem_train import processes

def serve():
    time.sleep(600)

def stubborn():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)

if __name__ == "__main__":
    processes.END_S = 2
    processes.end_descendants_with_me()
    for target in (serve, stubborn):
        multiprocessing.Process(target=target).start()
    time.sleep(0.5)
    {end}
"""
TERMINATE = "lambda: os.kill(os.getpid(), signal.SIGTERM)"
SIGTERM = f"({TERMINATE})(); time.sleep(60)"
TWICE = f"threading.Thread(target=lambda: (time.sleep(1), ({TERMINATE})()), daemon=True).start()"
TWICE = f"{TWICE}; {SIGTERM}"


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("pass", 0),
        ("raise RuntimeError('the cause')", 1),
        (SIGTERM, 143),
        (TWICE, 143),
    ],
    ids=["success", "failure", "SIGTERM", "SIGTERM twice"],
)
def test_servers_end_with_the_process_that_started_them(
    end: str, status: int, tmp_path: Path
) -> None:
    """RL2 joins its servers at exit, and never ends them."""
    path = tmp_path / "run.py"
    path.write_text(HUNG.replace("{end}", end))
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == status
    if status == 1:
        assert "the cause" in done.stderr


LOST = """
import multiprocessing, os, subprocess, sys, time
from gem_train import processes

def server():
    part = subprocess.Popen(["sglang-part", "600"], executable="{part}")
    time.sleep(600)

if __name__ == "__main__":
    processes.END_S = processes.POLL_S = 0.2
    processes.PATIENCE_S = 0.5
    processes.end_descendants_with_me()
    multiprocessing.Process(target=server).start()
    parts = []
    while not parts:
        time.sleep(0.05)
        below = processes.children_of(recursive=True)
        parts = [each for each in below if processes.name_of(each) == "sglang-part"]
    processes.end_with_servers("sglang", "gem-rl2: a process of SGLang has ended")
    [part] = parts
    print(part.pid, flush=True)
    {then}
"""


@pytest.mark.parametrize(
    ("then", "status"),
    [
        ("part.kill(); time.sleep(60)", 143),
        ("processes.STOP_S = 0.5; import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
         "part.kill(); time.sleep(60)", 1),
        ("time.sleep(2)", 0),
    ],
    ids=["a part dies", "the main thread hears nothing", "nothing dies"],
)  # fmt: skip
def test_a_server_that_lost_a_part_stops_the_trainer(
    then: str, status: int, tmp_path: Path
) -> None:
    part = tmp_path / "sglang-part"
    part.symlink_to("/bin/sleep")
    path = tmp_path / "run.py"
    path.write_text(LOST.replace("{part}", str(part)).replace("{then}", then))
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == status, done.stderr[-2000:]
    assert ("a process of SGLang has ended (process id " in done.stderr) == (status != 0)


def test_nothing_outlives_a_trainer_that_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "run.py"
    path.write_text(HUNG.replace("{end}", "print('up', flush=True); time.sleep(600)"))
    process = subprocess.Popen(
        [sys.executable, str(path)], stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        deadline = time.monotonic() + 60
        while _group_lives(process.pid):
            assert time.monotonic() < deadline
            time.sleep(0.2)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        if process.stdout is not None:
            process.stdout.close()


def _group_lives(group: int) -> bool:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, its_group, *_ = stat.read_text(errors="replace").rpartition(")")[2].split()
            if int(its_group) == group and state not in "ZX":
                return True
    return False
