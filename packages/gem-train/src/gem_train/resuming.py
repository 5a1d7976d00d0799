"""Whether a run may go on from what an earlier one left: only as the same experiment."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from gem.errors import ConfigurationError
from gem.tables import flatten
from gem_judge.settings import HOW_ASKED

_HOW_ASKED = re.compile(rf"(spec\.)?judge\.[^.]+\.({'|'.join(sorted(HOW_ASKED))})")


def check_same(
    place: object, before: Mapping[str, Any], now: Mapping[str, Any], free: Iterable[str] = ()
) -> None:
    """Refuse to go on with what was begun with other settings.

    Args:
        place: Of what the earlier run left, for the message.
        before: The earlier run's settings, which may be nested.
        now: This run's. A table that one of the two lacks as a whole is not compared.
        free: Dotted keys that may differ, besides how a judge is asked.

    Raises:
        ConfigurationError: Settings differ; the message has their keys and both values.
    """
    shared = before.keys() & now.keys()
    old, new = (flatten({k: part[k] for k in part if k in shared}) for part in (before, now))
    lines = [
        f"  {key}: {_shown(old, key)} there, {_shown(new, key)} here"
        for key in dict.fromkeys([*old, *new])
        if key not in free
        and not _HOW_ASKED.fullmatch(key)
        and (key not in old or key not in new or old[key] != new[key])
    ]
    if lines:
        raise ConfigurationError(
            "\n".join([f"{place} holds another run, which this one cannot go on with:", *lines])
            + "\nResume it with what it was begun with, or begin a run in another folder"
        )


def _shown(settings: Mapping[str, Any], key: str) -> str:
    return repr(settings[key]) if key in settings else "nothing"
