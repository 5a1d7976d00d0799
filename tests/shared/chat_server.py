"""A chat server that answers by rule, and fails as it is told to."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Answer:
    """What the server sends."""

    body: str
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    raw: bool = False
    """The body's characters are bytes."""
    cut: bool = False
    """Say that the body is longer, and close the connection."""


def said(text: str | None, finish: str = "stop", **message: Any) -> Answer:
    """An answer with a reply."""
    choice = {"message": {"role": "assistant", "content": text, **message}, "finish_reason": finish}
    usage = {"prompt_tokens": 10, "completion_tokens": 5}
    return Answer(json.dumps({"choices": [choice], "usage": usage}))


def refused(status: int, message: str, **headers: str) -> Answer:
    """An answer with an error."""
    return Answer(json.dumps({"error": {"message": message, "type": "x"}}), status, headers)


def completed(
    prompt_ids: list[int] | None, token_ids: list[int] | None, finish: str = "stop", **fields: Any
) -> Answer:
    """A completion of vLLM with tokens; each has the log-probability -0.5."""
    logprobs = {"token_logprobs": [-0.5] * len(token_ids or [])}
    choice = {"text": "", "logprobs": logprobs, "finish_reason": finish, **fields}
    choice |= {"token_ids": token_ids, "prompt_token_ids": prompt_ids}
    return Answer(json.dumps({"choices": [choice], "usage": {"prompt_tokens": 1}}))


def generated(prompt_tokens: int, token_ids: list[int], finish: str = "stop") -> Answer:
    """A reply of SGLang's /generate; each token has the log-probability -0.5."""
    sampled = [[-0.5, token, None] for token in token_ids]
    meta = {"output_token_logprobs": sampled, "finish_reason": {"type": finish}}
    meta |= {"prompt_tokens": prompt_tokens, "cached_tokens": 0}
    return Answer(json.dumps({"text": "", "output_ids": token_ids, "meta_info": meta}))


def by_rule(messages: list[dict[str, str]]) -> Answer:
    """A guess that depends on the conversation alone."""
    return said(f"\\boxed{{{1 + (3 * len(messages)) % 10}}}")


class Stub:
    """The server: `answer(number, body)` decides; None means `by_rule`."""

    def __init__(self) -> None:
        self.answer: Callable[[int, dict[str, Any]], Answer | None] = lambda number, body: None
        self.models = Answer(json.dumps({"data": []}))
        self.version = Answer("", 404)
        self.requests: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.keys: list[str | None] = []
        self.running = self.most_running = 0
        stub, lock = self, threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.send(stub.version if self.path == "/version" else stub.models)

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    stub.requests.append(body)
                    stub.paths.append(self.path)
                    stub.keys.append(self.headers["Authorization"])
                    number = len(stub.requests)
                    stub.running += 1
                    stub.most_running = max(stub.running, stub.most_running)
                try:
                    self.send(stub.answer(number, body) or by_rule(body["messages"]))
                finally:
                    with lock:
                        stub.running -= 1

            def send(self, answer: Answer) -> None:
                data = answer.body.encode("latin-1" if answer.raw else "utf-8")
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.send_header("Content-Length", str(len(data) + 100 * answer.cut))
                self.end_headers()
                self.wfile.write(data)
                self.close_connection = answer.cut

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, *_: object) -> None:
                pass  # clients that were killed

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def serves(self, engine: str, context_tokens: int, version: str = "0.28.0") -> None:
        """Say so of the model `m`."""
        entry = {"id": "m", "owned_by": engine, "max_model_len": context_tokens}
        self.models = Answer(json.dumps({"data": [entry]}))
        self.version = Answer(json.dumps({"version": version}))

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
