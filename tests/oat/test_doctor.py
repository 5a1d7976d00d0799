"""The doctor says what is wrong, and what to do about it."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable
from typing import Any

import pytest

from gem_oat import doctor
from gem_train.doctor import examine
from gem_train.seams import Seam

Broken = Callable[[pytest.MonkeyPatch], None]


def findings() -> list[tuple[bool, str]]:
    return list(examine(doctor.CHECKS))


def test_a_working_installation_has_no_problem() -> None:
    found = findings()
    assert all(passed for passed, _ in found), found
    assert len(found) == len(doctor.CHECKS)


def _version(number: str | None) -> Broken:
    def install(patch: pytest.MonkeyPatch) -> None:
        def version(name: str) -> str:
            if number is None:
                raise importlib.metadata.PackageNotFoundError(name)
            return number

        patch.setattr("gem_train.doctor.version", version)

    return install


def _import(name: str, error: Exception) -> Broken:
    original = importlib.import_module

    def fails(module: str, package: str | None = None) -> Any:
        if module == name:
            raise error
        return original(module, package)

    return lambda patch: patch.setattr(importlib, "import_module", fails)


def _seam(changed: Seam) -> Broken:
    return lambda patch: patch.setattr(doctor, "SEAMS", [changed])


BROKEN: dict[str, tuple[Broken, str]] = {
    "not installed": (_version(None), "oat-llm is not installed; install it with: pip install"),
    "wrong version": (_version("0.1.4"), "oat-llm 0.1.4 is installed, gem-oat .* supports"),
    "no entry point": (
        lambda patch: patch.setattr(importlib.metadata, "entry_points", lambda group: []),
        "entry point is missing",
    ),
    "no launchpad": (
        _import("launchpad", ModuleNotFoundError("No module named 'launchpad'")),
        "Launchpad cannot be imported: .*; install it with: pip install dm-launchpad",
    ),
    "python of another version": (
        _import("launchpad", ModuleNotFoundError("No module named 'courier'")),
        "no compiled RPC for Python .* Python 3.10",
    ),
    "library of python not found": (
        _import("launchpad", ImportError("libpython3.10.so.1.0: cannot open shared object")),
        "export LD_LIBRARY_PATH=.*--enable-shared",
    ),
    "library of tensorflow not found": (
        _import("launchpad", ImportError("libtensorflow_framework.so.2: cannot open")),
        "pip install --no-deps tensorflow-cpu",
    ),
    "no vllm": (
        _import("vllm", ModuleNotFoundError("No module named 'vllm'")),
        "vLLM cannot be imported: .* pip install vllm==0.8.4",
    ),
    "oat cannot be imported": (
        _import("gem_oat.learner", ImportError("undefined symbol")),
        "oat with GEM's classes cannot be imported: ImportError: undefined symbol",
    ),
    "another signature": (
        _seam(Seam("oat.interface:get_program", "args, more")),
        r"gem-oat .* needs oat.interface.get_program\(args, more\), but oat-llm .* has \(args, ",
    ),
    "a method that is gone": (
        _seam(Seam("oat.algorithms.ppo:PPOActor.play", "self")),
        "but oat-llm .* has none",
    ),
    "no device": (
        lambda patch: patch.setattr("torch.cuda.device_count", lambda: 0),
        "torch finds no GPU",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_wrong_is_said(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    install, message = BROKEN[case]
    install(monkeypatch)
    passed, line = findings()[-1]
    assert not passed
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(line)
