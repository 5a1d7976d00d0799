"""The pages lead somewhere, name what exists, and are short where they should be."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from documents import PAGES, ROOT, blocks

from gem_bench.runspec import hardware_keys, reference_keys

GYMNASIUM = "packages/gem-core/examples/from-gymnasium"
CHECK = """
import from_gymnasium
from gem_check import check_env

report = check_env("mine:Corridor-v0")
print(report)
raise SystemExit(not report.passed)
"""
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")


def test_the_readme_has_a_snippet_of_about_ten_lines() -> None:
    [code] = [block for block in blocks(ROOT / "README.md") if block.info == "python"]
    assert "game:GuessTheNumber-v0" in code.source
    assert len(code.source.splitlines()) <= 12


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_files_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), target


TABLE_HEAD = re.compile(r"^(?!\|)(?!<!--).*\S.*\n\|.*\n\|[ :|-]+\|$", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_table_begins_after_an_empty_line(page: Path) -> None:
    """Else the site shows it as text."""
    assert TABLE_HEAD.findall(page.read_text()) == []


def test_make_targets_named_in_the_docs_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z0-9-]+):", makefile, re.MULTILINE))
    for page in PAGES:
        for target in re.findall(r"`make ([a-z0-9-]+)`", page.read_text()):
            assert target in targets, f"{page.name}: make {target}"


INSTALL = re.compile(r"pip install(?P<options>(?: +-\S+(?: +dist)?)*) +(?P<what>[^`\n&]*)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_packages_of_ours_are_installed_from_a_clone(page: Path) -> None:
    """They are on no index, where anybody may take their names."""
    for found in INSTALL.finditer(page.read_text()):
        if re.search(r"(?<![\w/-])gem-[a-z]", found["what"]):
            assert "--find-links dist" in found["options"], found[0]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no clone")
@pytest.mark.parametrize("written", ["runs/guess-trl/run.json", "evals/random-suite-smoke", "dist"])
def test_what_the_commands_of_the_pages_write_is_ignored_by_git(written: str) -> None:
    path = f"{written}/" if "." not in written else written
    assert subprocess.run(["git", "check-ignore", "-q", path], cwd=ROOT).returncode == 0


def test_every_page_is_in_the_index() -> None:
    linked = set(re.findall(r"\]\(([\w./-]+)\)", (ROOT / "docs" / "index.md").read_text()))
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert pages <= linked
    tutorials = ROOT / "docs" / "tutorials"
    listed = set(re.findall(r"\]\(([\w./-]+)\)", (tutorials / "README.md").read_text()))
    assert {path.name for path in tutorials.iterdir()} - {"README.md"} <= listed
    assert "docs/index.md" in (ROOT / "README.md").read_text()


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_workflows_run_targets_that_exist_for_every_trainer() -> None:
    yaml = pytest.importorskip("yaml")
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    matrix = jobs["trainers"]["strategy"]["matrix"]["include"]
    adapters = {
        path.parent.name.removeprefix("gem-") for path in (ROOT / "packages").glob("gem-*/examples")
    }
    assert {row["trainer"] for row in matrix} == adapters - {"core", "roll", "serve", "verifiers"}
    steps = [step.get("run", "") for job in jobs.values() for step in job["steps"]]
    plain = [step for step in steps if step.startswith("make ") and "matrix" not in step]
    asked = [word for step in plain for word in step.split()[1:]]
    asked += [
        word for row in matrix for key in ("environments", "runs") for word in row[key].split()
    ]
    known = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert asked and set(asked) <= known
    for form in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"):
        assert yaml.safe_load(form.read_text())["body"]


def test_the_settings_named_for_the_original_s_flags_exist() -> None:
    """The table of training flags: keys of a RunSpec or hardware file, and flags of `gem_oat`."""
    text = (ROOT / "docs" / "moving.md").read_text(encoding="utf-8")
    rows = text.partition("## The training command")[2].partition("| original flag")[2]
    cells = [line.split("|")[1:-1] for line in rows.splitlines()[2:] if line.startswith("|")]
    keys = {key.name.replace("[]", "") for key in (*reference_keys(), *hardware_keys())}
    named = {
        name
        for _, ours, _ in cells
        for name in re.findall(r"`((?:[a-z_]+\.)+[a-z_]+)", ours.replace("`[[eval]]`", ""))
    }
    assert len(named) > 25
    assert not [key for key in named if not any(key == k or key.startswith(f"{k}.") for k in keys)]
    settings = (ROOT / "packages/gem-oat/src/gem_oat/settings.py").read_text(encoding="utf-8")
    flags = {flag for *_, oat in cells for flag in re.findall(r"--(gem_[a-z_]+)", oat)}
    assert flags
    page = (ROOT / "docs" / "oat.md").read_text(encoding="utf-8")
    assert not [flag for flag in flags if f"`--{flag}`" not in page and flag not in settings]


def test_the_page_of_the_gymnasium_adapter_shows_the_file() -> None:
    source = (ROOT / GYMNASIUM / "from_gymnasium.py").read_text(encoding="utf-8")
    shown = [
        block.source
        for block in blocks(ROOT / "docs" / "tutorials" / "from-gymnasium.md")
        if block.info == "python"
    ]
    adapter = shown[0].partition("class ")[2]
    assert "class FromGymnasium" in shown[0] and adapter.strip() in source
    assert shown[3].partition("gem.register")[2].strip() in source


def test_the_gymnasium_adapter_keeps_the_contract() -> None:
    checked = subprocess.run(
        [sys.executable, "-c", CHECK], cwd=ROOT / GYMNASIUM, capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_pages_named_in_code_exist() -> None:
    named = re.compile(r"docs/[\w/-]+\.md(?![\w/])")
    for folder in ("packages", "recipes", "tools", "benchmarks"):
        for path in (ROOT / folder).rglob("*.*"):
            if path.suffix in (".py", ".toml", ".sh", ".yaml", ".md") and "data" not in path.parts:
                for page in named.findall(path.read_text(encoding="utf-8")):
                    assert (ROOT / page).exists(), f"{path.relative_to(ROOT)}: {page}"
