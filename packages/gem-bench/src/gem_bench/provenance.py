"""Collects the provenance of a run for `run.json`: versions, commit, machine."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_PACKAGES = ("gem-core", "gem-bench", "gem-cpu", "torch", "transformers", "vllm", "ray", "numpy")
_ASK = (
    "import importlib.metadata as m, json, platform, sys\n"
    "found = {'python': platform.python_version()}\n"
    "for name in sys.argv[1:]:\n"
    "    try: found[name] = m.version(name)\n"
    "    except m.PackageNotFoundError: pass\n"
    "print(json.dumps(found))"
)


def versions(python: Path, extra: Sequence[str]) -> dict[str, str]:
    """Return the versions of Python and of the packages that matter, where installed.

    Args:
        python: Interpreter of the Python environment to query.
        extra: Further distributions, such as the trainer's.
    """
    names = dict.fromkeys([*_PACKAGES, *extra])
    answer = _output([str(python), "-c", _ASK, *names])
    found: dict[str, str] = json.loads(answer) if answer else {}
    return found


def git_commit() -> dict[str, Any] | None:
    """Return the commit of the current folder and whether files changed since; None without git."""
    commit = _output(["git", "rev-parse", "HEAD"])
    if commit is None:
        return None
    changed = _output(["git", "status", "--porcelain", "--untracked-files=no"])
    return {"commit": commit, "changed": bool(changed)}


def machine() -> dict[str, Any]:
    """Return the machine's system, processor, cores, memory and GPUs."""
    gpus = _output(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"])
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "gpus": gpus.splitlines() if gpus else [],
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _output(command: list[str]) -> str | None:
    """Return the standard output of a command, or None if it is missing or fails."""
    if shutil.which(command[0]) is None:
        return None
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except subprocess.TimeoutExpired:
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
