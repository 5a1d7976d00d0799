"""Environments of a server are those of this process; what the server refuses, ends and counts."""

from __future__ import annotations

import gc
import json
import os
import pickle
import re
import signal
import socket
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from processes import forked, settles
from served import OBLIGING, PICTURES, Obliging, Pictures, Served, register, serving

import gem
from gem.blame import cause_of
from gem.core import Env
from gem.errors import (
    ConfigurationError,
    RemoteError,
    ResetNeededError,
    ServerFullError,
    UnknownEnvError,
    UnknownParameterError,
    UnreachableError,
)
from gem.executors.process import ProcessExecutor
from gem.fingerprint import canonical
from gem.rollout import Request, Sample
from gem.trajectory import Failure

for module in ("starlette", "uvicorn", "websockets"):
    pytest.importorskip(module, reason="of the extra serve")
register()
IDS = ("game:Sudoku-v0-easy", "game:Wordle-v0", "game:Minesweeper-v0-easy")


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """A server of all ids that lets its clients do all that it can let them do."""
    with serving(parameters=True, tools=["python"]) as server:
        yield server
        assert server.free()


@pytest.fixture(autouse=True)
def fresh(request: pytest.FixtureRequest) -> Iterator[None]:
    """Nothing of the test before is left, and nothing of this one waits."""
    if "served" in request.fixturenames:
        assert request.getfixturevalue("served").free()
    Obliging.waits = threading.Event()
    Obliging.closed = []
    yield
    Obliging.waits.set()


def episode(env: Env, seed: int | None, policy: str) -> list[Any]:
    """Everything that an environment shows in an episode of a policy."""
    observation, info = env.reset(seed=seed)
    seen: list[Any] = [canonical(observation), json.loads(json.dumps(info)), env.episode_key]
    over = False
    while not over and len(seen) < 15:
        action = getattr(env, policy)()
        observation, reward, terminated, truncated, info = env.step(action)
        over = terminated or truncated
        shown = json.loads(json.dumps(info))
        seen.append((action, canonical(observation), reward, terminated, truncated, shown))
    return seen


def raw(served: Served, id: str = OBLIGING) -> Any:
    """A client's own WebSocket, to be used in a `with`."""
    from websockets.sync.client import connect

    return connect(f"{served.url.replace('http', 'ws')}/envs/{id}/ws", proxy=None)


def asked(socket: Any, message: Any) -> dict[str, Any]:
    socket.send(message if isinstance(message, str | bytes) else json.dumps(message))
    answer: dict[str, Any] = json.loads(socket.recv(60))
    return answer


