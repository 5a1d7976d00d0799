"""A server outlives its clients: what they open is closed, what they send is bounded."""

from __future__ import annotations

import asyncio
import http.client
import json
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from processes import settles
from served import OBLIGING, Obliging, Served, register, serving

import gem
from gem.core import Env
from gem.errors import ConfigurationError, RemoteError, UnknownParameterError, UnreachableError
from gem.executors import pool
from gem.executors.frames import FRAME_BYTES, decode_requests
from gem.executors.recipe import Recipe
from gem.rollout import Budget, ChatFormat, Sample, play_batch
from gem.tasks import Task
from gem.vector import AsyncVectorEnv
from gem_serve.executors.remote import RemoteExecutor

for module in ("starlette", "uvicorn", "websockets"):
    pytest.importorskip(module, reason="of the extra serve")
from gem_serve import door  # noqa: E402
from gem_serve.cli import fitting  # noqa: E402
from gem_serve.door import Outgoing, Turns, bounded  # noqa: E402
from gem_serve.offers import Limits  # noqa: E402

register()
LEAVES = "test:Leaves-v0"
RECIPE = {"id": OBLIGING, "params": {}, "wrappers": []}


class Leaves(Env):
    """Raises what is no ordinary exception, where its actions or options say so."""

    def reset(self, seed: int | None = None, kind: str = "") -> Any:
        super().reset(seed=seed)
        self._leave(kind)
        return "go", {}

    def step(self, action: str) -> Any:
        self._leave(action)
        return action, 0.0, False, False, {}

    def render(self) -> str:
        raise SystemExit(0)

    def _leave(self, kind: str) -> None:
        if kind == "exit":
            sys.exit(0)
        if kind == "cancel":
            raise asyncio.CancelledError
        if kind == "interrupt":
            raise KeyboardInterrupt
        if kind == "deep":
            self.deep: Any = []
            for _ in range(100_000):
                self.deep = [self.deep]
            raise RecursionError(kind)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    if LEAVES not in gem.list_envs():
        gem.register(LEAVES, Leaves)
    with serving(parameters=True, max_envs=16, max_action_bytes=1 << 20) as server:
        yield server
        Obliging.waits.set()
        assert server.free()


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    Obliging.waits = threading.Event()
    yield
    Obliging.waits.set()


def batch(served: Served) -> Any:
    from websockets.sync.client import connect

    url = f"{served.url.replace('http', 'ws')}/batch"
    return connect(url, proxy=None, max_size=None)


def session(served: Served, id: str = LEAVES) -> Any:
    from websockets.sync.client import connect

    return connect(f"{served.url.replace('http', 'ws')}/envs/{id}/ws", proxy=None, max_size=None)


def told(client: Any, *requests: Any) -> list[Any]:
    """Send a frame; return the answers to its first answered request, and those beside it."""
    client.send(json.dumps(requests))
    answers: list[Any] = json.loads(client.recv(60))
    return answers


def asked(client: Any, type: str, /, **data: Any) -> dict[str, Any]:
    client.send(json.dumps({"type": type, "data": data}))
    answer: dict[str, Any] = json.loads(client.recv(60))
    return answer


def healthy(served: Served) -> bool:
    host, _, port = served.url.removeprefix("http://").partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    with suppress(OSError):
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    return False


def gauge(served: Served) -> int:
    total: int = served.do(served.hub._environments.total)
    return total


@pytest.mark.parametrize("key", ["0", "7"])
def test_opening_a_number_again_keeps_no_environment(served: Served, key: str) -> None:
    assert served.free()
    with batch(served) as client:
        for _ in range(40):
            client.send(f'[["open",{key},{json.dumps(RECIPE)},null,null],["load",{key}]]')
            assert json.loads(client.recv(60)) == [[int(key), "loaded"]]
            assert gauge(served) <= 3
        # Opened and never used; opened during a call.
        told(client, ["open", 1, RECIPE, None, None], ["reset", 1, 3, {}])
        client.send(json.dumps([["step", 1, "wait"], ["open", 1, RECIPE, None, None]]))
        Obliging.waits.set()
    assert settles(lambda: gauge(served) == 0)


