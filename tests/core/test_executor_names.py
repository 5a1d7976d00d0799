"""Executors of installed packages, by name."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint

import pytest

from gem.errors import ConfigurationError, MissingExtraError
from gem.executors import named
from gem.executors.named import check_name, make_executor
from gem.executors.thread import ThreadExecutor

given: list[str | None] = []


def make_mine(argument: str | None) -> ThreadExecutor:
    given.append(argument)
    return ThreadExecutor()


def make_nothing(argument: str | None) -> None:
    return None


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Packages that provide the executors `mine` and `broken`, and none of this project's."""
    entries = [
        EntryPoint("mine", f"{__name__}:make_mine", named.ENTRY_POINT_GROUP),
        EntryPoint("broken", f"{__name__}:make_nothing", named.ENTRY_POINT_GROUP),
    ]

    def entry_points(group: str, name: str | None = None) -> list[EntryPoint]:
        return [each for each in entries if each.group == group and name in (None, each.name)]

    for module in ("gem.plugins", "gem.parts"):
        monkeypatch.setattr(f"{module}.entry_points", entry_points)
    given.clear()
    yield


@pytest.mark.usefixtures("installed")
def test_a_package_s_executor_gets_what_stands_after_the_colon() -> None:
    for name in ("mine", "mine:8"):
        check_name(name)
        make_executor(name).close()
    assert given == [None, "8"]


@pytest.mark.usefixtures("installed")
def test_what_is_no_executor_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"executor 'broken' = .* makes no Executor: None"):
        make_executor("broken")


@pytest.mark.usefixtures("installed")
def test_a_known_name_without_its_package_is_a_name_with_an_extra() -> None:
    check_name("ray:8")
    for name, extra in (("ray:8", "ray"), ("remote:http://localhost:1", "serve")):
        with pytest.raises(MissingExtraError, match=rf"pip install 'gem-core\[{extra}\]'"):
            make_executor(name)


@pytest.mark.usefixtures("installed")
def test_an_unknown_name_is_answered_with_all_that_are_known() -> None:
    with pytest.raises(ConfigurationError, match=r"unknown executor 'mein'; .*thread.*mine"):
        check_name("mein")
