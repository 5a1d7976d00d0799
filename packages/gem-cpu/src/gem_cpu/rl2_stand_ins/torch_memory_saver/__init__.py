"""Stand-in for torch-memory-saver, with which SGLang releases GPU memory: does nothing."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any


class _Saver:
    enabled = True

    def region(self, *args: Any, **kwargs: Any) -> AbstractContextManager[None]:
        return nullcontext()

    cuda_graph = disable = region

    def pause(self, *args: Any, **kwargs: Any) -> None: ...

    resume = pause


torch_memory_saver = _Saver()


def configure_subprocess() -> AbstractContextManager[None]:
    return nullcontext()
