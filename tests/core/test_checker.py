"""The environment checker: passes what is sound and catches each kind of fault."""

from __future__ import annotations

import json
import random
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gem
from gem.core import Step
from gem.envs.games.guess_the_number import GuessTheNumber
from gem.errors import ConfigurationError, UnknownEnvError, UnknownParameterError
from gem.testing import CheckReport, check_env
from gem.testing.checks import CHECKS

NAMES = [check.__name__.removeprefix("check_") for check in CHECKS]


def failures(report: CheckReport) -> dict[str, str]:
    return {r.name: r.detail for r in report.results if r.status == "failed"}


def make_guess(**parameters: Any) -> GuessTheNumber:
    return GuessTheNumber(min_number=1, max_number=10, max_turns=4, **parameters)


@pytest.mark.parametrize("env_id", gem.list_envs("game:"))
def test_built_in_environments_pass_every_check(env_id: str) -> None:
    report = check_env(env_id)
    assert [(r.name, r.status) for r in report.results] == [(name, "passed") for name in NAMES]


@pytest.mark.parametrize(
    "params",
    [{"hint": "range"}, {"prompt": "short"}, {"soft_reward": True}, {"format_error_ends": False}],
)
def test_parameters_do_not_change_that(params: dict[str, Any]) -> None:
    assert check_env("game:GuessTheNumber-v0", episodes=16, **params).passed


class StepsAfterTheEnd(GuessTheNumber):
    """Goes on counting when it should refuse."""

    def step(self, action: str) -> Step:
        self._over = self._episode < 0
        return super().step(action)


class StepsBeforeReset(GuessTheNumber):
    """Fails in its own way when it should refuse."""

    def step(self, action: str) -> Step:
        self.guesses.count(0)
        return super().step(action)


class BothFlags(GuessTheNumber):
    """Calls a limit an end, as well."""

    def step(self, action: str) -> Step:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated or truncated, truncated, info


class NumpyReward(GuessTheNumber):
    """Returns an array where a number belongs."""

    def step(self, action: str) -> Step:
        observation, reward, *rest = super().step(action)
        return (observation, np.array([reward]), *rest)  # type: ignore[return-value]


class Suffix(GuessTheNumber):
    """Keeps the request in the info."""

    def step(self, action: str) -> Step:
        *rest, info = super().step(action)
        return (*rest, {**info, "suffix": "Enter your guess."})  # type: ignore[return-value]


class IllegalSampler(GuessTheNumber):
    """Samples outside the range."""

    def _random_move(self) -> int:
        return self.max_number + 1


class SwallowsKeywords(GuessTheNumber):
    """Takes any keyword."""

    def __init__(self, **anything: Any) -> None:
        super().__init__(1, 10, 4)


class Forgetful(GuessTheNumber):
    """Depends on how often the class was used."""

    used = 0

    def _start(self) -> None:
        super()._start()
        Forgetful.used += 1
        self.target = Forgetful.used % 10 + 1


class SameSecret(GuessTheNumber):
    """Ignores its seed."""

    def _start(self) -> None:
        super()._start()
        self.target = 8


class SamplesFromTheEpisode(GuessTheNumber):
    """Draws random actions from the episode's own stream, and re-draws the secret from it."""

    def _random_move(self) -> int:
        return self.rng.randint(1, 10)

    def _play(self, move: int) -> Any:
        self.target = self.rng.randint(1, 10)
        return super()._play(move)


class PartialSnapshot(GuessTheNumber):
    """Forgets the secret in snapshots."""

    def restore(self, state: bytes) -> None:
        super().restore(state)
        self.target = 3


