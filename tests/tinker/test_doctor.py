"""The doctor says in words what is wrong; the probe asks a server what it can do."""

from __future__ import annotations

import asyncio
import importlib.metadata
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
import tinker

import gem_train.doctor
from gem.errors import ConfigurationError, UnreachableError, UnsupportedVersionError
from gem_tinker import TRAINER, doctor, server
from gem_tinker.settings import Config, read
from gem_train.doctor import examine


def config(*arguments: str) -> Config:
    return read(["model=m", "train=gem:test:Scripted-v0", *arguments])


@pytest.fixture
def listening() -> Iterator[str]:
    """The address of something that answers everything with 404."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def lines(*checks: Any) -> list[str]:
    return [line for passed, line in examine(checks) if not passed]


def test_an_sdk_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(gem_train.doctor, "version", absent)
    [line] = lines(TRAINER.describe)
    assert "tinker is not installed" in line
    assert "pip install" in line
    assert "only the direct loop" in doctor.check_cookbook_hooks()


def test_an_sdk_of_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gem_train.doctor, "version", lambda name: "0.25.0")
    [line] = lines(TRAINER.describe)
    assert "0.25.0" in line
    assert ">=0.38,<0.40" in line


def test_a_hook_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not lines(doctor.check_hooks, doctor.check_cookbook_hooks)
    monkeypatch.delattr(tinker.TrainingClient, "optim_step")
    [line] = lines(doctor.check_hooks)
    assert "needs tinker.TrainingClient.optim_step(self, optim_params)" in line
    assert "has none; supported is tinker >=0.38,<0.40" in line


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("seed=1", None),
        ("model=another", "model: init has weights of m, got 'another'"),
        ("lora_rank=4", "lora_rank: init has rank 32, got 4"),
    ],
)
def test_weights_to_begin_with_are_of_the_model_and_rank_that_are_stated(
    argument: str, message: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Rest:
        def __init__(self, base_url: str | None) -> None:
            pass

        async def get_weights_info_by_tinker_path(self, tinker_path: str) -> Any:
            assert tinker_path == "tinker://run/weights/last"
            return tinker.types.WeightsInfoResponse(base_model="m", is_lora=True, lora_rank=32)

    monkeypatch.setattr(tinker, "RestClient", Rest)
    name, _, value = argument.partition("=")
    asked = config("init=tinker://run/weights/last")
    asked = replace(asked, **{name: value if name == "model" else int(value)})
    if message is None:
        asyncio.run(server.check_init(asked))
        return
    with pytest.raises(ConfigurationError, match=message):
        asyncio.run(server.check_init(asked))


def test_a_hook_with_other_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tinker.TrainingClient, "forward_backward", lambda self, data: None)
    with pytest.raises(UnsupportedVersionError, match=r"_config\), but .* has \(self, data\)"):
        doctor.check_hooks()


def test_a_package_that_is_only_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [])
    [line] = lines(*doctor.CHECKS)
    assert "not installed" in line


def test_a_server_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_BASE_URL", "http://127.0.0.1:9")
    [line] = lines(doctor.check_server)
    assert "http://127.0.0.1:9 cannot be reached" in line
    assert "TINKER_BASE_URL" in line
    with pytest.raises(UnreachableError, match="cannot be reached"):
        asyncio.run(server.probe(config()))


def test_no_key(monkeypatch: pytest.MonkeyPatch, listening: str, tmp_path: Any) -> None:
    monkeypatch.setenv("TINKER_BASE_URL", listening)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    [line] = lines(doctor.check_server)
    assert "TINKER_API_KEY" in line
    with pytest.raises(ConfigurationError, match="TINKER_API_KEY"):
        asyncio.run(server.probe(config()))


def test_the_doctor_ends_with_the_first_problem(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TINKER_BASE_URL", "http://127.0.0.1:9")
    assert gem_train.doctor.doctor(doctor.CHECKS) == 1
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1].startswith("PROBLEM")
    assert all(line.startswith("ok") for line in printed[:-1])


SUM, MEAN = [2.0, 2.0], [2.0 * 15 / 4, 2.0]


@pytest.mark.parametrize(("norms", "found"), [(SUM, "skyrl_train"), (MEAN, "skyrl_jax")])
def test_a_server_s_way_of_adding_up_is_measured(norms: list[float], found: str) -> None:
    assert server.judge(norms) == found


@pytest.mark.parametrize(
    ("norms", "message"),
    [
        ([3.0, 2.0], "unknown way"),
        ([0.0, 0.0], "unknown way"),
        ([], "reports no gradient norm"),
    ],
)
def test_a_way_that_cannot_be_told_is_refused(norms: list[float], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        server.judge(norms)


@pytest.mark.parametrize("stated", ["hosted", "skyrl_train", "skyrl_jax"])
def test_a_way_that_is_stated_needs_no_training_client(
    stated: str, listening: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def models(*_: Any) -> dict[str, int | None]:
        return {"m": 8192}

    def none(*_: Any, **__: Any) -> None:
        raise AssertionError("a client was made")

    monkeypatch.setenv("TINKER_BASE_URL", listening)
    monkeypatch.setattr(server, "models", models)
    monkeypatch.setattr(tinker, "ServiceClient", none)
    asked = config(f"server={stated}")
    assert asyncio.run(server.probe(asked)) == stated
    with pytest.raises(ConfigurationError, match="the server has m, got 'another'"):
        asyncio.run(server.probe(replace(asked, model="another")))
