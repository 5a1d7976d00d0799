"""Stand-in for vLLM's kernels: SGLang imports these names and does not call them on CPU."""

from __future__ import annotations

from typing import Any

import sgl_kernel


def __getattr__(name: str) -> Any:
    return getattr(sgl_kernel, name)
