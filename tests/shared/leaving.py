"""An environment that raises what is no ordinary exception."""

from __future__ import annotations

import asyncio
from typing import Any

from gem.core import Env


class Leaves(Env):
    """Raises in `step`; `kind` says what."""

    def __init__(self, kind: int = 0) -> None:
        super().__init__()
        self.kind = kind

    def reset(self, seed: int | None = None, **options: Any) -> Any:
        super().reset(seed=seed)
        return "go", {}

    def step(self, action: str) -> Any:
        kinds = (SystemExit(0), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError())
        raise (*kinds, StopIteration(), BaseException())[self.kind]
