"""OpenEnv itself: its client and validation against our server, its server against our client."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import settles
from served import OBLIGING, Served, register, serving

import gem
from gem.errors import RemoteError, ServerFullError

for module in ("starlette", "uvicorn", "websockets"):
    pytest.importorskip(module, reason="of the extra serve")
register()

OPENENV = "openenv==0.10.0"
ID = "game:GuessTheNumber-v0-easy"
# Its dependencies come over a network.
pytestmark = [pytest.mark.timeout(3600), pytest.mark.slow]

PLAY = """
import asyncio, json, sys
from openenv import GenericEnvClient

url, id, full, token = sys.argv[1:]
headers = {"Authorization": f"Bearer {token}"}
seen = []
with GenericEnvClient(base_url=f"{url}/envs/{id}", headers=headers).sync() as client:
    for seed in (3, 3, 4):
        result = client.reset(seed=seed, episode_id=f"episode {seed}")
        episode = [result.observation["text"], result.reward, result.done]
        for action in ("\\\\boxed{5}", "nothing", "\\\\boxed{2}"):
            if not result.done:
                result = client.step({"text": action})
                episode += [result.observation["text"], result.reward, result.done]
                episode += [result.metadata["terminated"], result.metadata["truncated"]]
        seen.append([episode, client.state()])
    errors = []
    for call in (
        lambda: client.reset(seed="3"),
        lambda: client.reset(sead=3),
        lambda: client.step({"number": 5}),
    ):
        try:
            call()
        except RuntimeError as error:
            errors.append(str(error))

async def play():
    async with GenericEnvClient(base_url=f"{url}/envs/{id}", headers=headers) as client:
        result = await client.reset(seed=3)
        return result.observation["text"]

seen.append(asyncio.run(play()))
for client in (
    GenericEnvClient(base_url=f"{url}/envs/{full}", headers=headers),
    GenericEnvClient(base_url=f"{url}/envs/{id}"),
):
    try:
        with client.sync() as first:
            first.reset()
            with first.new_session() as second:
                second.reset()
    except (RuntimeError, ConnectionError) as error:
        errors.append(str(error))
print(json.dumps([seen, errors]))
"""

SERVE = """
import sys
import uvicorn
from openenv.core import Action, Environment, Observation, State
from openenv.core.env_server import create_fastapi_app


class Said(Action):
    message: str


class Heard(Observation):
    echo: str = ""


class Echo(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, **kwargs):
        self._state = State(episode_id=episode_id)
        return Heard(echo=f"say something ({seed})")

    def step(self, action, timeout_s=None, **kwargs):
        if action.message == "raise":
            raise ValueError("boom")
        self._state.step_count += 1
        done = self._state.step_count == 2
        return Heard(echo=action.message, reward=0.5, done=done, metadata={"seen": 1})

    @property
    def state(self):
        return self._state


app = create_fastapi_app(Echo, Said, Heard, max_concurrent_envs=2)
uvicorn.run(app, port=int(sys.argv[1]), log_level="warning")
"""


@pytest.fixture(scope="module")
def openenv() -> dict[str, str]:
    """The environment variables of a Python that has OpenEnv, installed once into the cache."""
    cache = Path(os.environ.get("GEM_CACHE", "~/.cache/gem-core")).expanduser()
    version = "-".join(map(str, sys.version_info[:2]))
    folder = cache / "openenv" / f"{OPENENV}-python{version}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Other workers may install it at the same time: the folder appears when it is complete.
        with tempfile.TemporaryDirectory(dir=folder.parent) as made:
            pip = [sys.executable, "-m", "pip", "install", "-q", "--no-compile"]
            part = Path(made) / "part"
            for _ in range(3):
                run = subprocess.run(
                    [*pip, "--target", str(part), OPENENV],
                    capture_output=True,
                    text=True,
                    timeout=1200,
                    check=False,
                )
                if run.returncode == 0:
                    break
                shutil.rmtree(part, ignore_errors=True)
            assert run.returncode == 0, run.stderr
            if not folder.exists():
                part.rename(folder)
    return {**os.environ, "PYTHONPATH": str(folder)}


@pytest.fixture
def served() -> Iterator[Served]:
    with serving([ID, OBLIGING], token="t", max_envs=1) as running:
        yield running
        assert running.free()


def local(seed: int) -> list[Any]:
    """What OpenEnv's client must see of an episode."""
    with gem.make(ID) as env:
        seen: list[Any] = [env.reset(seed=seed)[0], None, False]
        over = False
        for action in ("\\boxed{5}", "nothing", "\\boxed{2}"):
            if not over:
                text, reward, terminated, truncated, _ = env.step(action)
                over = terminated or truncated
                seen += [text, reward, over, terminated, truncated]
    return seen


