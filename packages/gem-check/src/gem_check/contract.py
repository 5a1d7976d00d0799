"""The check `contract`: return types, flags, refusals to step; reports all faults at once."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from gem.contract import check_reset, check_step, plain
from gem.core import Env, Observation, Step
from gem.errors import ContractError, ResetNeededError
from gem.foreign import contained
from gem_check.playing import shown
from gem_check.subject import FaultError, SkipCheck, Subject, describe, require

# Most characters of an observation: feedback must not echo a policy's whole text.
MAX_OBSERVATION = 20_000


class Faults(AbstractContextManager["Faults"]):
    """Collects exceptions raised in `with` blocks, so that one run reports all faults."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if error is None:
            return False
        error = contained(error)
        known = isinstance(error, NotImplementedError | ContractError)
        text = str(error) if known else describe(error)
        if text not in self.found:
            self.found.append(text)
        return True

    def report(self) -> None:
        """Raise `FaultError` with all faults, if there are any."""
        if self.found:
            raise FaultError(*self.found)


def check_contract(subject: Subject) -> str:
    """Return types, flags, and refusals to step before the beginning and after the end."""
    try:
        subject.factory().reset(seed=0)
    except BaseException as error:
        raise SkipCheck("needs an environment that starts") from contained(error)
    faults = Faults()
    env = subject.factory()
    with faults:
        _require_refusal(env, "before reset()")
    steps = 0
    for seed in subject.seeds:
        ended = False
        with faults:
            taken, ended = _play(env, seed, 4 * subject.max_steps - steps)
            steps += taken
        if ended:
            with faults:
                _require_refusal(env, "after the end")
        if faults.found:
            break
    with faults:
        env.reset(seed=0)
        # Report a missing method even if a step was at fault before.
        require(isinstance(env.sample_random_action(), str), "sample_random_action() gives no str")
    with faults:
        require(isinstance(env.render(), str), "render() must return a str")
    with faults:
        env.close()
        env.close()
    with faults:
        _require_strictness(subject)
    faults.report()
    return f"{steps} steps"


def _play(env: Env, seed: int, most: int) -> tuple[int, bool]:
    """Play an episode of at most `most` steps; return their number and whether it ended.

    If `sample_random_action` fails, which is a fault of its own, the action is empty.
    """
    observation, _ = check_reset(env.reset(seed=seed))
    _require_bounded(observation, f"reset(seed={seed})")
    require(bool(shown(observation)), f"reset(seed={seed}) returned an empty observation")
    steps, done = 0, False
    while not done and steps < most:
        sampled = True
        try:
            action: Any = env.sample_random_action()
        except Exception:
            action, sampled = "", False
        if not isinstance(action, str):
            return steps, False
        step = require_step(env.step(action), f"seed {seed}, action {action!r}")
        steps += 1
        for flag in ("format_error", "invalid_action"):
            wrong = sampled and bool(step[4].get(flag, False))
            require(not wrong, f"sample_random_action() gave {action!r}, info has {flag}")
        done = step[2] or step[3]
    return steps, done


def _require_refusal(env: Env, when: str) -> None:
    try:
        env.step("")
    except ResetNeededError:
        return
    except BaseException as error:
        what = describe(contained(error))
        raise FaultError(f"step() {when} must raise ResetNeededError, not {what}") from None
    raise FaultError(f"step() {when} must raise ResetNeededError, it went on")


def _require_strictness(subject: Subject) -> None:
    try:
        subject.factory(no_such_parameter=0)
    except TypeError:
        return
    raise FaultError("the constructor must reject unknown keywords (it took no_such_parameter=0)")


def require_step(result: Any, where: str) -> Step:
    """Return the step, checked: contract, bounded observation, flags, no text hidden in info.

    Raises:
        FaultError: The step fails one of these.
    """
    try:
        step = check_step(result)
    except ContractError as error:
        raise FaultError(f"{where}: {error}") from error
    observation, _, _, _, info = step
    _require_bounded(observation, where)
    for key in ("suffix", "prefix"):
        require(key not in info, f"{where}: info[{key!r}] hides text from the observation")
    for key in ("format_error", "invalid_action"):
        value = plain(info.get(key, False))
        require(isinstance(value, bool), f"{where}: info[{key!r}] must be a bool")
    return step


def _require_bounded(observation: Observation, where: str) -> None:
    require(len(shown(observation)) <= MAX_OBSERVATION, f"{where}: observation too long")
