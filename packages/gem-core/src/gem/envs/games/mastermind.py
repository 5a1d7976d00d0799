"""Mastermind: find a secret code from counts of right and misplaced numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from itertools import permutations, product
from operator import eq
from random import Random

from gem.envs.games.base import (
    MAX_TURNS,
    Game,
    Outcome,
    boxed,
    fitting,
    found_within,
    integers,
    refused,
)
from gem.parameters import flag, integer, optional

Code = tuple[int, ...]

_MAX_LENGTH = 20
_MAX_NUMBERS = 99
_MOST_CODES = 5_000

# `(code_length, num_numbers, max_turns)`: one is drawn when a parameter is left open.
_CANDIDATES = ((2, 4, 10), (4, 6, 20), (4, 8, 30))


class Mastermind(Game[Code]):
    """A secret code of numbers from 1 to `num_numbers`.

    A black peg is a right number in the right place, a white peg a right number in the wrong
    place. Reward: every black peg beyond the best guess so far pays `1 / code_length`, so a won
    game sums to 1.0.

    Attributes:
        code_length, num_numbers: Parameters of this episode.
        code: The secret.
        history: `(guess, black, white)` of every valid guess so far.
        best: Most black pegs of one guess so far.
    """

    request = "Enter your guess."
    action_name = "guess"

    def __init__(
        self,
        code_length: int | None = 4,
        num_numbers: int | None = 6,
        duplicate_numbers: bool = False,
        max_turns: int | None = 20,
        *,
        format_error_ends: bool = True,
        seed: int | None = None,
    ) -> None:
        """Set the parameters; those that are None are drawn together at every reset.

        Args:
            code_length: Numbers in the code; drawn from 2 and 4.
            num_numbers: Numbers go from 1 to this; drawn from 4, 6 and 8.
            duplicate_numbers: Whether the code may hold a number twice. Guesses always may.
            max_turns: Guesses allowed; drawn from 10, 20 and 30.
            format_error_ends: See `Game`.
            seed: Seed of the first `reset` that is not given one.

        Raises:
            ConfigurationError: A value is not allowed, or the code is longer than there are
                numbers to fill it without duplicates.
        """
        super().__init__(format_error_ends=format_error_ends, seed=seed)
        self.duplicate_numbers = flag("duplicate_numbers", duplicate_numbers)
        self._candidates = fitting(
            _CANDIDATES,
            optional(integer, "code_length", code_length, 1, _MAX_LENGTH),
            optional(integer, "num_numbers", num_numbers, 1, _MAX_NUMBERS),
            optional(integer, "max_turns", max_turns, 1, MAX_TURNS),
            fits=lambda length, numbers, _: self.duplicate_numbers or length <= numbers,
            otherwise="code_length must be at most num_numbers unless duplicate_numbers=True, "
            f"got code_length={code_length!r} and num_numbers={num_numbers!r}",
        )

    @property
    def oracle_success(self) -> float:  # type: ignore[override]
        """Share of the codes that the oracle finds within the turns.

        Where parameters are drawn, the least of theirs. Of more than 5,000 codes it is not computed
        and counts as 0.0, unless there is a turn for each.
        """
        return min(_oracle_finds(self.duplicate_numbers, *each) for each in self._candidates)

    def _start(self) -> None:
        drawn = self.rng.choice(self._candidates)
        self.code_length, self.num_numbers, self.max_turns = drawn
        self.code = self._drawn_code(self.rng)
        self.history: dict[Code, tuple[int, int]] = {}
        self.best = 0
        self.expected = f"{self.code_length} numbers"
        example = (i % self.num_numbers + 1 for i in range(self.code_length))
        self.example = boxed(" ".join(map(str, example)))

    def _instructions(self) -> str:
        allowed = "allowed" if self.duplicate_numbers else "not allowed"
        return (
            "You are playing Mastermind.\n"
            f"You have to guess the secret code of {self.code_length} numbers within "
            f"{self.max_turns} turns.\n"
            f"The code consists of numbers from 1 to {self.num_numbers} (inclusive). "
            f"Duplicate numbers are {allowed}.\n"
            "After you enter your guess, it is marked with black and white pegs: a black peg is a "
            "correct number in the correct position, a white peg is a correct number in the wrong "
            "position.\n"
            f"{self._how_to_answer()}."
        )

    def _parse(self, content: str) -> Code | None:
        return integers(content)

    def _play(self, move: Code) -> Outcome:
        said = f"At turn {self.turn}, you guessed"
        if len(move) != self.code_length:
            return refused(f"{said} {len(move)} number(s), but the code has {self.code_length}.")
        guess = " ".join(map(str, move))
        if min(move) < 1 or max(move) > self.num_numbers:
            return refused(
                f"{said} {guess}, which has numbers outside the range 1 to {self.num_numbers}."
            )
        if move in self.history:
            return refused(f"{said} {guess}, which has been already guessed before.")
        black, white = self.history[move] = pegs(move, self.code)
        reward = max(0, black - self.best) / self.code_length
        self.best = max(self.best, black)
        if black == self.code_length:
            return self._won(f"guessed the correct code {guess}", reward)
        return Outcome(
            f"{said} {guess}. This guess receives {black} black peg(s) and {white} white peg(s).",
            reward,
        )

    def _state(self) -> str:
        guesses = ", ".join(
            f"{' '.join(map(str, guess))} ({black} black, {white} white)"
            for guess, (black, white) in self.history.items()
        )
        return f"{self.code_length} of 1 to {self.num_numbers}; guesses: {guesses or 'none'}"

    def _random_move(self) -> str:
        move = self._drawn_code(self.action_rng)
        while move in self.history and len(self.history) < self._codes():
            move = self._drawn_code(self.action_rng)
        return " ".join(map(str, move))

    def _drawn_code(self, rng: Random) -> Code:
        draw = rng.choices if self.duplicate_numbers else rng.sample
        return tuple(draw(range(1, self.num_numbers + 1), k=self.code_length))

    def _codes(self) -> int:
        """Return how many codes there are."""
        return _count(self.duplicate_numbers, self.code_length, self.num_numbers)

    def _oracle_move(self) -> str:
        # The first code that agrees with every answer so far; slow for very many codes.
        for code in self._all_codes():
            if all(pegs(guess, code) == answer for guess, answer in self.history.items()):
                return " ".join(map(str, code))
        raise RuntimeError("no code agrees with the answers")

    def _all_codes(self) -> Iterator[Code]:
        return _all(self.duplicate_numbers, self.code_length, self.num_numbers)


def _count(duplicates: bool, length: int, numbers: int) -> int:
    return int(numbers**length) if duplicates else math.perm(numbers, length)


def _all(duplicates: bool, length: int, numbers: int) -> Iterator[Code]:
    every = range(1, numbers + 1)
    return product(every, repeat=length) if duplicates else permutations(every, length)


@cache
def _oracle_finds(duplicates: bool, length: int, numbers: int, turns: int) -> float:
    count = _count(duplicates, length, numbers)
    if turns >= count or count > _MOST_CODES:
        return float(turns >= count)
    codes = tuple(_all(duplicates, length, numbers))
    return found_within(turns, codes, lambda possible: possible[0], pegs)


def pegs(guess: Code, code: Code) -> tuple[int, int]:
    """Return `(black, white)` pegs of a guess; both codes have the same length."""
    black = sum(map(eq, guess, code))
    left = list(code)
    for number in guess:
        if number in left:
            left.remove(number)
    return black, len(code) - len(left) - black
