"""Who imports a name of the original GEM is told where it is here."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gem
from gem.moved import MODULES, NAMES

PAGE = Path(__file__).parents[2] / "docs" / "moving.md"


@pytest.mark.parametrize("name", MODULES)
def test_importing_a_module_of_the_original_names_its_place_here(name: str) -> None:
    with pytest.raises(ModuleNotFoundError) as caught:
        importlib.import_module(name)
    assert f"{name} -> {MODULES[name]}" in str(caught.value)
    assert name.startswith(str(caught.value.name))


@pytest.mark.parametrize("name", ["gem.utils", "gem.envs.game_env.wordle", "gem.multiagent.core"])
def test_packages_and_what_is_below_a_module_are_known_too(name: str) -> None:
    with pytest.raises(ModuleNotFoundError, match="one of the original GEM"):
        importlib.import_module(name)


@pytest.mark.parametrize("name", ["gem.utilities", "gem.envs.maths", "gem.nonsense.parsing"])
def test_other_modules_that_are_missing_are_just_missing(name: str) -> None:
    with pytest.raises(ModuleNotFoundError) as caught:
        importlib.import_module(name)
    assert str(caught.value) == f"No module named {caught.value.name!r}"


@pytest.mark.parametrize("name", NAMES)
def test_importing_a_name_of_the_original_names_its_place_here(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    with pytest.raises(ImportError) as caught:
        exec(f"from {module} import {attribute}")
    assert NAMES[name] in str(caught.value)


def test_other_attributes_that_are_missing_are_just_missing() -> None:
    for module in {name.rpartition(".")[0] for name in NAMES}:
        assert not hasattr(importlib.import_module(module), "nonsense")


@pytest.mark.parametrize("text", [*MODULES.values(), *NAMES.values()])
def test_a_place_that_is_named_exists(text: str) -> None:
    def resolve(dotted: str) -> Any:
        found: Any = gem
        for number, part in enumerate(parts := dotted.split("."), 1):
            if number > 1:
                path = ".".join(parts[:number])
                if importlib.util.find_spec(".".join(parts[: number - 1])) and (
                    not hasattr(found, part)
                ):
                    importlib.import_module(path)
                found = getattr(found, part)
        return found

    for place in text.split("; "):
        dotted, colon, rest = place.removeprefix("grading: ").partition(": ")
        words = dotted.split("(")[0].split()
        if not words or (not words[0].startswith("gem.") and words[0] != "gem"):
            continue
        owner = resolve(words[0].rstrip(",:"))
        for name in rest.split("(")[0].split(", ") if colon and " " not in rest else ():
            assert hasattr(owner, name), f"{dotted}: {name}"


def test_what_finds_the_names_is_asked_last_and_installed_once() -> None:
    code = (
        "import sys, importlib, gem; importlib.reload(gem); "
        "print([type(f).__module__ for f in sys.meta_path].count('gem.moved'), "
        "type(sys.meta_path[-1]).__module__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "gem.moved"]


def test_the_page_about_moving_has_every_name() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name, place in {**MODULES, **NAMES}.items():
        assert f"| `{name}` | {place} |" in page
