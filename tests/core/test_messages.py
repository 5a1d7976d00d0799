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


class Stepless(Env):
    """Forgot what an environment must have."""


class Seedless(Env):
    """Does not call the constructor of its base, as Gymnasium allows."""

    def __init__(self, word: str = "a") -> None:
        self.word = word

    def reset(self, seed: int | None = None, **options: Any) -> Any:
        super().reset(seed=seed, **options)
        return self.word * self.rng.randrange(1, 9), {}

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
    gem.register("messages:Stepless-v0", Stepless)
    gem.register("messages:Seedless-v0", Seedless)
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


def test_an_environment_without_a_step_is_named() -> None:
    env = gem.make("messages:Stepless-v0")
    env.reset(seed=0)
    with pytest.raises(NotImplementedError, match=r"Stepless must implement step\(\)"):
        env.step("a")


def test_an_environment_that_does_not_call_its_base_has_seeds_all_the_same() -> None:
    env = gem.make("messages:Seedless-v0")
    series = [env.reset(seed=3)[0], *(env.reset()[0] for _ in range(5))]
    again = gem.make("messages:Seedless-v0")
    assert [again.reset(seed=3)[0], *(again.reset()[0] for _ in range(5))] == series
    assert len(set(series)) > 1
    fresh = gem.make("messages:Seedless-v0")
    fresh.reset()
    assert fresh.spawn().step("a")[1] == 0.0


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
    monkeypatch.setattr("gem.plugins.entry_points", lambda **_: [])
    assert main(["eval", "suite:smoke"]) == 2
    assert "command 'eval' needs: pip install 'gem-core[eval]'" in capsys.readouterr().err
