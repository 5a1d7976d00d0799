"""What a record keeps of the judges that its tasks name."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from gem_eval.tasks import Part
from gem_judge.named import VARIABLE, judges_in
from gem_judge.settings import HOW_ASKED


def judges(parts: Sequence[Part]) -> dict[str, dict[str, Any]]:
    """Return what decides about the verdicts of the judges that tasks name, by their names.

    Raises:
        ConfigurationError: The file in `GEM_JUDGES` or a judge's template cannot be read.
    """
    given = [part.tasks.params.get("judge") for part in parts]
    names = {each for each in given if isinstance(each, str)}
    path = os.environ.get(VARIABLE)
    known = judges_in(path, cached=False) if path and names else {}
    found = {}
    for name in sorted(names & known.keys()):
        table = {key: each for key, each in asdict(known[name]).items() if key not in HOW_ASKED}
        # A template may change under its name.
        found[name] = {**table, "identity": known[name].identity()}
    return found