@pytest.mark.parametrize(
    "frame",
    [
        [["open", 5, RECIPE, None, None], ["open", True, RECIPE, None, None]],
        [["open", 5, RECIPE, None, None], ["open", 1.0, RECIPE, None, None]],
        [["open", 5, RECIPE, None, None], ["open", 6, RECIPE, None, [1]]],
        [["open", 5, RECIPE, None, None], ["open", 6, {**RECIPE, "params": []}, None, None]],
        [["open", 5, RECIPE, None, None], ["vanish", 5]],
        [["open", 5, RECIPE, None, None], ["load", 5], ["load", 5]],
    ],
    ids=["true", "float", "key", "params", "unknown", "twice"],
)
def test_a_frame_that_fails_half_way_keeps_no_environment(served: Served, frame: Any) -> None:
    from websockets.exceptions import ConnectionClosed

    with batch(served) as client, pytest.raises(ConnectionClosed, match="not a frame"):
        client.send(json.dumps(frame))
        while True:
            client.recv(60)
    assert settles(lambda: gauge(served) == 0)
    assert healthy(served)


@pytest.mark.parametrize("text", ["{}", "null", "[" * 40_000, "1" * 5000, "[NaN]", '"'])
def test_what_is_no_frame_is_answered_by_the_end_of_the_connection(
    served: Served, text: str
) -> None:
    from websockets.exceptions import ConnectionClosed

    with batch(served) as client, pytest.raises(ConnectionClosed, match="not a frame"):
        client.send(text)
        client.recv(60)


def test_an_unknown_number_has_an_answer(served: Served) -> None:
    with batch(served) as client:
        [[number, name, error]] = told(client, ["step", 3, "x"])
        assert (number, name) == (3, "error")
        assert "no environment has the number 3" in error[1]


@pytest.mark.parametrize("limit", ["NaN", "Infinity", "-1", "1e999", "1" + "0" * 400])
def test_a_clients_limit_is_no_longer_than_the_servers(limit: str) -> None:
    with serving(step_timeout_s=0.3) as served, batch(served) as client:
        client.send(f'[["open",0,{json.dumps(RECIPE)},{limit},null],["reset",0,1,{{}}]]')
        client.recv(60)
        [[_, name, *_]] = told(client, ["step", 0, "wait"])
        assert name == "timeout"
        Obliging.waits.set()


def test_a_large_message_is_refused_before_it_is_read() -> None:
    assert bounded('{"a": "' + "x,[{" * 300_000 + '"}')
    assert bounded(json.dumps({"text": '\\"[,' * 100_000}))
    for text in (
        json.dumps([["step", 0, "x"]] * 300_000),
        "[" + "[]," * 400_000 + "[]]",
        json.dumps(dict.fromkeys(map(str, range(60_000)))),
        json.dumps(["\\"] * 100_000),
        "[" + ",".join(["1" * 4000] * 400) + "]",
    ):
        with pytest.raises(ValueError, match="values|outside of strings"):
            bounded(text)


@pytest.mark.parametrize("action", ["a", "", "x,y", "[1,", '"\\"', "text " * 50])
@pytest.mark.parametrize("count", [1, 600])
def test_frames_of_gems_own_client_are_never_too_large(action: str, count: int) -> None:
    past = [[1, 2], {"level": 3}, [action] * 60, "digest", action]
    requests: list[Any] = []
    for n in range(count):
        requests.append(["open", n, RECIPE, 600.0, None])
        requests.append(["resume", n, *past] if n % 3 else ["step", n, action])
    sent: list[Any] = []
    for frame in pool._frames(requests, FRAME_BYTES):
        sent += decode_requests(bounded(frame.decode()))
    assert sent == requests


