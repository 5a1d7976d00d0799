"""A chat server that grades by rules, to try a run with before a model is at hand."""

from __future__ import annotations

import json
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from gem.errors import GemError
from gem.json_lines import parse
from gem_judge.rules import answered

MODEL = "rules"
"""The server's name of its model."""


class RulesServer(ThreadingHTTPServer):
    """Answers what `Judge` asks about items of the environments `judge:`; others it refuses."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, host: str = "127.0.0.1", port: int = 0, delay_s: float = 0.0) -> None:
        """Bind the address; `serve_forever` answers.

        Args:
            host: Address.
            port: 0 for a free one.
            delay_s: Wait before each answer, as a model would take.
        """
        super().__init__((host, port), _Handler)
        self.delay_s = delay_s
        self.url = f"http://{host}:{self.server_port}/v1"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: RulesServer

    def do_GET(self) -> None:
        self._send(200, {"data": [{"id": MODEL}]})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        time.sleep(self.server.delay_s)
        try:
            vote = answered(parse(body, "the body")["messages"][-1]["content"])
        except (GemError, LookupError, TypeError, ValueError) as error:
            self._send(400, {"error": {"message": str(error), "type": "invalid_request_error"}})
            return
        message = {"role": "assistant", "content": json.dumps(vote)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        self._send(200, {"model": MODEL, "choices": [choice]})

    def _send(self, status: int, answer: Any) -> None:
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Be quiet."""
