"""Wordle: find a secret word from green, yellow and missing letters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache

from gem.envs.games.base import (
    MAX_TURNS,
    SUCCESS_REWARD,
    Game,
    Outcome,
    boxed,
    found_within,
    letters,
    refused,
)
from gem.envs.games.words import words_of_length
from gem.parameters import flag, integer, optional

LENGTHS = (3, 7)
"""Shortest and longest words of the bundled list."""
_DRAWN_LENGTHS = (3, 4, 5)


@cache
def words(length: int, vocabulary: int | None = None) -> tuple[str, ...]:
    """Return the common words of one length, upper case, in alphabetical order.

    Args:
        length: Letters of each.
        vocabulary: How many, from all over the list; all when None.
    """
    every = words_of_length(False, length)
    if vocabulary is None:
        return every
    return tuple(every[i * len(every) // vocabulary] for i in range(vocabulary))


class Wordle(Game[str]):
    """A secret word of common English; a guess may be any string of letters.

    Feedback marks each letter G (right place), Y (elsewhere in the word) or X (not in the word);
    a letter is marked as often as the secret has it. Reward: every position that becomes green
    for the first time pays `0.5 / word_length`, the win 0.5: a won game sums to 1.0.

    Attributes:
        word_length: Letters of this episode's word.
        choices: Words that can be the secret, upper case.
        secret: The word, upper case.
        history: Feedback of every valid guess so far, in order.
        green: Positions (0-based) that were green so far.
    """

    request = "Enter your guess."
    action_name = "guess"

    def __init__(
        self,
        word_length: int | None = 5,
        max_turns: int | None = 20,
        *,
        require_word: bool = False,
        vocabulary: int | None = None,
        format_error_ends: bool = True,
        seed: int | None = None,
    ) -> None:
        """Set the parameters; those that are None are drawn at every reset.

        Args:
            word_length: Letters of the word, 3 to 7; drawn from 3 to 5.
            max_turns: Guesses allowed; five times the word length when None.
            require_word: Whether a guess must be a word that can be the secret; any other guess is
                then an invalid action.
            vocabulary: Words that can be the secret, from 2 on; the instructions list them. A
                game with few of them is easier. All words of the bundled list when None, which
                are too many to list.
            format_error_ends: See `Game`.
            seed: Seed of the first `reset` that is not given one.

        Raises:
            ConfigurationError: A value is not allowed.
        """
        super().__init__(format_error_ends=format_error_ends, seed=seed)
        self._given_length = optional(integer, "word_length", word_length, *LENGTHS)
        self._given_turns = optional(integer, "max_turns", max_turns, 1, MAX_TURNS)
        self.require_word = flag("require_word", require_word)
        lengths = (self._given_length,) if self._given_length else _DRAWN_LENGTHS
        self.vocabulary = optional(
            integer, "vocabulary", vocabulary, 2, min(len(words(length)) for length in lengths)
        )

    @property
    def oracle_success(self) -> float:  # type: ignore[override]
        """Share of the words that the oracle finds within the turns.

        Where the length is drawn, the least of all lengths. Takes up to a few seconds.
        """
        return min(
            _oracle_finds(
                words(length, self.vocabulary), self.require_word, self._given_turns or 5 * length
            )
            for length in ((self._given_length,) if self._given_length else _DRAWN_LENGTHS)
        )

    def _start(self) -> None:
        self.word_length = self._given_length or self.rng.choice(_DRAWN_LENGTHS)
        self.max_turns = self._given_turns or 5 * self.word_length
        self.choices = words(self.word_length, self.vocabulary)
        self.secret = self.rng.choice(self.choices)
        self.history: dict[str, str] = {}
        self.green: set[int] = set()
        self.expected = f"a word of {self.word_length} letters"
        self.example = boxed(self.choices[0])

    def _instructions(self) -> str:
        return (
            "You are playing Wordle.\n"
            f"You have to guess the secret {self.word_length}-letter word within "
            f"{self.max_turns} turns.\n"
            f"{self._listed()}"
            "After you enter your guess, it is marked as follows:\n"
            "  - G (green): correct letter in the correct position\n"
            "  - Y (yellow): letter exists in the word but in the wrong position\n"
            "  - X (wrong): letter is not in the word\n"
            f"{self._how_to_answer()}."
        )

    def _listed(self) -> str:
        if self.vocabulary is None:
            return ""
        return f"The secret is one of these words: {', '.join(self.choices)}.\n"

    def _parse(self, content: str) -> str | None:
        return letters(content)

    def _play(self, move: str) -> Outcome:
        said = f"At turn {self.turn}, you guessed"
        if len(move) != self.word_length:
            return refused(
                f"{said} {len(move)} letter(s), but the secret word has {self.word_length}."
            )
        if self.require_word and move not in self.choices:
            return refused(f"{said} {move}, which is not in the word list.")
        if move in self.history:
            return refused(f"{said} {move}, which has been already guessed before.")
        marks = self.history[move] = mark(move, self.secret)
        fresh = {i for i, m in enumerate(marks) if m == "G"} - self.green
        self.green |= fresh
        reward = 0.5 * SUCCESS_REWARD * len(fresh) / self.word_length
        if move == self.secret:
            return self._won(f"guessed the secret word {move}", reward + 0.5 * SUCCESS_REWARD)
        return Outcome(f"{said} {move}.\nFeedback:\n{move}\n{marks}", reward)

    def _state(self) -> str:
        guesses = ", ".join(f"{guess} {marks}" for guess, marks in self.history.items())
        return f"{self.word_length} letters; guesses: {guesses or 'none'}"

    def _random_move(self) -> str:
        move = self.action_rng.choice(self.choices)
        # Guesses outside the list only make the loop end sooner than it must.
        while move in self.history and len(self.history) < len(self.choices):
            move = self.action_rng.choice(self.choices)
        return move

    def _oracle_move(self) -> str:
        return next_guess(self.choices, self.history, self.require_word)


def mark(guess: str, secret: str) -> str:
    """Return the feedback `G`, `Y` or `X` per letter; both words have the same length."""
    left = [s for g, s in zip(guess, secret, strict=True) if g != s]
    marks = ""
    for g, s in zip(guess, secret, strict=True):
        if g == s:
            marks += "G"
        elif g in left:
            left.remove(g)
            marks += "Y"
        else:
            marks += "X"
    return marks


def next_guess(choices: tuple[str, ...], history: Mapping[str, str], require_word: bool) -> str:
    """Return a guess that narrows down the words agreeing with `history` (guess to feedback).

    Args:
        choices: Words that can be the secret.
        history: Guesses so far, each with its feedback.
        require_word: Whether a guess must be one of `choices`.
    """
    if not history:
        return _first_guess(choices, require_word)
    possible = [w for w in choices if all(mark(g, w) == m for g, m in history.items())]
    return splitting_guess(possible, choices if require_word else None)


@cache
def _first_guess(choices: tuple[str, ...], require_word: bool) -> str:
    return splitting_guess(choices, choices if require_word else None)


@cache
def _oracle_finds(choices: tuple[str, ...], require_word: bool, turns: int) -> float:
    allowed = choices if require_word else None
    return found_within(turns, choices, lambda left: splitting_guess(left, allowed), mark)


def splitting_guess(possible: Sequence[str], allowed: Sequence[str] | None) -> str:
    """Return a guess after which few of the `possible` words (at least one) remain.

    A family such as CAT, HAT, MAT would cost one guess a word if only possible words were tried.
    So the best of them competes with a guess made of the letters that tell the words apart best:
    one that occurs in half of them halves them. Such a guess is one of the `allowed` words, or any
    string of letters where these are None.
    """
    if len(possible) <= 2:
        return possible[0]
    length = len(possible[0])
    occurrences = Counter(letter for word in possible for letter in set(word))
    value = {letter: min(n, len(possible) - n) for letter, n in occurrences.items()}

    def told_apart(word: str) -> int:
        return sum(value.get(letter, 0) for letter in set(word))

    def largest_group(guess: str) -> int:
        return max(Counter(mark(guess, word) for word in possible).values())

    hit = max(possible, key=told_apart)
    if allowed is not None:
        probe = max(allowed, key=told_apart)
    else:
        probe = "".join(sorted(value, key=lambda c: (-value[c], c))[:length]).ljust(length, hit[0])
    return min(hit, probe, key=largest_group)
