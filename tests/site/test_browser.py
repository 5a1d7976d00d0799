"""The site in a real browser: its search, wide and narrow, light and dark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, browser
from website import FIRST, QUESTIONS, html

PAGES = ("index", "concepts", "tutorials/from-gymnasium", "envs/index", "envs/game", "runspec")
RESULTS = "[...document.querySelectorAll('.md-search-result__item > a')].map(a => a.pathname)"
FIELD = "document.querySelector('[data-md-component=search-query]')"


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("page", PAGES)
def test_a_page_fits_the_window_and_complains_of_nothing(
    page: str, width: int, address: str, window: Browser
) -> None:
    window.open(f"{address}/{page}.html", width=width)
    assert window.run("document.documentElement.scrollWidth <= innerWidth")
    assert window.complaints == []


def test_the_first_visit_takes_the_scheme_of_the_system(address: str, tmp_path: Path) -> None:
    for dark, scheme in ((False, "default"), (True, "slate")):
        with browser(tmp_path / scheme) as opened:
            opened.open(f"{address}/index.html", dark=dark)
            found = opened.run("document.body.getAttribute('data-md-color-scheme')")
            assert found == scheme


def results(window: Browser, asked: str) -> list[str]:
    """Return the pages that the site's search field finds, the best first."""
    typed = f"{FIELD}.value = %s, {FIELD}.dispatchEvent(new KeyboardEvent('keyup'))"
    window.run(typed % "''")
    window.wait(f"{RESULTS}.length === 0")
    window.run(typed % json.dumps(asked))
    window.wait(f"{RESULTS}.length > 0")
    found: list[str] = window.run(RESULTS)
    return list(dict.fromkeys(path.removeprefix("/") for path in found))


def test_the_search_field_finds_what_strangers_ask(address: str, window: Browser) -> None:
    window.open(f"{address}/index.html")
    window.run(f"{FIELD}.focus()")
    missed: dict[str, Any] = {}
    for question in QUESTIONS:
        found = results(window, question["asks"])[:FIRST]
        if not {html(page) for page in question["pages"]} & set(found):
            missed[question["asks"]] = found
    assert not missed
