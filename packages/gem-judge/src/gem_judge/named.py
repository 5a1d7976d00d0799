"""The judge that a name means: a table `[judge.<name>]` of the file that `GEM_JUDGES` names."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from gem.errors import ConfigurationError, DataError
from gem.json_lines import parse
from gem.tables import parse_toml
from gem_judge.asking import JudgeVerdict
from gem_judge.items import Item
from gem_judge.judging import Judge
from gem_judge.rules import RulesJudge
from gem_judge.settings import JudgeSettings, digest

VARIABLE = "GEM_JUDGES"
"""Environment variable: a TOML or JSON file with tables `judge.<name>`, such as a RunSpec. What
starts a training run sets it."""
FILE = "judges.json"
"""Name of that file in the folder of a run."""
RULES = "rules"
"""Name of the judge by rules, see `gem_judge.rules`."""

_judges: dict[tuple[int, str, str], Judge] = {}
_lock = threading.Lock()


class Judging(Protocol):
    """What an environment needs of a judge."""

    def verdict(self, item: Item) -> JudgeVerdict:
        """Return the verdict on an item; see `Judge.verdict`."""


def checked_judge(value: Any) -> str | dict[str, Any]:
    """Check the parameter `judge` of an environment: a name, or the settings themselves.

    Raises:
        ConfigurationError: It is neither, or a setting is not allowed.
    """
    if isinstance(value, JudgeSettings):
        value = asdict(value)
    if isinstance(value, Mapping):
        JudgeSettings.from_mapping(value)
        return dict(value)
    if not isinstance(value, str) or not value:
        raise ConfigurationError(
            f"judge must be {RULES!r}, a name of a table [judge.<name>], or settings, got {value!r}"
        )
    return value


def judge_of(value: str | Mapping[str, Any]) -> Judging:
    """Return the judge of an environment's parameter; the same one for the same settings.

    Args:
        value: `rules`, the name of a table of the file in `GEM_JUDGES`, or settings.

    Raises:
        ConfigurationError: There is no such judge, or its settings are not allowed.
    """
    if value == RULES:
        return RulesJudge()
    name = value if isinstance(value, str) else "judge"
    settings = (
        JudgeSettings.from_mapping(value) if isinstance(value, Mapping) else _looked_up(value)
    )
    # A process that was forked has no threads and must not use the cache's connection.
    key = os.getpid(), name, digest(asdict(settings))
    with _lock:
        if key not in _judges:
            _judges[key] = Judge(settings, name)
        return _judges[key]


def _looked_up(name: str) -> JudgeSettings:
    path = os.environ.get(VARIABLE)
    if not path:
        raise ConfigurationError(
            f"judge {name!r}: the environment variable {VARIABLE} names no file with a table "
            f"[judge.{name}]; a run of a RunSpec with this table sets it"
        )
    known = judges_in(path)
    if name not in known:
        raise ConfigurationError(
            f"judge {name!r}: {path} has no table [judge.{name}]; it has "
            f"{', '.join(sorted(known)) or 'none'}"
        )
    return known[name]


def judges_in(path: str | Path, *, cached: bool = True) -> dict[str, JudgeSettings]:
    """Return the judges of a TOML or JSON file by name.

    Args:
        path: Of the file.
        cached: Whether a judge that names no cache has `judges.sqlite` in the file's folder.

    Raises:
        ConfigurationError: The file cannot be read, or a setting is not allowed.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
        json = path.suffix == ".json"
        data = parse(content, str(path)) if json else parse_toml(content, str(path))
    except (OSError, DataError) as error:
        raise ConfigurationError(f"cannot read the judges in {path}: {error}") from error
    tables = data.get("judge", {}) if isinstance(data, Mapping) else None
    if not isinstance(tables, Mapping):
        raise ConfigurationError(f"{path}: `judge` must be a table of tables, [judge.<name>]")
    found = {n: JudgeSettings.from_mapping(each, f"judge.{n}.") for n, each in tables.items()}
    if not cached:
        return found
    folder = path.parent.absolute()
    return {n: JudgeSettings.from_mapping(each.located(folder)) for n, each in found.items()}
