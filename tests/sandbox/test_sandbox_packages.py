"""Which installed packages programs see: the chosen ones with what they need, and no answers."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from gem.errors import ConfigurationError
from gem_sandbox import BwrapRunner, packages, view
from gem_sandbox.packages import DISTRIBUTIONS, shown

needs_bwrap = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="bubblewrap is not installed: apt-get install bubblewrap"
)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages that this interpreter imports from."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    shown.cache_clear()
    return folder


def install(site: Path, name: str, files: list[str], requires: tuple[str, ...] = ()) -> None:
    """Install a distribution of these files."""
    about = f"{name.replace('-', '_')}-1.0.dist-info"
    for file in files:
        path = site / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {name}\n")
    (site / about).mkdir()
    needs = "".join(f"Requires-Dist: {each}\n" for each in requires)
    (site / about / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needs}"
    )
    listed = [*files, f"{about}/METADATA", f"{about}/RECORD", f"../../bin/{name}"]
    (site / about / "RECORD").write_text("".join(f"{file},,\n" for file in listed))


def places(*distributions: str) -> list[str]:
    """What is shown, without metadata."""
    found = shown(distributions, ())
    every = [place for _, place in (*found.folders, *found.files)]
    return sorted(place for place in every if not place.endswith("/METADATA"))


def test_a_distribution_is_shown_with_what_it_needs_but_not_with_extras(site: Path) -> None:
    install(site, "first", ["first/__init__.py", "first.libs/libfirst.so"], ("Second>=1",))
    install(site, "second", ["second.py"], ("third; extra == 'more'", "absent; os_name == 'x'"))
    install(site, "third", ["third/__init__.py"])
    assert places("first") == ["first", "first.libs", "second.py"]
    assert [place for _, place in shown(("first",), ()).files] == [
        "first-1.0.dist-info/METADATA",
        "second-1.0.dist-info/METADATA",
        "second.py",
    ]


def test_of_a_folder_that_several_distributions_share_only_what_was_chosen_is_shown(
    site: Path,
) -> None:
    install(site, "cloud-a", ["cloud/a/__init__.py", "cloud/a/deep/x.py", "cloud/one.py"])
    install(site, "cloud-b", ["cloud/b/__init__.py"])
    install(site, "strange", ["strange/__init__.py", "strange/part/__init__.py"])
    (site / "strange" / "part" / "golds.jsonl").write_text("{}")
    assert places("cloud-a") == ["cloud/a", "cloud/one.py"]
    assert places("strange") == ["strange/__init__.py", "strange/part/__init__.py"]


def test_a_distribution_without_a_list_of_files_is_shown_by_its_top_level_names(site: Path) -> None:
    install(site, "system-made", ["made/__init__.py", "made_too.py"])
    about = site / "system_made-1.0.dist-info"
    (about / "RECORD").unlink()
    (about / "top_level.txt").write_text("made\nmade_too\n")
    assert places("system-made") == ["made", "made_too.py"]


@pytest.mark.parametrize("name", ["reasoning-gym", "Reasoning_Gym", "gem-core", "gem-llm"])
def test_what_holds_answers_is_refused_under_every_name(site: Path, name: str) -> None:
    install(site, name, ["anything/__init__.py"] if name != "gem-llm" else ["gem/__init__.py"])
    with pytest.raises(ConfigurationError, match=f"programs must not see .*asked for by {name}"):
        shown((name,), ())


def test_what_needs_something_that_holds_answers_is_refused_and_the_chain_is_named(
    site: Path,
) -> None:
    install(site, "outer", ["outer/__init__.py"], ("inner",))
    install(site, "inner", ["inner/__init__.py"], ("gem-core[data]>=0.1 ; python_version > '3'",))
    install(site, "gem-core", ["gem/__init__.py"])
    for distributions, modules in ((("outer",), ()), ((), ("outer",))):
        with pytest.raises(ConfigurationError, match="outer -> inner -> gem-core"):
            shown(distributions, modules)
    with pytest.raises(ConfigurationError, match="programs must not see 'gem'"):
        shown((), ("gem.envs",))


def test_a_distribution_that_cannot_be_shown_is_named(site: Path) -> None:
    install(site, "editable", ["__editable__.editable.pth"])
    for name, problem in (
        ("absent-one", "'absent-one' is not installed"),
        ("../numpy", "is not the name of a distribution"),
        ("editable", "'editable' is installed without files of its own"),
    ):
        with pytest.raises(ConfigurationError, match=problem):
            shown((name,), ())
    for given in ("numpy", [1], 5):
        with pytest.raises(ConfigurationError, match="must be a sequence of names"):
            packages.names("distributions", given)


def test_folders_of_packages_below_a_visible_folder_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (
        "python3.11/site-packages/numpy",
        "python3/dist-packages",
        "project/src/gem",
        "project/.venv/lib/python3.11/site-packages",
        "x86/gconv",
    ):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.setattr(
        sys,
        "path",
        [
            *sys.path,
            str(tmp_path / "project/src"),
            str(tmp_path / "project/.venv/lib/python3.11/site-packages"),
        ],
    )
    assert view._closed(tmp_path) == [
        "project/.venv/lib/python3.11/site-packages",
        "project/src",
        "python3/dist-packages",
        "python3.11/site-packages",
    ]
    # The standard library, which is among what is imported from, stays.
    [standard, *_] = view._standard()
    assert all(
        (standard.parent / place) not in (standard, *standard.parents)
        for place in view._closed(standard.parent)
    )


@needs_bwrap
def test_programs_import_what_was_chosen_and_nothing_else(site: Path) -> None:
    install(site, "chosen", ["chosen/__init__.py"], ("helper",))
    install(site, "helper", ["helper.py"])
    install(site, "other", ["other/__init__.py"])
    runner = BwrapRunner(servers=1, modules=("colorsys",), distributions=["chosen"])
    program = (
        "import importlib.metadata, os, chosen, helper\n"
        "print(importlib.metadata.version('chosen'), sorted(os.listdir('/packages')))\n"
        "import other"
    )
    result = runner.run(program)
    about = [f"{name}-1.0.dist-info" for name in ("chosen", "helper")]
    assert result.stdout == f"1.0 {sorted(['chosen', 'helper.py', *about])}\n"
    assert result.stderr.endswith("No module named 'other'\n")


@needs_bwrap
def test_an_runner_refuses_what_programs_must_not_see() -> None:
    for name in ("gem-core", "reasoning-gym"):
        with pytest.raises(ConfigurationError, match=f"{name}"):
            BwrapRunner(distributions=[*DISTRIBUTIONS[:1], name])
    with pytest.raises(
        ConfigurationError, match="modules must be a sequence of names, got 'numpy'"
    ):
        BwrapRunner(modules="numpy")
    with pytest.raises(ConfigurationError, match="'no-such-distribution' is not installed"):
        BwrapRunner(distributions=["no-such-distribution"])


@needs_bwrap
@pytest.mark.parametrize("module", ["gem", "gem.data", "reasoning_gym", "pip", "pytest"])
def test_no_program_imports_gem_or_what_is_installed_beside_it(module: str) -> None:
    runner = BwrapRunner(servers=1)
    name = module.partition(".")[0]
    assert runner.run(f"import {module}").stderr.endswith(f"No module named '{name}'\n")
    with runner.session() as session:
        assert session.run(f"import {module}").stderr.endswith(f"No module named '{name}'\n")


@needs_bwrap
def test_of_the_interpreter_and_the_system_no_installed_package_is_visible() -> None:
    find = (
        "import os\nfor top, folders, files in os.walk('/'):\n"
        "    if os.path.basename(top) in ('site-packages', 'dist-packages'):\n"
        "        print(top, folders, files)"
    )
    shown_there = BwrapRunner(servers=1).run(find).stdout.splitlines()
    assert all(line.endswith(" [] []") for line in shown_there)
    here = os.path.realpath(sys.prefix)
    walk = f"import os; print(os.path.exists({here!r}), os.path.exists({str(Path.cwd())!r}))"
    assert BwrapRunner(servers=1).run(walk).stdout == "False False\n"
