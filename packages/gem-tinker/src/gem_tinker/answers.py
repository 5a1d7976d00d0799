"""Waiting for the SDK's futures."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import tinker

T = TypeVar("T")


async def answer(future: Awaitable[T], timeout_s: float) -> T:
    """Wait for the server, but not for ever.

    Raises:
        tinker.TinkerError: The server refused or failed the request.
        asyncio.TimeoutError: There is no answer in time.
    """
    try:
        return await asyncio.wait_for(future, timeout_s)
    except ValueError as error:
        # So the SDK wraps what it has given up on.
        if isinstance(error.__cause__, tinker.TinkerError):
            raise error.__cause__ from error
        raise
