"""TRL on CPU: what its vLLM engine needs besides, when TRL's module of it is imported.

TRL passes neither eager mode nor a precision on to vLLM, which would compile by itself, and serve
fp32 weights in bf16. `startup/sitecustomize.py` calls `install` in every process. Nothing else of
TRL is replaced, and nothing where transformers sample.
"""

from __future__ import annotations

import functools
import os
from types import ModuleType

from gem_cpu import announce
from gem_cpu.openrlhf_plugin import DTYPE
from gem_train.imports import after_import


def install() -> None:
    """Register the replacement, which takes effect when TRL's engine is imported."""
    after_import("trl.generation.vllm_generation", _engine)


def _engine(module: ModuleType) -> None:
    announce("TRL's vLLM is eager", "torch.compile, CUDA graphs, sleep mode")
    dtype = os.environ.get(DTYPE, "auto")
    module.LLM = functools.partial(  # type: ignore[attr-defined]
        module.LLM, enforce_eager=True, dtype=dtype
    )
