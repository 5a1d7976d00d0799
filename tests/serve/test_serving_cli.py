"""`python -m gem serve`: its address, signals and errors."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest
from processes import settles

import gem
from gem.__main__ import main
from gem.errors import UnreachableError
from gem_serve.cli import listen
from gem_serve.offers import Limits
from gem_serve.sessions import Hub

for module in ("starlette", "uvicorn", "websockets"):
    pytest.importorskip(module, reason="of the extra serve")

ID = "game:GuessTheNumber-v0-easy"


@contextlib.contextmanager
def command(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The running command and its URL."""
    run = subprocess.Popen(
        [sys.executable, "-m", "gem", "serve", "--port", "0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "GEM_SERVE_TOKEN": "t"},
    )
    try:
        assert run.stdout is not None
        said = run.stdout.readline()
        assert said.startswith(f"{ID} at http://127.0.0.1:"), said
        yield run, said.split(" at ")[1].partition("/envs/")[0]
    finally:
        run.kill()
        run.communicate()


def test_sigterm_lets_the_running_episode_end() -> None:
    with command("--ids", ID) as (run, url):
        env = gem.make(f"remote:{url}/{ID}", token="t")
        env.reset(seed=1)
        run.send_signal(signal.SIGTERM)

        def refused() -> bool:
            try:
                gem.make(f"remote:{url}/{ID}", token="t").close()
            except UnreachableError as error:
                return "about to stop" in str(error)
            return False

        assert settles(refused)
        assert run.poll() is None
        while not any(env.step(env.oracle_action())[2:4]):
            pass
        assert run.wait(60) == 0
        assert run.stderr is not None
        assert run.stderr.read() == ""


@pytest.mark.parametrize("signals", [(signal.SIGTERM,), (signal.SIGINT, signal.SIGINT)])
def test_what_does_not_end_is_ended(signals: tuple[signal.Signals, ...]) -> None:
    limit = "600" if len(signals) == 2 else "0"
    with command("--ids", ID, "--drain-timeout-s", limit) as (run, url):
        env = gem.make(f"remote:{url}/{ID}", token="t")
        env.reset(seed=1)
        for sent in signals:
            run.send_signal(sent)
            if len(signals) == 2:
                # Signals that are not yet handled are one.
                assert settles(lambda: not accepts(url))
        assert run.wait(60) in (0, 130, -signal.SIGINT)
        with pytest.raises(UnreachableError, match="was lost|about to stop"):
            env.step("x")


def accepts(url: str) -> bool:
    """Whether the server takes a session."""
    try:
        gem.make(f"remote:{url}/{ID}", token="t").close()
    except UnreachableError:
        return False
    return True


def test_errors_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for options, words in (
            (["--port", str(port)], f"cannot listen at 127.0.0.1, port {port}: "),
            (["--port", "99999"], "port must be an integer from 0 to 65535, got 99999"),
            (["--host", "nowhere.invalid"], "cannot listen at nowhere.invalid, port 8000: "),
            (["--ids", "nothing:*"], "no environment id matches 'nothing:*'"),
            (["--executor", "procces"], "unknown executor 'procces'; known: thread, process"),
            (["--max-envs", "0"], "max_envs must be at least 1, got 0"),
            (["--session-timeout-s", "0"], "session_timeout_s must be above 0, got 0.0"),
            (["--step-timeout-s", "nan"], "step_timeout_s must be finite, got nan"),
        ):
            assert main(["serve", *options]) == 2
            said = capsys.readouterr().err
            assert said.startswith(f"error: {words}")
            assert said.count("\n") == 1


@pytest.mark.parametrize("module", ["starlette", "uvicorn", "websockets"])
def test_a_missing_extra_is_named(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    assert main(["serve"]) == 2
    assert "pip install 'gem-core[serve]'" in capsys.readouterr().err
    if module == "websockets":
        monkeypatch.setitem(sys.modules, "websockets.sync.client", None)
        assert main(["play", "remote:http://127.0.0.1:1/game:X"]) == 2
        assert "pip install 'gem-core[serve]'" in capsys.readouterr().err


def test_other_machines_are_warned_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gem_serve.cli.run", finished)
    for token, warned in ((None, True), ("t", False)):
        given = [] if token is None else ["--token", token]
        assert main(["serve", "--host", "0.0.0.0", "--port", "0", *given]) == 0
        assert ("anybody who reaches 0.0.0.0:" in capsys.readouterr().err) == warned


def test_connections_send_small_messages_at_once() -> None:
    with listen("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def finished(*_: object) -> None:
    """A server that ends at once."""


def test_the_commands_defaults_are_those_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    hubs: list[Hub] = []

    async def taken(hub: Hub, *_: object) -> None:
        hubs.append(hub)

    monkeypatch.setattr("gem_serve.cli.run", taken)
    assert main(["serve", "--port", "0"]) == 0
    [hub] = hubs
    assert hub.limits == Limits()
    assert hub.offer.ids == tuple(gem.list_envs())
    assert (hub.offer.parameters, hub.offer.tools, hub.executor) == (False, (), None)


def test_a_remote_environment_can_be_played(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GEM_SERVE_TOKEN", "t")
    with command("--ids", ID) as (_, url):
        assert main(["play", f"remote:{url}/{ID}", "--seed", "1", "--policy", "oracle"]) == 0
        remote = capsys.readouterr().out
        assert main(["play", ID, "--seed", "1", "--policy", "oracle"]) == 0
        assert remote.splitlines()[1:] == capsys.readouterr().out.splitlines()[1:]
