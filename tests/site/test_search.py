"""Strangers' questions are answered by the site's own search (tests/docs/questions.toml)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from lunr.builder import Builder
from lunr.index import Index
from lunr.stop_word_filter import stop_word_filter
from website import FIRST, QUESTIONS, ROOT, html


class Search:
    """The search of Material for MkDocs: its index, its fields, its order of results."""

    def __init__(self, site: Path) -> None:
        data = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
        settings = data["config"]
        self._separator = re.compile(settings["separator"])
        self._documents = {each["location"]: each for each in data["docs"]}
        builder = Builder()
        builder.b(0)
        builder.ref("location")
        for name, options in settings["fields"].items():
            builder.field(name, boost=options["boost"])
        builder.pipeline.add(stop_word_filter)
        for each in self._documents.values():
            fields = {name: self._words(each.get(name, "")) for name in settings["fields"]}
            document = {**fields, "location": each["location"]}
            builder.add(document, {"boost": each.get("boost", 1)})
        self._index: Index = builder.build()

    def _words(self, text: Any) -> str:
        text = " ".join(text) if isinstance(text, list) else text
        return " ".join(self._separator.split(re.sub(r"<[^>]*>", " ", text)))

    def pages(self, asked: str) -> list[str]:
        """Return the pages that are found, the best first."""
        words = [word for word in self._words(asked).lower().split() if stop_word_filter(word)]
        scores: dict[str, float] = {}
        for found in self._index.search(" ".join(words)):
            location = found["ref"]
            matched = found["match_data"].metadata
            share = sum(word in matched for word in words) / len(words)
            score = found["score"] * (1 + (share + ("#" not in location)) ** 2)
            page = location.partition("#")[0]
            scores[page] = max(score, scores.get(page, 0))
        return sorted(scores, key=lambda page: -scores[page])


@pytest.fixture(scope="module")
def search(site: Path) -> Search:
    return Search(site)


def test_enough_is_asked() -> None:
    asked = [each["asks"] for each in QUESTIONS]
    assert len(set(asked)) == len(asked) >= 10
    for each in QUESTIONS:
        for page in each["pages"]:
            assert (ROOT / "docs" / page).exists(), page


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda each: each["asks"])
def test_a_question_is_answered_by_one_of_the_first_results(
    question: dict[str, Any], search: Search
) -> None:
    found = search.pages(question["asks"])[:FIRST]
    assert {html(page) for page in question["pages"]} & set(found), found


def test_nonsense_is_not_found(search: Search) -> None:
    assert search.pages("xyzzyplugh") == []
