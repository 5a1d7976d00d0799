"""Where the pages of WikiGame come from: a bundled link graph, MediaWiki, or a Kiwix server."""

from __future__ import annotations

import html.parser
import http.client
import random
import re
import string
import time
import urllib.error
import urllib.parse
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from gem.errors import DataError, UnreachableError
from gem.fetching import fetched
from gem.json_lines import parse

_DEADLINE_S = 4.0
_RANDOM_TRIES = 10
_MAX_OPTIONS = 10
_MEDIA = re.compile(r"\.(png|jpe?g|gif|svg|webp|css|webm|og[gv]|mp[34]|pdf)$", re.IGNORECASE)


class Page(NamedTuple):
    """One page."""

    title: str
    summary: str
    links: tuple[str, ...]
    """Titles that the page links to; following one may lead to a page of another title."""


class Graph:
    """Pages and links of one file, shared by all who read it."""

    def __init__(self, lines: Iterable[str], name: str) -> None:
        """Read pages as JSON lines with `title`, `summary` and `links`.

        Raises:
            DataError: A line is not such an object, or a title comes twice.
        """
        self.pages: dict[str, Page] = {}
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            page = _page_of(line, f"{name}, line {number}")
            if page.title in self.pages:
                raise DataError(f"{name}, line {number}: title {page.title!r} comes twice")
            self.pages[page.title] = page
        self.pages = {
            title: page._replace(
                links=tuple(t for t in dict.fromkeys(page.links) if t in self.pages and t != title)
            )
            for title, page in self.pages.items()
        }
        self.titles = tuple(sorted(title for title, page in self.pages.items() if page.links))
        if not self.titles:
            raise DataError(f"{name}: no page has a link to another page")
        self._sources: dict[str, list[str]] = {title: [] for title in self.pages}
        for title, page in self.pages.items():
            for target in page.links:
                self._sources[target].append(title)
        self.clicks_to = lru_cache(maxsize=128)(self._clicks_to)

    def _clicks_to(self, target: str) -> Mapping[str, int]:
        """Return the least number of clicks to the target from every page that reaches it."""
        clicks = {target: 0}
        queue = [target]
        for title in queue:
            for source in self._sources[title]:
                if source not in clicks:
                    clicks[source] = clicks[title] + 1
                    queue.append(source)
        return clicks


def _page_of(line: str, where: str) -> Page:
    try:
        row = parse(line, "the line")
        title, summary, links = row["title"], row["summary"], row["links"]
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(
            f"{where}: expected a JSON object with title, summary and links: {error}"
        ) from None
    texts = isinstance(links, list) and all(isinstance(t, str) for t in (title, summary, *links))
    if not texts or not title:
        raise DataError(f"{where}: title and summary must be texts, links a list of texts")
    return Page(title, summary, tuple(links))


@cache
def graph(path: str | None) -> Graph:
    """Return the graph of a file, None for the bundled one; read once per process.

    Raises:
        DataError: The file cannot be read or is no link graph.
    """
    file = files("gem") / "data/link_graph.jsonl" if path is None else Path(path)
    try:
        with file.open(encoding="utf-8") as lines:
            return Graph(lines, path or file.name)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"graph_file {path!r} cannot be read: {error}") from None


class GraphBackend:
    """Pages of a local file."""

    def __init__(self, graph_file: str | None) -> None:
        # Graphs are remembered by their path: a relative one means another file elsewhere.
        self.graph_file = graph_file and str(Path(graph_file).resolve())

    @property
    def graph(self) -> Graph:
        """The graph, which is not part of the pickle."""
        return graph(self.graph_file)

    def page(self, title: str) -> Page | None:
        """Return the page of this title, None if there is none."""
        return self.graph.pages.get(title)


