"""The suite for adapters: what it expects is right, and no adapter with a defect passes."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from gem.estimators import BUILT_IN, estimator_names
from gem.trajectory import Trajectory, turn_table
from gem_train.experiment.runspec import AlgorithmPart
from gem_train.testing.conformance import (
    DEFECTS,
    GAMMA,
    LAM,
    VARIANTS,
    Rows,
    critic,
    cut_row,
    difference,
    expected_rows,
)
from gem_train.testing.golden import golden_batch, golden_turn_rows

ESTIMATORS = [name for name, each in BUILT_IN.items() if not each.keeps_state]
REBN = AlgorithmPart(advantage="rebn", gamma=GAMMA, lam=LAM)


def by_hand(batch: Sequence[Trajectory], algorithm: AlgorithmPart) -> list[list[float]]:
    """The advantages by the formulas, without `gem.advantage`: `[episode][turn]`."""
    name, gamma, lam = algorithm.advantage, algorithm.gamma, algorithm.lam
    out = []
    for e, t in enumerate(batch):
        n = len(t.turns)
        future = [sum(gamma ** (j - k) * t.rewards[j] for j in range(k, n)) for k in range(n)]
        value = [*(critic(e, k) for k in range(n)), 0.0]
        delta = [t.rewards[k] + gamma * value[k + 1] - value[k] for k in range(n)]
        errors = [sum((gamma * lam) ** (j - k) * delta[j] for j in range(k, n)) for k in range(n)]
        mates = [s.total_reward for s in batch if s.group == t.group and s.valid]
        others = [s.total_reward for s in batch if s.group == t.group and s.valid and s is not t]
        above = t.total_reward - float(np.mean(mates))
        out.append(
            {
                "reinforce": future,
                "rebn": future,
                "gae": errors,
                "grpo": [above / float(np.std(mates)) if np.std(mates) else 0.0] * n,
                "rloo": [t.total_reward - float(np.mean(others)) if others else 0.0] * n,
            }[name]
        )
    if name == "rebn":
        everything = [g for t, of in zip(batch, out, strict=True) if t.valid for g in of]
        mean, deviation = float(np.mean(everything)), float(np.std(everything))
        out = [[(g - mean) / deviation for g in of] for of in out]
    return out


@pytest.mark.parametrize("batch", [golden_batch, golden_turn_rows])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_expected_advantages_are_those_of_the_formulas(
    name: str, batch: Callable[[], list[Trajectory]]
) -> None:
    algorithm = replace(REBN, advantage=name)
    wanted = by_hand(batch(), algorithm)
    found = expected_rows(batch(), algorithm)
    for trajectory, per_turn, rows in zip(batch(), wanted, found, strict=True):
        tokens = [(a, m) for row in rows for a, m in zip(row.advantages, row.mask, strict=True)]
        of_turns = zip(per_turn, trajectory.turns, strict=True)
        sampled = [value for value, turn in of_turns for _ in turn.response_ids]
        assert [a for a, m in tokens if m] == pytest.approx(sampled if trajectory.valid else [])
        assert not any(a for a, m in tokens if not m)


def test_the_golden_batch_is_ugly_enough() -> None:
    assert not turn_table(golden_batch()).valid.all()
    assert min(len(t.response_ids) for e in golden_batch() for t in e.turns) == 0


def right(batch: list[Trajectory] | None = None) -> Rows:
    return expected_rows(golden_batch() if batch is None else batch, REBN)


def changed(episode: int, **fields: object) -> Rows:
    rows = right()
    rows[episode] = [replace(row, **fields) for row in rows[episode]]
    return rows


def test_the_first_place_that_differs_is_named() -> None:
    [row] = right()[1]
    others = [*row.advantages[:-1], row.advantages[-1] * 2]
    last = len(others) - 1
    found = difference(changed(1, advantages=others), golden_batch(), REBN)
    assert str(found) == (
        f"L0 advantages of episode 1, row 0, token {last}: "
        f"expected {row.advantages[-1]}, found {others[-1]}"
    )


@pytest.mark.parametrize(
    ("found", "place"),
    [
        (right()[:-1], "number of episodes: expected 8, found 7"),
        (changed(0, mask=[]), "length of mask of episode 0, row 0: expected 17, found 0"),
        (changed(0, prompt_ids=[9] * 4), "prompt_ids of episode 0, row 0, token 0: expected 3"),
        (changed(0, response_ids=[0] * 17), "response_ids of episode 0, row 0, token 0"),
        (changed(0, rewards=[0.0] * 17), "rewards of episode 0, row 0, token 16: expected 1.0"),
        (changed(0, advantages=[float("nan")] * 17), "found nan"),
        ([[], *right()[1:]], "rows of episode 0: expected 1, found 0"),
        # In double precision.
        (changed(0, advantages=[a * (1 + 1e-12) for a in right()[0][0].advantages]), "advantages"),
        ([*right()[:-1], right()[0]], "advantages of failed episode 7: expected 0.0"),
    ],
)
def test_whatever_differs_is_found(found: Rows, place: str) -> None:
    assert place in str(difference(found, golden_batch(), REBN))


def test_what_trains_nothing_may_be_left_out() -> None:
    batch = golden_turn_rows()
    rows = right(batch)
    assert difference(rows, batch, REBN) is None
    shorter = [[row for row in of_episode if any(row.mask)] for of_episode in rows]
    assert shorter != rows
    assert difference(shorter, batch, REBN) is None
    assert difference(changed(0, rewards=[]), golden_batch(), REBN) is None
    kept = [*right()[:-1], [replace(right()[0][0], advantages=[0.0, 0.0])]]
    assert difference(kept, golden_batch(), REBN) is None


def test_a_row_is_cut_out_of_padded_columns() -> None:
    row = cut_row([1, 2, 3, 4], 2, mask=[0, 1.0, 1.0, 0], advantages=[0, 0.5, 0.25, 0])
    assert (row.prompt_ids, row.response_ids) == ([1, 2], [3, 4])
    assert (row.mask, row.advantages, row.rewards) == ([1, 1], [0.5, 0.25], [])
    for outside in ([0.5, 0, 0, 0], [0, 0, 0, 0.5]):
        with pytest.raises(AssertionError, match=r"advantages is 0\.5 in column ., outside"):
            cut_row([1, 2, 3, 4], 2, mask=[0, 1, 1, 0], advantages=outside)
        mask = [int(value > 0) for value in outside]
        with pytest.raises(AssertionError, match=r"mask is 1 in column"):
            cut_row([1, 2, 3, 4], 2, mask=mask, advantages=[0, 0, 0, 0])
    with pytest.raises(AssertionError, match=r"must be 0 or 1, it has \[0\.5\]"):
        cut_row([1, 2, 3, 4], 2, mask=[0, 1, 0.5, 0], advantages=[0, 0, 0, 0])


ADAPTERS = """
import pytest
from gem_train.testing.conformance import DEFECTS, L0Suite, expected_rows

