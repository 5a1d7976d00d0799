"""What all turn-limited text games share: boxed moves, turn counting, messages, ends."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from gem.contract import refusal
from gem.core import Env, Info, Observation, Step, known_options
from gem.errors import ConfigurationError
from gem.grading.braces import boxed_moves
from gem.grading.wrapping import readings
from gem.parameters import flag
from gem.pictures import painter, parts

Move = TypeVar("Move")
Guess = TypeVar("Guess")

SUCCESS_REWARD = 1.0
FORMAT_ERROR_REWARD = -0.1
MAX_TURNS = 10**6
"""Most turns that any game can be given."""

_SEPARATORS = re.compile(r"[\s,]+")
_INTEGERS = re.compile(r"[+-]?[0-9]{1,18}(?:[\s,]+[+-]?[0-9]{1,18})*")
_LETTERS = re.compile(r"[A-Za-z]+(?:[\s,]+[A-Za-z]+)*")
_OUT_OF_TURNS = "You have reached the maximum number of turns."


class Outcome(NamedTuple):
    """What one parsed move led to."""

    feedback: str
    """What the player is told about the move, beginning with its turn."""
    reward: float = 0.0
    won: bool = False
    valid: bool = True
    """False when the rules do not allow the move; it costs a turn all the same."""
    lost: bool = False
    """The game is over without a win."""


def refused(feedback: str) -> Outcome:
    """Return the outcome of a move that the rules do not allow."""
    return Outcome(feedback, valid=False)


class Game(Env, Generic[Move]):
    r"""A game of text turns in which the last readable `\boxed{...}` is the move.

    Text commands, Markdown, quotes and the like around the whole of a box's content do not count:
    see `gem.grading.wrapping`.

    Subclasses set the parameters of the episode, `max_turns` among them, in `_start` and
    implement the other underscore methods. Every step's info has the keys `success`,
    `format_error` and `invalid_action`, all bool.

    Attributes:
        turn: Turns taken in this episode.
        max_turns: Turns of this episode; set by `reset`.
    """

    request = "Enter your move."
    """Last line of every observation after which the player is to move."""
    action_name = "move"
    """What the game calls an action."""
    expected: str
    """What a readable box holds; set here or by `_start`."""
    words: Collection[str] = ()
    """All moves, in lower case, of a game that does not parse its boxes in another way."""
    example: str
    """A readable box that tells nothing about the secret; set here or by `_start`."""
    format_error_reward = FORMAT_ERROR_REWARD
    """Reward of an action that cannot be read."""

    turn: int
    max_turns: int
    _drawn = ""
    """The board, in games that draw it when it changes."""
    _apart: ClassVar[tuple[str, ...]] = ("spec", "modality", "_painter")

    def __init__(
        self,
        *,
        format_error_ends: bool = True,
        modality: str = "text",
        seed: int | None = None,
    ) -> None:
        r"""Store what is common to all games.

        Args:
            format_error_ends: Whether an action without a readable `\boxed{...}` ends the
                episode; otherwise it costs a turn. Its reward is -0.1 either way.
            modality: How the board is shown: as `text`, as an `image`, or as `both`. The same seed
                is the same game.
            seed: Seed of the first `reset` that is not given one.
        """
        super().__init__(seed=seed)
        self.format_error_ends = flag("format_error_ends", format_error_ends)
        self.modality, self._painter = modality, painter(self, modality)
        self._over = True

    def reset(self, seed: int | None = None, **options: Any) -> tuple[Observation, Info]:
        """Begin an episode; there are no options.

        Raises:
            UnknownParameterError: An option was given.
        """
        known_options(self, options)
        self._forget()
        super().reset(seed=seed)
        self.turn = 0
        self._start()
        self._over = False
        return self._observed(self._instructions(), self.request), {}

    def step(self, action: str) -> Step:
        """Play one turn; see `Env.step`."""
        if self._over or not isinstance(action, str):
            raise refusal(type(self).__name__, self._over, action)
        self.turn += 1
        move = self._last_move(action)
        outcome = self._unreadable() if move is None else self._play(move)
        feedback, reward, won, valid, lost = outcome
        ended = won or lost
        truncated = not ended and self.turn >= self.max_turns
        if truncated and move is not None:
            reward += self._final_reward(outcome)
        self._over = ended or truncated
        last = _OUT_OF_TURNS if truncated else "" if ended else self.request
        info = {"success": won, "format_error": move is None, "invalid_action": not valid}
        return self._observed(feedback, last), reward, ended, truncated, info

    def render(self) -> str:
        """Return the turn, what the player knows so far, and the board."""
        self._need_reset()
        title = f"{type(self).__name__}, turn {self.turn} of {self.max_turns}"
        return _lines(title, self._state(), self._board())

    def sample_random_action(self) -> str:
        """Return a random legal move; after the end, any readable one."""
        self._need_reset()
        return boxed(self._random_move())

    def oracle_action(self) -> str:
        """Return the next move of a policy that knows the rules and what was observed."""
        self._need_reset()
        return boxed(self._oracle_move())

    def _observed(self, words: str, request: str) -> Observation:
        """Return an observation: words, the board, and what is asked for."""
        if self._painter is None:
            return "\n".join(filter(None, (words, self._board(), request)))
        if self.modality == "both":
            words = _lines(words, self._board())
        return parts(words, self._painter(self), request)

    def _how_to_read(self, text: str) -> str:
        """Return the rules about the board, from those about its text."""
        if self._painter is None:
            return text
        picture = self._painter.how_to_read
        return f"{text}\n{picture}" if self.modality == "both" else picture

    def _how_to_answer(self) -> str:
        """Return the usual last sentence of the instructions, without its end."""
        how = "After thinking, format your final answer inside \\boxed{...}"
        return f"{how}, for example, {self.example}"

    def _forget(self) -> None:
        self._over = True

    def _need_reset(self) -> None:
        """Raise `ResetNeededError` before the first `reset`."""
        _ = self.episode_key

    def _last_move(self, action: str) -> Move | None:
        for content in boxed_moves(action):
            move = self._parse(content.strip())
            if move is not None:
                return move
            for reading in readings(content)[1:]:
                move = self._parse(reading)
                if move is not None:
                    return move
        return None

    def _unreadable(self) -> Outcome:
        """Return the outcome of an action that cannot be read."""
        feedback = (
            f"At turn {self.turn}, you did not provide a valid {self.action_name}. "
            f"Expected {self.expected} inside \\boxed{{}}, for example {self.example}."
        )
        return Outcome(feedback, self.format_error_reward, lost=self.format_error_ends)

    def _won(self, deed: str, reward: float = SUCCESS_REWARD) -> Outcome:
        """Return the outcome of the move that wins; `deed` is what the player did by it."""
        text = f"Congratulations! You {deed} in {self.turn} turns."
        return Outcome(text, reward, won=True)

    def _start(self) -> None:
        """Draw the parameters left open and the secret, from `self.rng` alone."""
        raise NotImplementedError

    def _instructions(self) -> str:
        """Return the rules, without the request."""
        raise NotImplementedError

    def _parse(self, content: str) -> Move | None:
        """Return the move in a box's stripped content, None if it cannot be read."""
        word: Any = content.lower()
        return word if word in self.words else None

    def _play(self, move: Move) -> Outcome:
        """Apply a move; `self.turn` already counts it."""
        raise NotImplementedError

    def _board(self) -> str:
        """Return the current board, empty for games that have none; by default `_drawn`."""
        return self._drawn

    def _final_reward(self, outcome: Outcome) -> float:
        """Return what is added to the reward when the last turn did not win."""
        return 0.0

    def _state(self) -> str:
        """Return one line for `render`: what the player knows so far."""
        raise NotImplementedError

    def _random_move(self) -> object:
        """Return a legal move drawn from `self.action_rng`; any move when none is legal."""
        raise NotImplementedError

    def _oracle_move(self) -> object:
        """Return the next move of a policy that wins whenever the game can be won."""
        raise NotImplementedError


