"""The judges of a run: what tells environments whom to ask, wherever a trainer plays them.

A run has the file `judges.json` in its folder, and the environment variable `GEM_JUDGES` names it.
Environments ask their judge themselves (`gem_judge.judge_of`), so that no trainer knows of
it. Votes and verdicts are in `judges.sqlite` beside it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from gem.errors import RecordError
from gem_judge.asking import UncheckedJudge
from gem_judge.named import FILE, VARIABLE
from gem_train.experiment.runspec import RunSpec

CACHE_FILES = ("judges.sqlite", "judges.sqlite-wal", "judges.sqlite-shm")
"""What a judge leaves in the folder of a run, and goes on from."""


def judges_file(spec: RunSpec, folder: Path) -> dict[str, str]:
    """Return the content of `judges.json` by its name; nothing without judges.

    Args:
        spec: The experiment.
        folder: Absolute, of the run.
    """
    if not spec.judge:
        return {}
    tables = {name: judge.located(folder) for name, judge in spec.judge.items()}
    return {FILE: json.dumps({"judge": tables}, indent=2) + "\n"}


def judges_variable(spec: RunSpec, folder: Path) -> dict[str, str]:
    """Return the environment of a program whose environments ask the judges of a run."""
    return {VARIABLE: str(folder / FILE)} if spec.judge else {}


@contextmanager
def asked_here(spec: RunSpec, folder: str | Path) -> Iterator[None]:
    """Let environments of this process and its children ask the judges of a run.

    Raises:
        RecordError: `judges.json` cannot be written.
    """
    folder = Path(folder).absolute()
    before = {name: os.environ.get(name) for name in judges_variable(spec, folder)}
    for name, content in judges_file(spec, folder).items():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content, encoding="utf-8")
        except OSError as error:
            raise RecordError(f"cannot write {folder / name}: {error}") from error
    os.environ.update(judges_variable(spec, folder))
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def check_judges(spec: RunSpec) -> None:
    """Make sure that every judge of a run answers, and grades what is plain.

    Raises:
        UnreachableError: One fails.
        JudgeError: Another model answers.
    """
    for name, settings in spec.judge.items():
        if settings.cache_only:
            continue
        judge = UncheckedJudge(replace(settings, cache=None), name)
        try:
            judge.check()
        finally:
            judge.close()
