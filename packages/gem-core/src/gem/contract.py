"""Checks what environments return from `reset` and `step`; decides whether an episode succeeded.

The drivers of `gem.rollout` and vector environments call it after every call to an environment.
The checks return copies, so that an environment may use its lists and dicts again. Images are not
copied.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gem.core import Info, Observation, Step
from gem.errors import ContractError, ResetNeededError

_KINDS = ("text", "image")
_MOST_BITS = 1024
_SUCCESS_KEYS = ("success", "correct")
"""Keys of an info that say whether an episode succeeded; the first one present decides."""


def check_reset(result: Any) -> tuple[Observation, Info]:
    """Return the result of a `reset` if the contract of `gem.core.Env` allows it.

    Raises:
        ContractError: The result is not `(observation, info)`; the message says what it is.
    """
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise ContractError(f"reset() must return (observation, info), got {_shown(result)}")
    observation, info = result
    return _checked_observation(observation, "reset"), _checked_info(info, "reset")


def check_step(result: Any) -> Step:
    """Return the result of a `step`, with reward and flags as Python's own types.

    Args:
        result: `(observation, reward, terminated, truncated, info)`: text, or a list of text and
            image parts; a finite number; two booleans, not both true; a dict. NumPy scalars count
            as numbers and booleans.

    Raises:
        ContractError: The result is something else; the message says what.
    """
    if not isinstance(result, tuple | list) or len(result) != 5:
        raise ContractError(
            "step() must return (observation, reward, terminated, truncated, info), "
            f"got {_shown(result)}"
        )
    observation, reward, terminated, truncated, info = result
    reward = plain(reward)
    if not isinstance(reward, int | float):
        raise ContractError(f"step() must return a number as reward, got {_shown(reward)}")
    reward = float(reward)
    if not math.isfinite(reward):
        raise ContractError(f"step() must return a finite reward, got {reward}")
    terminated, truncated = plain(terminated), plain(truncated)
    if not isinstance(terminated, bool) or not isinstance(truncated, bool):
        raise ContractError(
            "step() must return booleans, got "
            f"terminated={_shown(terminated)}, truncated={_shown(truncated)}"
        )
    if terminated and truncated:
        raise ContractError("step() must not return terminated and truncated at once")
    info = _checked_info(info, "step")
    return _checked_observation(observation, "step"), reward, terminated, truncated, info


def succeeded(reward: float, terminated: bool, info: Mapping[str, Any]) -> bool:
    """Return whether an episode succeeded, given the result of its last step.

    `info["success"]` decides. If it is missing or None, `info["correct"]` decides. If both are
    missing, the episode succeeded if it terminated with a positive reward. Trajectories, metrics
    and the checker all use this function.

    Args:
        reward: Reward of the last step.
        terminated: Flag of the last step.
        info: Info of the last step.
    """
    for key in _SUCCESS_KEYS:
        success = info.get(key)
        if success is not None:
            return bool(success)
    return terminated and reward > 0


def shown(observation: Observation) -> str:
    """Return an observation as text for a person."""
    if isinstance(observation, str):
        return observation
    return "\n".join(part.get("text", f"[{part.get('type')}]") for part in observation)


def refusal(env: str, over: bool, action: Any) -> Exception:
    """Return the error of a `step` that is not allowed.

    Args:
        env: Name of the environment.
        over: Whether the episode has not begun or is over; else the action is no text.
        action: The action.
    """
    if over:
        return ResetNeededError(f"{env}: the episode has not begun or is over; call reset()")
    return TypeError(f"action must be a str, got {type(action).__name__}")


def plain(value: Any) -> Any:
    """Convert a NumPy scalar or zero-dimensional array to a Python value."""
    # `np.bool_` is not a bool, and `np.float32` is not a float.
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return value.item()
    return value


def scalars(info: Info) -> dict[str, Any]:
    """Return the entries of an info that JSON can represent; NumPy scalars become Python's.

    Left out are also integers that Python refuses to write or read as text.
    """
    kept: dict[str, Any] = {}
    for key, value in info.items():
        value = plain(value)
        if isinstance(key, str) and is_scalar(value):
            kept[key] = value
    return kept


def is_scalar(value: Any) -> bool:
    """Whether JSON can represent a value that is no list or dict."""
    if isinstance(value, int):
        return value.bit_length() <= _MOST_BITS
    return value is None or isinstance(value, float | str)


def _checked_info(info: Any, call: str) -> Info:
    if not isinstance(info, dict):
        raise ContractError(f"{call}() must return a dict as info, got {_shown(info)}")
    for key in _SUCCESS_KEYS:
        success = info.get(key)
        if success is None or success is True or success is False:
            continue
        success = plain(success)
        if not isinstance(success, int | float) or success not in (0, 1):
            raise ContractError(
                f"{call}() must return a boolean as info[{key!r}], got {_shown(success)}"
            )
    return dict(info)


def _checked_observation(observation: Any, call: str) -> Observation:
    if isinstance(observation, str):
        _check_text(observation, call)
        return observation
    if not isinstance(observation, list | tuple):
        raise ContractError(
            f"{call}() must return text as observation, or a list of parts, "
            f"got {_shown(observation)}"
        )
    for part in observation:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in _KINDS or kind not in part:
            raise ContractError(
                f"{call}() returned an observation with the part {_shown(part)}; a part is "
                '{"type": "text", "text": ...} or {"type": "image", "image": ...}'
            )
        if kind == "text":
            if not isinstance(part["text"], str):
                raise ContractError(
                    f"{call}() returned an observation whose text is {_shown(part['text'])}"
                )
            _check_text(part["text"], call)
    parts: list[Any] = [dict(part) for part in observation]
    return parts


def _check_text(text: str, call: str) -> None:
    """Refuse lone surrogates (half of a character), which no tokenizer can encode."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ContractError(f"{call}() returned text that is not valid Unicode: {error}") from error


def _shown(value: Any) -> str:
    text = f"{type(value).__name__} {value!r}"
    return text if len(text) <= 100 else f"{text[:97]}..."
