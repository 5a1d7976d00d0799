"""Estimators by name: traits, packages that add one, and results that are not accepted."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gem.estimators
from gem.advantage import TurnTable, returns
from gem.errors import ConfigurationError
from gem.estimators import BUILT_IN, Estimate, Estimator, Options, estimator, estimator_names
from gem.executors.named import make_executor
from gem_train.experiment.runspec import AlgorithmPart

TABLE = TurnTable.build([[0.0, 1.0], [0.5], [2.0]], groups=[0, 0, 1], valid=[True, True, False])


def test_traits_say_what_names_were_asked_for() -> None:
    traits = {
        name: (each.compares, each.needs_critic, each.keeps_state)
        for name, each in BUILT_IN.items()
    }
    assert traits == {
        "reinforce": ("nothing", False, False),
        "rebn": ("batch", False, False),
        "grpo": ("group", False, False),
        "rloo": ("group", False, False),
        "gae": ("nothing", True, False),
        "rae": ("role", False, True),
    }
    assert all(name == each.name for name, each in BUILT_IN.items())


def test_a_package_adds_an_estimator() -> None:
    assert estimator_names()[: len(BUILT_IN)] == [*BUILT_IN]
    assert "rloo_by_turn" in estimator_names()
    assert AlgorithmPart(advantage="rloo_by_turn").estimator.compares == "group"
    found = estimator("rloo_by_turn")(TABLE, Options(gamma=0.5))
    # G = [0.5, 1], [0.5]; the third episode failed.
    assert TABLE.split(found.advantages) == [[0.0, 0.5], [0.0], [0.0]]
    assert found.targets.tolist() == returns(TABLE, 0.5).tolist()


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="unknown estimator 'ppo'; known: 'reinforce', "):
        estimator("ppo")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("estimators_of_a_test:NOTHING", "must be a gem.estimators.Estimator, got None"),
        ("estimators_of_a_test:MINE", "names the estimator 'mine'; both names must be equal"),
        ("estimators_of_a_test:GONE", "has no attribute 'GONE'"),
        ("no_such_module_of_ours:X", "No module named 'no_such_module_of_ours'"),
    ],
)
def test_an_entry_point_that_does_not_hold_is_named(
    value: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = Estimator("mine", lambda table, options: table.reward)
    module = SimpleNamespace(NOTHING=None, MINE=mine)
    monkeypatch.setitem(sys.modules, "estimators_of_a_test", module)
    entry = EntryPoint("wrong", value, gem.estimators.ENTRY_POINT_GROUP)
    monkeypatch.setattr("gem.plugins.entry_points", lambda **_: [entry])
    gem.estimators._installed.cache_clear()
    with pytest.raises(ConfigurationError, match=message):
        estimator("wrong")


def test_a_name_that_two_packages_provide_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    group = gem.estimators.ENTRY_POINT_GROUP
    two = [EntryPoint("mine", f"{package}:MINE", group) for package in ("one", "other")]
    monkeypatch.setattr("gem.plugins.entry_points", lambda **_: two)
    with pytest.raises(ConfigurationError, match="'mine' .* one:MINE, other:MINE"):
        estimator("mine")
    with pytest.raises(ConfigurationError, match="executor 'mine' .* one:MINE, other:MINE"):
        make_executor("mine")


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (np.zeros(3), r"a number for each of 4 turns, got the shape \(3,\)"),
        (np.zeros((4, 1)), r"got the shape \(4, 1\)"),
        (["a"] * 4, "could not convert string to float"),
        ([0.0, np.nan, 0.0, 0.0], "advantages of episode 0, turn 1 must be finite, got nan"),
        ([0.0, 0.0, 0.0, 1.0], "episode 2, turn 0 must be 0, as its episode failed, got 1.0"),
        (Estimate(np.zeros(4), np.full(4, np.inf)), "targets of episode 0, turn 0 must be finite"),
        (Estimate(np.zeros(4), np.zeros(4), {"x": 1.0}), "make it with keeps_state=True"),
        (None, "got the shape"),
    ],
)
def test_a_wrong_result_is_refused(result: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"estimator mine.*{message}"):
        Estimator("mine", lambda table, options: result)(TABLE)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": "my estimator"}, "must be an identifier, got 'my estimator'"),
        ({"name": "lambda"}, "must be an identifier"),
        ({"compares": "episodes"}, "compares must be one of nothing, batch, group, role"),
        ({"function": None}, "function must be callable"),
    ],
)
def test_a_wrong_trait_is_refused(given: dict[str, Any], message: str) -> None:
    whole = {"name": "mine", "function": lambda table, options: table.reward, **given}
    with pytest.raises(ConfigurationError, match=message):
        Estimator(**whole)


def test_an_estimator_with_a_critic_needs_values() -> None:
    mine = Estimator("mine", lambda table, options: table.value, needs_critic=True)
    with pytest.raises(ConfigurationError, match="mine needs a value for every turn"):
        mine(TABLE)
