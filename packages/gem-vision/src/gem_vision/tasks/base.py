"""What the visual tasks share: one turn, one picture, one answer."""

from __future__ import annotations

import re

from gem.core import Observation
from gem.envs.games.base import Game, Outcome, boxed
from gem.pictures import parts
from gem_vision.drawing import Canvas

_INTEGER = re.compile(r"[+-]?[0-9]{1,9}")


class Question(Game[str]):
    """A question about a picture; reward 1.0 for the right answer and 0.0 for a wrong one.

    Subclasses draw the task in `_draw`, from `self.rng` alone.

    Attributes:
        question: What is asked.
        answer: The one right answer.
        picture: The picture, as a PNG file.
    """

    request = "Enter your answer."
    action_name = "answer"
    max_turns = 1
    words: tuple[str, ...] = ()
    """All answers that can be read; empty where they are integers."""

    question: str
    answer: str
    picture: bytes

    def _start(self) -> None:
        self.picture = self._draw().png()
        self.example = boxed(self.words[0] if self.words else 12)

    def _draw(self) -> Canvas:
        """Draw the parameters of the task, set `question` and `answer`, and return the picture."""
        raise NotImplementedError

    def _instructions(self) -> str:
        return f"{self.question}\n{self._how_to_answer()}."

    def _observed(self, words: str, request: str) -> Observation:
        return words if self._over else parts(words, self.picture, request)

    def _parse(self, content: str) -> str | None:
        if self.words:
            word = content.lower()
            return next((each for each in self.words if each.lower() == word), None)
        return str(int(content)) if _INTEGER.fullmatch(content) else None

    def _play(self, move: str) -> Outcome:
        if move == self.answer:
            return Outcome(f"{move} is right.", 1.0, won=True)
        return Outcome(f"{move} is wrong. The answer is {self.answer}.", lost=True)

    def _state(self) -> str:
        return self.question

    def _random_move(self) -> str:
        return self.action_rng.choice(self._guesses())

    def _guesses(self) -> tuple[str, ...]:
        """Return the answers among which a guess is drawn."""
        return self.words

    def _oracle_move(self) -> str:
        return self.answer
