"""The client of search servers: Search-R1's JSON or the original GEM's MessagePack.

`search_server` is the other side and uses `codec` from here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

from gem.fetching import asked, http_address
from gem.json_lines import parse
from gem.plugins import extra
from gem.tools.search_index import Hit, split_contents

JSON, MSGPACK = "application/json", "application/msgpack"
PROTOCOLS = {"json": JSON, "msgpack": MSGPACK}
"""Content types by protocol."""

_CACHED = 10_000


def protocol_of(url: str) -> str:
    """Return the protocol of a server by its address: JSON if the path ends with `/retrieve`.

    Raises:
        ConfigurationError: The address is not an HTTP address.
    """
    return "json" if http_address("url", url).path.rstrip("/").endswith("/retrieve") else "msgpack"


def codec(kind: str) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    """Return the encoder and the decoder of a content type; the decoder raises `ValueError`.

    Raises:
        MissingExtraError: The type is MessagePack, and the extra `search` is not installed.
    """
    if kind == JSON:
        return (lambda value: json.dumps(value).encode()), partial(parse, place="the body")
    msgpack = extra(
        "msgpack",
        "search servers that speak MessagePack need msgpack: pip install 'gem-core[search]'",
    )
    return partial(msgpack.packb, unicode_errors="replace"), msgpack.unpackb


def request_body(protocol: str, query: str, topk: int) -> bytes:
    """Return the body of a request.

    Raises:
        MissingExtraError: See `codec`.
    """
    wanted = {"queries": [query]} if protocol == "json" else {"query": query}
    return codec(PROTOCOLS[protocol])[0]({**wanted, "topk": topk, "return_scores": True})


def hits_of(protocol: str, body: bytes) -> list[Hit]:
    """Return the passages of an answer.

    Raises:
        MissingExtraError: See `codec`.
        ValueError: The body is not an answer of this protocol.
    """
    answer = codec(PROTOCOLS[protocol])[1](body)
    result = answer.get("result") if isinstance(answer, dict) else None
    if protocol == "json" and isinstance(result, list) and len(result) == 1:
        result = result[0]
    if not isinstance(result, list):
        raise ValueError("no list of results")
    return [_hit(entry) for entry in result]


def _hit(entry: Any) -> Hit:
    score = 0.0
    if isinstance(entry, dict) and isinstance(entry.get("document"), dict | str):
        score, entry = entry.get("score", 0.0), entry["document"]
    contents = entry.get("contents", entry.get("text")) if isinstance(entry, dict) else entry
    if not isinstance(contents, str) or not isinstance(score, int | float):
        raise ValueError("a result without 'contents' or with a score that is no number")
    if isinstance(entry, dict) and "contents" not in entry:
        return Hit(str(entry.get("title", "")), contents, float(score))
    return Hit(*split_contents(contents), float(score))


def ask(
    url: str, protocol: str, query: str, topk: int, timeout_s: float, retries: int
) -> list[Hit]:
    """Return the passages that a server finds.

    Args:
        url: The server's address.
        protocol: One of `PROTOCOLS`.
        query: What to search for.
        topk: Most passages.
        timeout_s: Time limit of one attempt.
        retries: Further attempts, see `gem.fetching.asked`.

    Raises:
        MissingExtraError: See `codec`.
        UnreachableError: The server does not answer, answers with an error, or not in the protocol.
    """
    kind = PROTOCOLS[protocol]
    return asked(
        f"search server {url}",
        url,
        partial(hits_of, protocol),
        timeout_s=timeout_s,
        retries=retries,
        malformed=f"of the protocol {protocol!r}",
        body=request_body(protocol, query, topk),
        headers={"Content-Type": kind, "Accept": kind},
        # Search servers are local.
        proxies=False,
    )


ask_cached = lru_cache(maxsize=_CACHED)(ask)
"""`ask` with a cache of answers per process; failures are not cached."""
