"""The tasks of `harbor:sample`, and how they become folders."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import tempfile
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from gem.tables import parse_toml
from gem_box.images import cache

SAMPLE = "sample"
_IMAGE = "python:3.12-bookworm"
_TOML = """schema_version = "1.4"
[task]
name = "gem/{name}"
[metadata]
difficulty = "easy"
[agent]
timeout_sec = 120.0
[verifier]
timeout_sec = 60.0
[environment]
build_timeout_sec = 120.0
network_mode = "no-network"
"""
# In a test nothing of a repository's own settings is to run.
_TEST = """#!/bin/bash
export GIT_CONFIG_COUNT=3
export GIT_CONFIG_KEY_0=core.fsmonitor GIT_CONFIG_VALUE_0=false
export GIT_CONFIG_KEY_1=core.hooksPath GIT_CONFIG_VALUE_1=/dev/null
export GIT_CONFIG_KEY_2=safe.directory GIT_CONFIG_VALUE_2='*'
if (
{test}
) > /dev/null 2>&1; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""


def write_sample(folder: Path) -> list[Path]:
    """Write the tasks of this package as Harbor folders; return them."""
    return [_write(folder / name, name, task) for name, task in _tasks().items()]


def sample_folder() -> Path:
    """Return a folder in the cache with the tasks of this package."""
    text = _source() + "\n".join([_IMAGE, _TOML, _TEST]).encode()
    place = cache() / f"sample-{hashlib.sha256(text).hexdigest()[:16]}"
    if not place.is_dir():
        made = Path(tempfile.mkdtemp(prefix="sample-", dir=place.parent))
        made.chmod(0o755)
        write_sample(made)
        # Another process may have been faster.
        with contextlib.suppress(OSError):
            made.rename(place)
        shutil.rmtree(made, ignore_errors=True)
    return place


def _source() -> bytes:
    return files("gem_box").joinpath("sample.toml").read_bytes()


def _tasks() -> Mapping[str, Mapping[str, str]]:
    return parse_toml(_source(), "sample.toml")


def _write(folder: Path, name: str, task: Mapping[str, str]) -> Path:
    texts = {
        "task.toml": _TOML.format(name=name),
        "instruction.md": f"{task['instruction']}\n",
        "environment/Dockerfile": f"FROM {_IMAGE}\nWORKDIR /app\nRUN {task['setup']}\n",
        "solution/solve.sh": f"#!/bin/bash\n{task['solve'].strip()}\n",
        "tests/test.sh": _TEST.format(test=task["test"].strip()),
    }
    for path, text in texts.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
        if place.suffix == ".sh":
            place.chmod(0o755)
    return folder
