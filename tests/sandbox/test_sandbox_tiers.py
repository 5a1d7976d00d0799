"""Containers, and runners of installed packages."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import ClassVar

import pytest

import gem_sandbox as sandbox
from gem.__main__ import main
from gem.errors import ConfigurationError, MissingExtraError
from gem.tools import ToolCall
from gem_sandbox import (
    BwrapRunner,
    DockerRunner,
    Limits,
    Result,
    Runner,
    resolve,
)
from gem_sandbox.tool import PythonTool

ALL = [BwrapRunner, DockerRunner]


def tier(kind: type[Runner]) -> Runner:
    try:
        return kind()
    except (ConfigurationError, MissingExtraError) as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("kind", ALL)
def test_a_program_prints_fails_and_is_limited(kind: type[Runner]) -> None:
    runner = tier(kind)
    assert runner.run("print(sum(range(10)))").stdout == "45\n"
    failed = runner.run("print('before')\n1 / 0")
    assert (failed.stdout, failed.exit_code, failed.limit_hit) == ("before\n", 1, None)
    assert failed.stderr.rstrip().endswith("ZeroDivisionError: division by zero")
    assert runner.run("while True: pass", "", Limits(cpu_s=1.0)).limit_hit == "time"
    limits = Limits(memory_mb=128, output_bytes=1000)
    assert runner.run("x = [0] * 10**9", "", limits).limit_hit == "memory"
    more = runner.run("print('x' * 5000)", "", limits)
    assert (more.stdout[:1000], more.limit_hit) == ("x" * 1000, "output")


@pytest.mark.parametrize("kind", ALL)
def test_any_text_is_run_as_a_program(kind: type[Runner]) -> None:
    runner = tier(kind)
    for program in ("\0", "\ud800", "(" * 300, "é", "\x1b" * 1000):
        assert runner.run(program).exit_code == 1


@pytest.mark.parametrize("kind", ALL)
def test_an_runner_pickles(kind: type[Runner]) -> None:
    assert pickle.loads(pickle.dumps(tier(kind))).run("print(1)").stdout == "1\n"


def test_a_missing_part_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "docker", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'gem-core\[docker\]'"):
        DockerRunner()
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigurationError, match="apt-get install bubblewrap"):
        BwrapRunner()


class Far(Runner):
    """A runner of an installed package."""

    isolates: ClassVar[frozenset[str]] = frozenset({"files"})

    def run(self, code: str, stdin: str = "", limits: Limits = Limits()) -> Result:  # noqa: B008
        return Result("far\n", "", 0, 0.0)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Packages that provide runners: a right one, wrong ones, and one with a built-in name."""
    values = {"far": "Far", "wrong": "Result", "gone": "Nothing", "bwrap": "Far"}
    added = [
        EntryPoint(name, f"{__name__}:{value}", "gem.runners") for name, value in values.items()
    ]
    points = EntryPoints([*entry_points(group="gem.commands"), *added])
    monkeypatch.setattr("gem.plugins.entry_points", points.select)
    sandbox._installed.cache_clear()
    yield
    sandbox._installed.cache_clear()


@pytest.mark.usefixtures("installed")
def test_an_installed_package_adds_an_runner(capsys: pytest.CaptureFixture[str]) -> None:
    runner = resolve("far")
    assert isinstance(runner, Far) and runner.run("").stdout == "far\n"
    result = PythonTool(runner="far").execute(ToolCall("python", {"code": "1"}))
    assert result.text.endswith(" far")
    main(["doctor"])
    lines = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines()}
    assert lines["far"][1] == "files"
    assert lines["gone"][1:3] == ["not", "available:"]


@pytest.mark.usefixtures("installed")
def test_a_package_does_not_replace_a_built_in_runner() -> None:
    assert sandbox.runner_class("bwrap") is sandbox.BwrapRunner
    assert sandbox.runner_names().count("bwrap") == 1


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("near", "unknown runner 'near'; known: 'bwrap', .*'subprocess', .*'far', 'gone'"),
        ("wrong", "'wrong' = .*:Result is no subclass of gem_sandbox.base.Runner"),
        ("gone", "'gone' = .*:Nothing: .* no attribute 'Nothing'"),
    ],
)
def test_a_name_without_an_runner_is_an_error(name: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        resolve(name)
    with pytest.raises(ConfigurationError, match=problem):
        PythonTool(runner=name)


def test_an_runner_claims_only_isolation_that_exists() -> None:
    for claim in ({"files"}, frozenset({"everything"}), None):
        with pytest.raises(ConfigurationError, match=r"X.isolates must be a frozenset of 'files'"):
            type("X", (Runner,), {"isolates": claim})
