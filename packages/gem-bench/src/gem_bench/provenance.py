"""Collects the provenance of a run for `run.json`: versions, commit, machine."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

from gem.json_lines import parse_as

_PACKAGES = (
    *("gem-core", "gem-train", "gem-bench", "gem-cpu"),
    # These may decide rewards.
    *("gem-box", "gem-judge", "gem-math", "gem-sandbox", "gem-tau", "gem-verifiers", "gem-vision"),
    *("torch", "transformers", "vllm", "ray", "numpy"),
)
_ASK = """
import importlib.metadata as m, json, platform, re, sys
adapter, *names = sys.argv[1:]
try:
    for each in m.requires(adapter) or []:
        name, rest = re.match('([A-Za-z0-9._-]+)([^;]*)', each).groups()
        if set(rest) & set('<=>'):
            names.append(name)
except m.PackageNotFoundError:
    pass
found = {'python': platform.python_version()}
for name in names:
    try:
        found[name] = m.version(name)
    except m.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def versions(python: Path, trainer: str) -> dict[str, str]:
    """Return the versions of Python and of the packages that matter, where installed.

    Args:
        python: Interpreter of the Python environment to query.
        trainer: Its adapter counts, and what that wants in certain versions: the trainer itself.
    """
    adapter = f"gem-{trainer}"
    names = dict.fromkeys([*_PACKAGES, trainer, adapter])
    answer = _output([str(python), "-c", _ASK, adapter, *names])
    found: dict[str, str] = parse_as(answer, dict[str, str], str(python)) if answer else {}
    return found


def decisive(found: dict[str, str]) -> dict[str, str]:
    """Return those of the versions with which a run must go on: GEM's, the trainer's."""
    others = {"python", *_PACKAGES}
    return {n: v for n, v in found.items() if n.startswith("gem-") or n not in others}


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
