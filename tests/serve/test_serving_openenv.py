"""`openenv:` ids: any server that speaks OpenEnv's protocol is an environment."""

from __future__ import annotations

import contextlib
import functools
import json
import threading
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from served import OBLIGING, Served, register, serving

import gem
from gem.errors import ConfigurationError, ContractError, RemoteError, UnreachableError

for module in ("starlette", "uvicorn", "websockets"):
    pytest.importorskip(module, reason="of the extra serve")
register()

TEXT = {"type": "string"}
MAYBE = {"anyOf": [TEXT, {"type": "null"}]}
NUMBER = {"type": "integer"}


def schema(action: dict[str, Any], observation: dict[str, Any], *required: str) -> dict[str, Any]:
    common = {"metadata": {"type": "object"}}
    seen = {"done": {"type": "boolean"}, "reward": {"type": "number"}, **common, **observation}
    return {
        "action": {"properties": {**common, **action}, "required": list(required)},
        "observation": {"properties": seen},
        "state": {},
    }


@contextlib.contextmanager
def server(told: Any, answer: Callable[[dict[str, Any]], Any]) -> Iterator[str]:
    """A server with `told` as its schema; `answer` gives the answer to a message."""
    from websockets.datastructures import Headers
    from websockets.http11 import Response
    from websockets.sync.server import serve

    def http(_: Any, request: Any) -> Any:
        if request.path.endswith("/ws"):
            return None
        body = told if isinstance(told, bytes) else json.dumps(told).encode()
        return Response(200, "OK", Headers({"Content-Length": str(len(body))}), body)

    def talk(socket: Any) -> None:
        for message in socket:
            socket.send(json.dumps(answer(json.loads(message))))

    with serve(talk, "127.0.0.1", 0, process_request=http) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.socket.getsockname()[1]}"
        running.shutdown()
        thread.join()


def echo(message: dict[str, Any]) -> dict[str, Any]:
    if message["type"] == "close":
        return {"type": "closed"}
    observation = {"said": json.dumps(message["data"]), "count": 3}
    return {"type": "observation", "data": {"observation": observation, "done": False}}


@pytest.fixture
def served() -> Iterator[Served]:
    with serving([OBLIGING, "game:Sudoku-v0-easy"]) as running:
        yield running


def test_a_gem_server_is_an_openenv_server(served: Served) -> None:
    with (
        gem.make(f"openenv:{served.url}/envs/{OBLIGING}") as env,
        gem.make(OBLIGING) as local,
    ):
        assert (env.action_field, env.observation_field) == ("text", "text")
        observation, info = env.reset(seed=7, idx=2)
        assert observation == local.reset(seed=7, idx=2)[0]
        assert (info["seed"], info["info"]) == (7, {"pair": [1, 2]})
        for action in ("x", "cut"):
            assert env.step(action)[:4] == local.step(action)[:4]
        env.reset(seed=7)
        assert env.step("end")[2:4] == (True, False)
        env.reset(seed=7)
        with pytest.raises(RemoteError, match="ValueError: boom"):
            env.step("raise")
    assert served.free()


def test_a_series_of_episodes_has_a_seed_each_and_the_same_ones_again(served: Served) -> None:
    with gem.make(f"openenv:{served.url}/envs/{OBLIGING}", seed=3) as env:
        first = [env.reset() for _ in range(3)]
        assert env.episode_key == (3, 2)
        assert len({info["seed"] for _, info in first}) == 3
        with env.spawn(seed=3) as again:
            assert [again.reset() for _ in range(3)] == first
        with pytest.raises(NotImplementedError, match="no snapshots"):
            env.snapshot()
        with pytest.raises(NotImplementedError, match="no snapshots"):
            env.spawn(same_state=True)


def test_the_policys_text_goes_into_the_only_field_for_a_text() -> None:
    for action, required, field in (
        ({"message": TEXT}, (), "message"),
        ({"code": MAYBE, "timeout": NUMBER}, (), "code"),
        ({"name": TEXT, "note": MAYBE}, ("name",), "name"),
        ({"kind": {**TEXT, "enum": ["a"]}, "word": TEXT}, ("kind", "word"), "word"),
    ):
        told = schema(action, {"said": TEXT, "count": NUMBER}, *required)
        with server(told, echo) as url, gem.make(f"openenv:{url}") as env:
            env.reset(seed=1)
            assert json.loads(env.step("hello")[0]) == {field: "hello"}