def test_large_messages_leave_the_server_to_the_others(served: Served) -> None:
    from websockets.exceptions import ConnectionClosed

    frame = json.dumps([["open", 0, RECIPE, None, None], *[["step", 0, "x"]] * 300_000])
    with session(served, OBLIGING) as beside:
        asked(beside, "reset", seed=1)
        for _ in range(3):
            with batch(served) as client, pytest.raises(ConnectionClosed, match="50000 values"):
                client.send(frame)
                client.recv(60)
            assert healthy(served)
        dense = {"text": "x", "y": [[]] * 600_000}
        assert asked(beside, "step", **dense)["data"]["code"] == "INVALID_JSON"
        assert asked(beside, "step", text="x" * 900_000)["type"] == "observation"


def test_work_on_large_messages_is_followed_by_as_long_a_rest() -> None:
    """The loop serves others meanwhile: those who wait are not read in a row."""

    async def served() -> tuple[list[str], int]:
        turns, order, ticks = Turns(), list[str](), 0

        def work(text: str) -> str:
            time.sleep(0.05)
            order.append(text[0])
            return text

        async def tick() -> None:
            nonlocal ticks
            while len(order) < 4:
                order_before = len(order)
                await asyncio.sleep(0.001)
                ticks += len(order) == order_before

        large = [turns.take(letter * 5000, work) for letter in "abcd"]
        await asyncio.gather(tick(), *large)
        return order, ticks

    order, ticks = asyncio.run(served())
    assert order == list("abcd")
    assert ticks > 3


def test_a_client_that_never_reads_is_not_read_either() -> None:
    """Its answers, and what the server keeps of them, stay bounded."""

    async def unread() -> int:
        answers, taken = Outgoing(), 0
        stuck = asyncio.Event()

        async def send(socket: Any, text: str) -> bool:
            await stuck.wait()
            return False

        sending = asyncio.create_task(answers.send_to(None, send))  # type: ignore[arg-type]
        with suppress(asyncio.TimeoutError):
            while taken < 10_000:
                answers.put(b"x" * 10_000)
                taken += 1
                await asyncio.wait_for(answers.room(), 0.2)
        stuck.set()
        await sending
        # When the client is gone, the reader goes on and notices it.
        await asyncio.wait_for(answers.room(), 60)
        return taken

    assert asyncio.run(unread()) < 200


def test_calls_of_a_client_that_never_reads_do_not_pile_up(served: Served) -> None:
    with batch(served) as client:
        told(client, ["open", 0, RECIPE, None, None], ["reset", 0, 1, {}])
        raw = client.socket
        raw.setblocking(False)
        frame = json.dumps([["open", 1, RECIPE, None, None], ["reset", 1, 1, {}]]).encode()
        head = bytes([0x81, 0x80 | 126, *len(frame).to_bytes(2, "big"), 0, 0, 0, 0])
        before = threading.active_count()
        with suppress(OSError):
            for _ in range(2000):
                with suppress(BlockingIOError):
                    raw.send((head + frame) * 20)
        assert healthy(served)
        [one] = served.hub.batches
        assert one._host.calls <= served.hub.limits.max_envs + 2
        assert threading.active_count() < before + 20
        raw.close()


def test_connections_leave_no_thread_behind(served: Served) -> None:
    def play() -> None:
        with batch(served) as client:
            told(client, ["open", 0, RECIPE, None, None], ["reset", 0, 1, {}])

    play()
    before = threading.active_count()
    for _ in range(20):
        play()
    assert threading.active_count() <= before + 3


NIGHTLY = [pytest.mark.slow, pytest.mark.nightly]


