"""`verifier="auto"`: whether a solution passes where the system is put back, found out once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping

from gem_box.folders import Folder
from gem_box.images import base, cache, locked, state, used

PRISTINE, SHARED = "pristine", "shared"


def chosen(
    task: Folder,
    image: str | None,
    limits: Mapping[str, int | None],
    reward_key: str | None,
    earned: Callable[[str], float],
) -> str:
    """Return `shared` if the task's solution earns 1 only there, else `pristine`.

    The answer is kept in the cache, for the content of the task's folder, the image, the limits and
    the reward; it is not if the solution earns 1 nowhere, which says nothing of the task.

    Args:
        task: The task.
        image: As of `HarborEnv`.
        limits: Of the box in which the solution is played.
        reward_key: As of `HarborEnv`.
        earned: Returns what the solution earns with `pristine` or `shared`.

    Raises:
        ConfigurationError: The image is not here.
        UnreachableError: A box is gone.
    """
    name, builds = used(task, image)
    settings = f"{name} {builds} {sorted(limits.items())} {reward_key!r}\n"
    known = hashlib.sha256(f"{settings}{state(base(name))}".encode())
    for path in sorted(task.path.rglob("*")):
        if path.is_file():
            known.update(f"{path.relative_to(task.path)} {path.stat().st_mode}\n".encode())
            known.update(hashlib.sha256(path.read_bytes()).digest())
    place = cache() / "verifiers" / known.hexdigest()[:32]
    with locked(place):
        if place.is_file():
            return place.read_text(encoding="utf-8")
        for mode in (PRISTINE, SHARED):
            if earned(mode) >= 1:
                place.write_text(mode, encoding="utf-8")
                return mode
        return PRISTINE