def test_openenvs_client_plays_our_environments(openenv: dict[str, str], served: Served) -> None:
    run = subprocess.run(
        [sys.executable, "-c", PLAY, served.url, ID, OBLIGING, "t"],
        env=openenv,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    (*episodes, alone), errors = json.loads(run.stdout)
    assert [episode for episode, _ in episodes] == [local(3), local(3), local(4)]
    for (_, state), seed in zip(episodes, (3, 3, 4), strict=True):
        assert state["episode_id"] == f"episode {seed}"
        assert (state["seed"], state["episode"], state["env_id"]) == (seed, 0, ID)
        assert state["step_count"] >= 1
    assert alone == local(3)[0]
    for error, words in zip(
        errors,
        (
            "seed must be an integer or null.*VALIDATION_ERROR",
            "no option 'sead'.*VALIDATION_ERROR",
            "an action is .*VALIDATION_ERROR",
            "all 1 environments are in use.*CAPACITY_REACHED",
            "HTTP 401",
        ),
        strict=True,
    ):
        assert re.search(words, error), error


def test_openenvs_validation_passes(openenv: dict[str, str]) -> None:
    with serving([ID, OBLIGING]) as served:
        run = subprocess.run(
            [sys.executable, "-m", "openenv.cli", "validate", "--url", f"{served.url}/envs/{ID}"],
            env=openenv,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.rstrip().endswith("Verdict: PASS"), run.stdout
    assert "FAIL" not in run.stdout


def test_our_client_plays_an_environment_of_openenv(
    openenv: dict[str, str], tmp_path: Path
) -> None:
    from mcp_servers import await_port, free_port

    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(port)],
        env=openenv,
        stderr=(tmp_path / "log").open("w"),
    )
    try:
        await_port(port)
        id = f"openenv:http://127.0.0.1:{port}"
        with gem.make(id) as env:
            assert (env.action_field, env.observation_field) == ("message", "echo")
            assert env.reset(seed=7) == ("say something (7)", {})
            assert env.step("hello") == ("hello", 0.5, False, False, {"seen": 1})
            assert env.step("again") == ("again", 0.5, True, False, {"seen": 1})
            env.reset(seed=7)
            with pytest.raises(RemoteError, match="boom"):
                env.step("raise")
            assert env.reset(seed=8)[0] == "say something (8)"
            with env.spawn() as second:
                second.reset(seed=9)
                with pytest.raises(ServerFullError):
                    gem.make(id)
        assert settles(lambda: gem.make(id).close() is None)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def test_the_programs_of_the_page_run(openenv: dict[str, str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "serving.md").read_text()
    programs = [p for p in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "openenv" in p]
    programs = [program for program in programs if "GenericEnvClient" in program]
    assert len(programs) == 2
    use = "env = Guess(); env.reset(seed=3, prompt='p'); print(env.guess(5), env.get_reward())"
    with serving(["game:*"]) as served:
        program = "\n".join([*programs, use]).replace("http://127.0.0.1:8000", served.url)
        run = subprocess.run(
            [sys.executable, "-c", program],
            env=openenv,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("Guess The Number") == 1
    assert re.search(r" -?[0-9.]+$", run.stdout.rstrip())