def get(served: Served, path: str, *, data: bytes | None = None, **headers: str) -> tuple[int, Any]:
    """Status and JSON, or text, of a request."""
    request = urllib.request.Request(f"{served.url}{path}", data, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            status, body = response.status, response.read()
    except urllib.error.HTTPError as error:
        status, body = error.code, error.read()
    try:
        return status, json.loads(body)
    except ValueError:
        return status, body.decode()


@pytest.mark.parametrize(
    "id", ["game:Sudoku-v0-easy", "game:Wordle-v0", "game:Minesweeper-v0-easy"]
)
@pytest.mark.parametrize("policy", ["sample_random_action", "oracle_action"])
def test_a_remote_environment_has_the_episodes_of_a_local_one(
    served: Served, id: str, policy: str
) -> None:
    with served.remote(id) as remote, gem.make(id) as local:
        for seed in (3, None, None, 2**70, 0):
            assert episode(remote, seed, policy) == episode(local, seed, policy)
        assert remote.render() == local.render()


def test_a_base_seed_gives_the_same_series_of_episodes(served: Served) -> None:
    with served.remote(IDS[0], seed=5) as remote, gem.make(IDS[0], seed=5) as local:
        for _ in range(3):
            assert remote.reset() == local.reset()


def test_an_episode_of_a_series_is_found_without_those_before(served: Served) -> None:
    with served.remote(IDS[0]) as remote, gem.make(IDS[0]) as local:
        for env in (remote, local):
            env.reset(seed=1)
            env.seek(5, 1000)
        assert remote.reset() == local.reset()
        assert remote.reset() == local.reset()
        assert remote.episode_key == (5, 1001)


def test_parameters_and_tools_work_at_the_server(served: Served) -> None:
    id = "game:GuessTheNumber-v0-easy"
    remote = served.remote(id, server_tools="python", max_turns=3)
    local = gem.make(id, tools=["python"], max_turns=3)
    with remote, local:
        for action in ("<python>print(6 * 7)</python>", "\\boxed{5}", "nothing"):
            assert "python" in remote.reset(seed=1)[0]
            local.reset(seed=1)
            assert remote.step(action) == local.step(action)
        for tool in ("search", {"name": "search"}):
            with pytest.raises(ConfigurationError, match="adds no tool 'search'.*it has python"):
                served.remote(id, server_tools=[tool])
        with pytest.raises(UnknownParameterError, match="no parameter 'turns'.*max_turns"):
            served.remote(id, turns=3)
        with pytest.raises(ConfigurationError, match="max_turns must be an integer"):
            served.remote(id, max_turns=0)


def test_tools_and_wrappers_of_make_work_at_the_client(served: Served) -> None:
    id = "game:GuessTheNumber-v0-easy"
    wrapped = {"tools": ["python"], "wrappers": ["episode_tracking"]}
    with served.remote(id, **wrapped) as remote, gem.make(id, **wrapped) as local:
        assert remote.reset(seed=1) == local.reset(seed=1)
        for action in ("<python>print(6 * 7)</python>", "\\boxed{5}"):
            assert remote.step(action) == local.step(action)


def test_options_of_a_reset_reach_the_environment(served: Served) -> None:
    with served.remote(OBLIGING) as remote, gem.make(OBLIGING) as local:
        for options in ({"idx": 3}, {"options": {"name": "a", "of": [1, None]}}, {"options": None}):
            expected = {k: v for k, v in options.items() if k != "options"}
            expected |= options.get("options") or {}
            assert remote.reset(seed=4, **options)[0] == local.reset(seed=4, **expected)[0]
    with (
        served.remote("game:Sudoku-v0-easy") as remote,
        pytest.raises(UnknownParameterError, match="no option 'idx'"),
    ):
        remote.reset(seed=1, idx=4)


def test_a_refused_reset_takes_no_episode_out_of_the_series(served: Served) -> None:
    with served.remote("game:Sudoku-v0-easy") as remote, gem.make("game:Sudoku-v0-easy") as local:
        for env in (remote, local):
            env.reset(seed=1)
            with pytest.raises(UnknownParameterError):
                env.reset(idx=4)
        assert remote.reset() == local.reset()
        assert remote.episode_key == local.episode_key


def test_images_cross_as_they_are(served: Served, tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    Pictures.folder = tmp_path
    with served.remote(PICTURES) as remote, gem.make(PICTURES) as local:
        there, here = remote.reset(seed=1)[0], local.reset(seed=1)[0]
        assert canonical(there) == canonical(here)
        assert isinstance(there, list)
        assert [type(part.get("image")).__name__ for part in there] == [
            "NoneType", *["PngImageFile"] * 5, "bytes", "bytes", "bytes",
        ]  # fmt: skip


@pytest.mark.parametrize("turns", [0, 2])
def test_a_snapshot_is_continued_by_another_connection(served: Served, turns: int) -> None:
    with served.remote(IDS[1]) as env:
        env.reset(seed=1)
        env.reset()
        for _ in range(turns):
            env.step(env.sample_random_action())
        with env.spawn(same_state=True) as child:
            assert child.episode_key == env.episode_key == (1, 1)
            action = env.oracle_action()
            assert child.step(action) == env.step(action)
            assert child.reset() == env.reset()
        with env.spawn(seed=9) as child, gem.make(IDS[1]) as local:
            assert child.reset() == local.reset(seed=9)


def test_an_environment_is_made_again_from_its_spec(served: Served) -> None:
    with served.remote(OBLIGING, greeting="hi") as env:
        spec = gem.spec(env.spec.to_dict())
        with gem.make(spec) as again:
            assert again.reset(seed=1) == env.reset(seed=1)
            assert again.spec == env.spec


def test_what_an_environment_raises_ends_the_session_and_is_told_with_its_cause(
    served: Served,
) -> None:
    with served.remote(OBLIGING) as env:
        for action, message, cause in (
            ("raise", "^ValueError: boom$", "environment"),
            ("tool", "^OSError: the tool is gone$", "tool"),
        ):
            env.reset(seed=1)
            with pytest.raises(RemoteError, match=message) as caught:
                env.step(action)
            assert cause_of(caught.value) == cause
            with pytest.raises(ResetNeededError):
                env.step("x")
        assert env.reset(seed=1) == env.reset(seed=1)
    assert served.free()
    assert len(Obliging.closed) == 3


def test_steps_outside_of_an_episode_are_refused(served: Served) -> None:
    with served.remote(OBLIGING) as env:
        with pytest.raises(ResetNeededError):
            env.step("x")
        env.reset(seed=1)
        with pytest.raises(TypeError, match="action must be a str"):
            env.step(3)  # type: ignore[arg-type]
        assert env.step("cut")[3]
        with pytest.raises(ResetNeededError):
            env.step("x")


def test_a_lost_connection_ends_the_episode_and_reset_connects_again(served: Served) -> None:
    with served.remote(IDS[0]) as env, gem.make(IDS[0]) as local:
        for env_ in (env, local):
            env_.reset(seed=1)
            env_.reset()
        env._connection._socket.socket.shutdown(socket.SHUT_RDWR)
        with pytest.raises(UnreachableError, match=r"connection to http.* was lost"):
            env.step("x")
        with pytest.raises(ResetNeededError):
            env.step("x")
        assert env.reset() == local.reset()
        assert env.episode_key == (1, 2)


def test_a_client_that_goes_away_frees_its_environment(served: Served) -> None:
    env = served.remote(OBLIGING)
    env.reset(seed=1)
    env._connection._socket.socket.shutdown(socket.SHUT_RDWR)
    assert served.free()
    assert Obliging.closed == [1]
    env.close()
    env.close()


def test_an_abandoned_client_frees_its_environment(served: Served) -> None:
    env = served.remote(OBLIGING)
    env.reset(seed=1)
    assert len(served.hub.sessions) == 1
    del env
    gc.collect()
    assert served.free()


def test_an_environment_says_whether_it_can_be_replayed(served: Served) -> None:
    for id, replayable in ((OBLIGING, True), (PICTURES, False)):
        with served.remote(id) as env:
            assert env.replayable is replayable


def test_an_answer_that_nobody_waited_for_is_not_that_of_the_next_message(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served.remote(IDS[0]) as env, gem.make(IDS[0]) as local:
        env.reset(seed=0)

        def interrupted(**_: Any) -> str:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(env._connection._socket, "recv", interrupted)
            with pytest.raises(KeyboardInterrupt):
                env.step("no move")
        assert env.reset(seed=1)[0] == local.reset(seed=1)[0]
        assert env.step("no move") == local.step("no move")


def test_a_forked_process_has_a_connection_of_its_own(served: Served) -> None:
    env = served.remote(OBLIGING)
    env.reset(seed=1)

    def child() -> str:
        try:
            env.step("x")
        except UnreachableError as error:
            said = str(error)
        observation, _ = env.reset(seed=2)
        env.close()
        return f"{said} {observation}"

    with forked(child) as answer, gem.make(OBLIGING) as local:
        said = answer()
        assert "there is no connection" in said
        assert str(local.reset(seed=2)[0]) in said
    local.reset(seed=1)
    assert env.step("x") == local.step("x")
    env.close()


def test_a_pickled_environment_goes_on_with_its_episode(served: Served) -> None:
    with served.remote(OBLIGING, greeting="hi") as env:
        env.reset(seed=1)
        env.step("x")
        with pickle.loads(pickle.dumps(env)) as again:
            assert again.spec == env.spec
            assert again.step("y") == env.step("y")


def test_close_frees_the_session(served: Served) -> None:
    env = served.remote(OBLIGING)
    env.reset(seed=1)
    assert len(served.hub.sessions) == 1
    env.close()
    assert served.free()
    assert Obliging.closed == [1]


def test_idle_sessions_end_with_a_reason() -> None:
    with serving([OBLIGING], session_timeout_s=5.0) as served, served.remote(OBLIGING) as env:
        env.reset(seed=1)
        [session] = served.hub.sessions
        served.do(served.hub.expire, session.used + 4)
        assert env.step("x")[1] == 0.1
        served.do(served.hub.expire, session.used + 6)
        with pytest.raises(UnreachableError, match="no message for 5 s"):
            env.step("x")
        assert served.free()
        assert 'ended_total{reason="idle"} 1' in served.do(served.hub.metrics_text)
        assert env.reset(seed=1)[0].startswith("hello")


def test_a_call_beyond_its_limit_ends_the_session_but_counts_until_it_returns() -> None:
    with serving([OBLIGING], step_timeout_s=1.0, max_envs=1) as served:
        env = served.remote(OBLIGING)
        env.reset(seed=1)
        with pytest.raises(RemoteError, match=r"exceeded its time limit of 1 s"):
            env.step("wait")
        assert settles(lambda: not served.hub.sessions)
        with pytest.raises(UnreachableError, match="all 1 environments are in use, 1 of them in"):
            env.reset(seed=1)
        assert not Obliging.closed
        Obliging.waits.set()
        assert served.free()
        assert Obliging.closed == [1]
        env.reset(seed=1)
        env.close()


def test_limits_of_all_and_of_each_client_are_refused_clearly() -> None:
    for limits, message in (
        ({"max_envs": 2}, "all 2 environments are in use$"),
        ({"max_envs_per_client": 2}, "127.0.0.1 uses all 2 environments that a client may"),
    ):
        with serving([OBLIGING], **limits) as served:
            first, second = served.remote(OBLIGING), served.remote(OBLIGING)
            with pytest.raises(UnreachableError, match=message):
                served.remote(OBLIGING)
            first.close()
            assert settles(lambda: len(served.hub.sessions) == 1)
            assert settles(lambda: served.do(served.hub._environments.total) == 1)
            served.remote(OBLIGING).close()
            second.close()
            assert served.free()


@pytest.mark.parametrize("id", [f"{{}}/{OBLIGING}", f"{{}}/envs/{OBLIGING}"])
def test_a_client_can_wait_for_a_full_server(id: str) -> None:
    prefix = "openenv" if "/envs/" in id else "remote"
    with serving([OBLIGING], max_envs=1) as served:
        first = served.remote(OBLIGING)
        name = f"{prefix}:{id.format(served.url)}"
        with pytest.raises(ServerFullError, match="all 1 environments are in use"):
            gem.make(name)
        with ThreadPoolExecutor() as threads:
            waiting = threads.submit(gem.make, name, wait_s=600)
            assert settles(lambda: 'total{code="503"} 2' in served.do(served.hub.metrics_text))
            first.close()
            with waiting.result(60) as env:
                env.reset(seed=1)
        assert served.free()


def test_a_token_is_needed_where_the_server_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving([OBLIGING], token="right") as served:
        with pytest.raises(ConfigurationError, match="needs a token; the request has no token"):
            served.remote(OBLIGING)
        with pytest.raises(ConfigurationError, match="the request has another token"):
            served.remote(OBLIGING, token="wrong")
        with served.remote(OBLIGING, token="right") as env:
            env.reset(seed=1)
            assert "right" not in str(env.spec)
            with env.spawn() as child:
                child.reset(seed=1)
        with pytest.raises(ConfigurationError, match="token"):
            gem.make(env.spec)
        monkeypatch.setenv("GEM_SERVE_TOKEN", "right")
        gem.make(env.spec).close()
        for path in ("/metrics", "/envs", f"/envs/{OBLIGING}/schema"):
            assert get(served, path)[0] == 401
            assert get(served, path, Authorization="Bearer right")[0] == 200
        assert get(served, "/health") == (200, {"status": "healthy"})


def test_web_pages_may_not_use_a_server_without_a_token(served: Served) -> None:
    status, told = get(served, "/envs", Origin="https://example.org")
    assert (status, told["message"]) == (403, "web pages may use servers with a token only")


def test_ids_that_are_unknown_or_not_offered_are_refused() -> None:
    with serving(["game:Sudoku-*"]) as served:
        with pytest.raises(UnknownEnvError, match="did you mean game:Sudoku-v0-easy"):
            served.remote("game:Sudoko-v0-easy")
        with pytest.raises(ConfigurationError, match="does not offer 'game:Wordle-v0'"):
            served.remote("game:Wordle-v0")
        with pytest.raises(ConfigurationError, match="lets no client set parameters"):
            served.remote("game:Sudoku-v0-easy", max_turns=3)
        with pytest.raises(ConfigurationError, match="adds no tool 'python'.*it has none"):
            served.remote("game:Sudoku-v0-easy", server_tools=["python"])
        statuses = {id: get(served, f"/envs/{id}/schema")[0] for id in ("game:No", *IDS[:2])}
        assert statuses == {"game:No": 404, IDS[0]: 200, IDS[1]: 403}
        assert get(served, "/envs")[1]["ids"] == gem.list_envs("game:Sudoku-")
        assert served.free()
    with pytest.raises(ConfigurationError, match="no environment id matches 'games:"):
        serving(["games:*"]).__enter__()


@pytest.mark.parametrize("name", ["wrappers", "tools", "checked", "id"])
def test_parameters_of_make_are_no_parameters_of_an_environment(served: Served, name: str) -> None:
    with raw(served) as socket:
        told = asked(socket, {"type": "make", "data": {"params": {name: ["os:system"]}}})
        assert f"{name!r} is no parameter of an environment" in told["data"]["message"]


def test_an_oversized_action_is_refused_and_the_episode_goes_on() -> None:
    with serving([OBLIGING], max_action_bytes=10) as served:
        with served.remote(OBLIGING) as env:
            env.reset(seed=1)
            with pytest.raises(
                ConfigurationError, match="action has 12 bytes; this server takes at most 10"
            ):
                env.step("é" * 6)
            assert env.step("é" * 5)[0].startswith("é" * 5)
        with raw(served) as socket:
            asked(socket, {"type": "reset"})
            told = asked(socket, {"type": "step", "data": {"text": "x" * 11}})
            assert (
                told["data"]["message"]
                == "the action has 11 bytes; this server takes at most 10 (--max-action-bytes)"
            )
            assert (
                asked(socket, {"type": "step", "data": {"text": "\0" * 10}})["type"]
                == "observation"
            )
            socket.send(json.dumps({"type": "step", "data": {"text": "x" * 100_000}}))
            with pytest.raises(Exception, match="message too big"):
                socket.recv(60)
        assert served.free()


def test_messages_that_are_none_are_refused_and_the_session_goes_on(served: Served) -> None:
    with raw(served) as socket:
        asked(socket, {"type": "reset", "data": {"seed": 1, "episode_id": "mine"}})
        for message, code, words in (
            ("{", "INVALID_JSON", "not a message"),
            (b"\x00", "INVALID_JSON", "not a message"),
            ("[" * 40_000, "INVALID_JSON", "nested too deeply"),
            ("[]", "INVALID_JSON", "a message is"),
            ({"type": "step", "data": "x"}, "INVALID_JSON", "a message is"),
            ({"type": "jump"}, "UNKNOWN_TYPE", "unknown message type 'jump'; known: reset, step"),
            ({"type": "step"}, "VALIDATION_ERROR", "an action is {'text': '...'}"),
            ({"type": "step", "data": {"text": 1}}, "VALIDATION_ERROR", "an action is"),
            ({"type": "step", "data": {"text": "x", "y": 1}}, "VALIDATION_ERROR", "an action is"),
            ({"type": "call", "data": {"name": "close"}}, "VALIDATION_ERROR", "one of render"),
            ({"type": "make"}, "VALIDATION_ERROR", "made already"),
        ):
            told = asked(socket, message)
            assert told["type"] == "error"
            assert told["data"]["code"] == code
            assert words in told["data"]["message"]
        assert asked(socket, {"type": "step", "data": {"text": "x"}})["data"]["reward"] == 0.1
        for data in (
            {"seed": "1"},
            {"seed": True},
            {"seed": 1.5},
            {"episode_id": 4},
            {"episode": 1},
            {"seed": 1, "episode": -1},
        ):
            told = asked(socket, {"type": "reset", "data": data})
            assert told["data"]["code"] == "VALIDATION_ERROR"
        state = asked(socket, {"type": "state"})["data"]
        assert state == {
            "episode_id": "mine", "step_count": 1, "env_id": OBLIGING, "seed": 1, "episode": 0,
        }  # fmt: skip


def test_draining_lets_running_episodes_end_and_begins_none() -> None:
    with serving([OBLIGING], drain_timeout_s=600.0) as served:
        running, over = served.remote(OBLIGING), served.remote(OBLIGING)
        running.reset(seed=1)
        over.reset(seed=1)
        over.step("end")
        served.do(served.hub.drain)
        assert get(served, "/health")[0] == 503
        with pytest.raises(UnreachableError, match="about to stop"):
            served.remote(OBLIGING)
        with pytest.raises(UnreachableError, match="about to stop"):
            over.reset(seed=1)
        assert running.step("x")[1] == 0.1
        assert running.step("end")[2]
    assert not served.hub.sessions


def test_metrics_are_in_the_format_of_prometheus() -> None:
    with serving([OBLIGING]) as served:
        with served.remote(OBLIGING) as env:
            env.reset(seed=1)
            env.step("x")
            with pytest.raises(RemoteError):
                env.step("tool")
        served.free()
        status, text = get(served, "/metrics")
        assert status == 200
    sample = re.compile(r'[a-z_]+(\{[a-z]+="[^"\n]*"(,[a-z]+="[^"\n]*")*\})? [0-9.e+-]+|# .*')
    assert all(sample.fullmatch(line) for line in text.splitlines())
    for line in (
        f'gem_serve_sessions_opened_total{{id="{OBLIGING}"}} 1',
        'gem_serve_sessions_ended_total{reason="failed"} 1',
        f'gem_serve_failures_total{{id="{OBLIGING}",cause="tool"}} 1',
        'gem_serve_call_seconds_count{call="step"} 2',
        'gem_serve_call_seconds_bucket{call="step",le="+Inf"} 2',
        "gem_serve_sessions 0",
        "gem_serve_environments 0",
        "gem_serve_environments_most 1024",
    ):
        assert line in text.splitlines()


def test_requests_of_http_have_openenvs_routes_but_no_session(served: Served) -> None:
    base = f"/envs/{IDS[0]}"
    schema = get(served, f"{base}/schema")[1]
    assert schema["action"]["required"] == ["text"]
    assert schema.keys() == {"action", "observation", "reset_observation", "state"}
    metadata = get(served, f"{base}/metadata")[1]
    assert metadata["name"] == IDS[0]
    assert metadata["description"]
    status, first = get(served, f"{base}/reset", data=b'{"seed": 3}')
    assert status == 200
    assert first["observation"]["text"] == gem.make(IDS[0]).reset(seed=3)[0]
    assert get(served, f"{base}/step", data=b"{}")[0] == 409
    assert get(served, f"{base}/state")[1]["step_count"] == 0
    assert get(served, f"{base}/mcp", data=b"{}")[1]["jsonrpc"] == "2.0"
    assert get(served, f"{base}/health")[0] == 200
    for body, status in ((b"{", 400), (b"[]", 400), (b" " * 100_000, 413), (b'{"seed": "x"}', 400)):
        assert get(served, f"{base}/reset", data=body)[0] == status
    assert get(served, "/schema")[0] == 404
    assert served.free()


def test_a_server_of_one_environment_has_its_routes_without_a_prefix() -> None:
    with serving([OBLIGING]) as served:
        assert get(served, "/metadata")[1]["name"] == OBLIGING
        with gem.make(f"openenv:{served.url}") as env:
            assert env.reset(seed=1)[0] == gem.make(OBLIGING).reset(seed=1)[0]


@pytest.fixture(scope="module")
def in_processes() -> Iterator[tuple[Served, ProcessExecutor]]:
    """A server whose environments run in another process."""
    executor = ProcessExecutor(1)
    with serving(parameters=True, tools=["python"], executor=executor, step_timeout_s=20.0) as made:
        yield made, executor
        assert made.free()
    executor.close()


def test_a_server_can_run_environments_in_processes(
    in_processes: tuple[Served, ProcessExecutor],
) -> None:
    served, executor = in_processes
    with served.remote(IDS[0]) as remote, gem.make(IDS[0]) as local:
        for seed in (3, None, None, 4):
            assert remote.reset(seed=seed) == local.reset(seed=seed)
            action = local.oracle_action()
            assert remote.step(action) == local.step(action)
        for env in (remote, local):
            env.seek(5, 3)
        assert remote.reset() == local.reset()
        with pytest.raises(NotImplementedError, match="has no oracle_action"):
            remote.oracle_action()
        # A process that is lost costs no episode.
        [pid] = executor.pids()
        os.kill(pid, signal.SIGKILL)
        action = local.oracle_action()
        assert remote.step(action) == local.step(action)
    id = "game:GuessTheNumber-v0-easy"
    with (
        served.remote(id, server_tools="python", max_turns=3) as remote,
        gem.make(id, tools=["python"], max_turns=3) as local,
    ):
        assert remote.reset(seed=1) == local.reset(seed=1)
        for action in ("<python>print(6 * 7)</python>", "\\boxed{5}"):
            assert remote.step(action) == local.step(action)


def test_a_batch_of_environments_runs_in_the_servers_processes(
    in_processes: tuple[Served, ProcessExecutor],
) -> None:
    served, executor = in_processes
    with gem.make(IDS[0]) as local:
        vector = gem.make_vec(IDS[0], num_envs=2, seed=7, vectorization_mode=f"remote:{served.url}")
        other = gem.make_vec(IDS[0], num_envs=2, seed=7)
        try:
            assert vector.reset()[0] == other.reset()[0]
            assert executor.pids()
            local.reset(seed=1)
            action = local.oracle_action()
            assert vector.step([action] * 2)[0] == other.step([action] * 2)[0]
        finally:
            vector.close()
            other.close()


def test_errors_in_processes_are_those_of_threads(
    in_processes: tuple[Served, ProcessExecutor],
) -> None:
    served, _ = in_processes
    with served.remote(OBLIGING, greeting="hi") as remote:
        assert remote.reset(seed=1, idx=2)[0].endswith("[('idx', 2)]")
        for action, cause, message in (
            ("raise", "environment", "^ValueError: boom$"),
            ("tool", "tool", "^OSError: the tool is gone$"),
        ):
            remote.reset(seed=1)
            with pytest.raises(RemoteError, match=message) as caught:
                remote.step(action)
            assert cause_of(caught.value) == cause
    with pytest.raises(UnknownParameterError, match="no parameter 'turns'"):
        served.remote(IDS[0], turns=3)
    with (
        served.remote(IDS[0]) as remote,
        pytest.raises(UnknownParameterError, match="no option 'idx'"),
    ):
        remote.reset(seed=1, idx=4)


def scripted(chat: Any, texts: list[str]) -> Any:
    """A sampler that answers the k-th request of every episode with the k-th text."""
    asked: Counter[int] = Counter()

    def sample(requests: list[Request]) -> list[Sample]:
        samples = []
        for request in requests:
            asked[request.episode] += 1
            text = texts[(asked[request.episode] - 1) % len(texts)]
            ids = chat.encode_text(text) + sorted(chat.stop_ids)[:1]
            samples.append(Sample(ids, None, "stop"))
        return samples

    return sample


def test_rollouts_of_remote_environments_are_those_of_local_ones(
    served: Served, small_tokenizer: Any
) -> None:
    chat = gem.ChatFormat(small_tokenizer)
    budget = gem.Budget(turn_tokens=64, response_tokens=8192, prompt_tokens=4096)
    id = "game:GuessTheNumber-v0-easy"
    played = []
    for name in (id, f"remote:{served.url}/{id}"):
        tasks = gem.TaskSet.parse(f"gem:{name}?n=3&seed=4&max_turns=3")
        sampler = scripted(chat, ["\\boxed{5}", "nothing", "\\boxed{2}"])
        played.append(gem.play_batch(tasks, sampler, chat, budget=budget))
    for local, remote in zip(*played, strict=True):
        assert remote.fingerprint.outcome == local.fingerprint.outcome
        assert remote.training_rows() == local.training_rows()
        assert remote.failure is local.failure is None


def test_a_rollout_counts_a_failure_at_the_server_under_its_cause(
    served: Served, small_tokenizer: Any
) -> None:
    chat = gem.ChatFormat(small_tokenizer)
    budget = gem.Budget(turn_tokens=64, response_tokens=8192, prompt_tokens=4096)
    tasks = [gem.Task(f"remote:{served.url}/{OBLIGING}", seed=1)]
    for action, cause, message in (
        ("raise", "environment", "RemoteError: ValueError: boom"),
        ("tool", "tool", "RemoteError: OSError: the tool is gone"),
    ):
        [trajectory] = gem.play_batch(tasks, scripted(chat, [action]), chat, budget=budget)
        assert trajectory.failure == Failure(cause, message, 2)


def test_the_programs_of_the_page_run(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "serving.md").read_text()
    programs = [p for p in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "import gem" in p]
    assert len(programs) == 2
    monkeypatch.setenv("GEM_SERVE_TOKEN", "...")
    with serving(["game:*"], token="...") as served:
        for program in programs:
            names: dict[str, Any] = {}
            exec(program.replace("http://127.0.0.1:8000", served.url), names)
            assert names["info"]
        assert served.free()
