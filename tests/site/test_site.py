"""The site builds strictly, shows what GitHub shows, and loads nothing from other machines."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from website import ROOT, build, html

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
TAGS = ("li", "table", "td", "h2", "h3", "img", "strong")


def html_of(site: Path, page: Path) -> str:
    """Return the article of a page, as the site shows it."""
    text = (site / html(str(page.relative_to(DOCS)))).read_text(encoding="utf-8")
    return text[text.index("<article") : text.index("</article>")]


def test_every_page_shows_what_github_shows(site: Path) -> None:
    """Markdown has dialects: a list without a blank line before it is one on GitHub only."""
    github = MarkdownIt("commonmark").enable("table")
    for page in PAGES:
        there, here = github.render(page.read_text(encoding="utf-8")), html_of(site, page)
        for tag in TAGS:
            wanted, found = (len(re.findall(f"<{tag}[ >]", text)) for text in (there, here))
            assert found == wanted, f"{page.relative_to(ROOT)}: {found} {tag}, on GitHub {wanted}"
        wanted = there.count("<pre")
        found = len(re.findall('<div class="[^"]*highlight"', here))
        assert found == wanted, f"{page.relative_to(ROOT)}: {found} blocks, on GitHub {wanted}"


class _Loaded(HTMLParser):
    """Collects what a browser fetches by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("script", "img", "iframe", "source", "video", "audio", "embed"):
            self.urls.append(given.get("src") or "")
        if tag == "link" and given.get("rel") not in ("canonical", "next", "prev"):
            self.urls.append(given.get("href") or "")
        if tag == "object":
            self.urls.append(given.get("data") or "")


def test_nothing_is_loaded_from_another_machine(site: Path) -> None:
    for path in site.rglob("*.html"):
        parser = _Loaded()
        parser.feed(path.read_text(encoding="utf-8"))
        foreign = [url for url in parser.urls if re.match(r"(https?:)?//", url)]
        assert parser.urls and not foreign, f"{path.relative_to(site)}: {foreign}"
    for path in site.rglob("*.css"):
        foreign = re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//[^)]*", path.read_text())
        assert not foreign, f"{path.relative_to(site)}: {foreign}"


def test_links_to_files_of_the_repository_lead_to_pages_of_the_site(site: Path) -> None:
    text = html_of(site, DOCS / "tutorials" / "from-gymnasium.md")
    [link] = re.findall(r'href="([^"]*from_gymnasium\.py\.html)"', text)
    page = (site / "tutorials" / link).resolve()
    assert "class FromGymnasium" in re.sub(r"<[^>]*>", "", page.read_text(encoding="utf-8"))


def test_a_notebook_is_a_page_with_what_its_code_printed(site: Path) -> None:
    text = (site / "tutorials" / "gymnasium-notebook.html").read_text(encoding="utf-8")
    assert "random play wins" in text
    assert 'href="gymnasium-notebook.ipynb"' in text
    assert (site / "tutorials" / "gymnasium-notebook.ipynb").exists()


@pytest.mark.parametrize(
    ("link", "message"),
    [
        ("[a](other.md)", "there is no docs/other.md"),
        ("[a](../no-such-file.py)", "there is no no-such-file.py"),
        ("[a](#nowhere)", "there is no such anchor"),
    ],
)
def test_a_broken_link_ends_the_build(link: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(f"# A page\n\n{link}\n")
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    config = config.partition("\nnav:")[0].replace(
        "tools/site_hooks.py", str(ROOT / "tools/site_hooks.py")
    )
    (tmp_path / "mkdocs.yml").write_text(config)
    done = build(tmp_path / "site", tmp_path / "mkdocs.yml")
    assert done.returncode == 1
    assert message in done.stdout + done.stderr
