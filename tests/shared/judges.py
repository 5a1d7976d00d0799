"""Judges for tests, behind a real HTTP server: right ones, and ones that fail in a way each."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from chat_server import Answer, Stub, refused

from gem.errors import ConfigurationError
from gem_judge.rules import answered

Rule = Callable[[int, dict[str, Any]], Answer]
MODEL = "judge-1"
LISTED = Answer(json.dumps({"data": [{"id": MODEL}]}))
"""The server's models."""


def served(rule: Rule) -> Any:
    """A fixture: a server that lists `MODEL` and votes by a rule; its name is the attribute's."""

    @pytest.fixture
    def stub() -> Iterator[Stub]:
        server = Stub()
        server.answer, server.models = rule, LISTED
        yield server
        server.close()

    return stub


def vote(text: str, model: str = MODEL, **fields: Any) -> Answer:
    """An answer of a model."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}}
    return Answer(json.dumps({"model": model, "choices": [choice], **fields}))


def truth(number: int, body: dict[str, Any]) -> Answer:
    """Votes as the rules say, after some words; `no` where there is no rule."""
    try:
        said = answered(body["messages"][-1]["content"])
    except ConfigurationError:
        said = {"correct": False}
    return vote(f"I have looked at it.\n{json.dumps(said)}")


def parity(number: int, body: dict[str, Any]) -> Answer:
    """Votes by a hash of answers that begin with `said:`, as the rules say on others."""
    content = body["messages"][-1]["content"]
    if "said: " not in content:
        return truth(number, body)
    said = content.partition("said: ")[2].partition("\n</answer")[0]
    return vote(json.dumps({"correct": sha256(said.encode()).digest()[0] % 2 == 0}))


def naive(number: int, body: dict[str, Any]) -> Answer:
    """Says yes to everything."""
    content = body["messages"][-1]["content"]
    said: dict[str, Any] = {"correct": True}
    if "<second-" in content:
        said = {"better": "first"}
    return vote(json.dumps(said))


def flattering(number: int, body: dict[str, Any]) -> Answer:
    """Votes right on the plain questions of the start, and says yes to everything else."""
    plain = "What is 2 + 2?" in body["messages"][-1]["content"]
    return truth(number, body) if plain else naive(number, body)


def labelled(folder: Path) -> str:
    """A calibration file for `flattering`, with both labels; returns its path."""
    lines = [
        {"question": f"{n}?", "answer": f"{n % 7}", "reference": "3", "label": n % 7 == 3}
        for n in range(100)
    ]
    file = folder / "labelled.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    return str(file)


def down(number: int, body: dict[str, Any]) -> Answer:
    """Answers 503."""
    return refused(503, "overloaded")


def slow(number: int, body: dict[str, Any]) -> Answer:
    """Answers after two seconds."""
    time.sleep(2)
    return truth(number, body)


def refusing(number: int, body: dict[str, Any]) -> Answer:
    """Says that every request is at fault."""
    return refused(400, "no")


def silent(number: int, body: dict[str, Any]) -> Answer:
    """Talks, and never votes."""
    return vote("As a language model I cannot say.")


def garbled(number: int, body: dict[str, Any]) -> Answer:
    """Answers something that is no JSON."""
    return Answer("<html>gateway</html>")


def swapped(number: int, body: dict[str, Any]) -> Answer:
    """Another model answers from the third request on."""
    answer = truth(number, body)
    return Answer(answer.body.replace(MODEL, "judge-2")) if number > 2 else answer


def settings(stub: Stub, **changed: Any) -> dict[str, Any]:
    """Settings of a judge at the stub's address, which votes three times."""
    usual = {"model": MODEL, "allow_uncalibrated": True, "timeout_s": 30.0, "votes": 3}
    usual["sampling"] = {"temperature": 0.7}
    return {"url": stub.url, **usual, **changed}
