"""Wrappers that make several turns of an environment whose episodes have one."""

from __future__ import annotations

from typing import Any

from gem.contract import refusal
from gem.core import Env, Info, Observation, Step, Wrapper
from gem.errors import ConfigurationError, ResetNeededError
from gem.parameters import integer
from gem.wrappers.questions import leaves_out


class _Turns(Wrapper):
    """What `Attempts` and `Series` have in common: inner episodes of one step each."""

    def __init__(self, env: Env, most: int) -> None:
        super().__init__(env)
        self.most = integer("most", most, 1, 1_000)
        self._turn = 0
        self._over = True

    def _answered(self, action: str) -> tuple[float, bool, Info]:
        """Step the inner environment; return reward, success and info.

        Raises:
            ConfigurationError: Its episode goes on, or it does not say whether it succeeded.
        """
        if self._over or not isinstance(action, str):
            raise refusal(type(self).__name__, self._over, action)
        _, reward, terminated, truncated, info = self.env.step(action)
        success = info.get("success")
        if not (terminated or truncated) or not isinstance(success, bool):
            raise ConfigurationError(
                f"{type(self).__name__} is for episodes of one step whose info has 'success', "
                f"which {self.env!r} does not have"
            )
        self._turn += 1
        return reward, success, info

    def _forget(self) -> None:
        self._over = True


class Attempts(_Turns):
    """Asks a question again until it is answered, so that an episode ends with its first success.

    After a wrong answer the observation is `again`, and the question is the same. The reward of
    each turn is the inner environment's. The last wrong answer that is allowed truncates the
    episode. "Let's try again" as the only feedback is how arXiv 2507.14295 makes tasks of one turn
    into tasks of several.
    """

    def __init__(self, env: Env, most: int = 5, again: str = "That is wrong. Try again.") -> None:
        """Wrap an environment.

        Args:
            env: Its episodes have one step, and `info["success"]` after it.
            most: Most answers of an episode.
            again: The observation after a wrong answer.

        Raises:
            ConfigurationError: `most` is not a positive integer, or `again` not a text.
        """
        super().__init__(env, most)
        if not isinstance(again, str):
            raise ConfigurationError(f"again must be a text, got {again!r:.80}")
        self.again = again

    def reset(self, seed: int | None = None, **options: Any) -> tuple[Observation, Info]:
        """Begin an episode with the next question."""
        observation, info = self.env.reset(seed=seed, **options)
        self._turn, self._over = 0, False
        return observation, info

    def step(self, action: str) -> Step:
        """Grade an answer; ask again if it is wrong."""
        before = self.env.snapshot()
        reward, success, info = self._answered(action)
        self._over = success or self._turn == self.most
        if self._over:
            return "", reward, success, not success, info
        self.env.restore(before)
        return self.again, reward, False, False, info


class Series(_Turns):
    """Asks several questions in a row, with the reward of each one at once.

    An episode has `most` inner episodes. Each observation but the first is the next question.
    `info["success"]` of the last turn says whether all answers were right. Where `Questions` leaves
    episodes out, those that it plays are counted: finding an episode by its number asks all
    questions of the seed before it.
    """

    def __init__(self, env: Env, most: int = 4) -> None:
        """Wrap an environment.

        Args:
            env: Its episodes have one step, and `info["success"]` after it.
            most: Questions of an episode.

        Raises:
            ConfigurationError: `most` is not a positive integer.
        """
        super().__init__(env, most)
        self._right = True
        self._key: tuple[int, int] | None = None
        # Questions of the seed that were asked; None if that is not known.
        self._asked: int | None = 0
        self._leaves_out = leaves_out(env)

    @property
    def episode_key(self) -> tuple[int, int]:
        """`(base seed, episode index)`; question 0 of episode e is question `e * most` inside."""
        if self._key is None or self._key[1] < 0:
            raise ResetNeededError("Series: call reset() before anything else")
        return self._key

    def seek(self, base_seed: int, episode: int) -> None:
        """Choose the next episode."""
        self.env.seek(base_seed, episode * self.most)
        self._key, self._asked = (base_seed, episode - 1), None

    def reset(self, seed: int | None = None, **options: Any) -> tuple[Observation, Info]:
        """Begin an episode; the options are those of its first question."""
        episode = 0
        if seed is None and self._key is not None:
            base, episode = self._key[0], self._key[1] + 1
            self._find(base, episode * self.most)
        observation, info = self._ask(seed, **options)
        self._key = self.env.episode_key[0], episode
        self._turn, self._over, self._right = 0, False, True
        return observation, info

    def step(self, action: str) -> Step:
        """Grade an answer and ask the next question."""
        reward, success, info = self._answered(action)
        self._right = self._right and success
        self._over = self._turn == self.most
        info = {**info, "success": self._right}
        if self._over:
            return "", reward, True, False, info
        return self._ask()[0], reward, False, False, info

    def _find(self, base: int, question: int) -> None:
        """Have the inner environment ask a question of a seed next, counted from 0."""
        if not self._leaves_out:
            self.env.seek(base, question)
            return
        if self._asked is None or self._asked > question:
            self.env.seek(base, 0)
            self._asked = 0
        for _ in range(question - self._asked):
            self._ask()

    def _ask(self, seed: int | None = None, **options: Any) -> tuple[Observation, Info]:
        """Reset the inner environment and count; after a failure the count is not known."""
        asked, self._asked = self._asked if seed is None else 0, None
        result = self.env.reset(seed=seed, **options)
        self._asked = None if asked is None else asked + 1
        return result

    def _forget(self) -> None:
        super()._forget()
        self._key, self._asked = None, 0