@dataclass(eq=False)
class Server(ABC):
    """Pages of a server; it pickles, and holds no connection.

    Its subclasses share delays, attempts, a deadline, a cache and disambiguation.
    """

    url: str
    query_delay_ms: int
    max_query_attempts: int
    query_use_cache: bool
    kept: dict[str, tuple[str, bytes] | None] = field(default_factory=dict, init=False)

    def get(self, url: str) -> tuple[str, bytes] | None:
        """Return the final address and the body of an answer, None if there is no such page.

        Errors of the server are tried again until attempts or time run out.

        Raises:
            UnreachableError: No proper answer within about four seconds.
        """
        if url in self.kept:
            return self.kept[url]
        deadline = time.monotonic() + _DEADLINE_S
        reason: object = ""
        for attempt in range(self.max_query_attempts):
            # A server that is busy gets more time with every attempt.
            pause = self.query_delay_ms / 1000 * 2**attempt
            left = deadline - time.monotonic()
            if pause >= left:
                break
            time.sleep(pause)
            try:
                answer = fetched(url, max(0.05, deadline - time.monotonic()))
            except urllib.error.HTTPError as error:
                error.close()
                if error.code not in (404, 410):
                    reason = f"it answers {error.code} {error.reason}"
                    continue
                answer = None
            except (OSError, ValueError, http.client.HTTPException) as error:
                reason = getattr(error, "reason", error)
                continue
            if self.query_use_cache:
                self.kept[url] = answer
            return answer
        raise UnreachableError(
            f"{type(self).__name__}: {self.url} does not answer: {reason or 'too slow'}; check "
            "the address and the network, or use backend='graph', which works offline"
        )

    def ask(self, url: str) -> Any:
        """Return a JSON answer, None if there is no such page.

        Raises:
            UnreachableError: The answer is no JSON, so this is not the server that was expected.
        """
        answer = self.get(url)
        if answer is None:
            return None
        try:
            return parse(answer[1], "the answer")
        except DataError:
            raise UnreachableError(
                f"{type(self).__name__}: {self.url} answers with something that is no JSON: is it "
                "the address of such a server?"
            ) from None

    def random_page(self, rng: random.Random) -> Page:
        """Return one of the pages that random letters lead to, so that seeds repeat.

        Raises:
            UnreachableError: The server does not answer.
            DataError: There is no such page.
        """
        for _ in range(_RANDOM_TRIES):
            titles = self._drawn_titles(rng)
            found = self._exact(rng.choice(titles)) if titles else None
            if found is not None and not found[1] and found[0].links:
                return found[0]
        raise DataError(f"{self.url}: no page with links in {_RANDOM_TRIES} attempts")

    def page(self, title: str) -> Page | None:
        """Return the page that a title leads to, None if there is none.

        Follows redirects and the first option of a disambiguation, searches for what is missing.

        Raises:
            UnreachableError: The server does not answer.
        """
        found = self._exact(title)
        if found is None:
            titles = self._similar(title)
            found = self._exact(titles[0]) if titles else None
        if found is None or not found[1]:
            return found and found[0]
        options = map(self._exact, found[0].links[:_MAX_OPTIONS])
        return next((option[0] for option in options if option and not option[1]), None)

    @abstractmethod
    def _drawn_titles(self, rng: random.Random) -> list[str]:
        """Return some titles that random letters lead to."""

    @abstractmethod
    def _similar(self, title: str) -> list[str]:
        """Return titles like a missing one, the best first."""

    @abstractmethod
    def _exact(self, title: str) -> tuple[Page, bool] | None:
        """Return the page and whether it is a disambiguation, None if it is missing."""


