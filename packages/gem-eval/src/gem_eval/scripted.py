"""`Scripted`: a wrapper that plays the environment's own oracle or random policy.

The policy needs the environment itself, which may run in another process: so it plays where the
environment is.
"""

from __future__ import annotations

from gem.core import Env, Step, Wrapper
from gem.errors import ConfigurationError

ACTION = "gem_eval_action"
"""Key of the info that has the action which was played."""
POLICIES = {"oracle": "oracle_action", "random": "sample_random_action"}


class Scripted(Wrapper):
    """Plays a policy of the environment; the action given to `step` is not used."""

    def __init__(self, env: Env, policy: str) -> None:
        """Wrap an environment.

        Args:
            env: The environment.
            policy: One of `POLICIES`.
        """
        super().__init__(env)
        self._policy = policy

    def step(self, action: str) -> Step:
        """Play the policy's action; the info has it under `ACTION`.

        Raises:
            ConfigurationError: The environment has no such policy.
        """
        try:
            action = getattr(self.env, POLICIES[self._policy])()
        except NotImplementedError:
            spec = self.env.spec
            raise ConfigurationError(
                f"{spec.id if spec else self.env!r} has no {POLICIES[self._policy]}(), which "
                f"--model {self._policy} needs"
            ) from None
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated, truncated, {**info, ACTION: action}
