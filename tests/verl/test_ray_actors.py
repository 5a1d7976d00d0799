"""Real Ray actors that live, are busy, or die while a call waits for them."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from gem.errors import RolloutError
from gem_train.ray import call_while_alive


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray warns without it.
        for attempt in range(2):
            try:
                ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
                break
            except Exception as error:  # Ray has no class for it; it gives a start half a minute.
                if attempt or "timed out during startup" not in str(error):
                    raise
                ray.shutdown()
        yield
        ray.shutdown()


@pytest.fixture
def engines(cluster: None) -> Iterator[list[Any]]:
    class Server:  # In here, Ray sends it by value.
        def __init__(self) -> None:
            self.engine = SimpleNamespace(errored=False, dead_error="out of memory")

        async def pid(self) -> int:
            return os.getpid()

        async def end_engine(self) -> None:
            self.engine.errored = True

        async def block(self, seconds: float) -> None:
            time.sleep(seconds)  # not asyncio's: nothing else is answered meanwhile

    actors = [ray.remote(num_cpus=0)(Server).remote() for _ in range(2)]
    ray.get([actor.pid.remote() for actor in actors])
    yield actors
    for actor in actors:
        ray.kill(actor)


def kill(actor: Any) -> None:
    os.kill(ray.get(actor.pid.remote()), signal.SIGKILL)


def test_what_a_call_returns_or_raises_comes_back(engines: list[Any]) -> None:
    assert call_while_alive(lambda: 7, engines) == 7
    with pytest.raises(ZeroDivisionError):
        call_while_alive(lambda: 1 / 0, engines)


def test_a_call_for_a_dead_actor_is_given_up(engines: list[Any]) -> None:
    def never() -> None:
        kill(engines[1])
        threading.Event().wait()

    with pytest.raises(RolloutError, match=r"has died(?s:.*)Server"):
        call_while_alive(never, engines)


@pytest.mark.nightly
def test_an_error_that_a_death_caused_names_the_actor(engines: list[Any]) -> None:
    def closed() -> None:
        kill(engines[0])
        raise ConnectionError("closed by peer")

    with pytest.raises(RolloutError, match="has died") as error:
        call_while_alive(closed, engines)
    assert isinstance(error.value.__context__, ray.exceptions.RayActorError)


@pytest.mark.nightly
@pytest.mark.parametrize("waits_s", [0, 3600])
def test_an_engine_that_ends_without_its_actor(engines: list[Any], waits_s: float) -> None:
    def fails() -> None:
        threading.Event().wait(3)  # healthy when first asked
        ray.get(engines[0].end_engine.remote())
        threading.Event().wait(waits_s)
        raise ConnectionError("closed by peer")

    with pytest.raises(RolloutError, match="has died. Server: out of memory"):
        call_while_alive(fails, engines, engine="engine")


@pytest.mark.nightly
def test_a_busy_actor_is_not_dead(engines: list[Any]) -> None:
    assert call_while_alive(lambda: ray.get(engines[0].block.remote(4.0)), engines) is None


@pytest.mark.nightly
def test_an_actor_that_cannot_be_reached_for_the_moment_is_not_dead(
    engines: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    get, unreachable = ray.get, ray.exceptions.ActorUnavailableError("connection lost", None)
    asked, asked_again = [], threading.Event()

    def get_or_fail(question: Any) -> Any:
        asked.append(question)
        if len(asked) == 1:
            raise unreachable
        if len(asked) > len(engines):
            asked_again.set()
        return get(question)

    monkeypatch.setattr(ray, "get", get_or_fail)
    assert call_while_alive(lambda: asked_again.wait(120), engines) is True
