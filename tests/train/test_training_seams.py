"""What a trainer's function may change before an adapter refuses to run."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gem.errors import UnsupportedVersionError
from gem_train.doctor import Requirement
from gem_train.seams import Seam, called, calls, check_seams, replaced

TRAINER = Requirement("pytest", ">=7", by="gem-x 1", install="pip install pytest")

FITS_A_CALL = {
    "the same": "def f(self, data, rank=1, *, seed=None): ...",
    "an optional parameter more": "def f(self, data, rank=1, more=2, *, seed=None): ...",
    "an optional keyword more": "def f(self, data, *, rank, seed, more=None): ...",
    "any parameters more": "def f(self, data, rank, seed, *args, **kwargs): ...",
    "keywords in another order": "def f(self, data, *, seed, rank): ...",
    "an optional keyword before a required one": "def f(self, data, *, a=0, seed, rank): ...",
    "Ray's parameter": "def f(self, data, rank=1, seed=2, *, _ray_trace_ctx=None): ...",
}
BREAKS_A_CALL = {
    "it lost a keyword": "def f(self, data, rank=1): ...",
    "a keyword was renamed": "def f(self, data, ranks, seed): ...",
    "a positional parameter was renamed": "def f(self, datums, rank, seed): ...",
    "it lost a positional parameter": "def f(self, *, rank, seed): ...",
    "another parameter comes first": "def f(self, model, data, rank, seed): ...",
    "an optional one comes first": "def f(self, model=None, data=None, rank=1, seed=1): ...",
    "a positional parameter is by name only": "def f(self, *, data, rank, seed): ...",
    "a keyword is by position only": "def f(self, data, rank, /, seed): ...",
    "a required parameter more": "def f(self, data, rank, seed, more): ...",
    "a required keyword more": "def f(self, data, rank, seed, *, more): ...",
    "it was renamed": "def g(self, data, rank, seed): ...",
    "it is no function": "f = 3",
}
FITS_A_REPLACEMENT = {
    "the same": "def f(self, data, rank=1): ...",
    "another default": "def f(self, data, rank): ...",
    "Ray's parameter": "def f(self, data, rank=1, *, _ray_trace_ctx=None): ...",
}
BREAKS_A_REPLACEMENT = {
    "it lost a parameter": "def f(self, data): ...",
    "a parameter was renamed": "def f(self, data, ranks=1): ...",
    "another order": "def f(self, rank, data): ...",
    "a required parameter more": "def f(self, data, rank, more): ...",
    "an optional parameter more": "def f(self, data, rank=1, more=2): ...",
    "an optional keyword more": "def f(self, data, rank=1, *, more=2): ...",
    "any keywords more": "def f(self, data, rank=1, **more): ...",
    "it was renamed": "def g(self, data, rank): ...",
}

CALL = called("f", "self, data, *, rank, seed")
REPLACEMENT = Seam("f", "self, data, rank")


def class_with(source: str) -> Any:
    """A class with one method."""
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    namespace.pop("__builtins__")
    return type("Trainer", (), namespace)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A trainer's module, `a_trainer.ppo`, that has a class with one method."""
    package, made = ModuleType("a_trainer"), ModuleType("a_trainer.ppo")
    package.__path__ = []
    made.Trainer = class_with("def fit(self, steps, log=True, *rest, **more): ...")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "a_trainer", package)
    monkeypatch.setitem(sys.modules, "a_trainer.ppo", made)
    return made


@pytest.mark.parametrize("case", FITS_A_CALL)
def test_a_call_still_works_with(case: str) -> None:
    check_seams(TRAINER, [CALL], owner=class_with(FITS_A_CALL[case]))


@pytest.mark.parametrize("case", BREAKS_A_CALL)
def test_a_call_is_refused_if(case: str) -> None:
    with pytest.raises(UnsupportedVersionError, match=r"needs f\(self, data, \*, rank, s.*\), but"):
        check_seams(TRAINER, [CALL], owner=class_with(BREAKS_A_CALL[case]))


@pytest.mark.parametrize("case", FITS_A_REPLACEMENT)
def test_a_replacement_still_works_with(case: str) -> None:
    check_seams(TRAINER, [REPLACEMENT], owner=class_with(FITS_A_REPLACEMENT[case]))


@pytest.mark.parametrize("case", BREAKS_A_REPLACEMENT)
def test_a_replacement_is_refused_if(case: str) -> None:
    with pytest.raises(UnsupportedVersionError, match=r"needs f\(self, data, rank\), but"):
        check_seams(TRAINER, [REPLACEMENT], owner=class_with(BREAKS_A_REPLACEMENT[case]))


def test_a_replacement_that_passes_all_on_needs_the_function_only() -> None:
    check_seams(TRAINER, [Seam("f")], owner=class_with("def f(self, a, b, /, *, c): ..."))
    with pytest.raises(UnsupportedVersionError, match="needs f, but .* has none"):
        check_seams(TRAINER, [Seam("f")], owner=class_with("def g(self): ..."))


def test_a_path_names_the_module(module: ModuleType) -> None:
    check_seams(TRAINER, [called("a_trainer.ppo:Trainer.fit", "self, steps")])
    with pytest.raises(UnsupportedVersionError) as error:
        check_seams(TRAINER, [Seam("a_trainer.ppo:Trainer.fit", "self, steps")])
    assert str(error.value) == (
        "gem-x 1 needs a_trainer.ppo.Trainer.fit(self, steps), but pytest "
        f"{TRAINER.check()} has (self, steps, log=True, *rest, **more); supported is pytest >=7"
    )


def test_functions_of_a_module_are_a_table_and_counted_if_all_fit(module: ModuleType) -> None:
    seams = calls("a_trainer.ppo", {"Trainer.fit": "self, steps"})
    assert check_seams(TRAINER, seams) == "1 functions of pytest are as expected"
    said = check_seams(TRAINER, seams, found="a script in /src")
    assert said == "1 functions of a script in /src are as expected"
    with pytest.raises(UnsupportedVersionError, match=r"a_trainer\.ppo\.gone\(data\), but"):
        check_seams(TRAINER, [*seams, *calls("a_trainer.ppo", {"gone": "data"})])


@pytest.mark.parametrize(
    "path",
    ["a_trainer.gone:fit", "no_such_trainer.ppo:fit", "a_trainer.ppo:Gone.fit", "a_trainer:fit"],
)
def test_what_is_gone_is_an_unsupported_version(path: str, module: ModuleType) -> None:
    with pytest.raises(UnsupportedVersionError, match="has none; supported is pytest >=7"):
        check_seams(TRAINER, [called(path, "self")])


def test_what_a_trainer_itself_lacks_is_no_unsupported_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needy_trainer.py").write_text("import no_such_dependency")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
        check_seams(TRAINER, [called("needy_trainer:fit", "self")])


def test_the_trainer_found_can_be_named() -> None:
    with pytest.raises(UnsupportedVersionError, match="but a checkout in /x has none; supported"):
        check_seams(TRAINER, [REPLACEMENT], owner=object(), found="a checkout in /x")


def test_what_is_replaced_for_a_while_comes_back_even_after_an_exception() -> None:
    owner = class_with("def f(self): return 'its own'")
    with pytest.raises(ValueError, match="broken"), replaced(owner, "f", lambda self: "ours"):
        assert owner().f() == "ours"
        raise ValueError("broken")
    assert owner().f() == "its own"


def test_what_is_not_there_is_not_replaced() -> None:
    with pytest.raises(AttributeError, match="g"), replaced(class_with("x = 1"), "g", None):
        raise AssertionError("unreachable")
