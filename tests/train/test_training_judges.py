"""The judges of a run, as adapters and the check before a run know them."""

from __future__ import annotations

import json
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import judges
import pytest
from chat_server import Answer, Stub
from machines import eight
from tables import table

from gem.errors import JudgeError, UnreachableError
from gem_judge import VARIABLE, judges_in
from gem_train import entries
from gem_train.experiment.runspec import RunSpec
from gem_train.judges import check_judges
from gem_train.launch import ENTRY_POINT_GROUP, Adapter, Launch, find_adapter
from gem_train.pairs import COMPUTED, pairs

SPEC: dict[str, Any] = {
    "name": "judged",
    "env": {"id": "judge:Reply-v0", "params": {"judge": "main"}},
    "policy": {"model": "m", "prompt_tokens": 64, "response_tokens": 256, "turn_tokens": 8},
    "algorithm": {"advantage": "rebn"},
    "optimizer": {"lr": 1e-3},
    "training": {"iterations": 3, "tasks": 2, "group_size": 4},
}


stub = judges.served(judges.truth)


def spec(stub: Stub, **changed: Any) -> RunSpec:
    return RunSpec.from_mapping({**SPEC, "judge": {"main": judges.settings(stub, **changed)}})


def test_every_adapter_gives_a_run_its_judges(stub: Stub, tmp_path: Path) -> None:
    any_pair = (pairs(COMPUTED, COMPUTED, "runs", "here"),)
    adapter = Adapter(
        "x", ">=1", "dev", table("x"), lambda run: Launch(["x"], {"A": "b"}), pairs=any_pair
    )
    made = adapter.compile(spec(stub), run_dir=tmp_path, hardware=eight())
    assert made.env == {"A": "b", VARIABLE: str(tmp_path / "judges.json")}
    (tmp_path / "judges.json").write_text(made.files["judges.json"])
    found = judges_in(tmp_path / "judges.json")["main"]
    assert found.url == stub.url and found.cache == str(tmp_path / "judges.sqlite")
    # What an earlier run has left would be gone on from.
    assert "judges.sqlite" in made.state
    plain = RunSpec.from_mapping({**SPEC, "env": {"id": "judge:Reply-v0"}})
    without = adapter.compile(plain, run_dir=tmp_path, hardware=eight())
    assert (without.env, without.files, without.state) == ({"A": "b"}, {}, [])


def test_every_installed_adapter_says_that_environments_ask(stub: Stub) -> None:
    names = [entry.name for entry in entry_points(group=ENTRY_POINT_GROUP)]
    assert names
    for name in names:
        adapter = find_adapter(name)
        run = adapter.table.run(spec(stub), Path("/run"), eight())
        said = {each.name: each.how for each in adapter.table.parity(run)}
        assert said["judge.main.votes"] == entries.JUDGE.text, name


def test_a_run_does_not_begin_with_a_judge_that_fails(stub: Stub) -> None:
    check_judges(spec(stub))
    stub.answer = judges.silent
    with pytest.raises(UnreachableError, match="fails at a plain question"):
        check_judges(spec(stub))
    stub.models = Answer(json.dumps({"data": [{"id": "other"}]}))
    with pytest.raises(JudgeError, match="has no model"):
        check_judges(spec(stub))
    check_judges(spec(stub, cache="votes.sqlite", cache_only=True))
