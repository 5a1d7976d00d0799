"""Versions that an adapter supports, and what the doctors of several adapters check."""

from __future__ import annotations

import importlib.metadata
import socket
from importlib.metadata import version

import pytest

from gem.errors import MissingExtraError, UnsupportedVersionError
from gem_train.doctor import (
    ProblemError,
    Requirement,
    doctor,
    engine,
    entry_point,
    importable,
    ray_cluster,
)


def requirement(distribution: str, supported: str) -> Requirement:
    return Requirement(distribution, supported, by="gem-x 1", install="pip install it")


def test_the_version_of_a_supported_trainer_is_returned() -> None:
    pytest_ = requirement("pytest", ">=7")
    assert pytest_.check() == version("pytest")
    assert pytest_.describe() == f"pytest {version('pytest')} (supported: >=7), gem-x 1"


def test_a_record_says_the_trainer_and_the_versions_of_both() -> None:
    versions = {"pytest": version("pytest"), "gem-x": "1"}
    pytest_ = requirement("pytest", ">=7")
    assert pytest_.about() == {"trainer": "x", "versions": versions}
    assert pytest_.about(config={"a": 1})["config"] == {"a": 1}


def test_an_unsupported_trainer_is_named_with_both_versions() -> None:
    found = version("pytest")
    with pytest.raises(UnsupportedVersionError) as error:
        requirement("pytest", "<2").describe()
    assert str(error.value) == (
        f"pytest {found} is installed, gem-x 1 supports pytest <2; install a supported one with: "
        "pip install it"
    )


def test_a_missing_trainer_is_said_with_the_command_that_installs_it() -> None:
    with pytest.raises(MissingExtraError, match="no-such is not installed.*with: pip install it"):
        requirement("no-such", ">=1").check()


def test_an_entry_point_is_found_in_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    assert entry_point("pytest", "py.test", group="console_scripts").startswith("pytest is inst")
    with pytest.raises(ProblemError, match="gem-x's entry point is missing.*pip install gem-x"):
        entry_point("gem-x", "py.test")


def test_modules_that_can_be_imported_are_returned() -> None:
    assert importable("socket", "importlib.metadata", what="y") == [socket, importlib.metadata]


@pytest.mark.parametrize(
    ("hints", "end"),
    [
        ({}, "named 'no_such'"),
        ({"flash": "get flash"}, "named 'no_such'"),
        ({"flash": "get flash", "no_such": "get it", "": "reinstall"}, "named 'no_such'; get it"),
        ({"flash": "get flash", "": "reinstall"}, "named 'no_such'; reinstall"),
    ],
)
def test_a_module_that_cannot_be_imported_is_said_with_the_first_hint_that_fits(
    hints: dict[str, str], end: str
) -> None:
    with pytest.raises(ProblemError) as error:
        importable("socket", "no_such", what="Y with hooks", hints=hints)
    assert str(error.value) == (
        f"Y with hooks cannot be imported: ModuleNotFoundError: No module {end}"
    )


def test_installed_engines_are_listed() -> None:
    found = engine("no-such", "pytest", "hypothesis", install="z")
    assert found == f"engine: pytest {version('pytest')}, hypothesis {version('hypothesis')}"


def test_a_missing_engine_is_said_with_the_command_that_installs_one() -> None:
    with pytest.raises(ProblemError, match="no-such or nor-this.; install one with: pip install z"):
        engine("no-such", "nor-this", install="pip install z")


@pytest.mark.parametrize("address", [None, "", "local", "auto"])
def test_a_launcher_finds_or_starts_a_cluster(
    address: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if address is not None:
        monkeypatch.setenv("RAY_ADDRESS", address)
    assert "on this machine" in ray_cluster()


@pytest.mark.parametrize("scheme", ["", "ray://", "http://"])
def test_a_cluster_that_listens_answers(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"{scheme}127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        assert ray_cluster() == f"Ray: a cluster answers at {address}"


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nonsense"])
def test_a_cluster_that_does_not_answer_is_a_problem(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ProblemError, match=f"no Ray cluster answers at RAY_ADDRESS={address}: "):
        ray_cluster()


def test_the_doctor_stops_at_the_first_problem(capsys: pytest.CaptureFixture[str]) -> None:
    def sick() -> str:
        raise ProblemError("the hook is missing")

    assert doctor([lambda: "version 1", sick, lambda: "never"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "ok       version 1",
        "PROBLEM  the hook is missing",
    ]
    assert doctor([lambda: "version 1"]) == 0


def test_an_unsupported_version_is_a_problem(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor([requirement("pytest", "<2").describe]) == 1
    assert capsys.readouterr().out.startswith("PROBLEM  pytest ")