def test_a_field_is_asked_for_where_it_is_not_clear() -> None:
    ambiguous = schema({"a": TEXT, "b": TEXT, "n": NUMBER}, {"said": TEXT, "other": TEXT})
    with server(ambiguous, echo) as url:
        with pytest.raises(ConfigurationError, match="2 fields for a text; .* of a, b, n"):
            gem.make(f"openenv:{url}")
        with pytest.raises(ConfigurationError, match="action_field must be one of a, b, n"):
            gem.make(f"openenv:{url}", action_field="c")
        with pytest.raises(ConfigurationError, match="observation_field must be one of said"):
            gem.make(f"openenv:{url}", action_field="a", observation_field="x")
        with gem.make(f"openenv:{url}", action_field="b") as env:
            # Without a field to show: all of them.
            assert json.loads(env.reset(seed=4)[0]) == {"said": '{"seed": 4}', "count": 3}
        with gem.make(f"openenv:{url}", action_field="b", observation_field="said") as env:
            assert env.reset(seed=4)[0] == '{"seed": 4}'
    none = server(schema({"n": NUMBER}, {}), echo)
    with none as url, pytest.raises(ConfigurationError, match="0 fields for a text; .* of n"):
        gem.make(f"openenv:{url}")


def test_rewards_flags_and_faults_are_those_of_the_server() -> None:
    answers: list[Any] = []
    playing = server(
        schema({"text": TEXT}, {"said": TEXT}),
        lambda message: answers.pop(0) if answers else echo(message),
    )
    with playing as url, gem.make(f"openenv:{url}") as env:
        for data, step in (
            ({"reward": None, "done": True}, (0.0, True, False)),
            ({"reward": True, "done": False}, (1.0, False, False)),
            ({"reward": 2, "done": True, "metadata": {"truncated": True}}, (2.0, False, True)),
        ):
            env.reset(seed=1)
            answers.append({"type": "observation", "data": {"observation": {}, **data}})
            assert env.step("x")[1:4] == step
        for wrong in ({}, {"observation": "x", "done": False}, {"observation": {}}):
            env.reset(seed=1)
            answers.append({"type": "observation", "data": wrong})
            with pytest.raises(ContractError, match="no observation of OpenEnv"):
                env.step("x")
        for code, kind in (
            ("EXECUTION_ERROR", RemoteError),
            ("CAPACITY_REACHED", UnreachableError),
            ("VALIDATION_ERROR", RemoteError),
        ):
            env.reset(seed=1)
            answers.append({"type": "error", "data": {"message": "no luck", "code": code}})
            with pytest.raises(kind, match="no luck"):
                env.step("x")


def test_a_server_that_is_none_of_openenv_is_named() -> None:
    for told, words in (
        (b"<html>", "is no OpenEnv server: the answer is damaged: Expecting value"),
        ({"hello": "world"}, "/schema has no action"),
        ([1], "/schema has no action"),
        ({"action": {"properties": {"text": TEXT}}, "observation": 3}, "has no observation"),
    ):
        with server(told, echo) as url, pytest.raises(ConfigurationError, match=words):
            gem.make(f"openenv:{url}")
    # It does not know the messages beside OpenEnv's.
    other = server(schema({"text": TEXT}, {}), echo)
    with other as url, pytest.raises(ConfigurationError, match="no GEM server"):
        gem.make(f"remote:{url}/game:Sudoku-v0-easy")
    for id in ("openenv:", "openenv:localhost", "openenv:ftp://x", "remote:http://x", "remote:x/y"):
        with pytest.raises(ConfigurationError, match="http://host:port"):
            gem.make(id)
    with pytest.raises(UnreachableError, match="http://127.0.0.1:1/schema does not respond"):
        gem.make("openenv:http://127.0.0.1:1")
    with pytest.raises(UnreachableError, match="does not respond"):
        gem.make("remote:http://127.0.0.1:1/game:Sudoku-v0-easy")


def test_a_server_that_speaks_something_else_is_named(tmp_path: Path) -> None:
    class Plain(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None: ...

    handler = functools.partial(Plain, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{running.server_port}"
        for id in (f"openenv:{url}/no", f"remote:{url}/game:Sudoku-v0-easy"):
            with pytest.raises(ConfigurationError, match="is no OpenEnv server"):
                gem.make(id)
        running.shutdown()


def test_a_server_without_an_answer_is_given_up() -> None:
    waits = threading.Event()

    def slow(message: dict[str, Any]) -> dict[str, Any]:
        if message["type"] == "step":
            waits.wait(60)
        return echo(message)

    playing = server(schema({"text": TEXT}, {"said": TEXT}), slow)
    with playing as url, gem.make(f"openenv:{url}", answer_timeout_s=2.0) as env:
        env.reset(seed=1)
        with pytest.raises(UnreachableError, match=r"did not answer within 2 s"):
            env.step("x")
        waits.set()
        assert env.reset(seed=1)
