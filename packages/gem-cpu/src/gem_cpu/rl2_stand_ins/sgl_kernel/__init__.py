"""Stand-in for SGLang's CUDA kernels: any name can be imported, calling it raises.

SGLang's CPU engine imports them; on a processor without AMX it calls none.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("__") or name == "scalar_type":
        raise AttributeError(name)

    def missing(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"there is no CUDA kernel {name} on CPU")

    return missing
