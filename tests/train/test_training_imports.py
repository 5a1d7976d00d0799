"""Functions that wait for the import of a module."""

from __future__ import annotations

import importlib
import importlib.util
import runpy
import sys
from pathlib import Path
from types import ModuleType

import pytest

from gem_train.imports import after_import, lazy


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that nobody has imported yet."""
    name = f"awaited_{tmp_path.name}".replace("-", "_")
    tmp_path.joinpath(f"{name}.py").write_text("value = 1\nseen = value\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    return name


def test_functions_run_in_order_after_the_modules_own_code(module: str) -> None:
    calls: list[int] = []

    def first(imported: ModuleType) -> None:
        calls.append(imported.seen)
        imported.value = 2  # type: ignore[attr-defined]

    after_import(module, first)
    after_import(module, lambda imported: calls.append(imported.value))
    assert module not in sys.modules and not calls
    assert importlib.import_module(module).value == 2
    assert calls == [1, 2]


def test_a_module_that_is_there_is_not_waited_for(module: str) -> None:
    importlib.import_module(module)
    seen = []
    after_import(module, lambda imported: seen.append(imported.__name__))
    assert seen == [module]


def test_what_a_function_raises_makes_the_import_fail(module: str) -> None:
    def refuse(imported: ModuleType) -> None:
        raise RuntimeError("not this one")

    after_import(module, refuse)
    # A trainer may catch the error and import the module again, here or elsewhere.
    for _ in range(2):
        with pytest.raises(RuntimeError, match="not this one"):
            importlib.import_module(module)
        assert module not in sys.modules


def test_the_module_keeps_its_own_loader(module: str) -> None:
    after_import(module, lambda imported: None)
    imported = importlib.import_module(module)
    assert imported.__spec__ is not None and imported.__spec__.loader is imported.__loader__
    assert type(imported.__loader__).__name__ == "SourceFileLoader"


def test_what_else_is_asked_of_a_loader_the_modules_own_one_answers(module: str) -> None:
    after_import(module, lambda imported: None)
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.loader is not None
    assert "seen = value" in spec.loader.get_source(module)  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="nonsense"):
        _ = spec.loader.nonsense  # type: ignore[attr-defined]


def test_an_awaited_module_can_be_run_as_a_program(module: str) -> None:
    after_import(module, lambda imported: None)
    assert runpy.run_module(module)["seen"] == 1


def test_a_lazy_package_imports_a_module_when_a_name_of_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"lazy_{tmp_path.name}".replace("-", "_")
    folder = tmp_path / name
    folder.mkdir()
    folder.joinpath("__init__.py").write_text("")
    folder.joinpath("heavy.py").write_text("Trainer = 'made'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    get = lazy(name, {"Trainer": "heavy"})
    with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'Treiner'"):
        get("Treiner")
    assert f"{name}.heavy" not in sys.modules
    assert get("Trainer") == "made"
