"""Hangman: find a secret word by guessing its letters, or the word itself."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from string import ascii_uppercase

from gem.envs.games.base import (
    MAX_TURNS,
    SUCCESS_REWARD,
    Game,
    Outcome,
    boxed,
    completed,
    letters,
    refused,
)
from gem.envs.games.words import words_of_length
from gem.parameters import flag, integer, optional

_SHORTEST = 3
_LONGEST = {False: 7, True: 12, None: 7}
_HIDDEN = "_"
# Turns in which the oracle finds every word of both lists.
_ENOUGH = 16

# `(word_length, max_turns)`: one is drawn when a parameter is left open.
_CANDIDATES = ((3, 10), (5, 15), (7, 20))


class Hangman(Game[str]):
    """A secret word; a guess is one letter, or a whole word of the right length.

    A letter of the word uncovers all its places and pays `0.5 / word_length` for each; completing
    the word, by its last letter or by saying it, pays 0.5 and what was still hidden: a won game
    sums to 1.0.

    Three-letter words come in families (BET, GET, JET, ...) of which a letter rules out one member
    at a time, so not every word can be found in few turns. The secret is therefore drawn from the
    words that the oracle finds within `max_turns`, which `winnable` works out once per process.
    In 16 turns these are all words of both lists; in the 10 turns of the easy id, 232 of the 275
    common words of three letters.

    Attributes:
        word_length, hardcore: Parameters of this episode.
        secret: The word, upper case.
        known: The letters uncovered so far and `_` for the others.
        history: Every valid guess so far, in order, and whether it was right.
    """

    request = "Enter your guess."
    action_name = "guess"
    example = boxed("A")

    def __init__(
        self,
        word_length: int | None = 5,
        hardcore: bool | None = False,
        max_turns: int | None = 20,
        *,
        format_error_ends: bool = True,
        seed: int | None = None,
    ) -> None:
        """Set the parameters; those that are None are drawn at every reset.

        Args:
            word_length: Letters of the word, 3 to 7, in hardcore 3 to 12; drawn from 3, 5 and 7.
                Short words are the hard ones: they share more letters.
            hardcore: Whether the word comes from the large list of rarer words.
            max_turns: Guesses allowed; drawn together with the length from 10, 15 and 20. Few turns
                leave only words that can be found in them.
            format_error_ends: See `Game`.
            seed: Seed of the first `reset` that is not given one.

        Raises:
            ConfigurationError: A value is not allowed.
        """
        super().__init__(format_error_ends=format_error_ends, seed=seed)
        self._given_hardcore = optional(flag, "hardcore", hardcore)
        longest = _LONGEST[self._given_hardcore]
        length = optional(integer, "word_length", word_length, _SHORTEST, longest)
        turns = optional(integer, "max_turns", max_turns, 1, MAX_TURNS)
        self._candidates = completed(_CANDIDATES, length, turns)

    def _start(self) -> None:
        self.word_length, self.max_turns = self.rng.choice(self._candidates)
        self.expected = f"one letter or a word of {self.word_length} letters"
        given = self._given_hardcore
        self.hardcore = self.rng.random() < 0.5 if given is None else given
        self.secret = self.rng.choice(winnable(self.hardcore, self.word_length, self.max_turns))
        self.known = _HIDDEN * self.word_length
        self.history: dict[str, bool] = {}
        self._header = " ".join(f"C{i:02}" for i in range(self.word_length))
        self._draw()

    def _draw(self) -> None:
        self._drawn = f"{self._header}\n " + "   ".join(self.known)

    def _instructions(self) -> str:
        return (
            "You are playing Hangman.\n"
            f"You have to find the secret {self.word_length}-letter word within "
            f"{self.max_turns} turns.\n"
            "In every turn you guess one letter or the whole word. The board has the letters that "
            f"you found in their places; letters that are still hidden are shown as {_HIDDEN}.\n"
            f"{self._how_to_answer()} for a letter or "
            f"{boxed(winnable(self.hardcore, self.word_length, self.max_turns)[0])} for a word."
        )

    def _parse(self, content: str) -> str | None:
        return letters(content)

    def _play(self, move: str) -> Outcome:
        said = f"At turn {self.turn}, you guessed"
        if len(move) not in (1, self.word_length):
            return refused(f"{said} {len(move)} letter(s), but a guess is {self.expected}.")
        if move in self.history:
            return refused(f"{said} {move}, which has been already guessed before.")
        secret, before = self.secret, self.known
        self.history[move] = hit = move in secret
        if not hit:
            kind = "letter" if len(move) == 1 else "word"
            missing = "is not in the word" if len(move) == 1 else "is not the secret word"
            return Outcome(f"{said} the {kind} {move}, which {missing}.")
        self.known = uncovered(secret, before, move)
        self._draw()
        found = before.count(_HIDDEN) - self.known.count(_HIDDEN)
        reward = 0.5 * SUCCESS_REWARD * found / self.word_length
        if self.known == secret:
            return self._won(f"found the secret word {secret}", reward + 0.5 * SUCCESS_REWARD)
        return Outcome(f"{said} the letter {move}, which is in the word {found} time(s).", reward)

    def _state(self) -> str:
        guesses = ", ".join(f"{g} {'yes' if hit else 'no'}" for g, hit in self.history.items())
        return f"guesses: {guesses or 'none'}"

    def _random_move(self) -> str:
        left = [letter for letter in ascii_uppercase if letter not in self.history]
        return self.action_rng.choice(left or ascii_uppercase)

    def _oracle_move(self) -> str:
        letters = "".join(sorted(guess for guess in self.history if len(guess) == 1))
        words = tuple(sorted(guess for guess in self.history if len(guess) > 1))
        turns = max(1, self.max_turns - self.turn)
        return next_guess(self.hardcore, self.known, letters, words, turns)


def uncovered(secret: str, known: str, guess: str) -> str:
    """Return what is known of the secret after a right guess."""
    if len(guess) > 1:
        return secret
    return "".join(s if s == guess else k for s, k in zip(secret, known, strict=True))


@cache
def _places(word: str) -> Mapping[str, int]:
    """Return each letter's places in the word as a bit mask."""
    places: dict[str, int] = {}
    for place, letter in enumerate(word):
        places[letter] = places.get(letter, 0) | 1 << place
    return places


