"""Environments of a server, many on one connection: the same episodes, limits, lost connections."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from processes import settles
from served import OBLIGING, Obliging, Served, register, serving

from gem.errors import ConfigurationError
from gem.executors.held import EnvFailedError
from gem.executors.recipe import Recipe
from gem.rollout import Budget, Sample
from gem.vector import AsyncVectorEnv, VectorEnv, make_vec
from gem_serve.executors.remote import RemoteExecutor

for module in ("starlette", "uvicorn", "websockets"):
    pytest.importorskip(module, reason="of the extra serve")
register()
EASY = "game:GuessTheNumber-v0-easy"


@pytest.fixture(autouse=True)
def fresh() -> None:
    Obliging.waits = threading.Event()
    Obliging.closed = []


@pytest.fixture
def served() -> Iterator[Served]:
    with serving(parameters=True, tools=["python"], token="secret") as server:
        yield server
        Obliging.waits.set()
        assert server.free()


def vector(served: Served, env_id: str = EASY, num_envs: int = 3, **arguments: Any) -> Any:
    wait = arguments.pop("wait_s", 0.0)
    token = arguments.pop("token", "secret")
    params = arguments.pop("params", {})
    executor = RemoteExecutor(served.url, token=token, wait_s=wait)
    return AsyncVectorEnv([Recipe(env_id, params)] * num_envs, executor, **arguments)


def shown(env: VectorEnv, turns: int) -> list[Any]:
    seen = []
    for turn in range(turns):
        actions = [f"\\boxed{{{(turn * 3 + i) % 10 + 1}}}" for i in range(env.num_envs)]
        observations, rewards, terminated, truncated, infos = env.step(actions)
        seen.append([observations, *(a.tolist() for a in (rewards, terminated, truncated)), infos])
    return seen


@pytest.mark.parametrize("env_id", [EASY, "game:Sudoku-v0-easy"])
def test_episodes_are_those_of_this_process(served: Served, env_id: str) -> None:
    expected = make_vec(env_id, num_envs=5, seed=7)
    with vector(served, env_id, 5, seed=7) as remote:
        assert remote.reset() == expected.reset()
        assert shown(remote, 12) == shown(expected, 12)


def test_a_lost_connection_loses_nothing(served: Served) -> None:
    expected = make_vec(EASY, num_envs=5, seed=7)
    with vector(served, num_envs=5, seed=7, wait_s=60.0) as remote:
        assert remote.reset() == expected.reset()
        for _ in range(3):
            assert shown(remote, 2) == shown(expected, 2)
            for batch in list(served.hub.batches):
                served.do(batch.end, "failed", "a test ends it")
            assert settles(lambda: not served.hub.batches)
        assert shown(remote, 2) == shown(expected, 2)


def test_parameters_and_tools_are_the_server_s(served: Served) -> None:
    with vector(served, OBLIGING, 1, params={"greeting": "good day"}) as remote:
        assert remote.reset()[0][0].startswith("good day")
    with vector(served, EASY, 1, params={"tools": ["python"]}) as remote:
        assert "python" in remote.reset()[0][0]
    with pytest.raises(ConfigurationError, match="adds no tool 'search'"):
        vector(served, EASY, 1, params={"tools": ["search"]})
    with pytest.raises(ConfigurationError, match="adds no wrappers"):
        executor = RemoteExecutor(served.url, token="secret")
        AsyncVectorEnv([Recipe(EASY, {}, ["episode_tracking"])], executor)


def test_an_id_that_is_registered_otherwise_on_the_server_is_refused(served: Served) -> None:
    class Otherwise(Recipe):
        def to_dict(self) -> dict[str, Any]:
            return {**super().to_dict(), "registered": ["elsewhere:Guess", {"max_turns": 3}]}

    executor = RemoteExecutor(served.url, token="secret")
    with pytest.raises(ConfigurationError, match=r"is another environment on the server.*elsewhe"):
        AsyncVectorEnv([Otherwise(EASY)], executor)


def test_limits_of_the_server_hold(served: Served) -> None:
    with serving([EASY, OBLIGING], max_envs=4, max_action_bytes=100, step_timeout_s=2.0) as small:
        with vector(small, EASY, 3) as remote:
            remote.reset()
            with pytest.raises(ConfigurationError, match="an action has 101 bytes; 100 are"):
                remote.step({0: "x" * 101})
            with pytest.raises(EnvFailedError, match="all 4 environments are in use"):
                vector(small, EASY, 2)
        with pytest.raises(ConfigurationError, match="does not offer"):
            vector(small, "game:Sudoku-v0-easy", 1)
        with pytest.raises(ConfigurationError, match="lets no client set parameters"):
            vector(small, EASY, 1, params={"max_turns": 3})
        assert small.free()
        with vector(small, OBLIGING, 2) as remote:
            remote.reset()
            _, _, _, truncated, infos = remote.step(["wait", "x"])
            assert truncated.tolist() == [True, False]
            assert "time limit" in infos[0]["failure"].message
            Obliging.waits.set()


def test_what_is_no_server_is_named(served: Served) -> None:
    with pytest.raises(ConfigurationError, match="another token"):
        vector(served, token="wrong")
    with pytest.raises(ConfigurationError, match="address of a server"):
        RemoteExecutor("localhost:8000")
    gone = RemoteExecutor("http://127.0.0.1:9", wait_s=0.0)
    with pytest.raises(EnvFailedError, match="does not respond"):
        AsyncVectorEnv([Recipe(EASY)], gone)


def test_a_server_that_stops_lets_episodes_end(served: Served) -> None:
    with (
        serving([OBLIGING], drain_timeout_s=60.0) as stopping,
        vector(stopping, OBLIGING, 2) as remote,
    ):
        remote.reset()
        stopping.do(stopping.hub.drain)
        assert not remote.step(["x", "x"])[3].any()
        _, _, terminated, _, infos = remote.step(["end", "end"])
        assert terminated.all()
        # The episodes that would follow do not begin: the server refuses them, or has ended.
        for info in infos:
            assert re.search("about to stop|does not respond|was lost", info["failure"].message)


def test_frames_that_are_none_end_the_connection(served: Served) -> None:
    from contextlib import ExitStack

    from websockets.exceptions import ConnectionClosed

    from gem_serve.connection import connected

    for text in ("nonsense", '[["open"]]', "[1]", '[["run", 1, 2]]'):
        with ExitStack() as stack, pytest.raises(ConnectionClosed, match="not a frame|sent 1011"):
            recipe = {"id": EASY, "params": {}, "wrappers": []}
            connection = connected(stack, f"{served.url}/batch", "secret")
            connection.send(json.dumps([["open", 1, recipe, 1, None]]))
            connection.send(text)
            connection.recv(timeout=60)


def test_rollouts_take_environments_of_a_server(served: Served, small_tokenizer: Any) -> None:
    from gem.rollout import ChatFormat, play_batch
    from gem.tasks import Task

    def play(executor: Any) -> Any:
        trajectories = play_batch(
            [Task(EASY, seed) for seed in range(4)],
            lambda requests: [Sample([9], None, "stop") for _ in requests],
            ChatFormat(small_tokenizer),
            budget=Budget(turn_tokens=8, response_tokens=2048, prompt_tokens=2048),
            executor=executor,
        )
        return [(t.end, t.rewards, [turn.observation for turn in t.turns]) for t in trajectories]

    remote = RemoteExecutor(served.url, token="secret")
    try:
        assert play(remote) == play("thread")
    finally:
        remote.close()
