"""Every Python snippet of the documentation runs as printed, and what it claims is so."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from gem.errors import MissingExtraError

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES += sorted((ROOT / "packages").glob("*/README.md"))
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
CODE = [
    pytest.param(code, id=f"{page.relative_to(ROOT)}:{number}")
    for page in PAGES
    for number, (language, code) in enumerate(FENCE.findall(page.read_text()))
    if language == "python"
]


def comments(code: str) -> dict[int, str]:
    """Return the comments of a program by line."""
    tokens = tokenize.generate_tokens(io.StringIO(code).readline)
    return {t.start[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}


def literal(text: str) -> tuple[bool, Any]:
    """Return whether a text is a Python literal, and its value."""
    try:
        return True, ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return False, None


def words(text: str) -> str:
    return " ".join(text.split())


def run_snippet(code: str, names: dict[str, Any]) -> int:
    """Run a program and check what its comments claim; return the number of claims.

    The comment of a `print` is the beginning of what is printed, up to `...`. The comment of an
    expression or an assignment is its value, if it is a literal; other comments are prose.
    """
    said, claims = comments(code), 0
    for statement in ast.parse(code).body:
        printed = io.StringIO()
        with redirect_stdout(printed):
            exec(compile(ast.Module([statement], []), "snippet", "exec"), names)
        out = words(printed.getvalue())
        for node in ast.walk(statement):
            claim = said.get(getattr(node, "end_lineno", None) or 0, "")
            if not claim or not isinstance(node, ast.Expr | ast.Assign):
                continue
            if isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "print":
                expected = words(claim.partition("...")[0])
                assert expected in out if node is not statement else out.startswith(expected), out
                claims += 1
                continue
            target = node.targets[0] if isinstance(node, ast.Assign) else node.value
            is_literal, value = literal(claim)
            if is_literal and isinstance(target, ast.Name | ast.Attribute | ast.Subscript):
                found = eval(ast.unparse(target), names)
                assert found == value, f"{ast.unparse(target)} is {found!r}, not {claim}"
                claims += 1
    return claims


@pytest.mark.parametrize("code", CODE)
def test_a_python_snippet_runs_and_does_what_it_says(
    code: str, small_tokenizer: Any, tmp_path: Path
) -> None:
    # `path` stands for the reader's own model.
    small_tokenizer.save_pretrained(tmp_path)
    try:
        run_snippet(code, {"path": tmp_path, "__name__": "snippet"})
    except MissingExtraError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    "wrong",
    [
        "x = 1.0  # 2.0",
        "x = 1.0\nx  # 2.0",
        "x = {'a': 1}\nx['a']  # 2",
        "print('3 4 5')  # 3 5 ...",
        "if True:\n    print(6)  # 7",
    ],
)
def test_a_claim_that_is_wrong_is_noticed(wrong: str) -> None:
    with pytest.raises(AssertionError):
        run_snippet(wrong, {})


def test_claims_that_are_right_are_counted_and_prose_is_not() -> None:
    right = "x = 1.0  # 1.0\nx  # one\nprint('3 4 5')  # 3 4 ...\nx  # 1.0"
    assert run_snippet(right, {}) == 3


@pytest.mark.parametrize("page", ["tools.md", "datasets.md"])
def test_the_first_snippet_of_a_page_about_tasks_earns_the_reward(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    code = next(code for language, code in FENCE.findall(text) if language == "python")
    names: dict[str, Any] = {}
    try:
        assert run_snippet(code, names) >= 1
    except MissingExtraError as error:
        pytest.skip(str(error))
    assert names["reward"] == 1.0


def test_the_readme_has_a_snippet_of_about_ten_lines() -> None:
    [code] = [c for lang, c in FENCE.findall((ROOT / "README.md").read_text()) if lang == "python"]
    assert "game:GuessTheNumber-v0" in code
    assert len(code.splitlines()) <= 12


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_files_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), target


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
    assert {row["trainer"] for row in matrix} == adapters - {"core", "roll"}
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