@cache
def winnable(hardcore: bool, length: int, max_turns: int) -> tuple[str, ...]:
    """Return the words of a length that the oracle finds in time, upper case, sorted.

    Takes up to a tenth of a second, once per process.
    """
    words = words_of_length(hardcore, length)
    return words if max_turns >= _ENOUGH else tuple(sorted(_found(words, "", max_turns)))


def _found(words: Sequence[str], letters: str, turns: int) -> list[str]:
    """Return which of the possible words the oracle finds, having asked for `letters`."""
    if len(words) <= turns:
        return list(words)
    if turns == 1:
        return [words[0]]
    letter = _best_guess(words, letters, turns)
    letters += letter
    groups: dict[int, list[str]] = {}
    for word in words:
        groups.setdefault(_places(word).get(letter, 0), []).append(word)
    found = []
    for places, group in groups.items():
        complete = [w for w in group if places and set(w) <= set(letters)]
        rest = [w for w in group if w not in complete]
        found += complete + _found(rest, letters, turns - 1)
    return found


def _best_guess(words: Sequence[str], letters: str, turns: int) -> str:
    """Return the word itself when one or two are possible or no turn is left to ask; else a letter.

    A family such as BET, GET, JET loses at most one member per turn, whatever is asked. So the
    letter counts best that leaves the fewest words beyond the turns left, the large groups
    counting more; then the one whose largest group is the smallest.
    """
    if len(words) <= 2 or turns == 1:
        return words[0]
    groups: dict[str, Counter[int]] = {}
    for word in words:
        for letter, places in _places(word).items():
            if letter not in letters:
                groups.setdefault(letter, Counter())[places] += 1

    def cost(letter: str) -> tuple[int, int, str]:
        sizes = [len(words) - groups[letter].total(), *groups[letter].values()]
        return sum(max(0, n - turns + 1) ** 2 for n in sizes), max(sizes), letter

    return min(groups, key=cost)


@lru_cache(maxsize=1 << 14)
def next_guess(hardcore: bool, known: str, letters: str, words: tuple[str, ...], turns: int) -> str:
    """Return the oracle's guess.

    Args:
        hardcore: Which list the word is from.
        known: The letters uncovered, `_` for the others.
        letters: Letters guessed so far.
        words: Words guessed so far.
        turns: Turns left, at least 1.
    """
    other = f"[^{letters}]" if letters else "."
    fits = re.compile(known.replace(_HIDDEN, other)).fullmatch
    words_left = filter(fits, words_of_length(hardcore, len(known)))
    possible = [word for word in words_left if word not in words]
    return _best_guess(possible, letters, turns)
