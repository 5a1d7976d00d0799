"""Extras of gem-core: which environment, tool, executor and command needs which one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Literal

from gem.errors import MissingExtraError

Kind = Literal["environment", "tool", "executor", "command", "client"]

EXTRAS: Mapping[Kind, Mapping[str, str]] = {
    "environment": {
        "math:": "math",
        **dict.fromkeys(
            (f"eval:{name}" for name in ("MATH500", "AMC", "OlympiadBench", "Minerva", "AIME24")),
            "math",
        ),
        "code:": "python",
        "eval:CodeContest": "python",
        "tau:": "tau",
        "user:": "tau",
        "image:": "images",
        "judge:": "judge",
    },
    "tool": {"python": "python"},
    "executor": {"ray": "ray", "remote": "serve"},
    "client": {
        "remote": "serve",
        "openenv": "serve",
        "agent": "serve",
        "verifiers": "verifiers",
        "harbor": "box",
        "geometry3k": "images",
    },
    "command": {
        "check": "check",
        "info": "check",
        "doctor": "python",
        "replay": "train",
        "serve": "serve",
        "eval": "eval",
        "harbor": "box",
        "judge": "judge",
    },
}
"""Extras of gem-core by what they bring: names, and of environments also beginnings of ids."""

MODULES: Mapping[str, tuple[str, str]] = {
    "rg:": ("reasoning-gym", "reasoning_gym"),
    "openspiel:": ("openspiel", "pyspiel"),
    "textarena:": ("textarena", "textarena"),
}
"""Of environments of gem-core, by beginnings of ids: the extra, and the module that it brings."""
HUB = ("data", "datasets")
"""The same of environments whose tasks are on a hub."""
SAMPLE = "source=sample"
"""What such an environment can be made with instead."""


def needed(id: str, source: object = None) -> str:
    """Return the extra that a registered environment needs and that is not installed, or "".

    Args:
        id: A registered id.
        source: Where its tasks are, if it has such a parameter.
    """
    for begins, (extra, module) in MODULES.items():
        if id.startswith(begins):
            return "" if find_spec(module) else extra
    hub = isinstance(source, str) and source.startswith("hub:")
    return HUB[0] if hub and not find_spec(HUB[1]) else ""


def missing(kind: Kind, name: str, there: Iterable[str] = ()) -> str:
    """Return how to install what brings a name; empty if no missing package of this project does.

    Args:
        kind: Of what.
        name: A name that is not there.
        there: Names that are. The package whose ids have a beginning is installed if one of these
            has it, too.
    """
    for known, extra in EXTRAS[kind].items():
        begins = kind == "environment" and name.startswith(known)
        if (name == known or begins) and not any(each.startswith(known) for each in there):
            return f"{kind} {name!r} needs: pip install 'gem-core[{extra}]'"
    return ""


def check_installed(kind: Kind, name: str, group: str) -> None:
    """Make sure that a name which a package of this project brings is there.

    Args:
        kind: Of what.
        name: A name; unknown ones pass.
        group: The entry-point group in which the package has the name.

    Raises:
        MissingExtraError: The package is not installed.
    """
    said = missing(kind, name)
    if said and not entry_points(group=group, name=name):
        raise MissingExtraError(said)
