"""Every Python snippet of the documentation runs as printed."""

from __future__ import annotations

import re
import shlex
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


@pytest.mark.parametrize("code", CODE)
def test_a_python_snippet_runs(
    code: str, small_tokenizer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # `path` stands for the reader's own model.
    small_tokenizer.save_pretrained(tmp_path)
    try:
        exec(compile(code, "snippet", "exec"), {"path": tmp_path, "__name__": "snippet"})
    except MissingExtraError as error:
        pytest.skip(str(error))


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
        for language, code in FENCE.findall(page.read_text()):
            for line in code.splitlines() if language in ("bash", "sh") else ():
                words = shlex.split(line, comments=True)
                if words[:1] == ["make"]:
                    assert set(words[1:]) <= targets, line
        for target in re.findall(r"`make ([a-z0-9-]+)`", page.read_text()):
            assert target in targets, f"{page.name}: make {target}"
