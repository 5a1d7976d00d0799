"""GuessTheNumber: find a secret integer from hints "higher" and "lower"."""

from __future__ import annotations

import math
import re

from gem.envs.games.base import MAX_TURNS, Game, Outcome, boxed, refused
from gem.errors import ConfigurationError
from gem.parameters import choice, flag, integer, optional

# 18 digits are more than any range needs and keep echoed guesses short.
_NUMBER = re.compile(r"[+-]?[0-9]{1,18}")
_LIMIT = 10**18 - 1
# Most numbers of a range whose end is drawn.
_WIDEST = 51


class GuessTheNumber(Game[int]):
    """A secret number, uniform over an inclusive range.

    Rewards: 1.0 for the exact number; with `soft_reward`, a valid last guess pays
    `1 - |guess - target| / (max_number - min_number)`.

    Attributes:
        min_number, max_number: Range of this episode.
        target: The secret.
        low, high: Range that the hints so far leave possible.
        guesses: Valid guesses so far, in order.
    """

    request = "Enter your guess."
    action_name = "guess"
    expected = "an integer"

    def __init__(
        self,
        min_number: int | None = 1,
        max_number: int | None = 20,
        max_turns: int | None = 20,
        *,
        hint: str = "direction",
        soft_reward: bool = False,
        prompt: str = "full",
        format_error_ends: bool = True,
        seed: int | None = None,
    ) -> None:
        """Set the parameters; those that are None are drawn at every reset.

        Args:
            min_number: Smallest possible number; drawn from 1 to 10.
            max_number: Largest possible number; drawn from `min_number` + 5 to + 50.
            max_turns: Guesses allowed; `ceil(sqrt(max_number - min_number)) + 1` when None, which
                always suffices for bisection.
            hint: `"direction"` says higher or lower; `"range"` also restates which numbers are
                still possible.
            soft_reward: Pay for a near miss on the last turn.
            prompt: `"short"` shortens instructions and feedback for small models.
            format_error_ends: See `Game`.
            seed: Seed of the first `reset` that is not given one.

        Raises:
            ConfigurationError: A value is not allowed.
        """
        super().__init__(format_error_ends=format_error_ends, seed=seed)
        self._given_min = optional(integer, "min_number", min_number, -_LIMIT, _LIMIT)
        self._given_max = optional(integer, "max_number", max_number, -_LIMIT, _LIMIT)
        self._given_turns = optional(integer, "max_turns", max_turns, 1, MAX_TURNS)
        # With an open minimum, 1 must be possible.
        smallest = 1 if self._given_min is None else self._given_min
        if self._given_max is not None and self._given_max <= smallest:
            raise ConfigurationError(
                f"max_number must be greater than min_number "
                f"({'drawn from 1 to 10' if self._given_min is None else smallest}), "
                f"got {max_number!r}"
            )
        self.hint = choice("hint", hint, ("direction", "range"))
        self.soft_reward = flag("soft_reward", soft_reward)
        self.prompt = choice("prompt", prompt, ("full", "short"))

    @property
    def oracle_success(self) -> float:  # type: ignore[override]
        """Share of the widest possible range that bisection finds within the turns."""
        low, high = self._given_min, self._given_max
        if self._given_turns is None:
            return 1.0
        numbers = _WIDEST if high is None else high - (1 if low is None else low) + 1
        if self._given_turns >= numbers.bit_length():
            return 1.0
        return float((2**self._given_turns - 1) / numbers)

    def _start(self) -> None:
        low, high, turns = self._given_min, self._given_max, self._given_turns
        if low is None:
            low = self.rng.randint(1, 10 if high is None else min(10, high - 1))
        if high is None:
            high = self.rng.randint(low + 5, low + _WIDEST - 1)
        self.min_number, self.max_number = low, high
        self.max_turns = math.ceil(math.sqrt(high - low)) + 1 if turns is None else turns
        self.target = self.rng.randint(low, high)
        self.low, self.high = low, high
        self.guesses: list[int] = []
        self.example = boxed(low)

    def _instructions(self) -> str:
        span = f"between {self.min_number} and {self.max_number}"
        if self.prompt == "short":
            return f"Guess a number {span} within {self.max_turns} turns. Answer in \\boxed{{}}."
        told = (
            "and which numbers are still possible." if self.hint == "range" else "than your guess."
        )
        return (
            "You are playing Guess The Number.\n"
            f"You have to guess the number {span} (inclusive) within {self.max_turns} turns.\n"
            f"After each guess you are told whether the target number is higher or lower {told}\n"
            "You may provide your response in any manner. Only the number that is wrapped inside "
            f"\\boxed{{}} will be considered as your guess, for example, {self.example}."
        )

    def _parse(self, content: str) -> int | None:
        return int(content) if _NUMBER.fullmatch(content) else None

    def _play(self, move: int) -> Outcome:
        short = self.prompt == "short"
        said = f"Turn {self.turn}: " if short else f"At turn {self.turn}, you guessed {move}, "
        if not self.min_number <= move <= self.max_number:
            why = "outside the range." if short else "which is outside the range specified."
            return refused(f"{said}{why}{self._range()}")
        if move in self.guesses:
            why = "already guessed." if short else "which has been already guessed before."
            return refused(f"{said}{why}{self._range()}")
        self.guesses.append(move)
        if move == self.target:
            self.low = self.high = move
            return self._won(f"guessed the correct number {move}")
        if move < self.target:
            direction, self.low = "higher", max(self.low, move + 1)
        else:
            direction, self.high = "lower", min(self.high, move - 1)
        if short:
            return Outcome(f"{said}{direction} than {move}.{self._range()}")
        return Outcome(f"{said}and the target number is {direction} than {move}.{self._range()}")

    def _range(self) -> str:
        return f" It is between {self.low} and {self.high}." if self.hint == "range" else ""

    def _final_reward(self, outcome: Outcome) -> float:
        if not (self.soft_reward and outcome.valid):
            return 0.0
        distance = abs(self.guesses[-1] - self.target)
        return 1 - distance / (self.max_number - self.min_number)

    def _state(self) -> str:
        guesses = ", ".join(map(str, self.guesses)) or "none"
        return (
            f"{self.min_number} to {self.max_number}; guesses: {guesses}; "
            f"possible: {self.low} to {self.high}"
        )

    def _random_move(self) -> int:
        numbers = self.max_number - self.min_number + 1
        move = self.action_rng.randint(self.min_number, self.max_number)
        while move in self.guesses and len(self.guesses) < numbers:
            move = self.action_rng.randint(self.min_number, self.max_number)
        return move

    def _oracle_move(self) -> int:
        return (self.low + self.high) // 2
