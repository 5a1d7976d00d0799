"""Every recipe, and every package's example, as a trainer's command for one GPU and for eight."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import tomllib
from machines import SHIPPED

from gem.errors import ConfigurationError
from gem_train.experiment.runspec import RunSpec
from gem_train.launch import Launch, find_adapter

ROOT = Path(__file__).parents[2]
RECIPES = sorted(ROOT.joinpath("recipes").glob("*.toml"))
PAPERS = sorted(ROOT.joinpath("recipes", "papers").glob("*.toml"))
"""Recipes of papers, some of which a trainer refuses (docs/parity/papers.md)."""
EXAMPLES = {
    script.parents[1].name.removeprefix("gem-"): script
    for script in ROOT.glob("packages/*/examples/train_*")
}
"""The file that shows how a trainer is used, by the trainer's name."""

GPUS = {"1xh100": 1, "8xh100": 8}

every_recipe = pytest.mark.parametrize(
    ("recipe", "machine"),
    [(recipe, machine) for recipe in (*RECIPES, *PAPERS) for machine in GPUS],
    ids=lambda value: value.stem if isinstance(value, Path) else value,
)
"""Runs a test for every recipe on one GPU and on eight."""

on_gpus = pytest.mark.parametrize("gpus", GPUS.values())
"""Runs a test for one GPU and for eight."""


def read_recipe(path: Path, trainer: str) -> RunSpec:
    """Read a recipe as a trainer can take it."""
    spec = RunSpec.from_mapping(tomllib.loads(path.read_text(encoding="utf-8")))
    if trainer == "tinker":  # its servers train adapters only
        spec = replace(spec, policy=replace(spec.policy, lora_rank=32))
    return spec


def shortened(spec: RunSpec) -> RunSpec:
    """Leave two iterations, because each has a row for each task, and no change after them."""
    env = tuple(replace(each, schedule=()) for each in spec.env)
    optimizer = replace(spec.optimizer, warmup=min(spec.optimizer.warmup, spec.steps))
    training = replace(spec.training, iterations=2)
    return replace(spec, env=env, training=training, optimizer=optimizer)


def recipe_command(trainer: str, recipe: Path, machine: str, folder: Path) -> Launch:
    """Compile a recipe for a shipped machine; its files are written into the folder.

    Two of its iterations are left. The recipe of a paper that the trainer refuses skips the test.
    """
    spec = shortened(read_recipe(recipe, trainer))
    try:
        launch = find_adapter(trainer).compile(spec, run_dir=folder, hardware=SHIPPED[machine])
    except ConfigurationError as error:
        if recipe not in PAPERS:
            raise
        pytest.skip(f"{trainer} refuses {recipe.stem}: {error}")
    for name, text in launch.files.items():
        folder.joinpath(name).write_text(text, encoding="utf-8")
    return launch


_STUB = """#!{python}
import json, os, pathlib, sys
name, arguments = pathlib.Path(sys.argv[0]).name, sys.argv[1:]
if {launcher!r} in [name, *arguments]:
    pathlib.Path({seen!r}).write_text(json.dumps([name, *arguments]))
elif name == "python":
    os.execv(sys.executable, [sys.executable, *arguments])
elif name == "nvidia-smi":
    print("GPU\\n" * int(os.environ["GPUS"]))
"""


def example(script: Path, launcher: str, gpus: int, folder: Path) -> list[str]:
    """Run the example of a package up to where it starts the trainer; return that command.

    Args:
        script: A shell script.
        launcher: The program or module that the trainer is started with.
        gpus: Number of GPUs that there seem to be.
        folder: Of what the example writes.
    """
    seen, programs = folder / "command.json", folder / "bin"
    programs.mkdir()
    code = _STUB.format(python=sys.executable, launcher=launcher, seen=str(seen))
    for name in ("python", "torchrun", "ray", "nvidia-smi"):
        programs.joinpath(name).write_text(code)
        programs.joinpath(name).chmod(stat.S_IRWXU)
    environment = {
        **{key: value for key, value in os.environ.items() if key != "MODEL"},
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "GPUS": str(gpus),
        "OUT": str(folder),
    }
    subprocess.run([str(script)], env=environment, cwd=folder, check=True, timeout=120)
    command: list[str] = json.loads(seen.read_text())
    return command
