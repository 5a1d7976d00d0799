"""A pair of hardware settings compiles for a trainer, is refused, or is listed as never tried."""

from __future__ import annotations

from importlib.metadata import entry_points
from itertools import combinations
from pathlib import Path

import pytest
from pairs import run_with

from gem.errors import ConfigurationError, MissingExtraError
from gem_train.launch import ENTRY_POINT_GROUP, find_adapter
from gem_train.pairs import FEATURES, features, shown, verdict

ADAPTERS = sorted(entry.name for entry in entry_points(group=ENTRY_POINT_GROUP))


every_adapter = pytest.mark.parametrize("name", ADAPTERS)


@every_adapter
def test_an_adapter_says_of_each_pair_whether_it_works(name: str) -> None:
    rows = find_adapter(name).pairs
    for one, other in combinations(FEATURES, 2):
        for cpu in (True, False):
            assert verdict(rows, one, other, cpu=cpu)[0] in ("runs", "refused", "untried")


@every_adapter
def test_each_pair_compiles_is_refused_or_is_listed_as_never_tried(
    name: str, tmp_path: Path
) -> None:
    adapter = find_adapter(name)

    def compiled(*given: str) -> tuple[str | None, str]:
        """Why a run with these features is refused, if it is, and what is listed of it."""
        spec, hardware, _ = run_with(*given)
        try:
            made = adapter.compile(spec, run_dir=tmp_path, hardware=hardware)
        except MissingExtraError as error:
            pytest.skip(f"the trainer lives in another environment: {error}")
        except ConfigurationError as error:
            return str(error), ""
        return None, "; ".join(k.how for k in made.parity if k.status == "untried")

    # A key that a trainer has no use for, or a precision that it has not.
    never = {one for one in FEATURES if compiled(one)[0] is not None}
    wrong = []
    for pair in combinations([each for each in FEATURES if each not in never], 2):
        spec, hardware, attention = run_with(*pair)
        met = features(spec, hardware, adapter.attention or attention)
        if not set(pair) <= set(met) and adapter.attention is None:
            continue  # sdpa and flash attention never meet
        verdicts = {shown(*each): verdict(adapter.pairs, *each)[0] for each in combinations(met, 2)}
        refused, listed = compiled(*pair)
        if "refused" in verdicts.values():
            ok = refused is not None and any(
                key in refused for key, status in verdicts.items() if status == "refused"
            )
        else:
            untried = {key for key, status in verdicts.items() if status == "untried"}
            ok = refused is None and untried == set(filter(None, listed.split("; ")))
        if not ok:
            wrong.append((pair, refused, listed))
    assert not wrong