def _lines(*texts: str) -> str:
    return "\n".join(filter(None, texts))


def boxed(content: object) -> str:
    r"""Return `\boxed{content}`."""
    return f"\\boxed{{{content}}}"


def completed(candidates: Iterable[tuple[Any, ...]], *given: Any) -> list[tuple[Any, ...]]:
    """Return candidates for the parameters of an episode, with those that were given in place."""
    return [
        tuple(own if value is None else value for own, value in zip(drawn, given, strict=True))
        for drawn in candidates
    ]


def fitting(
    candidates: Iterable[tuple[Any, ...]],
    *given: Any,
    fits: Callable[..., bool],
    otherwise: str,
) -> list[Any]:
    """Return the different `completed` candidates whose parameters fit each other.

    Args:
        candidates: Drawn parameters, with one value for each of `given`.
        *given: Parameters that the caller chose; None where it did not.
        fits: Called with the parameters of one candidate.
        otherwise: Says which of the given parameters exclude each other.

    Raises:
        ConfigurationError: No candidate fits; `otherwise` is the message.
    """
    found = [each for each in dict.fromkeys(completed(candidates, *given)) if fits(*each)]
    if not found:
        raise ConfigurationError(otherwise)
    return found


def found_within(
    turns: int,
    secrets: Sequence[Guess],
    guess: Callable[[Sequence[Guess]], Guess],
    answer: Callable[[Guess, Guess], Any],
) -> float:
    """Return the share of secrets that a policy finds within a number of turns.

    Args:
        turns: Guesses allowed.
        secrets: What the secret can be, each as likely.
        guess: The policy: returns its guess, given the secrets that agree with all answers so far.
        answer: Returns what the player is told of a guess and a secret.
    """
    found, waiting = 0, [(secrets, 1)]
    while waiting:
        possible, turn = waiting.pop()
        tried = guess(possible)
        parts: dict[Any, list[Guess]] = {}
        for secret in possible:
            parts.setdefault(answer(tried, secret), []).append(secret)
        for part in parts.values():
            if part == [tried]:
                found += 1
            elif turn < turns:
                waiting.append((part, turn + 1))
    return found / len(secrets)


def letters(content: str) -> str | None:
    """Return the letters of a box in upper case, None if there is anything else.

    They may be separated by any mix of whitespace and commas.
    """
    return _SEPARATORS.sub("", content).upper() if _LETTERS.fullmatch(content) else None


def integers(content: str) -> tuple[int, ...] | None:
    """Return the integers of a box, None if there is anything else.

    They are separated by any mix of whitespace and commas and have at most 18 digits each: more
    than any board needs, and short enough to be echoed.
    """
    if not _INTEGERS.fullmatch(content):
        return None
    return tuple(map(int, _SEPARATORS.split(content)))