class Unpicklable(GuessTheNumber):
    """Holds something that cannot be pickled."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.hook = lambda: None

    def snapshot(self) -> bytes:
        return b""

    def restore(self, state: bytes) -> None:
        raise NotImplementedError


class Impossible(GuessTheNumber):
    """Cannot be won within its turns."""

    def _start(self) -> None:
        super()._start()
        self.max_turns = 2


class Clairvoyant(GuessTheNumber):
    """Its oracle reads the secret."""

    def _oracle_move(self) -> int:
        return self.target


class Trivial(GuessTheNumber):
    """Any number wins."""

    def _play(self, move: int) -> Any:
        self.target = move
        self.guesses.clear()
        return super()._play(move)


class Spoiler(GuessTheNumber):
    """Its prompt holds the answer."""

    def _example(self) -> str:
        return f"\\boxed{{{self.target}}}"


class Fragile(GuessTheNumber):
    """Cannot read every number."""

    def _parse(self, content: str) -> int | None:
        return int(content)


class Parrot(GuessTheNumber):
    """Repeats what was said."""

    def step(self, action: str) -> Step:
        observation, *rest = super().step(action)
        return (f"You said {action}. {observation}", *rest)  # type: ignore[return-value]


class UsesGlobalRandom(GuessTheNumber):
    """Draws the secret from the global generator."""

    def _start(self) -> None:
        super()._start()
        self.target = random.randint(1, 10)


class SeedsGlobalNumpy(GuessTheNumber):
    """Seeds numpy for the whole process."""

    def _start(self) -> None:
        super()._start()
        np.random.seed(self.target)


@pytest.mark.parametrize(
    ("env", "check", "message"),
    [
        (StepsBeforeReset, "contract", r"before reset\(\) must raise.*AttributeError"),
        (StepsAfterTheEnd, "contract", "after the end must raise.*went on"),
        (BothFlags, "contract", "both True"),
        (NumpyReward, "contract", "no finite number"),
        (Suffix, "contract", "hides text"),
        (IllegalSampler, "contract", "invalid_action"),
        (SwallowsKeywords, "contract", "unknown keywords"),
        (Forgetful, "determinism", "same seed and actions"),
        (SamplesFromTheEpisode, "determinism", "same seed and actions"),
        (SameSecret, "variety", "one and the same"),
        (Forgetful, "vector", "number of its siblings"),
        (PartialSnapshot, "snapshot", "continues differently"),
        (Unpicklable, "snapshot", "NotImplementedError"),
        (Unpicklable, "pickle", "pickle"),
        (Impossible, "oracle", "lost seed"),
        (Clairvoyant, "oracle", "knows more than it observed"),
        (Trivial, "random", "already wins 1.00"),
        (Spoiler, "degenerate", "(echo|prompt copy) policy wins 1.00"),
        (Fragile, "bad_input", "ValueError"),
        (Parrot, "bad_input", "too long"),
        (UsesGlobalRandom, "global_rng", "generator of `random`"),
        (SeedsGlobalNumpy, "global_rng", "generator of numpy"),
    ],
)
def test_each_fault_is_caught_by_its_check(
    env: type[GuessTheNumber], check: str, message: str
) -> None:
    report = check_env(env, min_number=1, max_number=10, max_turns=4)
    assert not report.passed
    (result,) = [r for r in report.results if r.name == check]
    assert result.status == "failed"
    assert re.search(message, result.detail), result.detail


@pytest.fixture
def module_of_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "faulty_envs.py").write_text(
        textwrap.dedent(
            """
            import os

            from gem.envs.games.guess_the_number import GuessTheNumber


            class HashOrder(GuessTheNumber):
                def _start(self):
                    super()._start()
                    self.target = 1 + hash(f"{self.target}") % 10


            class ProcessId(GuessTheNumber):
                def _start(self):
                    super()._start()
                    self.target = 1 + (self.target + os.getpid()) % 10


            class Sound(GuessTheNumber):
                pass
            """
        )
    )
    monkeypatch.syspath_prepend(tmp_path)
    import faulty_envs

    yield faulty_envs
    sys.modules.pop("faulty_envs")


def test_another_process_must_play_the_same_episodes(module_of_faults: Any) -> None:
    def outcome(env: Any) -> Any:
        return next(r for r in check_env(env).results if r.name == "processes")

    assert outcome(module_of_faults.Sound).status == "passed"
    for env in (module_of_faults.HashOrder, module_of_faults.ProcessId):
        assert outcome(env).status == "failed"
        assert "other episodes" in outcome(env).detail


def test_what_cannot_be_checked_is_skipped_with_a_reason() -> None:
    class Sibling(GuessTheNumber):
        def oracle_action(self) -> str:
            raise NotImplementedError

    report = check_env(lambda **p: Sibling(1, 10, 4, **p))
    skipped = {r.name: r.detail for r in report.results if r.status == "skipped"}
    assert "cannot be pickled" in skipped["processes"]
    assert skipped["oracle"] == "no oracle_action()"


def test_a_fault_anywhere_is_reported_never_raised() -> None:
    class Broken(GuessTheNumber):
        def _start(self) -> None:
            raise ZeroDivisionError("in reset")

    report = check_env(Broken)
    assert not report.passed
    assert "ZeroDivisionError: in reset" in failures(report)["determinism"]

    def cannot_be_made() -> GuessTheNumber:
        raise OSError("no disk")

    report = check_env(cannot_be_made)
    assert failures(report) == {"make": "OSError: no disk"}


def test_misuse_of_the_checker_is_raised() -> None:
    with pytest.raises(UnknownEnvError):
        check_env("game:Nothing-v0")
    with pytest.raises(UnknownParameterError):
        check_env("game:Wordle-v0", size=3)
    with pytest.raises(ConfigurationError, match="max_turns"):
        check_env("game:Wordle-v0", max_turns=0)


def test_the_callers_global_generators_survive_a_check() -> None:
    random.seed(11)
    np.random.seed(11)
    expected = random.random(), np.random.rand()
    random.seed(11)
    np.random.seed(11)
    check_env(make_guess, episodes=4)
    check_env(UsesGlobalRandom, episodes=1)
    random.seed(11)
    np.random.seed(11)
    check_env("game:GuessTheNumber-v0-easy", episodes=4)
    assert (random.random(), np.random.rand()) == expected


def test_a_report_is_a_table_and_json() -> None:
    report = check_env(BothFlags, episodes=4)
    table = str(report).splitlines()
    assert table[0].startswith("BothFlags: ")
    assert "checks failed" in table[0]
    assert len(table) == 1 + len(NAMES)
    data = json.loads(report.to_json())
    assert data["env"] == "BothFlags"
    assert data["passed"] is False
    assert [r["name"] for r in data["results"]] == NAMES
    assert {r["status"] for r in data["results"]} <= {"passed", "failed", "skipped"}