class TestRight(L0Suite):
    def train(self, batch, algorithm):
        return expected_rows(batch, algorithm)

class TestGroupsOnly(TestRight):
    estimators = classmethod(lambda cls: ["grpo"])

class TestTwice(TestRight):
    @pytest.fixture(autouse=True, params=["once", "again"])
    def prepare(self, request):
        self.time = request.param

class TestNothing(L0Suite):
    def train(self, batch, algorithm):
        return [[] for _ in batch]

class TestBroken(TestRight):
    @pytest.fixture(autouse=True, params=DEFECTS)
    def prepare(self, request):
        self.defect = DEFECTS[request.param]

    def train(self, batch, algorithm):
        return self.defect(expected_rows)(batch, algorithm)
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bool]:
    """What pytest says of the adapters: whether a test passed, by class and name."""
    folder = tmp_path_factory.mktemp("adapter")
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_adapters.py").write_text(ADAPTERS)
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--junit-xml=found.xml"],
        cwd=folder,
        capture_output=True,
        timeout=600,
        check=False,
    )
    return {
        f"{case.attrib['classname'].rpartition('.')[2]}.{case.attrib['name']}": not len(case)
        for case in ET.parse(folder / "found.xml").iter("testcase")
    }


def of(outcomes: dict[str, bool], adapter: str) -> dict[str, bool]:
    """The outcomes of an adapter, without estimators that installed packages add."""
    added = {name for name in estimator_names() if name not in BUILT_IN}
    return {
        test: passed
        for test, passed in outcomes.items()
        if test.startswith(f"{adapter}.") and not added & {*re.split(r"[-\[\]]", test)}
    }


def test_an_adapter_that_is_right_passes(outcomes: dict[str, bool]) -> None:
    found = of(outcomes, "TestRight")
    assert all(found.values())
    assert len(found) == 2 * (len(ESTIMATORS) + len(VARIANTS)) + len(DEFECTS)


def test_a_fixture_repeats_all_tests(outcomes: dict[str, bool]) -> None:
    found = of(outcomes, "TestTwice")
    assert all(found.values())
    assert len(found) == 2 * len(of(outcomes, "TestRight"))


def test_defects_that_an_adapters_estimators_cannot_show_are_left_out(
    outcomes: dict[str, bool],
) -> None:
    found = of(outcomes, "TestGroupsOnly")
    assert found and all(found.values())
    assert not any("discount" in name for name in found)
    assert any("advantages shifted" in name for name in found)


@pytest.mark.parametrize("defect", DEFECTS)
def test_an_adapter_with_a_defect_fails(outcomes: dict[str, bool], defect: str) -> None:
    found = {
        name: passed
        for name, passed in of(outcomes, "TestBroken").items()
        if "gets_gems_advantages" in name and defect in name
    }
    assert len(found) == 2 * (len(ESTIMATORS) + len(VARIANTS))
    assert not all(found.values())


def test_an_adapter_that_trains_on_nothing_fails(outcomes: dict[str, bool]) -> None:
    found = {n: passed for n, passed in of(outcomes, "TestNothing").items() if "gets_gems" in n}
    assert found and not any(found.values())
