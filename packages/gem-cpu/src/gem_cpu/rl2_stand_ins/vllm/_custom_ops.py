"""vLLM's kernels: names that SGLang imports and does not call on CPU."""

from __future__ import annotations

from typing import Any

import sgl_kernel


def __getattr__(name: str) -> Any:
    return getattr(sgl_kernel, name)
