"""A small wiki behind the APIs of MediaWiki and Kiwix, which fails as told; moves of WikiGame."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from gem.envs.games.wiki_game import WikiGame

WIKI = {
    "Alpha": ["Beta", "Gama", "Mercury", "Old Gamma", "Red"],
    "Beta": ["Alpha", "Delta"],
    "Gamma": ["Alpha", "Delta"],
    "Delta": ["Alpha", "Beta", "Gamma"],
}
REDIRECTS = {"Old Gamma": "Gamma"}
DISAMBIGUATIONS = {"Mercury": ["Mercury (gone)", "Mercury (list)", "Delta"], "Mercury (list)": []}
SPELLINGS = {"Gama": "Gamma"}


@dataclass
class FakeWiki:
    """A server of both kinds over one small wiki, and what goes wrong with it."""

    url: str = ""
    failures: int = 0
    status: int = 503
    torn: int = 0
    """Answers whose connection breaks before their end."""
    delay_s: float = 0.0
    body: bytes | None = None
    asked: list[str] = field(default_factory=list)

    def api(self, query: dict[str, str]) -> Any:
        """Answer like MediaWiki's api.php, two links at a time."""
        assert (query["action"], query["format"], query["formatversion"]) == ("query", "json", "2")
        if query.get("list") == "allpages":
            titles = sorted(t for t in (*WIKI, *DISAMBIGUATIONS) if t >= query.get("apfrom", ""))
            return {"query": {"allpages": [{"title": t} for t in titles[: int(query["aplimit"])]]}}
        if query.get("list") == "search":
            hit = SPELLINGS.get(query["srsearch"])
            return {"query": {"search": [{"title": hit}] if hit else []}}
        title = REDIRECTS.get(query["titles"], query["titles"])
        links = WIKI.get(title, DISAMBIGUATIONS.get(title))
        if links is None:
            return {"query": {"pages": [{"title": title, "missing": True}]}}
        begin = int(query.get("plcontinue", "0"))
        page: dict[str, Any] = {
            "title": title,
            "links": [{"ns": 0, "title": t} for t in links[begin : begin + 2]],
        }
        if not begin:
            page["extract"] = f"{title} is\na page."
        if title in DISAMBIGUATIONS:
            page["pageprops"] = {"disambiguation": ""}
        answer: dict[str, Any] = {"query": {"pages": [page]}}
        if begin + 2 < len(links):
            answer["continue"] = {"plcontinue": str(begin + 2), "continue": "||"}
        return answer

    def article(self, title: str) -> str | None:
        """Return the HTML of a page like those in ZIM files."""
        links = WIKI.get(title, DISAMBIGUATIONS.get(title))
        if links is None:
            return None
        box = '<div id="disambigbox"></div>' if title in DISAMBIGUATIONS else ""
        shown = "".join(f'<a href="{t.replace(" ", "_")}">x</a>' for t in links)
        noise = (
            '<a href="https://example.org/X">x</a><a href="#top">x</a><a href="File:X">x</a>'
            '<a href="../I/picture.png">x</a><a href="http://[">x</a>'
        )
        return f"<h1>{title}</h1>{box}<p> </p><p><b>{title}</b> is\na page.</p>{shown}{noise}"


class Handler(BaseHTTPRequestHandler):
    wiki: FakeWiki

    def log_message(self, *args: Any) -> None:
        pass

    def reply(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        # Who waits no longer has closed the connection.
        with contextlib.suppress(ConnectionError):
            self.end_headers()
            whole = not (body and self.wiki.torn)
            self.wiki.torn -= not whole
            self.wfile.write(body if whole else body[: len(body) // 4])

    def do_GET(self) -> None:
        wiki, parts = self.wiki, urlsplit(self.path)
        wiki.asked.append(self.path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        time.sleep(wiki.delay_s)
        if wiki.failures:
            wiki.failures -= 1
            self.reply(wiki.status)
        elif wiki.body is not None:
            self.reply(200, wiki.body)
        elif parts.path == "/w/api.php":
            self.reply(200, json.dumps(wiki.api(query)).encode())
        elif parts.path == "/suggest":
            term = query["term"]
            titles = [SPELLINGS[term]] if term in SPELLINGS else []
            if len(term) == 2:
                titles = sorted((*WIKI, *DISAMBIGUATIONS))
            entries = [{"value": t, "kind": "path", "path": t} for t in titles]
            self.reply(200, json.dumps([*entries, {"value": term, "kind": "pattern"}]).encode())
        elif parts.path.startswith("/content/wiki/"):
            title = unquote(parts.path.rsplit("/", 1)[-1]).replace("_", " ")
            html = wiki.article(title)
            if title in REDIRECTS:
                self.reply(302, Location=f"/content/wiki/{REDIRECTS[title]}")
            elif html is None:
                self.reply(404)
            else:
                self.reply(200, html.encode())
        else:
            self.reply(404)


def served(wiki: FakeWiki, kind: str, **parameters: Any) -> WikiGame:
    """Return a game on the fake server, without pauses."""
    fast: dict[str, Any] = {"query_delay_ms": 0, "variant": "freenav", "max_turns": 50}
    if kind == "mw":
        return WikiGame(backend="mw", url=f"{wiki.url}/w/api.php", **{**fast, **parameters})
    return WikiGame(backend="kiwix", url=wiki.url, zimfile="wiki", **{**fast, **parameters})


def go(env: Any, content: str) -> Any:
    """Step with a text in a box."""
    return env.step(f"\\boxed{{{content}}}")
