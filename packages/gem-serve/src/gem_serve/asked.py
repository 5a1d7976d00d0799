"""`AskedEnv`: what environments have in common whose other side asks the policy as a chat model."""

from __future__ import annotations

from typing import Any, TypeVar

from gem.contract import refusal
from gem.core import Env, Info, Step
from gem_serve.conversation import AgentProgramError
from gem_serve.inverted import Ended, Session

EnvT = TypeVar("EnvT", bound="AskedEnv")


class AskedEnv(Env):
    """An environment played by a program over a `Session`; subclasses start it and read its end.

    The reward comes with the last step. There is no `snapshot`: a program that runs cannot be
    copied.
    """

    replayable = False

    def __init__(self, name: str, timeout_s: float, *, seed: int | None = None) -> None:
        """Store settings; nothing is started.

        Args:
            name: Of the environment, for messages.
            timeout_s: Longest time, in seconds, in which the program neither asks nor ends.
            seed: Base seed of the first `reset` without one.
        """
        super().__init__(seed=seed)
        self._name = name
        self._timeout_s = timeout_s
        self._session: Session | None = None
        self._shown = ""

    def step(self, action: str) -> Step:
        """Answer the program, and wait for its next request or its end.

        Raises:
            ResetNeededError: The episode has not begun or is over.
            AgentProgramError: The program broke, or does what GEM cannot follow; the episode is
                void.
        """
        session = self._session
        if session is None or not isinstance(action, str):
            raise refusal(self._name, session is None, action)
        session.reply(action)
        ended = self._next(session)
        if ended is None:
            return self._shown, 0.0, False, False, {}
        reward, truncated, info = ended
        return "", reward, not truncated, truncated, info

    def render(self) -> str:
        """Return what the policy was shown last."""
        return self._shown

    def sample_random_action(self) -> str:
        """Return a small number; any text is a reply."""
        return str(self.action_rng.randrange(100))

    def close(self) -> None:
        """End the episode that runs; safe to repeat."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def snapshot(self) -> bytes:
        """Raise: a program that runs cannot be copied.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError(f"{self._name}: a program that runs cannot be copied")

    def spawn(self: EnvT, same_state: bool = False, seed: int | None = None) -> EnvT:
        """Return a new environment with the same parameters.

        Raises:
            NotImplementedError: With `same_state`, see `snapshot`.
        """
        if same_state:
            self.snapshot()
        child = type(self)(seed=seed, **self._parameters())
        child.spec = self.spec
        return child

    def _first(self, session: Session) -> str:
        """Return the first observation of a program that has been started."""
        self._session = session
        if self._next(session) is not None:
            raise AgentProgramError("the program ended before it asked the policy anything")
        return self._shown

    def _next(self, session: Session) -> tuple[float, bool, Info] | None:
        """Wait for a request, which is then shown; return what an ended program left."""
        try:
            observed = session.observe(self._timeout_s)
            if not isinstance(observed, Ended):
                self._shown = observed
                return None
            ended = self._outcome(observed.result)
        except BaseException:
            self.close()
            raise
        self.close()
        return ended

    def _outcome(self, result: Any) -> tuple[float, bool, Info]:
        """Return the reward, whether a limit ended the episode, and the info.

        Raises:
            AgentProgramError: The program broke.
        """
        raise NotImplementedError

    def _parameters(self) -> dict[str, Any]:
        """Return the parameters of the constructor, without the seed."""
        raise NotImplementedError
