"""Images of recorded episodes: files beside the record, each once, named by their digests.

`episodes.jsonl` has the digest of each image (`gem.fingerprint.canonical`), the folder `images` the
file. A record without the folder is readable, too; what needs the images says that they are
missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, MutableMapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gem.errors import RecordError
from gem.fingerprint import canonical
from gem.pictures import image_kind
from gem.trajectory import Trajectory

IMAGES = "images"
"""Folder of the files, beside `episodes.jsonl`."""

_DIGEST = re.compile(r"[0-9a-f]{1,64}")
_ENDINGS = ("png", "jpeg", "gif", "webp", "bin")


def write_images(folder: Path, trajectory: Trajectory, known: set[str]) -> None:
    """Write the images of an episode that are not there yet.

    Args:
        folder: Of the record.
        trajectory: The episode.
        known: Digests of images that are there; those that are written are added.

    Raises:
        RecordError: A file cannot be written.
    """
    for digest, data in _images(trajectory):
        if digest in known or not data:
            continue
        path = folder / IMAGES / f"{digest}.{image_kind(data) or _ENDINGS[-1]}"
        try:
            if not path.exists():
                path.parent.mkdir(exist_ok=True)
                partial = path.with_suffix(".partial")
                partial.write_bytes(data)
                partial.replace(path)
        except OSError as error:
            raise RecordError(f"cannot write {path}: {error}") from error
        known.add(digest)


def read_image(folder: Path, digest: str) -> bytes:
    """Return the file of an image; nothing if it is not there.

    Raises:
        RecordError: `digest` is none, or the file cannot be read.
    """
    if not _DIGEST.fullmatch(digest):
        raise RecordError(f"{folder}: {digest!r:.80} is not the digest of an image")
    for ending in _ENDINGS:
        path = folder / IMAGES / f"{digest}.{ending}"
        try:
            return path.read_bytes()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise RecordError(f"cannot read {path}: {error}") from error
    return b""


def with_images(
    trajectory: Trajectory, folder: Path, known: MutableMapping[str, bytes]
) -> Trajectory:
    """Return an episode of a record with the files of its images.

    Args:
        trajectory: The episode.
        folder: Of the record.
        known: Files that were read before, by digest; equal images share their bytes.

    Raises:
        RecordError: See `read_image`.
    """
    if not any(turn.images for turn in trajectory.turns):
        return trajectory
    turns = []
    for turn in trajectory.turns:
        for image in turn.images:
            if image.digest not in known:
                known[image.digest] = read_image(folder, image.digest)
        images = tuple(replace(image, data=known[image.digest]) for image in turn.images)
        turns.append(replace(turn, images=images))
    return replace(trajectory, turns=turns)


def _images(trajectory: Trajectory) -> Iterator[tuple[str, bytes]]:
    """Give digest and file of each image that an episode has in memory."""
    for turn in trajectory.turns:
        yield from ((image.digest, image.data) for image in turn.images)
        # A model that is asked by messages has no images in its turns.
        if turn.images or isinstance(turn.observation, str):
            continue
        for part in turn.observation:
            data = part.get("image")
            if part["type"] == "image" and isinstance(data, bytes):
                told: Any = canonical([part])
                yield str(told[0]["blake2b"]), data
