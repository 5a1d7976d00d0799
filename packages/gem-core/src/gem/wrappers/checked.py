"""`Checked`: checks the environment contract (`gem.contract`) at every reset and step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from gem.contract import check_reset, check_step, refusal
from gem.core import Env, Info, Observation, Step, Wrapper
from gem.errors import ContractError

T = TypeVar("T")


class Checked(Wrapper):
    """Raises if the environment breaks the contract of `gem.Env`; must be the outermost wrapper.

    `gem.make(..., checked=True)` adds it to one environment, the environment variable
    `GEM_CHECKED=1` to all. It changes nothing, except that numpy scalars become Python's.
    """

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self._forget()

    def reset(self, seed: int | None = None, **options: Any) -> tuple[Observation, Info]:
        """Reset the inner environment.

        Raises:
            ContractError: It returned what the contract does not allow.
        """
        self._forget()
        checked = self._check(check_reset, self.env.reset(seed=seed, **options))
        self._running = True
        return checked

    def step(self, action: str) -> Step:
        """Step the inner environment.

        Raises:
            ContractError: It returned what the contract does not allow.
            ResetNeededError: The episode has not begun or is over.
            TypeError: The action is not a str.
        """
        if not self._running or not isinstance(action, str):
            raise refusal(repr(self.unwrapped), not self._running, action)
        checked = self._check(check_step, self.env.step(action))
        self._running = not (checked[2] or checked[3])
        return checked

    def _forget(self) -> None:
        self._running = False

    def _check(self, check: Callable[[Any], T], returned: Any) -> T:
        try:
            return check(returned)
        except ContractError as error:
            raise ContractError(f"{self.unwrapped!r}: {error}") from None
