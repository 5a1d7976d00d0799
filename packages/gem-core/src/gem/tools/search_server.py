"""A search server over a local index, for several trainers or machines.

Answers `POST` to any path: Search-R1's JSON, `{"queries": [...], "topk": 3}`, and the original
GEM's MessagePack, `{"query": "...", "topk": 3}`.
"""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from gem.errors import MissingExtraError
from gem.tools.search_client import JSON, MSGPACK, codec
from gem.tools.search_index import Hit, Index

_MAX_BYTES = 1 << 20
_MAX_TOPK = 1000
_IDLE_S = 30


class SearchServer(ThreadingHTTPServer):
    """Serves until `shutdown`; `server_port` is its port."""

    daemon_threads = True
    # Most connections that wait to be accepted.
    request_queue_size = 256

    def __init__(self, index: Index, host: str = "127.0.0.1", port: int = 0) -> None:
        """Begin to listen.

        Args:
            index: The index to search.
            host: Address to listen at.
            port: Port; 0 takes a free one.

        Raises:
            OSError: The port is taken.
        """
        self.index = index
        super().__init__((host, port), _Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_S
    # Buffered: an answer is sent in one piece.
    wbufsize = -1
    server: SearchServer

    def do_GET(self) -> None:
        self._answer(200, JSON, json.dumps({"passages": len(self.server.index)}).encode())

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > _MAX_BYTES:
            self.close_connection = True
            self._answer(413, JSON, b'{"error": "a request has a length of at most 1 MiB"}')
            return
        body = self.rfile.read(int(length))
        kind = JSON if self.headers.get_content_type() == JSON else MSGPACK
        try:
            written, read = codec(kind)
        except MissingExtraError as error:
            self._answer(415, JSON, json.dumps({"error": str(error)}).encode())
            return
        try:
            answer = self._found(read(body))
        except (ValueError, RecursionError) as error:
            self._answer(400, kind, written({"error": str(error)[:200]}))
        else:
            self._answer(200, kind, written({"result": answer}))

    def _found(self, request: Any) -> Any:
        if not isinstance(request, dict):
            raise ValueError("a request is a mapping with 'query' or 'queries'")
        topk = request.get("topk")
        topk = 3 if topk is None else topk
        if isinstance(topk, bool) or not isinstance(topk, int) or not 1 <= topk <= _MAX_TOPK:
            raise ValueError(f"topk must be an integer from 1 to {_MAX_TOPK}")
        scores = request.get("return_scores") is not False
        many = "queries" in request
        queries = request["queries"] if many else [request.get("query")]
        if not isinstance(queries, list) or not all(isinstance(q, str) for q in queries):
            raise ValueError("'query' must be text, 'queries' a list of texts")
        search = self.server.index.search
        found = [[_entry(hit, scores) for hit in search(query, topk)] for query in queries]
        return found if many else found[0]

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a training run sends thousands of requests."""


def _entry(hit: Hit, scores: bool) -> Any:
    document = {"contents": f'"{hit.title}"\n{hit.text}', "title": hit.title}
    return {"document": document, "score": hit.score} if scores else document
