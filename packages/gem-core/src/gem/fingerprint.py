"""Fingerprints: two short hashes, of an episode's inputs (`key`) and of its outputs (`outcome`).

A reproducible environment gives equal outcomes for equal keys. The hashed text is JSON with sorted
keys, so that a fingerprint is the same on every platform.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gem.core import Observation
from gem.errors import ConfigurationError
from gem.version import __version__

if TYPE_CHECKING:
    from gem.tasks import Task
    from gem.trajectory import Trajectory

ORIENTATION = 0x0112
"""EXIF tag. Some readers obey it, some do not; the same holds for transparency."""
_DIGEST_BYTES = 12
_PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class Fingerprint:
    """Hashes of the inputs and outputs of an episode."""

    version: str
    """Version of gem-core that played the episode; not hashed."""
    key: str
    """Hash of environment id (its version, `-v0`, included), parameters, seed and actions."""
    outcome: str
    """Hash of observations, rewards and flags."""

    def __str__(self) -> str:
        return f"{self.version}:{self.key}:{self.outcome}"

    @classmethod
    def parse(cls, text: str) -> Fingerprint:
        """Parse the text that `str` returns.

        Raises:
            ConfigurationError: Not a fingerprint.
        """
        parts = text.split(":")
        if len(parts) != 3 or not all(parts):
            raise ConfigurationError(f"a fingerprint is <version>:<key>:<outcome>, got {text!r}")
        return cls(*parts)


def fingerprint(trajectory: Trajectory) -> Fingerprint:
    """Return the fingerprint of an episode.

    It covers the turns played, so an episode that a budget cut short has one, too. Equal keys
    imply the same number of turns.

    Raises:
        ConfigurationError: A parameter of the task cannot be written as JSON.
    """
    task, turns = trajectory.task, trajectory.turns
    actions = [turn.text for turn in turns]
    # Adding 0.0 turns -0.0 into 0.0.
    seen: list[Any] = [
        [canonical(turn.observation), float(turn.reward) + 0.0, turn.terminated, turn.truncated]
        for turn in turns
    ]
    if trajectory.final_observation is not None:
        seen.append(canonical(trajectory.final_observation))
    inputs: list[Any] = [task.env_id, dict(task.params), task.seed, actions]
    if trajectory.agent is not None:
        # What an agent is shown depends on the others' actions, too.
        inputs += [trajectory.agent, trajectory.match]
    return Fingerprint(__version__, _digest(inputs), _digest(seen))


def match_digest(task: Task, actions: Sequence[Mapping[str, str]]) -> str:
    """Return the hash of a match's inputs.

    Args:
        task: The task.
        actions: What the agents did in each step, by agent.
    """
    played = [dict(each) for each in actions]
    return _digest([task.env_id, dict(task.params), task.seed, played])


def canonical(observation: Observation) -> str | list[dict[str, str]]:
    """Return an observation as JSON values; images are replaced by a hash of their bytes."""
    if isinstance(observation, str):
        return observation
    parts = []
    for part in observation:
        if part.get("type") == "text":
            parts.append({"type": "text", "text": part.get("text", "")})
        else:
            parts.append({"type": str(part.get("type")), "blake2b": _image_digest(part)})
    return parts


def _image_digest(part: Mapping[str, Any]) -> str:
    if "blake2b" in part:
        return str(part["blake2b"])
    image: Any = part.get("image")
    if isinstance(image, str | Path):
        image = Path(image).read_bytes()
    elif hasattr(image, "tobytes"):
        # An image in memory: hash also what the pixel bytes do not contain and readers look at.
        seen = f"{getattr(image, 'mode', '')}{getattr(image, 'size', '')}".encode()
        seen += image.tobytes()
        if hasattr(image, "getexif"):
            # Not the palette itself: of colours that no pixel has, files keep more or fewer.
            if image.mode in ("P", "PA") or "transparency" in image.info:
                seen += image.convert("RGBA").tobytes()
            if (turned := image.getexif().get(ORIENTATION)) is not None:
                seen += f"{ORIENTATION}={turned}".encode()
        image = seen
    if not isinstance(image, bytes | bytearray):
        raise ConfigurationError(
            f"an observation's image is a path, bytes or a PIL image, got {type(image).__name__}"
        )
    return blake2b(_pixels(bytes(image)), digest_size=_DIGEST_BYTES).hexdigest()


def _pixels(file: bytes) -> bytes:
    """Return a PNG file with its pixels unpacked: other versions of zlib pack them otherwise."""
    if not file.startswith(_PNG):
        return file
    others, packed, at = [_PNG], b"", len(_PNG)
    while at < len(file):
        length = int.from_bytes(file[at : at + 4], "big")
        kind, data = file[at + 4 : at + 8], file[at + 8 : at + 8 + length]
        if kind == b"IDAT":
            packed += data
        else:
            others += [kind, data]
        at += 12 + length
    try:
        return b"".join([*others, zlib.decompress(packed)])
    except zlib.error:  # a damaged file is hashed as it is
        return file


def _digest(value: Any) -> str:
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    except TypeError as error:
        raise ConfigurationError(f"a fingerprint covers JSON values only: {error}") from error
    return blake2b(text.encode("ascii"), digest_size=_DIGEST_BYTES).hexdigest()
