"""Every recipe can be given to the trainer of this environment."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path

import pytest
from commands import RECIPES, ROOT, read_recipe, shortened
from machines import SHIPPED

from gem.errors import ConfigurationError, MissingExtraError
from gem_train.entries import OPTIMIZER_WEIGHTS
from gem_train.launch import ENTRY_POINT_GROUP, find_adapter

ADAPTERS = sorted(entry.name for entry in entry_points(group=ENTRY_POINT_GROUP))
BASELINES = ROOT / "recipes" / "sweeps" / "baselines-gpu.toml"
EXEMPT = {"training.precision", "policy.lora_init", OPTIMIZER_WEIGHTS}
"""None trains in fp32 on a GPU by itself; a Tinker server draws the adapter it begins with, and
decides on the precision of its optimiser."""


@pytest.mark.parametrize("name", ADAPTERS)
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
@pytest.mark.parametrize("machine", SHIPPED)
def test_a_recipe_compiles_for_a_trainer_on_shipped_hardware(
    name: str, recipe: Path, machine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # OpenRLHF's rows hold the first prompt, which says what tools there are.
    monkeypatch.setenv("SEARCH_URL", "http://127.0.0.1:9/retrieve")
    spec, hardware = shortened(read_recipe(recipe, name)), SHIPPED[machine]
    try:
        launch = find_adapter(name).compile(spec, run_dir=tmp_path, hardware=hardware)
    except MissingExtraError as error:
        pytest.skip(f"the trainer lives in another environment: {error}")
    except ConfigurationError as error:
        if f"{spec.episodes} episodes do not divide among" in str(error):
            assert spec.episodes < hardware.gpus  # made for a machine without a GPU
            return
        # Trainers that are started on every node by hand, and one that is one process.
        assert str(error).startswith("hardware."), error
        assert hardware.nodes > 1 or (name == "reference" and hardware.gpus > 1)
        return
    [weights] = [each for each in launch.parity if each.name == OPTIMIZER_WEIGHTS]
    assert weights.status != "unmatched" or name == "tinker"
    unmatched = {each.name for each in launch.parity if each.status == "unmatched"}
    unmatched -= EXEMPT  # a recipe is for every trainer
    if name in ("reference", "tinker"):  # one process, and a server that decides for itself
        unmatched = {key for key in unmatched if not key.startswith("hardware.")}
    assert not unmatched


@pytest.mark.parametrize("name", ADAPTERS)
def test_the_24_published_environments_compile_for_a_trainer(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A package of this repository that the environments of trainers lack.
    monkeypatch.syspath_prepend(str(ROOT / "packages" / "gem-bench" / "src"))
    from gem_bench.sweep import Changes, read

    monkeypatch.setenv("SEARCH_URL", "http://127.0.0.1:9/retrieve")
    rank = ("policy.lora_rank=32",) if name == "tinker" else ()
    # Some compilers write a row for each task: two batches are enough.
    changes = Changes(to=(name,), overrides=("training.iterations=2", *rank))
    machine = SHIPPED["1xh100" if name == "reference" else "8xh100"]
    runs = read([BASELINES], changes)
    assert len({(env.id, str(env.params)) for run in runs for env in run.spec.env}) == 24
    for run in runs:
        try:
            launch = find_adapter(name).compile(run.spec, run_dir=tmp_path, hardware=machine)
        except MissingExtraError as error:
            pytest.skip(f"the trainer lives in another environment: {error}")
        unmatched = {k.name for k in launch.parity if k.status == "unmatched"}
        assert not {key for key in unmatched - EXEMPT if not key.startswith("hardware.")}, run.name
