"""oat on CPU: replaces what oat needs of CUDA and Python 3.10, when oat is imported.

oat has no platform abstraction, so `startup/sitecustomize.py` calls `install` in every process
(see `gem_cpu.openrlhf_plugin.startup_folder`); without `GEM_CPU=1` it is not called. Replaced:

- Courier, Launchpad's compiled RPC, and vLLM, where they are not installed: `oat_stand_ins/`.
- `pyarrow.plasma`, gone since pyarrow 12: `gem_cpu.oat_plasma`.
- `torch.cuda.*`, as far as oat calls it, and `torch.empty(device="cuda")`: the CPU, or nothing.
  `GEM_CPU_DEVICES` is the number of pretended devices.
- DeepSpeed's fused Adam and shared-memory collectives, which are compiled at the start: PyTorch's
  AdamW, and Gloo.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from gem_cpu import announce, oat_plasma
from gem_cpu.openrlhf_plugin import no_compiled_collectives, nothing
from gem_train.imports import after_import

DEVICES = "GEM_CPU_DEVICES"

_state = {"installed": False}


def install() -> None:
    """Register the replacements, which take effect when oat or DeepSpeed is imported."""
    if _state["installed"] or importlib.util.find_spec("oat") is None:
        return
    _state["installed"] = True
    if importlib.util.find_spec("courier") is None:
        sys.path.append(str(Path(__file__).with_name("oat_stand_ins")))
    after_import("oat", lambda module: _replace())
    after_import("oat.utils.deepspeed", _plain_adam)
    after_import("deepspeed.comm.torch", no_compiled_collectives)


def _replace() -> None:
    announce(
        "oat runs on the CPU shims of gem-cpu",
        "CUDA, NCCL, vLLM (a stand-in samples with transformers), Courier and Plasma (stand-ins), "
        "sleep and wake-up of the engine, flash attention, FusedAdam, bf16",
    )
    if importlib.util.find_spec("pyarrow.plasma") is None:
        sys.modules["pyarrow.plasma"] = oat_plasma
    import torch

    devices, empty = int(os.environ.get(DEVICES, "1")), torch.empty
    replaced: dict[str, Any] = {
        "device_count": lambda: devices,
        "current_device": lambda: torch.device("cpu"),
        "memory_allocated": lambda *args, **kwargs: 0,
    }
    # torch.compile distinguishes patched functions by identity: make one object each.
    replaced |= {name: nothing() for name in ("set_device", "synchronize", "empty_cache")}
    for name, function in replaced.items():
        setattr(torch.cuda, name, function)

    def empty_on_cpu(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("device") == "cuda":
            kwargs["device"] = "cpu"
        return empty(*args, **kwargs)

    torch.empty = empty_on_cpu


def _plain_adam(module: ModuleType) -> None:
    import torch

    module.FusedAdam = torch.optim.AdamW  # type: ignore[attr-defined]
