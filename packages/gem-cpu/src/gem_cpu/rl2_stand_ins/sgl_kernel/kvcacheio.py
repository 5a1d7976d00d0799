"""Stand-in for `sgl_kernel.kvcacheio`; see the package."""

from __future__ import annotations

from typing import Any

import sgl_kernel


def __getattr__(name: str) -> Any:
    return getattr(sgl_kernel, name)