@pytest.mark.parametrize("count", [pytest.param(10_000, marks=NIGHTLY), 300])
def test_silent_sockets_are_closed_and_the_server_answers(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if count > 1000:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 2 * count + 500), hard))
        count = min(count, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2 - 500)
    monkeypatch.setattr(door, "REQUEST_S", 3.0)
    held: list[socket.socket] = []
    try:
        with serving(max_envs=4) as served:
            host, _, port = served.url.removeprefix("http://").partition(":")
            for n in range(count):
                held.append(socket.create_connection((host, int(port)), timeout=60))
                if n % 3 == 1:  # a request that is never complete
                    with suppress(OSError):
                        held[-1].sendall(b"GET /health HTTP/1.1\r\nHost: x")
                if n % 3 == 2:  # a whole one, and then the beginning of another
                    with suppress(OSError):
                        held[-1].sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET")
            assert healthy(served)
            for each in held:
                each.settimeout(60)
                with suppress(OSError):
                    while each.recv(4096):
                        pass
            assert healthy(served)
    finally:
        for each in held:
            each.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_more_silent_sockets_than_allowed_push_out_the_oldest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(door, "REQUEST_S", 10_000.0)
    with serving(most_idle=8) as served:
        host, _, port = served.url.removeprefix("http://").partition(":")
        held = [socket.create_connection((host, int(port)), timeout=60) for _ in range(30)]
        assert healthy(served)
        # The oldest are closed long before their time is over.
        assert [each.recv(1) for each in held[:10]] == [b""] * 10
        for each in held:
            each.close()


def test_a_body_that_never_comes_takes_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gem_serve.app.REQUEST_S", 0.5)
    with serving(max_envs=1) as served:
        host, _, port = served.url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), timeout=60) as client:
            path = f"/envs/{OBLIGING}/reset"
            client.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n".encode())
            assert client.recv(4096).startswith(b"HTTP/1.1 408")
        assert gauge(served) == 0


def test_connections_without_environments_are_limited_and_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gem_serve.batches._EMPTY_S", 0.5)
    with serving(max_envs=2) as served:
        first, second = batch(served).__enter__(), batch(served).__enter__()
        executor = RemoteExecutor(served.url, wait_s=0)
        with pytest.raises(Exception, match="connections are in use"):
            AsyncVectorEnv([Recipe(OBLIGING)], executor)
        executor.close()
        assert settles(lambda: not served.hub.batches)
        for each in (first, second):
            each.close()


@pytest.mark.parametrize("kind", ["exit", "cancel", "interrupt", "deep"])
def test_what_an_environment_raises_reaches_the_client_and_is_counted(
    served: Served, kind: str
) -> None:
    def failures() -> list[str]:
        lines = served.do(served.hub.metrics_text).splitlines()
        counted = [line for line in lines if line.startswith("gem_serve_failures_total")]
        return [line for line in counted if LEAVES in line]

    for ask in (("reset", {"kind": kind}), ("step", {"text": kind})):
        before = failures()
        with session(served) as client:
            if ask[0] == "step":
                asked(client, "reset", seed=1)
            answer = asked(client, ask[0], **ask[1])
            assert answer["data"]["code"] == "EXECUTION_ERROR"
            assert answer["data"]["cause"] == "environment"
        assert failures() != before
    with batch(served) as client:
        recipe = {**RECIPE, "id": LEAVES}
        told(client, ["open", 0, recipe, None, None], ["reset", 0, 1, {}])
        [[_, name, _]] = told(client, ["step", 0, kind])
        assert name == "error"
        [[_, name, *_]] = told(client, ["reset", 0, 1, {}])
        assert name == "reset"
    assert healthy(served)


def test_a_reset_of_http_says_what_failed(served: Served) -> None:
    import urllib.error
    import urllib.request

    url = f"{served.url}/envs/{LEAVES}/reset"
    request = urllib.request.Request(url, json.dumps({"kind": "exit"}).encode())
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=60)
    assert caught.value.code == 500
    assert json.loads(caught.value.read())["code"] == "EXECUTION_ERROR"


def test_an_option_that_no_reset_has_is_refused_and_the_session_goes_on(served: Served) -> None:
    with session(served) as client:
        for name in ("self", "nonsense"):
            answer = asked(client, "reset", **{name: 1})
            assert answer["data"]["code"] == "VALIDATION_ERROR"
        assert asked(client, "reset", seed=1)["type"] == "observation"
    with batch(served) as client:
        recipe = {**RECIPE, "id": LEAVES}
        for name in ("self", "seed", "nonsense"):
            request = ["reset", 0, 1, {name: 1}]
            [[_, _, error]] = told(client, ["open", 0, recipe, None, None], request)
            assert error[0] == UnknownParameterError.__name__


