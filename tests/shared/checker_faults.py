"""Environments with one fault each, for tests of the checker."""

from __future__ import annotations

import contextlib
import os
import random
import re
import socket
import threading
from typing import Any

import numpy as np

import gem
from gem.core import Step
from gem.envs.games.guess_the_number import GuessTheNumber
from gem.errors import (
    ResetNeededError,
    UnreachableError,
)


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


class Blurred(GuessTheNumber):
    """Shows another picture every time, with the same text."""

    def reset(self, seed: int | None = None, **options: Any) -> Any:
        observation, info = super().reset(seed=seed, **options)
        shown = {"type": "image", "image": os.urandom(8)}
        return [{"type": "text", "text": observation}, shown], info


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

    def _start(self) -> None:
        super()._start()
        self.example = f"\\boxed{{{self.target}}}"


class Fragile(GuessTheNumber):
    """Cannot read every number."""

    def _parse(self, content: str) -> int | None:
        return int(content)


class Parrot(GuessTheNumber):
    """Repeats what was said."""

    def step(self, action: str) -> Step:
        observation, *rest = super().step(action)
        said = action.encode("utf-8", "replace").decode()
        return (f"You said {said}. {observation}", *rest)  # type: ignore[return-value]


class Historian(GuessTheNumber):
    """Glues everything said before to each observation."""

    def reset(self, seed: int | None = None, **options: Any) -> Any:
        self.told = ""
        return super().reset(seed=seed, **options)

    def step(self, action: str) -> Step:
        observation, *rest = super().step(action)
        self.told += observation
        return (self.told, *rest)  # type: ignore[return-value]


class ThreadLocal(GuessTheNumber):
    """Plays another game in every thread."""

    def _start(self) -> None:
        super()._start()
        if threading.current_thread() is not threading.main_thread():
            self.target = 11 - self.target


class MoodyGrader(GuessTheNumber):
    """Pays a little for every second look at a guess."""

    looks = 0

    def step(self, action: str) -> Step:
        observation, reward, *rest = super().step(action)
        MoodyGrader.looks += 1
        return (observation, reward + 1e-6 * (MoodyGrader.looks % 2), *rest)  # type: ignore[return-value]


class Calls(GuessTheNumber):
    """Asks a server when it is made."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        with socket.socket() as connection, contextlib.suppress(OSError):
            connection.connect(("127.0.0.1", 9))


class Overpays(GuessTheNumber):
    """Pays two for a win."""

    def _play(self, move: int) -> Any:
        outcome = super()._play(move)
        return outcome._replace(reward=2 * outcome.reward)


class Consoles(GuessTheNumber):
    """Pays as much for losing as for winning."""

    def _final_reward(self, outcome: Any) -> float:
        return 1.0


class Secretive(GuessTheNumber):
    """Does not say where it looks for the answer."""

    def _instructions(self) -> str:
        return "Guess a number."


class BadExample(GuessTheNumber):
    """Shows an example that it cannot read."""

    def _start(self) -> None:
        super()._start()
        self.example = "\\boxed{one}"


class TakesAnything(GuessTheNumber):
    """Any box wins, whatever is in it."""

    def _parse(self, content: str) -> int | None:
        number = super()._parse(content)
        return self.target if number is None else number


class Boastful(Impossible):
    """Says that its oracle wins more often than it does."""

    oracle_success = 0.9


class Modest(Impossible):
    """Says how often its oracle wins."""

    oracle_success = 0.3


class Unwinnable(GuessTheNumber):
    """Nobody can win it; some come nearer."""

    oracle_success = 0.0

    def _play(self, move: int) -> Any:
        outcome = super()._play(move)
        return outcome._replace(won=False, lost=outcome.won)


class Pointless(Unwinnable):
    """Nobody can win it, and nobody comes nearer."""

    def _play(self, move: int) -> Any:
        return super()._play(move)._replace(reward=0.0)


class Question(gem.Env):
    """A single question, the answer at one place of it, or at any."""

    place: int | None = -1

    def __init__(self, *, seed: int | None = None) -> None:
        super().__init__(seed=seed)
        self._over = True

    def reset(self, seed: int | None = None, **options: Any) -> Any:
        super().reset(seed=seed)
        numbers = self.rng.sample(range(100), 9)
        self.answer = numbers[self.place] if self.place is not None else max(numbers)
        self._over = False
        return f"Say one in \\boxed{{}}: {' '.join(map(str, numbers))}", {}

    def step(self, action: str) -> Step:
        if self._over:
            raise ResetNeededError("call reset()")
        self._over = True
        boxes = re.findall(r"\\boxed\{(\d+)\}", action)
        won = bool(boxes) and boxes[-1] == str(self.answer)
        info = {"success": won, "format_error": not boxes, "invalid_action": False}
        return "", float(won), True, False, info

    def render(self) -> str:
        return "a question"

    def sample_random_action(self) -> str:
        return f"\\boxed{{{self.action_rng.randrange(100)}}}"

    def oracle_action(self) -> str:
        return f"The answer is \\boxed{{{self.answer}}}"


class Largest(Question):
    """The answer is the largest number, wherever it is."""

    place = None


class FromSource(GuessTheNumber):
    """Its data is elsewhere; a sample is here."""

    def __init__(self, source: str = "hub", *, seed: int | None = None) -> None:
        super().__init__(1, 10, 4, seed=seed)
        self.source = source

    def _start(self) -> None:
        if self.source != "sample":
            raise UnreachableError("no hub")
        super()._start()


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
