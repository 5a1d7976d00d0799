"""Mistakes that people make: the message names what is wrong, what is allowed and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import gem
from gem.__main__ import main
from gem.advantage import TurnTable
from gem.core import Env
from gem.errors import ConfigurationError, MissingExtraError, UnknownEnvError
from gem.tools import make_tools


class Needy(Env):
    """Cannot be made without a word."""

    def __init__(self, word: str) -> None:
        super().__init__()

    def step(self, action: str) -> Any:
        return "", 0.0, True, False, {}


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    gem.list_envs()
    monkeypatch.setattr("gem.registry._registry", dict(gem.registry._registry))
    gem.register("messages:Gone-v0", "no_such_module:C")
    gem.register("messages:NoClass-v0", "gem.core:NoSuchClass")
    gem.register("messages:Object-v0", object)
    gem.register("messages:Needy-v0", Needy)
    yield


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: gem.make("messages:Gone-v0"), "'messages:Gone-v0': .* 'no_such_module:C'"),
        (lambda: gem.make("messages:NoClass-v0"), "'messages:NoClass-v0': .* 'gem.core:NoSuch"),
        (lambda: gem.make("messages:Object-v0"), "'messages:Object-v0': .* no reset, step, close"),
        (lambda: gem.make("messages:Needy-v0"), "messages:Needy-v0 needs the parameter word"),
        (lambda: make_tools(["mcp"]), "tool 'mcp' needs the parameter servers"),
        (lambda: make_tools([{"name": "mcp"}]), "tool 'mcp' needs the parameter servers"),
        (
            lambda: gem.make_vec("game:Wordle-v0", num_envs=1, vectorization_mode="async"),
            "vectorization_mode: Gymnasium's 'async' is 'thread' .* or 'process'",
        ),
        (
            lambda: gem.make_vec("game:Wordle-v0", num_envs=1, vectorization_mode="threads"),
            "unknown vectorization_mode 'threads'; known: sync, thread",
        ),
        (
            lambda: TurnTable.build([1.0, 2.0]),  # type: ignore[list-item]
            r"rewards\[episode\]\[turn\], a list for each episode; that of episode 0 is 1.0",
        ),
    ],
)
def test_a_mistake_is_named(call: Callable[[], object], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        call()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("game:Nope", r"'game:Nope'; gem.list_envs\('game:'\) names all ids"),
        ("nope:Nope", r"'nope:Nope'; gem.list_envs\(\) names all ids"),
        ("game:wordel-v0", "did you mean game:Wordle-v0"),
        ("game:GuessTheNumber", "did you mean game:GuessTheNumber-v0"),
        ("Wordle-v0", r"did you mean game:Wordle-v0|gem.list_envs"),
    ],
)
def test_only_an_id_that_is_near_is_suggested(asked: str, said: str) -> None:
    with pytest.raises(UnknownEnvError, match=said):
        gem.make(asked)


def test_a_package_that_is_installed_is_not_to_be_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    extras = {"environment": {"game:": "games", "nope:": "nope"}, "client": {}}
    monkeypatch.setattr("gem.parts.EXTRAS", extras)
    with pytest.raises(UnknownEnvError, match="did you mean game:Wordle-v0"):
        gem.make("game:wordel-v0")
    with pytest.raises(MissingExtraError, match=r"pip install 'gem-core\[nope\]'"):
        gem.make("nope:Wordle-v0")


def test_a_command_of_a_package_that_is_not_installed_names_the_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gem.__main__.entry_points", lambda group: [])
    assert main(["eval", "suite:smoke"]) == 2
    assert "command 'eval' needs: pip install 'gem-core[eval]'" in capsys.readouterr().err
