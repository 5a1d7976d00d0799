"""Formats a trainer's parity report: which settings of an experiment the trainer matches."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gem_train.launch import Launch
from gem_train.table import Parity

STATUSES = ("unmatched", "emulated", "untried", "native", "matched")


def parity_text(settings: Mapping[str, Any], parity: Sequence[Parity]) -> str:
    """Return the parity report, settings that are not matched first.

    Args:
        settings: The experiment's settings by dotted key.
        parity: One entry per setting.
    """
    lines = []
    for status in STATUSES:
        found = [each for each in parity if each.status == status]
        if status in ("untried", "native") and not found:
            continue
        lines.append(f"{status} ({len(found)})" + ("" if found else ": none"))
        named = [(_setting(each.name, settings), each.how) for each in found]
        width = min(max((len(name) for name, _ in named), default=0), 44)
        lines += [f"  {name:<{width}}  {how}".rstrip() for name, how in named]
    known = {each.name for each in parity}
    silent = [name for name in settings if name not in known]
    if silent:
        lines.append(f"not reported by the adapter ({len(silent)}): {', '.join(silent)}")
    return "\n".join(lines)


def untold_text(untold: Mapping[str, str]) -> Iterator[str]:
    """Yield lines: which metrics of the record a trainer cannot give, by reason."""
    for why in dict.fromkeys(untold.values()):
        names = ", ".join(name for name, each in untold.items() if each == why)
        yield f"not recorded: {names} ({why})"


def command_text(launch: Launch) -> str:
    """Return the command for pasting into a shell, one setting per line."""
    unset = [f"-u {shlex.quote(name)}" for name in launch.unset]
    env = [f"{name}={shlex.quote(value)}" for name, value in sorted(launch.env.items())]
    program, *words = map(shlex.quote, launch.argv)
    if words[:1] == ["-m"]:  # `python -m module` belongs together
        program, words = " ".join([program, *words[:2]]), words[2:]
    arguments: list[str] = []
    for word in words:
        is_value = not word.startswith("-") and arguments and arguments[-1].startswith("-")
        if is_value and " " not in arguments[-1]:
            arguments[-1] += f" {word}"
        else:
            arguments.append(word)
    prefix = ["env", *unset, *env] if unset or env else []
    return " \\\n  ".join([*prefix, program, *arguments])


def _setting(name: str, settings: Mapping[str, Any]) -> str:
    return f"{name} = {settings[name]!r}" if name in settings else name