class MediaWiki(Server):
    """Pages of a wiki through its MediaWiki API."""

    def _drawn_titles(self, rng: random.Random) -> list[str]:
        # The titles after the letters; after Z the list begins again.
        start = "".join(rng.choices(string.ascii_uppercase, k=3)).capitalize()
        return self._titles_from(start) or self._titles_from("")

    def _titles_from(self, start: str) -> list[str]:
        answer = self._query(
            list="allpages", apfrom=start, aplimit="20", apfilterredir="nonredirects"
        )
        return [entry["title"] for entry in answer.get("allpages", ())]

    def _similar(self, title: str) -> list[str]:
        hits = self._query(list="search", srsearch=title, srlimit="1").get("search", ())
        return [hit["title"] for hit in hits]

    def _query(self, **parameters: str) -> dict[str, Any]:
        return dict(self._answer(parameters).get("query", {}))

    def _answer(self, parameters: Mapping[str, str]) -> dict[str, Any]:
        common = {"action": "query", "format": "json", "formatversion": "2"}
        answer = self.ask(f"{self.url}?{urllib.parse.urlencode({**common, **parameters})}")
        if not isinstance(answer, dict):
            raise UnreachableError(f"MediaWiki: {self.url} is not the API of a wiki (api.php)")
        if "error" in answer:
            raise UnreachableError(
                f"MediaWiki: {self.url} refuses: {answer['error'].get('info', answer['error'])}"
            )
        return answer

    def _exact(self, title: str) -> tuple[Page, bool] | None:
        parameters = {
            "titles": title,
            "redirects": "1",
            "prop": "extracts|links|pageprops",
            "explaintext": "1",
            "exintro": "1",
            "plnamespace": "0",
            "pllimit": "max",
            "ppprop": "disambiguation",
        }
        links: dict[str, None] = {}
        summary, name, disambiguation = "", "", False
        more = {"continue": ""}
        while more:
            answer = self._answer({**parameters, **more})
            pages = answer.get("query", {}).get("pages", ())
            page: dict[str, Any] = next(iter(pages), {"missing": True})
            if page.get("missing") or page.get("invalid"):
                return None
            name = page["title"]
            summary = summary or page.get("extract", "")
            disambiguation = disambiguation or "disambiguation" in page.get("pageprops", {})
            links.update(dict.fromkeys(link["title"] for link in page.get("links", ())))
            more = {key: str(value) for key, value in answer.get("continue", {}).items()}
        return Page(name, " ".join(summary.split()), tuple(links)), disambiguation


class Kiwix(Server):
    """Pages of a ZIM file through `kiwix-serve`."""

    def __init__(self, url: str, zimfile: str, *asking: Any) -> None:
        super().__init__(url.rstrip("/"), *asking)
        self.zimfile = zimfile

    def _drawn_titles(self, rng: random.Random) -> list[str]:
        return self._similar("".join(rng.choices(string.ascii_lowercase, k=2)))

    def _similar(self, title: str) -> list[str]:
        query = urllib.parse.urlencode({"content": self.zimfile, "term": title, "count": "10"})
        answer = self.ask(f"{self.url}/suggest?{query}")
        entries = answer if isinstance(answer, list) else []
        return [entry["value"] for entry in entries if entry.get("kind") == "path"]

    def _exact(self, title: str) -> tuple[Page, bool] | None:
        name = urllib.parse.quote(title.replace(" ", "_"), safe="")
        # Older ZIM files keep articles in a namespace of their own.
        for path in (name, f"A/{name}"):
            answer = self.get(f"{self.url}/content/{self.zimfile}/{path}")
            if answer is not None:
                parser = _Article()
                parser.feed(answer[1].decode("utf-8", errors="replace"))
                parser.close()
                return parser.page(_title_of(answer[0])), parser.disambiguation
        return None


def _title_of(address: str) -> str:
    """Return the title at the end of a page's address."""
    path = urllib.parse.urlsplit(address).path
    return urllib.parse.unquote(path.rsplit("/", 1)[-1]).replace("_", " ")


class _Article(html.parser.HTMLParser):
    """Reads heading, first paragraph and links of an article."""

    def __init__(self) -> None:
        super().__init__()
        self.disambiguation = False
        self._inside = ""
        self._texts: dict[str, list[str]] = {"h1": [""], "p": [""]}
        self._links: dict[str, None] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        marks = f"{found.get('id') or ''} {found.get('class') or ''}".lower()
        self.disambiguation |= bool(re.search("disambig(box|uation)", marks))
        if tag in self._texts:
            self._inside = tag
            self._texts[tag].append("")
        elif tag == "a":
            self._link(found.get("href") or "")

    def handle_endtag(self, tag: str) -> None:
        if tag == self._inside:
            self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside:
            self._texts[self._inside][-1] += data

    def _link(self, href: str) -> None:
        try:
            parts = urllib.parse.urlsplit(href)
        except ValueError:
            return
        title = _title_of(href)
        outside = parts.scheme or parts.netloc or parts.query or href.startswith("/")
        if title and not outside and ":" not in title and not _MEDIA.search(title):
            self._links[title] = None

    def page(self, title: str) -> Page:
        """Return what was read; the title is that of the address, as links have it."""
        paragraphs = (" ".join(text.split()) for text in self._texts["p"])
        self._links.pop(title, None)
        summary = next((text for text in paragraphs if text), "")
        return Page(title, summary, tuple(self._links))
