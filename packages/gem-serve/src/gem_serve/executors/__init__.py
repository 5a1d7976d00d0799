"""Executors that run environments elsewhere: in actors of a Ray cluster, at a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gem.executors.base import Executor


def make_ray(workers: str | None) -> Executor:
    """Return the executor `ray:<workers>`; None for one actor a CPU of the cluster."""
    from gem_serve.executors.ray import RayExecutor

    return RayExecutor(None if workers is None else int(workers))


def make_remote(address: str | None) -> Executor:
    """Return the executor `remote:<address>`."""
    from gem_serve.executors.remote import RemoteExecutor

    return RemoteExecutor(address or "")