def test_the_scheme_of_a_token_is_read_in_any_case() -> None:
    with serving(token="secret") as served:
        for scheme, status in (("Bearer", 200), ("bearer", 200), ("BEARER", 200), ("Basic", 401)):
            host, _, port = served.url.removeprefix("http://").partition(":")
            connection = http.client.HTTPConnection(host, int(port), timeout=60)
            connection.request("GET", "/envs", headers={"Authorization": f"{scheme} secret"})
            assert connection.getresponse().status == status


def test_limits_that_descriptors_do_not_allow_are_lowered_with_a_warning() -> None:
    """In a process of its own: limits of descriptors are of the whole process."""
    program = (
        "import resource, sys\n"
        "from gem_serve.cli import fitting\n"
        "from gem_serve.offers import Limits\n"
        "hard = int(sys.argv[1])\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))\n"
        "limits, idle = fitting(Limits(max_envs=int(sys.argv[2])))\n"
        "print(limits.max_envs, idle, resource.getrlimit(resource.RLIMIT_NOFILE)[0])\n"
    )

    def ran(hard: int, most: int) -> tuple[list[int], str]:
        done = subprocess.run(
            [sys.executable, "-c", program, str(hard), str(most)],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        return [int(word) for word in done.stdout.split()], done.stderr

    (most, _, soft), said = ran(8000, 1024)
    assert (most, said) == (1024, "")
    assert 512 < soft <= 8000
    (most, idle, soft), said = ran(1024, 1024)
    assert soft == 1024
    assert 0 < 2 * (most + idle) < 1024
    assert f"enough for {most} environments" in said


def test_fitting_limits_are_left_alone() -> None:
    assert fitting(Limits(max_envs=1))[0] == Limits(max_envs=1)


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_an_episode_of_a_huge_number_takes_no_time(executor: str) -> None:
    from gem.executors.process import ProcessExecutor

    runs = None if executor == "thread" else ProcessExecutor(1)
    try:
        with serving(executor=runs) as served, session(served, "game:Sudoku-v0-easy") as client:
            for episode in (10**9, 10**9 + 1, 3):
                answer = asked(client, "reset", seed=1, episode=episode)
                assert answer["type"] == "observation"
                assert answer["data"]["metadata"]["episode"] == episode
    finally:
        if runs is not None:
            runs.close()


@pytest.mark.parametrize(
    ("kind", "raised"), [("exit", "SystemExit"), ("interrupt", "KeyboardInterrupt")]
)
def test_rollouts_of_a_server_survive_what_its_environments_raise(
    served: Served, small_tokenizer: Any, kind: str, raised: str
) -> None:
    from gem_serve.executors.remote import RemoteExecutor

    executor, said = RemoteExecutor(served.url), small_tokenizer.encode(kind)
    try:
        left, stayed = play_batch(
            [Task(LEAVES, 1), Task(OBLIGING, 1)],
            lambda requests: [Sample([*said], None, "stop") for _ in requests],
            ChatFormat(small_tokenizer),
            budget=Budget(turn_tokens=16, response_tokens=128, prompt_tokens=2048, turns=2),
            executor=executor,
        )
        assert raised in str(left.failure)
        assert (stayed.failure, [turn.text for turn in stayed.turns]) == (None, [kind, kind])
    finally:
        executor.close()


def test_rendering_that_exits_is_an_error_of_the_call(served: Served) -> None:
    env = served.remote(LEAVES)
    env.reset(seed=1)
    with pytest.raises(RemoteError, match="SystemExit"):
        env.render()


def test_a_server_that_cannot_be_reached_is_named() -> None:
    with pytest.raises((UnreachableError, ConfigurationError)):
        gem.make("remote:http://127.0.0.1:1/x")
